"""Both drivers keep the promises of the seam; what Playwright brings along ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.services.pdf.browser.scene import (
    RED,
    Answers,
    colours_of,
    network_of,
    roomy_directory,
    running,
    text_of,
    tree_of,
    until_ended,
    without_dates,
)
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import (
    BrowserGone,
    Driver,
    OutputTooLarge,
    PageCrashed,
)
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Fetched

ENDLESS = Document("<p>never</p><script>for(;;);</script>", javascript=True)
PLAIN = Document("<h1>Fatura</h1><p>ödeme şğı</p>")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_document_is_shown_and_printed(driver: Driver) -> None:
    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=False, answer=Answers())
            loaded = await page.load(PLAIN)
            pdf = await page.print(PLAIN)
            await page.close()
        assert browser.version.startswith("HeadlessChrome/")
        assert loaded.script_errors == ()
        assert 5 < loaded.dom_nodes < 15
        assert "ödeme şğı" in text_of(pdf)

    run(story())


@pytest.mark.shows("P-10")
def test_both_drivers_print_the_same_bytes_in_two_browsers() -> None:
    document = Document("<style>@page{size:A5}</style><p>bir</p><svg><circle r=9 /></svg>")

    async def printed(driver: Driver) -> bytes:
        async with running(driver) as browser:
            page = await browser.open(javascript=False, answer=Answers())
            await page.load(document)
            return without_dates(await page.print(document))

    async def story() -> None:
        drivers: list[Driver] = [DevTools(), PlaywrightDriver(), PlaywrightDriver()]
        outputs = {await printed(driver) for driver in drivers}
        assert len(outputs) == 1

    run(story())


@pytest.mark.shows("P-9")
def test_a_page_is_loaded_for_print_in_the_agreed_window(driver: Driver) -> None:
    document = Document(
        "<script>document.write(innerWidth,'x',innerHeight,' ',matchMedia('print').matches)"
        "</script>",
        javascript=True,
    )

    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=True, answer=Answers())
            await page.load(document)
            assert "1280x720 true" in text_of(await page.print(document))

    run(story())


@pytest.mark.shows("P-32")
def test_scripts_run_only_where_they_were_asked_for(driver: Driver) -> None:
    document = Document(
        "<p id=p>still</p><noscript>without</noscript>"
        "<script>document.getElementById('p').textContent='moved'</script>"
    )

    async def printed(*, javascript: bool) -> str:
        async with running(driver) as browser:
            page = await browser.open(javascript=javascript, answer=Answers())
            await page.load(document)
            return text_of(await page.print(document))

    async def story() -> None:
        without = await printed(javascript=False)
        assert "still" in without
        assert "without" in without
        assert "moved" in await printed(javascript=True)

    run(story())


@pytest.mark.shows("P-34")
def test_a_script_error_is_told_by_class_and_line_without_its_message(driver: Driver) -> None:
    document = Document("\n<script>throw new TypeError('iban 123')</script>", javascript=True)

    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=True, answer=Answers())
            loaded = await page.load(document)
            assert loaded.script_errors == ("TypeError at line 2",)

    run(story())


@pytest.mark.shows("P-27", "P-30")
def test_a_request_gets_what_the_answer_hands_over_and_else_nothing(driver: Driver) -> None:
    document = Document(
        '<img src="http://allowed.test/red" width=300 height=300 loading=lazy>'
        '<img src="http://refused.test/blue" width=300 height=300>'
    )
    headers = (("content-type", "image/png"), ("content-encoding", "gzip"), ("set-cookie", "a=b"))
    answers = Answers(red=Fetched(200, headers, RED))

    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=False, answer=answers)
            await page.load(document)
            pdf = await page.print(document)
        assert sorted(answers.asked) == ["http://allowed.test/red", "http://refused.test/blue"]
        assert (255, 0, 0) in colours_of(pdf)

    run(story())


@pytest.mark.shows("P-27", "P-30")
def test_a_page_that_goes_elsewhere_stays_and_is_printed(driver: Driver) -> None:
    document = Document(
        "<p>here</p><script>new WebSocket('ws://socket.test/');location='http://other.test/there'"
        "</script>",
        javascript=True,
    )
    answers = Answers(there=Fetched(200, (("content-type", "text/html"),), b"<p>elsewhere"))

    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=True, answer=answers)
            await page.load(document)
            text = text_of(await page.print(document))
            assert "here" in text
            assert "elsewhere" not in text
            async with asyncio.timeout(10):
                while len(answers.asked) < 2:
                    await asyncio.sleep(0.01)
        assert sorted(answers.asked) == ["http://other.test/there", "ws://socket.test/"]

    run(story())


@pytest.mark.shows("P-14")
def test_a_page_that_hangs_is_killed_and_its_neighbour_goes_on(driver: Driver) -> None:
    async def story() -> None:
        async with running(driver) as browser:
            hanging = await browser.open(javascript=True, answer=Answers())
            neighbour = await browser.open(javascript=False, answer=Answers())
            load = asyncio.ensure_future(hanging.load(ENDLESS))
            await neighbour.load(PLAIN)
            assert not load.done()
            async with asyncio.timeout(10):
                await hanging.kill()
                with pytest.raises(PageCrashed):
                    await load
            assert "Fatura" in text_of(await neighbour.print(PLAIN))
            fresh = await browser.open(javascript=True, answer=Answers())
            await fresh.load(PLAIN)
            assert "Fatura" in text_of(await fresh.print(PLAIN))

    run(story())


@pytest.mark.shows("P-14")
def test_waiting_for_a_page_that_hangs_can_be_given_up(driver: Driver) -> None:
    async def story() -> None:
        async with running(driver) as browser:
            hanging = await browser.open(javascript=True, answer=Answers())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await hanging.load(ENDLESS)
            async with asyncio.timeout(10):
                await hanging.close()
                page = await browser.open(javascript=False, answer=Answers())
                await page.load(PLAIN)

    run(story())


@pytest.mark.shows("P-14")
def test_whoever_waits_for_a_browser_that_ends_is_told_and_nothing_is_left(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(directory: Path) -> None:
        browser = await driver.start(prepare(directory=directory))
        async with asyncio.timeout(10):
            page = await browser.open(javascript=True, answer=Answers())
            load = asyncio.ensure_future(page.load(ENDLESS))
            await asyncio.sleep(0)
            os.kill(browser.pid, signal.SIGKILL)
            with pytest.raises(BrowserGone):
                await load
            with pytest.raises(BrowserGone):
                await browser.open(javascript=False, answer=Answers())
        await browser.kill()
        assert list(directory.iterdir()) == []

    with roomy_directory() as directory:
        monkeypatch.setenv("TMPDIR", str(directory))  # Playwright has files of its own
        run(story(directory))


@pytest.mark.shows("P-32")
def test_printing_stops_at_the_agreed_number_of_bytes() -> None:
    async def story() -> None:
        async with running(PlaywrightDriver(output_bytes=1000)) as browser:
            page = await browser.open(javascript=False, answer=Answers())
            await page.load(PLAIN)
            with pytest.raises(OutputTooLarge):
                await page.print(PLAIN)

    run(story())


@pytest.mark.shows("P-32")
def test_the_sandbox_is_on_and_the_browser_has_no_network_and_no_privileges(
    driver: Driver,
) -> None:
    async def story() -> None:
        async with running(driver) as browser:
            page = await browser.open(javascript=True, answer=Answers())
            await page.load(PLAIN)
            processes = {
                pid: Path(f"/proc/{pid}/status").read_text() for pid in tree_of(browser.pid)
            }
            commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes}
            renderers = [pid for pid in processes if b"--type=renderer" in commands[pid]]
            assert renderers
            assert all("Seccomp:\t2\n" in processes[pid] for pid in renderers)
            assert not any("Uid:\t0\t" in status for status in processes.values())
            assert not any(network_of(pid) == network_of(os.getpid()) for pid in processes)
            assert not any(b"--no-sandbox" in command for command in commands.values())

    run(story())


@pytest.mark.shows("P-14")
def test_killing_a_browser_leaves_no_process_and_no_file(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(directory: Path) -> None:
        before = tree_of(os.getpid())
        browser = await driver.start(prepare(directory=directory))
        hanging = await browser.open(javascript=True, answer=Answers())
        load = asyncio.ensure_future(hanging.load(ENDLESS))
        await asyncio.sleep(0.1)
        started = tree_of(os.getpid()) - before
        assert {browser.pid} < started
        await browser.kill()
        await browser.kill()
        assert await until_ended(started) == set()
        with pytest.raises(BrowserGone):
            await load
        assert list(directory.iterdir()) == []

    with roomy_directory() as directory:
        monkeypatch.setenv("TMPDIR", str(directory))
        run(story(directory))


@pytest.mark.shows("P-14")
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.5])
def test_a_start_that_nobody_waits_for_leaves_nothing(
    after_s: float, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(directory: Path) -> None:
        before = tree_of(os.getpid())
        starting = asyncio.ensure_future(driver.start(prepare(directory=directory)))
        await asyncio.sleep(after_s)
        started = tree_of(os.getpid()) - before
        if starting.done():
            await starting.result().kill()
        else:
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert await until_ended((tree_of(os.getpid()) - before) | started) == set()
        assert list(directory.iterdir()) == []

    with roomy_directory() as directory:
        monkeypatch.setenv("TMPDIR", str(directory))
        run(story(directory))


CHILD = """
import asyncio, sys
from ulak.services.pdf.browser.{module} import {name}
from ulak.services.pdf.browser.launch import prepare
async def main():
    browser = await {name}().start(prepare(directory=sys.argv[1]))
    print(browser.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.shows("P-14")
@pytest.mark.parametrize(
    ("module", "name"), [("devtools", "DevTools"), ("playwright", "PlaywrightDriver")]
)
def test_a_browser_ends_with_the_worker_that_is_killed(module: str, name: str) -> None:
    with roomy_directory() as directory:
        worker = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(module=module, name=name), str(directory)],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        with worker:
            assert worker.stdout is not None
            browser = int(worker.stdout.readline())
            tree = tree_of(worker.pid) - {worker.pid}
            assert browser in tree
            worker.kill()
        assert asyncio.run(until_ended(tree)) == set()
        # What the dead worker left is found by the next one.
        prepare(directory=directory).remove()
        assert list(directory.iterdir()) == []


@pytest.mark.shows("P-1")
def test_the_service_is_imported_without_playwright() -> None:
    code = (
        "import sys, ulak.services.pdf, ulak.services.pdf.browser.driver;"
        "sys.exit('playwright' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
