"""Nothing that a document names gets past the worker, and everything would have been seen."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.services.pdf.browser.scene import colours_of, network_of, roomy_directory
from tests.services.pdf.browser.yard import status_of
from tests.services.pdf.weasy.room import (
    AMPLE,
    Asked,
    a_pool,
    children_of,
    document,
    fetch_by,
    png_of,
    printed,
    zygote_of,
)
from ulak.services.pdf.fetching import AllowedFetcher
from ulak.services.pdf.weasy.ground import UNPRIVILEGED, survey

ROOT = Path(__file__).parents[4]
BLUE, GREEN = (0, 0, 255), (0, 255, 0)

SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink' width='9'"
    " height='9'><image xlink:href='{at}/nested-image' width='9' height='9'/></svg>"
)
VECTORS = {
    "img": "<img src='{at}/img'>",
    "stylesheet": "<link rel=stylesheet href='{at}/stylesheet'>",
    "css-import": "<style>@import url('{at}/css-import');</style>",
    "font": "<style>@font-face {{ font-family: F; src: url('{at}/font') }}</style>"
    "<p style='font-family: F'>x</p>",
    "background": "<p style=\"background: url('{at}/background')\">x</p>",
    "list-style": "<ul><li style=\"list-style-image: url('{at}/list-style')\">x</ul>",
    "content": "<style>b::before {{ content: url('{at}/content') }}</style><b>x</b>",
    "border-image": "<p style=\"border: 9px solid; border-image: url('{at}/border-image') 3\">x",
    "page-background": "<style>@page {{ background: url('{at}/page-background') }}</style>",
    "object": "<object data='{at}/object'></object>",
    "embed": "<embed src='{at}/embed'>",
    "svg-image": "<svg width=9 height=9><image href='{at}/svg-image' width=9 height=9 /></svg>",
    "svg-file": "<img src='{at}/svg-file'>",
    "redirect": "<img src='{at}/redirect'>",
    "attached": "<link rel=attachment href='{at}/attached'>",
    "attached-link": "<a rel=attachment href='{at}/attached-link'>x</a>",
    "base": "<base href='{at}/'><img src='base'>",
}
BEHIND = {"nested-image", "landed"}
"""What only an answer leads to: the picture in a picture, and where a redirect goes."""
ATTACHED = {"attached", "attached-link"}
"""What WeasyPrint would attach; nothing is attached here, so it is not even asked for."""


class Listener(BaseHTTPRequestHandler):
    """Notes every path that arrives, and answers what leads on."""

    server: Listening

    def do_GET(self) -> None:
        name = self.path.strip("/").partition("?")[0]
        self.server.arrived.add(name)
        if name == "redirect":
            self.send_response(302)
            self.send_header("Location", "/landed")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        kind, body = "image/png", png_of(GREEN)
        if name == "svg-file":
            kind, body = "image/svg+xml", SVG.format(at=self.server.at).encode()
        if "css" in name or name == "stylesheet":
            kind, body = "text/css", b"p { color: black }"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.arrived: set[str] = set()
        self.at = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def listening() -> Iterator[Listening]:
    with Listening() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def a_file() -> Iterator[Path]:
    """A picture that everybody may read."""
    with roomy_directory() as folder:
        file = folder / "blue.png"
        file.write_bytes(png_of(BLUE))
        file.chmod(0o644)
        yield file


def bare(html: str) -> bytes:
    """Print as WeasyPrint does when nobody stands before it: the positive control."""
    program = (
        "import sys, weasyprint;"
        "weasyprint.HTML(string=sys.stdin.read()).write_pdf(sys.stdout.buffer)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=html.encode(), capture_output=True, check=True
    )
    return done.stdout


@pytest.mark.shows("P-27", "P-30", "P-56")
def test_nothing_that_a_document_names_gets_out(listening: Listening) -> None:
    with a_file() as file:
        page = "".join(VECTORS.values()).format(at=listening.at)
        page += f"<img width=90 height=90 src='{file.as_uri()}'>"
        control = bare(page)
        assert listening.arrived == set(VECTORS) | BEHIND, "the control shows too little"
        assert BLUE in colours_of(control)
        listening.arrived.clear()

        rendered = printed(page)
        assert listening.arrived == set()
        assert BLUE not in colours_of(rendered.pdf)
        asked = len(VECTORS) - len(ATTACHED)
        assert rendered.blocked == {"allowlist": asked, "scheme": 1}


@pytest.mark.shows("P-27", "P-30")
def test_the_allowed_is_fetched_by_the_worker_and_the_rest_counted(listening: Listening) -> None:
    with a_file() as file:
        page = (
            f"<img width=90 height=90 src='{listening.at}/img'><img src='{listening.at}/redirect'>"
            f"<img src='{listening.at}/other'><img src='http://169.254.169.254/latest'>"
            f"<img src='{file.as_uri()}'><img src='ftp://127.0.0.1/x'>"
        )
        allowed = re.escape(listening.at) + "/(img|redirect)"
        fetcher = AllowedFetcher(
            [allowed, r"http://169\.254\.169\.254/.*"], internal_hosts=["127.0.0.1"]
        )
        rendered = printed(page, {"fetcher": fetcher})
    assert listening.arrived == {"img", "redirect"}, "the redirect led nowhere"
    assert GREEN in colours_of(rendered.pdf)
    assert rendered.blocked == {"allowlist": 1, "redirect": 1, "address": 1, "scheme": 2}


@pytest.mark.shows("P-30", "P-32")
def test_a_document_is_nobody_and_has_no_network_and_nothing_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKER_HAS", "a-secret-of-the-worker")
    found: dict[int, str] = {}

    async def story() -> None:
        async with a_pool() as pool:

            def look(url: str) -> None:
                for pid in (zygote_of(pool).pid, *children_of(zygote_of(pool).pid)):
                    found[pid] = ""
                    assert status_of(pid, "NoNewPrivs") == "1"
                    assert status_of(pid, "CapEff").strip("0") == ""
                    if os.geteuid() == 0:  # nobody else may look any further
                        assert network_of(pid) != network_of(os.getpid())
                        assert status_of(pid, "Uid") == str(UNPRIVILEGED)
                        assert status_of(pid, "Gid") == str(UNPRIVILEGED)
                        found[pid] = Path(f"/proc/{pid}/environ").read_bytes().decode()

            fetch_by(pool, Asked(look))
            await pool.render(document("<img src='http://look.test/'>"), AMPLE)

    asyncio.run(story())
    assert len(found) == 2, "the process that is loaded, and the document's"
    assert all("a-secret-of-the-worker" not in environment for environment in found.values())
    assert "-n" in survey().prefix, "a network namespace is made here"
