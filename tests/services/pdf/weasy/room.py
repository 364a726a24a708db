"""What tests of WeasyPrint share: pools with a directory of their own, and looks at a PDF."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pypdfium2
from PIL import Image

from tests.services.pdf.browser.yard import a_yard
from ulak.services.pdf.document import Document, Fetched, Fetcher, Times
from ulak.services.pdf.weasy.pool import WeasyPool
from ulak.services.pdf.weasy.process import Zygote

AMPLE = Times(timedelta(seconds=120), timedelta(seconds=5))
"""For documents that end: a busy machine may take its time."""
SOON = Times(timedelta(seconds=12), timedelta(seconds=1))
"""For documents that never end: so long that they begin on a busy machine as well."""
# Each box in a box is measured about three times: eight take twenty seconds, sixteen a day.
ENDLESS = (
    "<link rel=stylesheet href='http://begun.test/'>" + "<div style='display: flex'>" * 16 + "x"
)


@asynccontextmanager
async def a_pool(**options: Any) -> AsyncIterator[WeasyPool]:
    """A pool of real processes, which leaves nothing behind."""
    with a_yard() as directory:
        options.setdefault("start", partial(Zygote.start, directory=directory))
        async with WeasyPool(**options) as pool:
            yield pool


def zygote_of(pool: WeasyPool) -> Zygote:
    """The process that has WeasyPrint loaded."""
    assert pool._keeper.current is not None
    return pool._keeper.current


def fetch_by(pool: WeasyPool, fetcher: Fetcher) -> None:
    """Have what documents ask for fetched by this from now on."""
    pool._fetcher = fetcher


def document(html: str, **options: Any) -> Document:
    return Document(html, engine="weasyprint", **options)


def printed(html: str, pool_options: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Print one document in a pool of its own."""

    async def story() -> Any:
        async with a_pool(**(pool_options or {})) as pool:
            return await pool.render(document(html, **options), AMPLE)

    return asyncio.run(story())


class Asked:
    """A fetcher that has something done when it is asked, and has nothing to give."""

    def __init__(self, then: Callable[[str], Awaitable[Fetched | None] | None]) -> None:
        self._then = then
        self.urls: list[str] = []

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        self.urls.append(url)
        done = self._then(url)
        answer = await done if done is not None else None
        return answer or Fetched(404, (), b"")


def picture(mode: str, edge: int, colour: Any) -> str:
    """A picture of one colour, as a URL."""
    file = io.BytesIO()
    Image.new(mode, (edge, edge), colour).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def png_of(colour: tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def outline_of(pdf: bytes) -> list[str]:
    """The titles of the outline."""
    found = pypdfium2.PdfDocument(pdf)
    try:
        return [bookmark.get_title() for bookmark in found.get_toc()]
    finally:
        found.close()


def children_of(pid: int) -> set[int]:
    """The processes that a process has started and that have not ended."""
    # Each thread has those of its own.
    texts = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return {int(word) for text in texts for word in text.split()}
