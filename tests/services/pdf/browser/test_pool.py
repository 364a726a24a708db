"""The pool keeps a browser warm, replaces it in time, and heals by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.services.pdf.browser.yard import (
    A_PICTURE,
    HELD,
    HELD_PAGE,
    SOON,
    Afar,
    a_pool,
    a_yard,
    browser_of,
    text_of,
    until,
)
from ulak.services.pdf.browser import warm
from ulak.services.pdf.browser.devtools import DevPage, DevTools
from ulak.services.pdf.browser.driver import Answer, Browser, ShownPage
from ulak.services.pdf.browser.launch import Launch, prepare
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.browser.process import looked_at
from ulak.services.pdf.browser.warm import LAUNCH_TIMEOUT
from ulak.services.pdf.document import Document, Fetched, Times, UrlBlocked
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError, TransientPdfError

SHORT = Document("<p>short")


@pytest.mark.shows("P-53")
def test_documents_share_a_warm_browser_and_nothing_else() -> None:
    html = """<p id=p></p><script>
    p.textContent = window.name || "fresh"; window.name = "used" </script>"""

    async def render() -> None:
        async with a_pool() as pool:
            await pool.render(SHORT, Times())
            browser = browser_of(pool)
            for _ in range(3):
                result = await pool.render(Document(html, javascript=True), Times())
                assert text_of(result.pdf).strip() == "fresh"
            assert browser_of(pool) == browser

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_a_browser_is_replaced_after_so_many_documents_and_the_old_one_ends() -> None:
    async def render() -> None:
        async with a_pool(recycle_after=3) as pool:
            await pool.render(SHORT, Times())
            first = browser_of(pool)
            for _ in range(2):
                assert browser_of(pool) == first
                await pool.render(SHORT, Times())
            await until(lambda: browser_of(pool) != first)
            await until(lambda: not is_alive(first))
            assert (await pool.render(SHORT, Times())).pages == 1

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_an_old_browser_is_kept_until_what_is_on_it_is_done() -> None:
    async def render() -> None:
        gate = asyncio.Event()
        afar = Afar({HELD: A_PICTURE}, gate=gate)
        async with a_pool(fetcher=afar, places=2, recycle_after=1) as pool:
            held = asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times()))
            await afar.was_asked.wait()
            first = browser_of(pool)
            await pool.render(SHORT, Times())
            await until(lambda: browser_of(pool) != first)
            assert is_alive(first)
            gate.set()
            assert "seen" in text_of((await held).pdf)
            await until(lambda: not is_alive(first))

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_a_browser_that_has_grown_is_replaced() -> None:
    async def render() -> None:
        async with a_pool(recycle_after=0, memory_growth=1) as pool:
            await pool.render(SHORT, Times())
            first = browser_of(pool)
            big = Document("<p>x</p>" * 4000)
            for _ in range(40):
                await pool.render(big, Times())
                if browser_of(pool) != first:
                    return
            raise AssertionError("it was not replaced")

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_nobody_is_replaced_when_recycling_is_off() -> None:
    async def render() -> None:
        async with a_pool(recycle_after=0, memory_growth=0) as pool:
            await pool.render(SHORT, Times())
            first = browser_of(pool)
            for _ in range(12):
                await pool.render(SHORT, Times())
            assert browser_of(pool) == first

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_a_browser_that_nobody_needs_is_let_go_and_started_again_when_needed() -> None:
    async def render() -> None:
        async with a_pool(idle_after=timedelta(milliseconds=50)) as pool:
            await pool.render(SHORT, Times())
            first = browser_of(pool)
            await until(lambda: not is_alive(first))
            assert (await pool.render(SHORT, Times())).pages == 1

    asyncio.run(render())


@pytest.mark.shows("P-53")
def test_no_more_documents_are_rendered_at_a_time_than_there_are_places() -> None:
    class Watched:
        now = most = 0

        def __init__(self) -> None:
            self.both = asyncio.Event()

        async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == 2:
                self.both.set()
            await self.both.wait()  # the first waits for a second beside it
            await asyncio.sleep(0.05)
            self.now -= 1
            raise UrlBlocked("allowlist")

    async def render() -> None:
        watched = Watched()
        async with a_pool(fetcher=watched, places=2) as pool:
            await asyncio.gather(*(pool.render(Document(HELD_PAGE), Times()) for _ in range(6)))
        assert watched.most == 2

    asyncio.run(render())


@pytest.mark.needs_user_namespaces  # /bin/false has no setuid helper beside it
@pytest.mark.shows("P-53")
def test_a_pool_whose_browser_did_not_start_says_so_and_recovers_by_itself() -> None:
    async def render() -> None:
        with a_yard() as directory:
            executables = ["/bin/false", "/bin/false", None]

            def prepare_next() -> Launch:
                return prepare(executables.pop(0), directory=directory)

            async with BrowserPool(DevTools(), prepare=prepare_next) as pool:
                with pytest.raises(TransientPdfError) as failed:
                    await pool.render(SHORT, Times())
                assert failed.value.code == PdfErrorCode.BROWSER_LAUNCH_FAILED
                assert len(executables) == 2
                with pytest.raises(TransientPdfError):
                    await pool.render(SHORT, Times())
                assert (await pool.render(SHORT, Times())).pages == 1
                assert executables == []
                assert (await pool.render(SHORT, Times())).pages == 1

    asyncio.run(render())


@pytest.mark.needs_user_namespaces  # this program has no setuid helper beside it
def test_a_browser_that_never_answers_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timedelta(seconds=10) == LAUNCH_TIMEOUT
    monkeypatch.setattr(warm, "LAUNCH_TIMEOUT", timedelta(milliseconds=500))

    async def render() -> None:
        with a_yard() as directory:
            silent = directory / "silent"
            silent.write_text("#!/bin/sh\nexec sleep 600\n")
            silent.chmod(0o755)
            launches: list[Launch] = []

            def prepare_silent() -> Launch:
                launches.append(prepare(silent, directory=directory))
                return launches[-1]

            async with BrowserPool(DevTools(), prepare=prepare_silent) as pool:
                with pytest.raises(TransientPdfError) as failed:
                    await pool.render(SHORT, Times())
                assert failed.value.code == PdfErrorCode.BROWSER_LAUNCH_FAILED
            (launch,) = launches
            assert _processes_with(str(launch.profile)) == []
            silent.unlink()

    asyncio.run(render())


def _processes_with(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_where_no_browser_can_run_the_document_fails_for_good() -> None:
    async def render() -> None:
        async with BrowserPool(DevTools(), prepare=lambda: prepare("/nowhere/at-all")) as pool:
            with pytest.raises(PermanentPdfError) as failed:
                await pool.render(SHORT, Times())
            assert failed.value.code == PdfErrorCode.UNSUPPORTED_PLATFORM

    asyncio.run(render())


@pytest.mark.shows("P-14")
def test_documents_whose_browser_is_lost_are_rendered_again_on_another() -> None:
    async def render() -> None:
        gate = asyncio.Event()
        afar = Afar({HELD: A_PICTURE}, gate=gate)
        async with a_pool(fetcher=afar, places=2) as pool:
            held = [
                asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times())) for _ in range(2)
            ]
            await until(lambda: afar.asked == 2)
            os.kill(browser_of(pool), signal.SIGKILL)
            gate.set()
            for result in await asyncio.gather(*held):
                assert "seen" in text_of(result.pdf)

    asyncio.run(render())


def test_a_document_that_loses_its_browser_twice_is_given_back() -> None:
    async def render() -> None:
        afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())
        async with a_pool(fetcher=afar) as pool:
            held = asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times()))
            for _ in range(2):
                await afar.was_asked.wait()
                afar.was_asked.clear()
                os.kill(browser_of(pool), signal.SIGKILL)
            with pytest.raises(TransientPdfError) as failed:
                await held
            assert failed.value.code == PdfErrorCode.BROWSER_LAUNCH_FAILED
            assert failed.value.detail == "browser_lost"
            assert (await pool.render(SHORT, Times())).pages == 1

    asyncio.run(render())


@pytest.mark.shows("P-53")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_a_page_opened_ahead_whose_process_has_ended_gets_no_document(
    driver: type[DevTools | PlaywrightDriver],
) -> None:
    async def render() -> None:
        async with a_pool(driver()) as pool:
            await pool.render(SHORT, Times())
            browser = browser_of(pool)
            ahead = await pool._keeper.current._spares[0].opening
            if isinstance(ahead, DevPage):
                ahead._pipe.send("Page.crash", ahead._session)
            else:
                crash = asyncio.ensure_future(ahead._session.send("Page.crash"))
                crash.add_done_callback(looked_at)
            await until(lambda: ahead.is_gone)
            result = await pool.render(SHORT, Times())
            assert text_of(result.pdf).strip() == "short"
            assert browser_of(pool) == browser

    asyncio.run(render())


class Stubborn:
    """A real browser whose pages with scripts do not go, neither asked nor killed."""

    async def start(self, launch: Launch) -> Browser:
        browser = await DevTools().start(launch)
        open_page = browser.open

        async def open_stubborn(*, javascript: bool, answer: Answer) -> ShownPage:
            page = await open_page(javascript=javascript, answer=answer)

            async def never() -> None:
                await asyncio.Event().wait()

            if javascript:
                page.close = page.kill = never  # type: ignore[method-assign]
            return page

        browser.open = open_stubborn  # type: ignore[method-assign, assignment]
        return browser


@pytest.mark.shows("P-14")
def test_a_page_that_survives_its_end_takes_its_browser_along_and_nobody_elses_document() -> None:
    async def render() -> None:
        gate = asyncio.Event()
        afar = Afar({HELD: A_PICTURE}, gate=gate)
        async with a_pool(Stubborn(), fetcher=afar, places=2) as pool:
            neighbour = asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times()))
            await afar.was_asked.wait()
            first = browser_of(pool)
            endless = Document("<script>for (;;);</script>", javascript=True)
            with pytest.raises(TransientPdfError) as failed:
                await pool.render(endless, SOON)
            assert failed.value.code == PdfErrorCode.NAVIGATION_TIMEOUT
            await until(lambda: not is_alive(first))
            gate.set()
            assert "seen" in text_of((await neighbour).pdf)
            assert browser_of(pool) != first

    asyncio.run(render())


@pytest.mark.shows("P-14")
def test_a_document_that_gets_no_turn_in_its_time_is_given_back() -> None:
    async def render() -> None:
        afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())
        async with a_pool(fetcher=afar) as pool:
            held = asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times()))
            await afar.was_asked.wait()
            with pytest.raises(TransientPdfError) as failed:
                await pool.render(SHORT, Times(timedelta(seconds=1), timedelta(seconds=0.9)))
            assert failed.value.code == PdfErrorCode.NAVIGATION_TIMEOUT
            held.cancel()
            await asyncio.wait([held])
            assert (await pool.render(SHORT, Times())).pages == 1

    asyncio.run(render())


def test_a_pool_that_is_closed_gives_back_what_it_was_rendering() -> None:
    async def render() -> None:
        afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())
        async with a_pool(fetcher=afar) as pool:
            held = asyncio.ensure_future(pool.render(Document(HELD_PAGE), Times()))
            await afar.was_asked.wait()
            browser = browser_of(pool)
        assert not is_alive(browser)
        with pytest.raises(TransientPdfError):
            await held

    asyncio.run(render())
