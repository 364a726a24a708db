"""A document that costs too much is stopped, in time, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.processes import is_alive
from tests.services.pdf.browser.yard import (
    A_PICTURE,
    HELD,
    HELD_PAGE,
    SOON,
    Afar,
    a_pool,
    browser_of,
    renderers_of,
    shows_something,
    text_of,
    until,
)
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Limits, Times
from ulak.services.pdf.model import (
    PdfError,
    PdfErrorCode,
    PermanentPdfError,
    TransientPdfError,
)

LOOP = "<p>x</p><script>for (;;);</script>"
LOOP_AT_PRINT = "<p>x</p><script>addEventListener('beforeprint', () => { for (;;); })</script>"
BOMB = "<script>const a = []; for (;;) a.push(new Float64Array(1 << 20).fill(a.length))</script>"
GPU_BOMB = """<p>x</p><script>
const gl = document.createElement("canvas").getContext("webgl"), kept = [];
const data = new Uint8Array(16 << 20).fill(1);
for (let n = 0; n < 250; n++)
  if (!gl) kept.push(data.slice());
  else {
    kept.push(gl.createBuffer());
    gl.bindBuffer(gl.ARRAY_BUFFER, kept.at(-1));
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.finish();
  }
</script>"""
"""Takes four gigabytes of the process that draws for every page, where there is WebGL."""
MANY_NODES = """<body><script>for (let i = 0; i < 6e5; i++) {
const div = document.createElement("div"); div.textContent = i; document.body.append(div)
}</script>"""
NEVER = Times(timedelta(seconds=120))
"""Time enough: whatever ends a document then, it is not its time."""


@pytest.mark.shows("P-32")
@pytest.mark.parametrize(
    ("html", "limits", "detail"),
    [
        ("<p>ğ</p>", Limits(html_bytes=8), "html_too_large"),
        ("<p>x</p>" * 50, Limits(dom_nodes=100), "dom_too_large"),
        ("<p style='break-after: page'>x</p>" * 4, Limits(pages=3), "too_many_pages"),
        ("<p>x</p>", Limits(output_bytes=1000), "output_too_large"),
    ],
)
def test_a_document_beyond_a_limit_fails_for_good(html: str, limits: Limits, detail: str) -> None:
    async def render() -> None:
        async with a_pool(limits=limits) as pool:
            with pytest.raises(PermanentPdfError) as failed:
                await pool.render(Document(html), Times())
            assert failed.value.code == PdfErrorCode.TEMPLATE_ERROR
            assert failed.value.detail == detail

    asyncio.run(render())


@pytest.mark.shows("P-32")
def test_a_document_at_every_limit_is_rendered() -> None:
    html = "<p style='break-after: page'>x</p>" * 3
    limits = Limits(html_bytes=len(html), dom_nodes=10, pages=3)

    async def render() -> None:
        async with a_pool(limits=limits) as pool:
            # The document, html, head, body, and three paragraphs with their texts.
            assert (await pool.render(Document(html), Times())).pages == 3

    asyncio.run(render())


def test_printing_is_stopped_when_there_is_more_than_was_agreed() -> None:
    async def render() -> None:
        # The pool would take it: it is the driver that stops reading.
        async with a_pool(DevTools(output_bytes=1000)) as pool:
            with pytest.raises(PermanentPdfError) as failed:
                await pool.render(Document("<p>x"), Times())
            assert failed.value.detail == "output_too_large"
            assert await shows_something(pool)

    asyncio.run(render())


@pytest.mark.shows("P-14", "P-32")
@pytest.mark.parametrize("driver", [PlaywrightDriver, DevTools])
@pytest.mark.parametrize("html", [LOOP, LOOP_AT_PRINT, MANY_NODES])
def test_a_page_that_does_not_end_is_killed_in_time_and_its_neighbour_is_rendered(
    html: str, driver: Callable[[], Driver]
) -> None:
    async def render() -> None:
        async with a_pool(driver(), places=2) as pool:
            await pool.render(Document("<p>first", javascript=True), Times())
            before = browser_of(pool)
            hostile = asyncio.ensure_future(pool.render(Document(html, javascript=True), SOON))
            neighbour = await pool.render(Document("<p>beside", javascript=True), Times())
            assert text_of(neighbour.pdf).strip() == "beside"
            with pytest.raises(PdfError) as failed:
                await hostile
            if html == MANY_NODES:
                # On a fast machine it is complete in its time, and has too many.
                assert failed.value.detail in ("", "dom_too_large")
            else:
                assert isinstance(failed.value, TransientPdfError)
                assert failed.value.code == PdfErrorCode.NAVIGATION_TIMEOUT
            after = await pool.render(Document("<p>after", javascript=True), Times())
            assert text_of(after.pdf).strip() == "after"
            assert browser_of(pool) == before, "the browser was not reused"
            # What is left are the pages that were opened ahead.
            await until(lambda: len(renderers_of(before)) <= 2)

    asyncio.run(render())


@pytest.mark.shows("P-32")
@pytest.mark.parametrize("driver", [PlaywrightDriver, DevTools])
def test_a_page_that_takes_too_much_memory_is_killed_and_its_neighbour_is_rendered(
    driver: Callable[[], Driver],
) -> None:
    async def render() -> None:
        async with a_pool(driver(), places=2, limits=Limits(memory_bytes=384 << 20)) as pool:
            await pool.render(Document("<p>first", javascript=True), Times())
            before = browser_of(pool)
            bomb = asyncio.ensure_future(pool.render(Document(BOMB, javascript=True), NEVER))
            neighbour = await pool.render(Document("<p>beside", javascript=True), Times())
            assert text_of(neighbour.pdf).strip() == "beside"
            with pytest.raises(PermanentPdfError) as failed:
                await bomb
            assert failed.value.code == PdfErrorCode.TEMPLATE_ERROR
            assert failed.value.detail == "memory_exceeded"
            await pool.render(Document("<p>after"), Times())
            assert browser_of(pool) == before

    asyncio.run(render())


WORD = "a" * 250_000
"""As long as a request may make it."""


@pytest.mark.shows("P-32")
@pytest.mark.parametrize(
    "html",
    [
        f"<p>{WORD}</p>",
        f"<table><td style='white-space: nowrap'>{WORD}<td>b</table>",
        f"<p style='white-space: pre; overflow: hidden'>{'aaa ' * 62_500}</p>",
    ],
)
def test_a_line_longer_than_any_paper_is_broken_and_takes_little(html: str) -> None:
    async def render() -> None:
        async with a_pool() as pool:
            await pool.render(Document("<p>first"), Times())
            printed = await pool.render(Document(html), Times())
            # As one line it is not done in its time, by far.
            assert text_of(printed.pdf).count("a") >= 187_500

    asyncio.run(render())


@pytest.mark.shows("P-32")
def test_a_line_that_cannot_be_broken_fails_at_once() -> None:
    async def render() -> None:
        async with a_pool() as pool:
            for html in (f"<svg><text>{WORD}</text></svg>", f"<svg><text>{WORD[:9000]}</text>"):
                with pytest.raises(PermanentPdfError) as failed:
                    await pool.render(Document(html), Times())
                assert failed.value.code == PdfErrorCode.TEMPLATE_ERROR
                assert failed.value.detail == "line_too_long"
            # What no paper need hold on one line is left as it is.
            usual = "<p style='white-space: nowrap'>" + "word " * 400
            assert (await pool.render(Document(usual), Times())).pages == 1

    asyncio.run(render())


@pytest.mark.shows("P-32", "P-14")
@pytest.mark.parametrize("driver", [PlaywrightDriver, DevTools])
def test_a_page_for_which_a_common_process_takes_too_much_memory_fails_alone(
    driver: Callable[[], Driver],
) -> None:
    slow = "<p>beside</p><script>setTimeout(() => document.body.className = 'd', 2000)</script>"
    neighbours = (
        Document(slow, javascript=True, wait_for=".d"), Document("<p>beside"), Document("<p>beside")
    )  # fmt: skip

    async def render() -> None:
        async with a_pool(driver(), places=4, limits=Limits(memory_bytes=320 << 20)) as pool:
            await pool.render(Document("<p>first", javascript=True), Times())
            bomb = asyncio.ensure_future(pool.render(Document(GPU_BOMB, javascript=True), NEVER))
            beside = await asyncio.gather(*(pool.render(one, Times()) for one in neighbours))
            assert {text_of(one.pdf).strip() for one in beside} == {"beside"}
            with pytest.raises(PermanentPdfError) as failed:
                await bomb
            assert failed.value.code == PdfErrorCode.TEMPLATE_ERROR
            assert failed.value.detail == "memory_exceeded"
            assert (await pool.render(Document("<p>after"), Times())).pages == 1

    asyncio.run(render())


@pytest.mark.shows("P-15")
def test_a_page_whose_process_is_killed_is_rendered_again_in_the_same_browser() -> None:
    async def render() -> None:
        gate = asyncio.Event()
        afar = Afar({HELD: A_PICTURE}, gate=gate)
        async with a_pool(fetcher=afar) as pool:
            rendering = asyncio.ensure_future(pool.render(Document(HELD_PAGE), NEVER))
            await afar.was_asked.wait()
            browser = browser_of(pool)
            for pid in renderers_of(browser):
                os.kill(pid, signal.SIGKILL)
            gate.set()
            assert "seen" in text_of((await rendering).pdf)
            assert await shows_something(pool)
            assert browser_of(pool) == browser

    asyncio.run(render())


@pytest.mark.shows("P-14")
def test_a_resource_that_never_comes_ends_with_the_time_and_its_page() -> None:
    async def render() -> None:
        afar = Afar({HELD: A_PICTURE}, gate=asyncio.Event())
        async with a_pool(fetcher=afar) as pool:
            await pool.render(Document("<p>before"), Times())  # the start has all its time
            browser = browser_of(pool)
            with pytest.raises(TransientPdfError) as failed:
                await pool.render(Document(HELD_PAGE), SOON)
            assert failed.value.code == PdfErrorCode.NAVIGATION_TIMEOUT
            await until(lambda: len(renderers_of(browser)) <= 1)
            assert (await pool.render(Document("<p>after"), Times())).pages == 1
            assert browser_of(pool) == browser

    asyncio.run(render())


def test_a_render_that_is_cancelled_takes_its_page_with_it() -> None:
    async def render() -> None:
        async with a_pool() as pool:
            await pool.render(Document("<p>first", javascript=True), Times())
            browser = browser_of(pool)
            await until(lambda: len(renderers_of(browser)) == 1)
            (page,) = renderers_of(browser)
            looping = asyncio.ensure_future(pool.render(Document(LOOP, javascript=True), NEVER))
            # The next page is opened ahead as soon as this one has its document.
            await until(lambda: len(renderers_of(browser)) == 2)
            looping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looping
            await until(lambda: not is_alive(page))
            assert (await pool.render(Document("<p>after"), Times())).pages == 1
            assert browser_of(pool) == browser

    asyncio.run(render())
