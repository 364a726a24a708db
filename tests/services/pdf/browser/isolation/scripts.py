"""What a page can ask for with a script: requests, workers, windows, sockets, last moments."""

from __future__ import annotations

from typing import Final

from tests.services.pdf.browser.isolation.vector import Home, Listener, Vector


def _script(
    name: str,
    code: str,
    *,
    before: str = "",
    listener: Listener = "http",
    home: Home = "blank",
) -> Vector:
    body = f"{before}<script>{code}</script>"
    return Vector(name, body, listener=listener, script=True, home=home)


def _worker(name: str, code: str) -> Vector:
    return _script(name, f"new Worker(URL.createObjectURL(new Blob([`{code}`])))")


REQUESTS: Final = (
    Vector("script", '<script src="[js]"></script>', script=True),
    Vector("deferred-script", '<script defer src="[js]"></script>', script=True),
    Vector("module", '<script type=module src="[js]"></script>', script=True),
    Vector("module-import", '<script type=module>import "[js]"</script>', script=True),
    Vector("svg-script", '<svg><script href="[js]"/></svg>', script=True),
    _script("dynamic-import", "import('[js]').catch(()=>0)"),
    _script("fetch", "fetch('[text]',{mode:'no-cors'}).catch(()=>0)"),
    _script("fetch-post", "fetch('[text]',{mode:'no-cors',method:'POST',body:'x'}).catch(()=>0)"),
    _script("fetch-preflight", "fetch('[text]',{headers:{'x-a':'b'}}).catch(()=>0)"),
    _script("fetch-keepalive", "fetch('[text]',{mode:'no-cors',keepalive:true}).catch(()=>0)"),
    _script("fetch-redirect", "fetch('[hop]',{mode:'no-cors'}).catch(()=>0)"),
    _script("fetch-later", "fetchLater('[text]',{activateAfter:0})", home="http"),
    _script("xhr", "const x=new XMLHttpRequest;x.open('GET','[text]');x.send()"),
    _script(
        "xhr-synchronous",
        "try{const x=new XMLHttpRequest;x.open('GET','[text]',false);x.send()}catch(e){}",
    ),
    _script("beacon", "navigator.sendBeacon('[text]','x')"),
    _script("event-source", "new EventSource('[text]')"),
    _script("image-object", "new Image().src='[png]'"),
    _script("audio-object", "new Audio('[media]').load()"),
    _script("font-object", "new FontFace('F','url([font])').load().catch(()=>0)"),
    _script(
        "ping",
        "document.getElementById('a').click()",
        before='<a id=a ping="[text]" href="#x">x</a>',
    ),
    _script("late-stylesheet", "document.head.innerHTML='<link rel=stylesheet href=\"[css]\">'"),
    _script("document-write", "document.write('<img src=\"[png]\">')"),
    _script(
        "shadow-root", "document.body.attachShadow({mode:'open'}).innerHTML='<img src=\"[png]\">'"
    ),
    _script(
        "before-print",
        "onbeforeprint=()=>{new Image().src='[png]'}",
    ),
    _script("print-media-query", "matchMedia('print').onchange=()=>{new Image().src='[png]'}"),
    _script("at-page-hide", "onpagehide=()=>navigator.sendBeacon('[text]','x')"),
    _script("at-unload", "onunload=()=>fetch('[text]',{mode:'no-cors',keepalive:true})"),
    _script(
        "xslt-import",
        "const d=s=>new DOMParser().parseFromString(s,'text/xml');const p=new XSLTProcessor();"
        'p.importStylesheet(d(\'<xsl:stylesheet version="1.0" '
        'xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:import href="[xsl]"/>'
        "</xsl:stylesheet>'));p.transformToFragment(d('<a/>'),document)",
        home="http",
    ),
    _script(
        "audio-worklet",
        "new OfflineAudioContext(1,9,8000).audioWorklet.addModule('[js]').catch(()=>0)",
        home="http",
    ),
    _script("paint-worklet", "CSS.paintWorklet.addModule('[js]').catch(()=>0)", home="http"),
)

WORKERS: Final = (
    _worker("worker-fetch", "fetch('[text]',{mode:'no-cors'})"),
    _worker("worker-xhr", "const x=new XMLHttpRequest;x.open('GET','[text]');x.send()"),
    _worker("worker-import-scripts", "importScripts('[js]')"),
    _worker("worker-event-source", "new EventSource('[text]')"),
    _worker("worker-websocket", "new WebSocket('[ws]')"),
    _worker(
        "nested-worker",
        'new Worker(URL.createObjectURL(new Blob([\'fetch("[text]",{mode:"no-cors"})\'])))',
    ),
    _script(
        "shared-worker",
        "new SharedWorker(URL.createObjectURL(new Blob([`fetch('[text]',{mode:'no-cors'})`])))",
        home="http",
    ),
    _script("data-worker", "new Worker(\"data:text/javascript,fetch('[text]',{mode:'no-cors'})\")"),
)

WINDOWS: Final = (
    _script("location", "location='[html]'"),
    _script("location-replace", "location.replace('[html]')"),
    _script("frame-location", "f.location='[html]'", before="<iframe name=f></iframe>"),
    _script("window-open", "open('[html]')"),
    _script("window-open-noopener", "open('[html]','_blank','noopener')"),
    _script(
        "popup-writes",
        "const w=open('about:blank');w.document.write('<img src=\"[png]\">');w.document.close()",
    ),
    _script("form", "f.submit()", before='<form id=f action="[html]"></form>'),
    _script(
        "form-post-in-frame",
        "f.submit()",
        before='<form id=f method=post action="[html]" target=t></form><iframe name=t></iframe>',
    ),
    _script("form-popup", "f.submit()", before='<form id=f target=_blank action="[html]"></form>'),
    _script("link-click", "a.click()", before='<a id=a href="[html]">x</a>'),
    _script("link-popup", "a.click()", before='<a id=a target=_blank href="[html]">x</a>'),
    _script("download", "a.click()", before='<a id=a download href="[text]">x</a>'),
    _script(
        "blob-frame",
        "const i=document.createElement('iframe');i.src=URL.createObjectURL("
        "new Blob(['<img src=\"[png]\">'],{type:'text/html'}));document.body.append(i)",
    ),
    _script(
        "javascript-frame",
        "const i=document.createElement('iframe');"
        "i.src='javascript:\"<img src=[png]>\"';document.body.append(i)",
    ),
    Vector(
        "speculation-prefetch",
        '<script type=speculationrules>{"prefetch":[{"source":"list","urls":["[html]"],'
        '"eagerness":"immediate"}]}</script>',
        script=True,
    ),
    Vector(
        "speculation-prerender",
        '<script type=speculationrules>{"prerender":[{"source":"list","urls":["[html]"],'
        '"eagerness":"immediate"}]}</script>',
        script=True,
    ),
)

SOCKETS: Final = (
    _script("websocket", "new WebSocket('[ws]')"),
    _script("websocket-stream", "new WebSocketStream('[ws]').opened.catch(()=>0)"),
    _script("websocket-tls", "new WebSocket('wss://127.0.0.1:[port]/')", listener="tcp"),
    _script(
        "webrtc-stun",
        "const p=new RTCPeerConnection({iceServers:[{urls:'stun:127.0.0.1:[port]'}]});"
        "p.createDataChannel('x');p.createOffer().then(o=>p.setLocalDescription(o))",
        listener="udp",
    ),
    _script(
        "webrtc-turn",
        "const p=new RTCPeerConnection({iceServers:[{urls:'turn:127.0.0.1:[port]',username:'u',"
        "credential:'c'}]});p.createDataChannel('x');"
        "p.createOffer().then(o=>p.setLocalDescription(o))",
        listener="udp",
    ),
    _script(
        "webrtc-turn-tcp",
        "const p=new RTCPeerConnection({iceServers:[{urls:'turn:127.0.0.1:[port]?transport=tcp',"
        "username:'u',credential:'c'}]});p.createDataChannel('x');"
        "p.createOffer().then(o=>p.setLocalDescription(o))",
        listener="tcp",
    ),
    _script(
        "webrtc-stun-name",
        "const p=new RTCPeerConnection({iceServers:[{urls:'stun:[host]:9'}]});"
        "p.createDataChannel('x');p.createOffer().then(o=>p.setLocalDescription(o))",
        listener="dns",
    ),
    _script(
        "webtransport",
        "const t=new WebTransport('https://127.0.0.1:[port]/');"
        "t.ready.catch(()=>0);t.closed.catch(()=>0)",
        listener="udp",
        home="http",
    ),
)

FILES: Final = (
    _script("file-fetch", "fetch('[file]').catch(()=>0)", listener="file", home="file"),
    _script("file-image-object", "new Image().src='[file]'", listener="file", home="file"),
    _script("file-window-open", "open('[file]')", listener="file", home="file"),
    _script("file-location", "location='[file]'", listener="file", home="file"),
)

SCRIPTS: Final = (*REQUESTS, *WORKERS, *WINDOWS, *SOCKETS, *FILES)
