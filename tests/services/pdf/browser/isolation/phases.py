"""The same pages, three times: nothing in the way, the namespace alone, all of the service.

Each phase has listeners and a browser of its own and answers what arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from tests.services.pdf.browser.isolation.bare import BareBrowser
from tests.services.pdf.browser.isolation.listeners import Listeners
from tests.services.pdf.browser.isolation.markup import MARKUP
from tests.services.pdf.browser.isolation.scripts import SCRIPTS
from tests.services.pdf.browser.isolation.vector import Vector
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.document import Document, Times
from ulak.services.pdf.model import PdfError

VECTORS: Final = (*MARKUP, *SCRIPTS)

_AT_ONCE: Final = 8
"""Pages open at the same time; most of their time they wait."""
_ARRIVES_WITHIN_S: Final = 6.0
"""How long the control waits for a vector. What does arrive takes milliseconds; the rest is for
a busy machine, and a vector that misses it only counts for nothing."""
_SOON_S: Final = 2.0
"""How long of that the page is left open."""
_PLACES: Final = 4
_TIMES: Final = Times(timedelta(seconds=200), timedelta(seconds=5))
"""Of a document from when it is handed in: all of them are handed in at once."""
_GRACE_S: Final = 1.0
"""How long after the last page is closed nothing may arrive. The control's slowest took less."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What came of one phase."""

    arrived: frozenset[str]
    _: KW_ONLY
    printed: frozenset[str] = frozenset()
    """Whose pages became PDFs."""
    failures: dict[str, str] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)
    """How many requests were refused, by reason."""


async def control(name_server: str | None, vectors: Sequence[Vector] = VECTORS) -> Phase:
    """Show every page in a browser that is not isolated; nothing is intercepted."""
    async with Listeners(vectors, phase="control", name_server=name_server) as listeners:
        with _bare(listeners, isolated=False) as browser:
            places = asyncio.Semaphore(_AT_ONCE)

            async def visit(vector: Vector) -> None:
                async with places, browser.page() as page:
                    home = listeners.home(vector)
                    # A page that goes elsewhere at once never says that it is complete.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ARRIVES_WITHIN_S / 2):
                            await (page.visit(home) if home else page.show(vector.page(listeners)))
                    with contextlib.suppress(RuntimeError):
                        await page.print()
                    await wait_for(vector, _SOON_S)
                    await page.close()  # some speak only then
                    await wait_for(vector, _ARRIVES_WITHIN_S)

            async def wait_for(vector: Vector, seconds: float) -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await listeners.until_arrived(vector.name)

            await asyncio.gather(*map(visit, vectors))
        return Phase(frozenset(listeners.arrived))


async def namespace_alone(name_server: str | None, vectors: Sequence[Vector] = VECTORS) -> Phase:
    """Show every page in the network namespace, with no interception; that alone must do."""
    async with Listeners(vectors, phase="namespace", name_server=name_server) as listeners:
        printed = set()
        with _bare(listeners, isolated=True) as browser:
            places = asyncio.Semaphore(_AT_ONCE)

            async def visit(vector: Vector) -> None:
                async with places, browser.page() as page:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ARRIVES_WITHIN_S / 2):
                            await page.show(vector.page(listeners))
                    with contextlib.suppress(RuntimeError):
                        await page.print()
                        printed.add(vector.name)
                    await page.close()

            await asyncio.gather(*map(visit, vectors))
            await asyncio.sleep(_GRACE_S)
        return Phase(frozenset(listeners.arrived), printed=frozenset(printed))


async def isolated(
    driver: Driver, name_server: str | None, vectors: Sequence[Vector] = VECTORS
) -> Phase:
    """Render every page as the service does, with an empty allow-list.

    JavaScript is on for all of them, whether they need it or not: that is the harder case.
    """
    printed: set[str] = set()
    failures: dict[str, str] = {}
    blocked: Counter[str] = Counter()
    async with Listeners(vectors, phase="isolated", name_server=name_server) as listeners:
        start = partial(prepare, arguments=[listeners.resolver_rules])
        async with BrowserPool(driver, places=_PLACES, prepare=start) as pool:

            async def render(vector: Vector) -> None:
                document = Document(vector.page(listeners), javascript=True)
                try:
                    rendered = await pool.render(document, _TIMES)
                except PdfError as error:
                    failures[vector.name] = f"{error.code} {error.detail}"
                    return
                blocked.update(rendered.blocked)
                if rendered.pdf.startswith(b"%PDF-") and rendered.pages > 0:
                    printed.add(vector.name)

            await asyncio.gather(*map(render, vectors))
            await asyncio.sleep(_GRACE_S)
        return Phase(
            frozenset(listeners.arrived),
            printed=frozenset(printed),
            failures=failures,
            blocked=dict(blocked),
        )


@contextlib.contextmanager
def _bare(listeners: Listeners, *, isolated: bool) -> Iterator[BareBrowser]:
    launch = prepare(arguments=[listeners.resolver_rules], isolated=isolated)
    try:
        browser = BareBrowser(launch)
        try:
            yield browser
        finally:
            browser.kill()
    finally:
        launch.remove()
