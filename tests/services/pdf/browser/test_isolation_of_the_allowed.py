"""What is allowed arrives through the worker's fetcher; what is not is counted by its reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.services.pdf.browser.scene import RED, colours_of
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.document import Document, Fetched, Reason, Times, UrlBlocked

TIMES: Final = Times(timedelta(seconds=60), timedelta(seconds=5))
REASONS: Final[Mapping[str, Reason]] = {
    "elsewhere.test": "allowlist",
    "inside.test": "address",
    "hops.test": "redirect",
}


class PortFetcher:
    """Fetches for one host what a port of this machine answers, and refuses the others."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        parts = urlsplit(url)
        if parts.scheme != "http":
            raise UrlBlocked("scheme")
        if parts.hostname != "allowed.test":
            raise UrlBlocked(REASONS[str(parts.hostname)])
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"{method} {parts.path}\n".encode())
        body = await reader.read()
        writer.close()
        return Fetched(200, (("content-type", "image/png"),), body)


@asynccontextmanager
async def a_port(seen: list[str]) -> AsyncIterator[int]:
    """A server of one picture, which keeps what it was asked for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readline()).decode().strip())
        writer.write(RED)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.shows("P-27", "P-30")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_the_allowed_is_fetched_by_the_worker_and_the_rest_counted(driver: type[Driver]) -> None:
    page = (
        '<img width=200 height=200 src="http://allowed.test/red.png">'
        '<img src="http://elsewhere.test/a"><img src="http://elsewhere.test/b">'
        '<img src="http://inside.test/">'
        '<iframe src="http://hops.test/"></iframe>'
        '<img src="ftp://allowed.test/"><link rel=stylesheet href="file:///etc/hostname">'
    )
    seen: list[str] = []

    async def story() -> None:
        async with (
            a_port(seen) as port,
            BrowserPool(driver(), fetcher=PortFetcher(port)) as pool,
        ):
            rendered = await pool.render(Document(page), TIMES)
        assert seen == ["GET /red.png"]
        assert (255, 0, 0) in colours_of(rendered.pdf)
        assert rendered.blocked == {"allowlist": 2, "address": 1, "redirect": 1, "scheme": 2}

    asyncio.run(story())


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_an_empty_allow_list_refuses_everything_and_the_page_is_printed(
    driver: type[Driver],
) -> None:
    page = "<p>x</p>" + "".join(f'<img src="http://host{n}.test/">' for n in range(30))

    async def story() -> None:
        async with BrowserPool(driver()) as pool:
            rendered = await pool.render(Document(page), TIMES)
        assert rendered.blocked == {"allowlist": 30}
        assert rendered.pages == 1

    asyncio.run(story())


@pytest.mark.shows("P-10")
def test_two_pools_with_different_drivers_give_identical_bytes() -> None:
    page = "<style>@page{size:A4;margin:2cm}</style><h1>Rapor</h1><p>ğüşiöç</p>" * 3
    document = Document(page, tagged=True, outline=True)

    async def printed(driver: Driver) -> bytes:
        async with BrowserPool(driver) as pool:
            return (await pool.render(document, TIMES)).pdf

    async def story() -> None:
        drivers: list[Driver] = [DevTools(), PlaywrightDriver(), DevTools(), PlaywrightDriver()]
        assert len({await printed(driver) for driver in drivers}) == 1

    asyncio.run(story())
