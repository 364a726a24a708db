"""One way in which a page may reach outside, and how its text is made for a listener."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, Protocol

Listener = Literal["http", "tcp", "udp", "dns", "file"]
Home = Literal["blank", "http", "file"]
"""Where the control shows a page: as the service does, or from an address of its own."""


class Places(Protocol):
    """Where the vectors of one phase arrive."""

    def url(self, kind: str, name: str) -> str:
        """The HTTP address that answers as `kind` (css, svg, js ...)."""

    def port(self, name: str) -> int:
        """The port that is this vector's alone."""

    def host(self, name: str) -> str:
        """The host name that is this vector's alone."""

    def file(self, name: str) -> str:
        """The file URL that is this vector's alone."""

    @property
    def http_port(self) -> int:
        """Of the HTTP listener."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A page with one way out.

    Args:
        name: The token by which its arrival is known.
        body: HTML with marks: `[kind]` becomes the vector's URL, answered as that kind (png, css,
            js, svg, html, xml, xsl, font, vtt, media, hop, metadata); `[port]`, `[httpport]`,
            `[host]` and `[file]` become its port, the port of the HTTP listener, its host name
            and its file.
        listener: What observes the arrival.
        script: It needs JavaScript.
        home: Where the control shows it. Browsers give some features to pages of a server alone,
            and files to pages that are files; without such a home these vectors would be
            harmless in the control too, and would count for nothing. With isolation on every page
            is shown as the service shows it.
    """

    name: str
    body: str
    _: KW_ONLY
    listener: Listener = "http"
    script: bool = False
    home: Home = "blank"

    def page(self, places: Places) -> str:
        """Write the page; it says its own name, so that a PDF of it is never blank."""
        body = self.body
        for kind in KINDS:
            if f"[{kind}]" in body:
                body = body.replace(f"[{kind}]", places.url(kind, self.name))
        if self.listener in ("tcp", "udp"):
            body = body.replace("[port]", str(places.port(self.name)))
        if self.listener == "dns":
            body = body.replace("[host]", places.host(self.name))
        if self.listener == "file":
            body = body.replace("[file]", places.file(self.name))
        body = body.replace("[httpport]", str(places.http_port)).replace("[name]", self.name)
        return f"<!doctype html><html><body><p>{self.name}</p>{body}</body></html>"


KINDS = (
    "png",
    "css",
    "nested",
    "js",
    "nestedjs",
    "svg",
    "html",
    "xml",
    "xsl",
    "font",
    "vtt",
    "media",
    "hop",
    "metadatahop",
    "metadata",
    "ws",
    "text",
)
