"""What tests of browsers share: pools with a directory of their own, and looks at processes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pypdfium2

from tests.services.pdf.browser.scene import roomy_directory
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.browser.process import Tree
from ulak.services.pdf.document import Document, Fetched, Times

SOON = Times(timedelta(seconds=3), timedelta(seconds=1))
"""Two seconds to load and print in, for documents that never end."""


@contextmanager
def a_yard() -> Iterator[Path]:
    """A directory for profiles, which must be empty in the end.

    Not pytest's own: the browser's user may not enter that one.
    """
    with roomy_directory() as directory:
        yield directory
        assert list(directory.iterdir()) == [], "a profile was left behind"


@asynccontextmanager
async def a_pool(driver: Driver | None = None, **options: Any) -> AsyncIterator[BrowserPool]:
    """A pool of real browsers, which leaves nothing behind."""
    with a_yard() as directory:
        options.setdefault("prepare", partial(prepare, directory=directory))
        async with BrowserPool(driver or DevTools(), **options) as pool:
            yield pool


class Afar:
    """The outside world: some URLs answer, all others are refused by whoever stands before it.

    Args:
        answers: By URL, the type and the body of the answer.
        gate: Answers wait for it.
    """

    def __init__(
        self, answers: Mapping[str, tuple[str, bytes]], *, gate: asyncio.Event | None = None
    ) -> None:
        self._answers = answers
        self._gate = gate
        self.asked = 0
        self.was_asked = asyncio.Event()

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        self.asked += 1
        self.was_asked.set()
        if self._gate is not None:
            await self._gate.wait()
        kind, body = self._answers[url]
        # A document's origin is nobody's, so that fonts need leave.
        allowed = ("Access-Control-Allow-Origin", "*")
        return Fetched(200, (("Content-Type", kind), allowed), body)


HELD = "https://afar.test/held.svg"
HELD_PAGE = f'<p>held</p><img src="{HELD}">'
A_PICTURE = (
    "image/svg+xml",
    b'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40"><text y="9">seen</text></svg>',
)


def browser_of(pool: BrowserPool) -> int:
    """The number of the pool's browser process."""
    current = pool._keeper.current
    assert current is not None
    return current.pid


async def shows_something(pool: BrowserPool) -> bool:
    """Whether the pool's browser shows a document, in a page that nobody has opened ahead."""
    current = pool._keeper.current
    assert current is not None
    page = await current.browser.open(javascript=False, answer=_refuse)
    loaded = await page.load(Document("<p>something"))
    await page.close()
    return loaded.dom_nodes > 0


async def _refuse(url: str, method: str, headers: dict[str, str]) -> None:
    return None


def renderers_of(pid: int) -> set[int]:
    """The processes of pages."""
    return {usage.pid for usage in Tree(pid).sample() if usage.kind == "renderer"}


def status_of(pid: int, field: str) -> str:
    """A line of what the kernel says of a process."""
    found = re.search(rf"^{field}:\s+(\S+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return found[1]


def namespace_of(pid: int | str, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in another process."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def sizes_of(pdf: bytes) -> list[tuple[int, int]]:
    """Width and height of each page, in points."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        return [(round(page.get_width()), round(page.get_height())) for page in document]
    finally:
        document.close()


def text_of(pdf: bytes) -> str:
    document = pypdfium2.PdfDocument(pdf)
    try:
        return "\n".join(page.get_textpage().get_text_bounded() for page in document)
    finally:
        document.close()
