"""What a document loses to the machine costs it a fresh page, and a second crash is its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.processes import is_alive
from tests.services.pdf.browser.scene import Answers, running
from tests.services.pdf.browser.yard import (
    A_PICTURE,
    HELD,
    HELD_PAGE,
    Afar,
    a_pool,
    browser_of,
    renderers_of,
    text_of,
    until,
)
from ulak.services.pdf.browser.devtools import DevPage
from ulak.services.pdf.browser.driver import BrowserGone, Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver, _find_drivers
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.browser.process import looked_at
from ulak.services.pdf.document import Document, Times
from ulak.services.pdf.model import (
    MachineFault,
    PdfErrorCode,
    PermanentPdfError,
    TransientPdfError,
)

SHORT = Document("<p>short")
LONG = Times(timedelta(seconds=120), timedelta(seconds=5))
Harm = Callable[[BrowserPool], Coroutine[Any, Any, None]]


async def render_harmed(driver: Driver, harms: list[Harm]) -> str:
    """Render a document that is harmed while it waits for its picture, once by each; its text."""
    gate = asyncio.Event()
    afar = Afar({HELD: A_PICTURE}, gate=gate)
    async with a_pool(driver, fetcher=afar) as pool:
        rendering = asyncio.ensure_future(pool.render(Document(HELD_PAGE), LONG))
        for number, harm in enumerate(harms, start=1):
            await until(lambda number=number: afar.asked == number or rendering.done())
            await harm(pool)
        await until(lambda: afar.asked > len(harms) or rendering.done())
        gate.set()
        text = text_of((await rendering).pdf)
        assert text_of((await pool.render(SHORT, LONG)).pdf).strip() == "short"
        return text


async def kill_renderers(pool: BrowserPool) -> None:
    for pid in renderers_of(browser_of(pool)):
        os.kill(pid, signal.SIGKILL)


async def freeze_renderers(pool: BrowserPool) -> None:
    for pid in renderers_of(browser_of(pool)):
        os.kill(pid, signal.SIGSTOP)


async def freeze_browser(pool: BrowserPool) -> None:
    os.kill(browser_of(pool), signal.SIGSTOP)


async def crash_page(pool: BrowserPool) -> None:
    """Have the page that waits for its picture end by a fault of its own."""
    warm = pool._keeper.current
    assert warm is not None
    pages = [page for page in _pages(warm.browser) if page._tasks]
    for page in pages:
        if isinstance(page, DevPage):
            page._pipe.send("Page.crash", page._session)
        else:
            crash = asyncio.ensure_future(page._session.send("Page.crash"))
            crash.add_done_callback(looked_at)


def _pages(browser: Any) -> list[Any]:
    return list(browser._pages.values() if hasattr(browser, "_pages") else browser.pages)


async def kill_driver(pool: BrowserPool) -> None:
    warm = pool._keeper.current
    assert warm is not None
    os.kill(warm.browser.driver_pid, signal.SIGKILL)


async def freeze_driver(pool: BrowserPool) -> None:
    warm = pool._keeper.current
    assert warm is not None
    os.kill(warm.browser.driver_pid, signal.SIGSTOP)


@pytest.mark.shows("P-15")
@pytest.mark.parametrize("harm", [kill_renderers, freeze_renderers, freeze_browser, crash_page])
def test_a_document_whose_page_is_lost_is_rendered_on_a_fresh_one(
    harm: Harm, driver: Driver
) -> None:
    assert "seen" in asyncio.run(render_harmed(driver, [harm]))


@pytest.mark.shows("P-15")
def test_the_page_after_a_lost_one_is_none_of_those_that_waited_then(driver: Driver) -> None:
    """What ended the first may have ended them too, and nobody was told yet."""
    afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())

    async def story() -> None:
        async with a_pool(driver, fetcher=afar) as pool:
            rendering = asyncio.ensure_future(pool.render(Document(HELD_PAGE), LONG))
            await until(lambda: afar.asked == 1)
            warm = pool._keeper.current
            assert warm is not None
            waiting = set(warm._spares)
            assert len(waiting) == 1
            await crash_page(pool)
            await until(lambda: afar.asked == 2)
            assert waiting == set(warm._spares)
            rendering.cancel()
            await asyncio.wait([rendering])

    asyncio.run(story())


@pytest.mark.shows("P-15")
@pytest.mark.parametrize("harm", [kill_driver, freeze_driver])
def test_a_document_whose_driver_is_lost_is_rendered_by_another(harm: Harm) -> None:
    assert "seen" in asyncio.run(render_harmed(PlaywrightDriver(), [harm]))


def test_a_driver_that_is_killed_leaves_no_failure_to_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with running(PlaywrightDriver()) as browser:
            os.kill(browser.driver_pid, signal.SIGKILL)
            with pytest.raises(BrowserGone):
                await browser.open(javascript=False, answer=Answers())

    asyncio.run(story())
    gc.collect()  # the loop logs a failure that nobody has looked at when it is collected
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.shows("P-15")
def test_a_page_that_is_killed_twice_is_the_machines_fault(driver: Driver) -> None:
    with pytest.raises(MachineFault) as failed:
        asyncio.run(render_harmed(driver, [kill_renderers, kill_renderers]))
    assert failed.value.detail == "page_killed"


@pytest.mark.shows("P-15")
def test_a_second_crash_of_a_document_is_its_own(driver: Driver) -> None:
    with pytest.raises(PermanentPdfError) as failed:
        asyncio.run(render_harmed(driver, [crash_page, crash_page]))
    assert (failed.value.code, failed.value.detail) == (PdfErrorCode.UNKNOWN, "page_crashed")


@pytest.mark.shows("P-15")
def test_a_page_opened_ahead_that_is_killed_just_before_its_document_costs_nothing(
    driver: Driver,
) -> None:
    async def story() -> None:
        async with a_pool(driver) as pool:
            await pool.render(SHORT, LONG)
            await until(lambda: bool(renderers_of(browser_of(pool))))
            # Nobody has told the pool when the next document comes.
            await kill_renderers(pool)
            assert text_of((await pool.render(SHORT, LONG)).pdf).strip() == "short"

    asyncio.run(story())


@pytest.mark.shows("P-15")
def test_where_the_browsers_disk_is_full_a_broken_page_is_no_fault_of_the_document(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())
        async with a_pool(driver, fetcher=afar) as pool:
            rendering = asyncio.ensure_future(pool.render(Document(HELD_PAGE), LONG))
            real = os.statvfs
            monkeypatch.setattr(os, "statvfs", lambda path: _Full(real(path)))
            for number in (1, 2):
                await until(lambda number=number: afar.asked == number)
                await crash_page(pool)
            with pytest.raises(MachineFault) as failed:
                await rendering
            assert failed.value.detail == "disk_full"

    asyncio.run(story())


class _Full:
    """A disk with no room left."""

    def __init__(self, real: os.statvfs_result) -> None:
        self.f_bavail, self.f_frsize = 0, real.f_frsize


@pytest.mark.shows("P-53")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_a_driver_that_ends_or_stands_still_while_it_starts_leaves_a_pool_that_recovers(
    number: signal.Signals, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ulak.services.pdf.browser import playwright, warm

    monkeypatch.setattr(playwright, "_STOPS_WITHIN_S", 0.5)

    async def story() -> None:
        async with a_pool(PlaywrightDriver()) as pool:
            with monkeypatch.context() as patched:
                if number == signal.SIGSTOP:
                    patched.setattr(warm, "LAUNCH_TIMEOUT", timedelta(seconds=2))
                rendering = asyncio.ensure_future(pool.render(SHORT, LONG))
                await until(lambda: bool(list(_find_drivers())))
                await asyncio.sleep(after_s)
                harmed = set(_find_drivers())
                for pid in harmed:
                    os.kill(pid, number)
                with pytest.raises(TransientPdfError) as failed:
                    await rendering
            assert failed.value.code == PdfErrorCode.BROWSER_LAUNCH_FAILED
            assert text_of((await pool.render(SHORT, LONG)).pdf).strip() == "short"
            await until(lambda: not any(map(is_alive, harmed)))

    asyncio.run(story())


@pytest.mark.shows("P-53")
def test_a_probe_starts_a_browser_and_replaces_one_that_shows_nothing(driver: Driver) -> None:
    async def story() -> None:
        async with a_pool(driver) as pool:
            assert "Chrome" in await pool.probe()
            first = browser_of(pool)
            assert await pool.probe() == pool._keeper.current.engine
            assert browser_of(pool) == first
            await freeze_browser(pool)
            assert "Chrome" in await pool.probe()
            assert browser_of(pool) != first

    asyncio.run(story())


@pytest.mark.shows("P-53")
def test_a_browser_that_was_let_go_is_not_started_by_a_probe_but_looked_for() -> None:
    async def story() -> None:
        async with a_pool(idle_after=timedelta(milliseconds=50)) as pool:
            await pool.probe()
            first = browser_of(pool)
            await until(lambda: not is_alive(first))
            assert await pool.probe() == ""
            assert pool._keeper.current is None
            pool._prepare = _nowhere
            with pytest.raises(PermanentPdfError):
                await pool.probe()

    asyncio.run(story())


def _nowhere() -> Any:
    from ulak.services.pdf.browser.launch import prepare

    return prepare(Path("/nowhere/at-all"))
