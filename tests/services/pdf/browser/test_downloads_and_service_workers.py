"""A page can neither save a file nor leave a service worker behind it, with either driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.services.pdf.browser.scene import Answers, running, text_of
from tests.services.pdf.browser.yard import until
from ulak.services.pdf.browser.devtools import DevBrowser, DevPage, DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.pipe import Params, Pipe
from ulak.services.pdf.browser.playwright import PlaywrightDriver, PlaywrightPage
from ulak.services.pdf.document import Document, Fetched

HERE = "https://allowed.test/page"
HTML = (("content-type", "text/html"),)
SCRIPT = (("content-type", "text/javascript"),)
WORKER = Fetched(200, SCRIPT, b"addEventListener('fetch', () => 0)")

SAVES = Document(
    """<a id=link download=kept.txt>save</a><script>
    link.href = URL.createObjectURL(new Blob(["to be kept"])); link.click()</script>""",
    javascript=True,
)
# A frame tells its parent whether it could have one; the page is shown when it has told.
HAS_ONE = b"<script>parent.postMessage('serviceWorker' in navigator, '*')</script>"
ASKS_A_FRAME = Document(
    f"""<p id=told></p><iframe src={HERE}></iframe><script>
    addEventListener("message", event => {{
        told.textContent = `page: ${{"serviceWorker" in navigator}}, frame: ${{event.data}}`
        told.className = "told"
    }})</script>""",
    javascript=True,
    wait_for=".told",
)
REGISTERS = b"""<script>
    navigator.serviceWorker.register("/worker").then(made => fetch(`/told?${made}`))
</script>"""


def listen(
    page: DevPage | PlaywrightPage, event: str, listener: Callable[[Mapping[str, Any]], None]
) -> None:
    """Hear what the browser says of a page, besides what its driver hears."""
    if isinstance(page, DevPage):
        heard = page._pipe._listeners[page._session]
        page._pipe.listen(page._session, {**heard, event: listener})
    else:
        page._session.on(event, listener)


@pytest.mark.shows("P-30")
def test_a_download_is_refused_before_its_first_byte(driver: Driver) -> None:
    async def story() -> None:
        told: list[Mapping[str, Any]] = []
        async with running(driver) as browser:
            page = await browser.open(javascript=True, answer=Answers())
            listen(page, "Page.downloadProgress", lambda event: told.append(event))
            await page.load(SAVES)
            await until(lambda: any(progress["state"] == "canceled" for progress in told))
        assert [progress["receivedBytes"] for progress in told] == [0] * len(told)

    asyncio.run(story())


@pytest.mark.shows("P-30")
def test_neither_a_page_nor_a_frame_of_it_can_have_a_service_worker(driver: Driver) -> None:
    async def story() -> None:
        async with running(driver) as browser:
            answers = Answers(page=Fetched(200, HTML, HAS_ONE))
            page = await browser.open(javascript=True, answer=answers)
            await page.load(ASKS_A_FRAME)
            printed = text_of(await page.print(ASKS_A_FRAME))
        assert "page: false, frame: false" in printed

    asyncio.run(story())


async def go_to_an_address_of_its_own(page: DevPage | PlaywrightPage) -> None:
    """Let the page leave, which its driver refuses, and ask for a service worker from there."""
    leave = f"location = '{HERE}'"
    await page.load(Document("<p>left", javascript=True))
    if isinstance(page, DevPage):
        page._frame = ""
    else:
        page._leaves = lambda request: False
    await page._ask("Runtime.evaluate", expression=leave)


@pytest.mark.shows("P-30")
def test_a_page_that_got_to_an_address_registers_nothing_with_playwright() -> None:
    async def story() -> None:
        answers = Answers(page=Fetched(200, HTML, REGISTERS), worker=WORKER)
        async with running(PlaywrightDriver()) as browser:
            page = await browser.open(javascript=True, answer=answers)
            await go_to_an_address_of_its_own(page)
            await until(lambda: any("told" in url for url in answers.asked))
        assert answers.asked == [HERE, "https://allowed.test/told?undefined"]

    asyncio.run(story())


@pytest.mark.shows("P-30")
def test_a_service_worker_is_stopped_at_birth_and_never_let_go_with_devtools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    born: list[Mapping[str, Any]] = []
    sent: list[tuple[str, str]] = []
    send = Pipe.send

    def note(pipe: Pipe, method: str, session: str = "", /, **params: Any) -> Any:
        sent.append((method, params.get("targetId", session)))
        return send(pipe, method, session, **params)

    def noting(attach: Callable[[Any, Params], None]) -> Callable[[Any, Params], None]:
        def attached(self: Any, event: Params) -> None:
            attach(self, event)
            if event["targetInfo"]["type"] == "service_worker":
                born.append(event)

        return attached

    monkeypatch.setattr(Pipe, "send", note)
    for owner in (DevBrowser, DevPage):
        monkeypatch.setattr(owner, "_attached", noting(owner._attached))

    async def story() -> None:
        answers = Answers(page=Fetched(200, HTML, REGISTERS), worker=WORKER)
        async with running(DevTools()) as browser:
            page = await browser.open(javascript=True, answer=answers)
            await go_to_an_address_of_its_own(page)
            # The browser tells its own session of it, and the page's.
            await until(lambda: len(born) == 2)
        for event in born:
            assert event["waitingForDebugger"]
            assert ("Runtime.runIfWaitingForDebugger", event["sessionId"]) not in sent
            assert sent.count(("Target.closeTarget", event["targetInfo"]["targetId"])) == 2
        assert answers.asked == [HERE]

    asyncio.run(story())
