"""Every request of a page is put to the fetcher, whatever the page does to get around it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from tests.services.pdf.browser.scene import Answers, running
from tests.services.pdf.browser.yard import Afar, a_pool, text_of
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Fetched, Limits, NoNetwork, Reason, Rendered, Times
from ulak.services.pdf.model import PdfError

GO = "http://afar.test"
WITHOUT_SCRIPTS = {
    "image": f"<img src={GO}/x>",
    "style sheet": f"<link rel=stylesheet href={GO}/x>",
    "background": f"<body style='background: url({GO}/x)'>",
    "frame": f"<iframe src={GO}/x></iframe>",
    "image of a frame": f"<iframe srcdoc='<img src={GO}/x>'></iframe>",
    "image of a frame of data": f"<iframe src='data:text/html,<img src={GO}/x>'></iframe>",
    "object": f"<object data={GO}/x></object>",
}
WITH_SCRIPTS = {
    "fetch": f"fetch('{GO}/x')",
    "navigation": f"location = '{GO}/x'",
    "popup": f"window.open('{GO}/x')",
    "image of a popup": f"open('about:blank').document.write('<img src={GO}/x>')",
    "form": "document.body.append(Object.assign(document.createElement('form'),"
    f"{{action: '{GO}/x'}})); document.forms[0].submit()",
    "worker": f"new Worker(URL.createObjectURL(new Blob([`fetch('{GO}/x').catch(() => 0)`])))",
}


LAST = f"{GO}/last"
"""Is refused only when something else was: a document that has it is not complete before."""


class Counting(NoNetwork):
    """Refuses, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self._was_asked = asyncio.Event()

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        if url == LAST:
            await self._was_asked.wait()
        else:
            self.urls.append(url)
            self._was_asked.set()
        return await super().fetch(url, method=method, headers=headers)


def refused(
    html: str, *, javascript: bool = False, driver: Driver | None = None
) -> tuple[Rendered, list[str]]:
    counting = Counting()

    async def render() -> Rendered:
        async with a_pool(driver, fetcher=counting) as pool:
            return await pool.render(Document(html, javascript=javascript), Times())

    return asyncio.run(render()), counting.urls


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("what", WITHOUT_SCRIPTS)
def test_what_a_page_asks_for_is_refused_and_counted_and_the_page_printed(what: str) -> None:
    result, urls = refused("<p>the text</p>" + WITHOUT_SCRIPTS[what])
    assert urls == [f"{GO}/x"]
    assert result.blocked == {"allowlist": 1}
    assert text_of(result.pdf).startswith("the text")


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("what", WITH_SCRIPTS)
def test_what_a_script_asks_for_is_refused_and_counted_and_the_page_printed(what: str) -> None:
    # A popup is closed at once; while its opener is busy it has not gone, and asks.
    busy = "<script>const end = Date.now() + 300; while (Date.now() < end);</script>"
    html = f"<p>the text</p><script>{WITH_SCRIPTS[what]}</script>{busy}<img src={LAST}>"
    result, urls = refused(html, javascript=True)
    assert [url.rstrip("?") for url in urls] == [f"{GO}/x"]
    assert text_of(result.pdf).startswith("the text")


UNSEEN: Mapping[str, tuple[str, Reason]] = {
    "window": (f"open('{GO}/x#part')", "allowlist"),
    "window without an opener": (f"open('{GO}/x', '_blank', 'noopener')", "allowlist"),
    "window of another scheme": ("open('ftp://afar.test/x')", "scheme"),
    "form of a window": (
        f"""document.body.append(Object.assign(document.createElement('form'),
        {{action: '{GO}/x', target: '_blank', method: 'post'}})); document.forms[0].submit()""",
        "allowlist",
    ),
    "link to a window": (
        f"""Object.assign(document.createElement('a'),
        {{href: '{GO}/x', target: '_blank'}}).click()""",
        "allowlist",
    ),
    "webrtc": (
        """const p = new RTCPeerConnection({iceServers: [{urls: 'stun:afar.test'}]});
        p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o))""",
        "scheme",
    ),
    "webrtc of a frame": (
        """document.body.append(document.createElement('iframe'));
        new frames[0].RTCPeerConnection()""",
        "scheme",
    ),
    "module of a worker": (
        f"""new Worker("data:text/javascript,import '{GO}/x'", {{type: 'module'}})""",
        "allowlist",
    ),
    "module that a worker asks for": (
        f"""new Worker("data:text/javascript,import('{GO}/x').catch(() => 0)",
        {{type: 'module'}})""",
        "allowlist",
    ),
    "worker that is a module and a blob": (
        f"""new Worker(URL.createObjectURL(new Blob(["import '{GO}/x'"],
        {{type: 'text/javascript'}})), {{type: 'module'}})""",
        "scheme",
    ),
}  # fmt: skip


@pytest.mark.shows("P-27", "P-30")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
@pytest.mark.parametrize("what", UNSEEN)
def test_what_is_no_request_of_the_page_itself_is_counted_once(
    what: str, driver: Callable[[], Driver]
) -> None:
    code, reason = UNSEEN[what]
    html = f"<p>the text</p><script>{code}</script><img src={LAST}>"
    result, _ = refused(html, javascript=True, driver=driver())
    assert result.blocked == Counter([reason, "allowlist"]), "the last image among them"
    assert text_of(result.pdf).startswith("the text")


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_what_a_failed_attempt_asked_for_is_told_with_its_failure(
    driver: Callable[[], Driver],
) -> None:
    async def render() -> None:
        async with a_pool(driver(), limits=Limits(dom_nodes=3)) as pool:
            with pytest.raises(PdfError) as failed:
                await pool.render(Document(f"<p>x<img src={GO}/x><img src=file:///x>"), Times())
        assert failed.value.blocked == {"allowlist": 1, "scheme": 1}

    asyncio.run(render())


class Leaving(Answers):
    """Refuses everything, and tells when it has been asked."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = asyncio.Event()

    async def __call__(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        self.was_asked.set()
        return await super().__call__(url, method, headers)


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_a_page_that_leaves_by_itself_is_refused_and_stays(driver: type[Driver]) -> None:
    # It leaves some time after it was loaded, often when it has been printed already.
    document = Document(f"<p>the text</p><meta http-equiv=refresh content='0;url={GO}/x'>")

    async def story() -> None:
        answers = Leaving()
        async with running(driver()) as browser:
            page = await browser.open(javascript=False, answer=answers)
            await page.load(document)
            await asyncio.wait_for(answers.was_asked.wait(), 30)
            # Twice: what a refusal would put in its place is not there at once.
            printed = [text_of(await page.print(document)).strip() for _ in range(2)]
        assert answers.asked == [f"{GO}/x"]
        assert printed == ["the text"] * 2

    asyncio.run(story())


class Gate(Counting):
    """Refuses as the others do, and answers `/gate` once it has refused something."""

    def __init__(self) -> None:
        super().__init__()
        self._has_refused = asyncio.Event()

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        if url == f"{GO}/gate":
            await self._has_refused.wait()
            return Fetched(200, (("Access-Control-Allow-Origin", "*"),), b"")
        self._has_refused.set()
        return await super().fetch(url, method=method, headers=headers)


@pytest.mark.shows("P-27")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_a_page_that_leaves_by_itself_is_counted_and_printed(driver: type[Driver]) -> None:
    html = f"""<p id=p>waits</p><meta http-equiv=refresh content='0;url={GO}/x'>
    <script>fetch("{GO}/gate").then(() => p.className = "refused")</script>"""
    document = Document(html, javascript=True, wait_for=".refused")

    async def story() -> None:
        gate = Gate()
        async with a_pool(driver(), fetcher=gate) as pool:
            result = await pool.render(document, Times())
        assert gate.urls == [f"{GO}/x"]
        assert result.blocked == {"allowlist": 1}
        assert text_of(result.pdf).strip() == "waits"

    asyncio.run(story())


@pytest.mark.shows("P-27")
def test_local_files_are_refused_and_counted_though_the_browser_refuses_them_itself() -> None:
    result, _ = refused("<p>x</p><img src=file:///etc/passwd><iframe src=file:///etc></iframe>")
    assert result.blocked == {"scheme": 2}


@pytest.mark.shows("P-30")
def test_a_web_socket_is_refused_and_counted() -> None:
    html = """<p id=p>waits</p><script>
    const socket = new WebSocket("ws://afar.test/");
    socket.onopen = () => p.textContent = "open";
    </script>"""
    result, _ = refused(html, javascript=True)
    assert result.blocked == {"scheme": 1}
    assert text_of(result.pdf).strip() == "waits"


def test_a_dialog_is_dismissed_and_holds_nobody_up() -> None:
    html = "<p id=p>x</p><script>alert(1); p.textContent = String(confirm(2))</script>"
    result, _ = refused(html, javascript=True)
    assert text_of(result.pdf).strip() == "false"


@pytest.mark.shows("P-30")
def test_what_the_fetcher_lets_through_is_handed_to_the_page() -> None:
    sheet = ("text/css", b"p::after { content: ' from afar' }")

    async def render() -> None:
        async with a_pool(fetcher=Afar({f"{GO}/x": sheet})) as pool:
            html = f"<link rel=stylesheet href={GO}/x><p>styled</p>"
            result = await pool.render(Document(html), Times())
            assert text_of(result.pdf).strip() == "styled from afar"
            assert result.blocked == {}

    asyncio.run(render())


def test_a_page_stays_where_it_is_even_when_it_could_go_elsewhere() -> None:
    async def render() -> None:
        async with a_pool(fetcher=Afar({f"{GO}/x": ("text/html", b"<p>elsewhere")})) as pool:
            html = f"<p>here</p><meta http-equiv=refresh content='0;url={GO}/x'>"
            result = await pool.render(Document(html), Times())
            assert text_of(result.pdf).strip() == "here"

    asyncio.run(render())


def test_data_and_blobs_of_the_page_need_nobody() -> None:
    html = """<p>x</p><img src="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>">
    <script>const image = new Image();
    image.src = URL.createObjectURL(new Blob(["no"])); document.body.append(image)</script>"""
    result, urls = refused(html, javascript=True)
    assert (urls, result.blocked) == ([], {})


def test_an_answer_that_does_not_come_is_no_refusal() -> None:
    class Down:
        async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
            raise ConnectionRefusedError

    async def render() -> None:
        async with a_pool(fetcher=Down()) as pool:
            result = await pool.render(Document(f"<p>here<img src={GO}/x>"), Times())
            assert text_of(result.pdf).strip() == "here"
            assert result.blocked == {}

    asyncio.run(render())
