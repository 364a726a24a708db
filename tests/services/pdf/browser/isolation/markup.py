"""What a page can ask for without a script: elements, styles, frames, hints, addresses, files."""

from __future__ import annotations

from typing import Final

from tests.services.pdf.browser.isolation.vector import Vector

IMAGES: Final = (
    Vector("img", '<img src="[png]">'),
    Vector("srcset", '<img srcset="[png] 1x">'),
    Vector("picture-source", '<picture><source srcset="[png]"><img></picture>'),
    Vector("lazy-img", '<img loading=lazy style="margin-top:4000px" src="[png]">'),
    Vector("input-image", '<input type=image src="[png]">'),
    Vector("body-background", '<table background="[png]"><td>x</table>'),
    Vector("video", '<video src="[media]" preload=auto></video>'),
    Vector("video-poster", '<video poster="[png]"></video>'),
    Vector("video-source", '<video preload=auto><source src="[media]"></video>'),
    Vector("audio", '<audio src="[media]" preload=auto></audio>'),
    Vector(
        "track",
        '<video crossorigin src="data:video/mp4,x"><track default kind=captions src="[vtt]">'
        "</video>",
    ),
    Vector("svg-image", '<svg><image href="[png]" width=9 height=9 /></svg>'),
    Vector("svg-xlink-image", '<svg><image xlink:href="[png]" width=9 height=9 /></svg>'),
    Vector("svg-use", '<svg><use href="[svg]#a"/></svg>', home="http"),
    Vector(
        "svg-feimage",
        '<svg width=9 height=9><filter id=f><feImage href="[png]"/></filter>'
        '<rect width=9 height=9 filter="url(#f)"/></svg>',
    ),
    Vector(
        "svg-foreign-object",
        "<svg width=9 height=9><foreignObject width=9 height=9>"
        '<img src="[png]"/></foreignObject></svg>',
    ),
)

STYLES: Final = (
    Vector("link-stylesheet", '<link rel=stylesheet href="[css]">'),
    Vector("alternate-stylesheet", '<link rel="alternate stylesheet" title=b href="[css]">'),
    Vector("print-stylesheet", '<link rel=stylesheet media=print href="[css]">'),
    Vector("import", "<style>@import url([css]);</style>"),
    Vector("nested-import", '<link rel=stylesheet href="[nested]">'),
    Vector("data-stylesheet", "<link rel=stylesheet href=\"data:text/css,@import '[css]'\">"),
    Vector("background", "<style>body{background:url([png])}</style>"),
    Vector("inline-style", '<div style="background-image:url([png])">x</div>'),
    Vector("image-set", '<div style="background-image:image-set(url([png]) 1x)">x</div>'),
    Vector("print-background", "<style>@media print{p{background:url([png])}}</style>"),
    Vector("font-face", "<style>@font-face{font-family:F;src:url([font])}p{font-family:F}</style>"),
    Vector("mask", "<style>p{mask-image:url([png])}</style>"),
    Vector("cursor", "<style>p{cursor:url([png]),auto}</style>"),
    Vector("list-style", "<style>li{list-style-image:url([png])}</style><ul><li>l</ul>"),
    Vector("border-image", "<style>p{border:9px solid;border-image:url([png]) 9}</style>"),
    Vector("content", "<style>p::before{content:url([png])}</style>"),
    Vector("shape-outside", "<style>p{float:left;shape-outside:url([png])}</style>"),
    Vector("filter", "<style>p{filter:url([svg]#f)}</style>", home="http"),
    Vector("clip-path", "<style>p{clip-path:url([svg]#c)}</style>", home="http"),
    Vector("box-reflect", "<style>p{-webkit-box-reflect:below 0 url([png])}</style>"),
    Vector("page-margin-box", "<style>@page{@top-left{content:url([png])}}</style>"),
    Vector("cascade-layer", "<style>@import url([css]) layer(a);</style>"),
)

FRAMES: Final = (
    Vector("iframe", '<iframe src="[html]"></iframe>'),
    Vector("lazy-iframe", '<iframe loading=lazy src="[html]"></iframe>'),
    Vector("srcdoc", "<iframe srcdoc=\"<img src='[png]'>\"></iframe>"),
    Vector("data-frame", "<iframe src=\"data:text/html,<img src='[png]'>\"></iframe>"),
    Vector("sandboxed-frame", '<iframe sandbox src="[html]"></iframe>'),
    Vector("object", '<object data="[html]"></object>'),
    Vector("embed", '<embed src="[html]">'),
    Vector("svg-object", '<object type="image/svg+xml" data="[svg]"></object>'),
    Vector("meta-refresh", '<meta http-equiv=refresh content="0;url=[html]">'),
    Vector(
        "frame-meta-refresh",
        "<iframe srcdoc=\"<meta http-equiv=refresh content='0;url=[html]'>\"></iframe>",
    ),
    Vector(
        "xml-stylesheet",
        '<iframe src=\'data:text/xml,<?xml-stylesheet type="text/css" href="[css]"?><a/>\'>'
        "</iframe>",
    ),
)

HINTS: Final = (
    Vector("prefetch", '<link rel=prefetch href="[text]">'),
    Vector("preload", '<link rel=preload as=image href="[png]">'),
    Vector("preload-srcset", '<link rel=preload as=image imagesrcset="[png] 1x">'),
    Vector("preload-font", '<link rel=preload as=font crossorigin href="[font]">'),
    Vector("modulepreload", '<link rel=modulepreload href="[js]">', script=True),
    Vector("icon", '<link rel=icon href="[png]">'),
    Vector("manifest", '<link rel=manifest href="[text]">'),
    Vector("compression-dictionary", '<link rel=compression-dictionary href="[text]">'),
    Vector("preconnect", '<link rel=preconnect href="http://127.0.0.1:[port]">', listener="tcp"),
    Vector("dns-prefetch", '<link rel=dns-prefetch href="http://[host]">', listener="dns"),
    Vector("dns-preconnect", '<link rel=preconnect href="http://[host]">', listener="dns"),
    Vector("dns-img", '<img src="http://[host]/x.png">', listener="dns"),
    Vector("dns-link-prefetch", '<link rel=prefetch href="http://[host]/x">', listener="dns"),
    Vector("dns-iframe", '<iframe src="http://[host]/"></iframe>', listener="dns"),
    Vector("dns-stylesheet", '<link rel=stylesheet href="http://[host]/x.css">', listener="dns"),
)

ADDRESSES: Final = (
    Vector("localhost", '<img src="http://localhost:[httpport]/png/[name]">'),
    Vector("all-zero-address", '<img src="http://0.0.0.0:[httpport]/png/[name]">'),
    Vector("decimal-address", '<img src="http://2130706433:[httpport]/png/[name]">'),
    Vector("hex-address", '<img src="http://0x7f.0.0.0x1:[httpport]/png/[name]">'),
    Vector("octal-address", '<img src="http://0177.0.0.1:[httpport]/png/[name]">'),
    Vector("short-address", '<img src="http://127.1:[httpport]/png/[name]">'),
    Vector("ipv6-mapped", '<img src="http://[::ffff:127.0.0.1]:[httpport]/png/[name]">'),
    Vector("ipv6-mapped-hex", '<img src="http://[::ffff:7f00:1]:[httpport]/png/[name]">'),
    Vector("userinfo", '<img src="http://u:p@127.0.0.1:[httpport]/png/[name]">'),
    Vector("base-href", '<base href="http://127.0.0.1:[httpport]/png/"><img src="[name]">'),
    Vector("tls", '<img src="https://127.0.0.1:[port]/">', listener="tcp"),
    Vector("metadata", '<img src="[metadata]">'),
    Vector("metadata-iframe", '<iframe src="[metadata]"></iframe>'),
    Vector("redirect", '<img src="[hop]">'),
    Vector("redirect-stylesheet", '<link rel=stylesheet href="[hop]">'),
    Vector("redirect-iframe", '<iframe src="[hop]"></iframe>'),
    Vector("redirect-to-metadata", '<img src="[metadatahop]">'),
)

FILES: Final = (
    Vector("file-img", '<img src="[file]">', listener="file", home="file"),
    Vector("file-stylesheet", '<link rel=stylesheet href="[file]">', listener="file", home="file"),
    Vector("file-import", "<style>@import url([file]);</style>", listener="file", home="file"),
    Vector(
        "file-background",
        "<style>body{background:url([file])}</style>",
        listener="file",
        home="file",
    ),
    Vector("file-iframe", '<iframe src="[file]"></iframe>', listener="file", home="file"),
    Vector("file-object", '<object data="[file]"></object>', listener="file", home="file"),
    Vector("file-embed", '<embed src="[file]">', listener="file", home="file"),
    Vector(
        "file-script", '<script src="[file]"></script>', listener="file", home="file", script=True
    ),
    Vector(
        "file-svg-image",
        '<svg><image href="[file]" width=9 height=9 /></svg>',
        listener="file",
        home="file",
    ),
    Vector("file-video", '<video preload=auto src="[file]"></video>', listener="file", home="file"),
    Vector(
        "file-meta-refresh",
        '<meta http-equiv=refresh content="0;url=[file]">',
        listener="file",
        home="file",
    ),
)

MARKUP: Final = (*IMAGES, *STYLES, *FRAMES, *HINTS, *ADDRESSES, *FILES)
