"""A document is complete when it has loaded, with all that it brings in, and not before (P-11).

Whatever comes from afar comes late here, and is red: a page without red was printed too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.services.pdf.browser.scene import RED, colours_of, running, text_of
from ulak.services.pdf.browser.driver import BrowserGone, Driver, PageCrashed
from ulak.services.pdf.document import Document, Fetched

GO = "http://afar.test"
LATE_S = 0.2
BOX = "width: 50px; height: 50px"

AFAR = {
    "dot": ("image/png", RED.decode("latin-1")),
    "red.css": ("text/css", "p { background: red }"),
    "import.css": ("text/css", f"@import url({GO}/red.css);"),
    "dots.css": ("text/css", f"p {{ background: url({GO}/dot) }}"),
    "before.css": ("text/css", f"p::before {{ content: url({GO}/dot); {BOX} }}"),
    "red.html": ("text/html", "<body bgcolor=red>"),
    "dots.html": ("text/html", f"<img src={GO}/dot style='{BOX}'>"),
    "red.svg": (
        "image/svg+xml",
        "<svg xmlns='http://www.w3.org/2000/svg'><rect width='99' height='99' fill='red'/></svg>",
    ),
    "red.js": ("text/javascript", "document.body.bgColor = 'red'"),
    "stop.js": ("text/javascript", "stop()"),
    "import.js": ("text/javascript", f"import '{GO}/red.js'"),
}

DOCUMENTS = {
    "image": f"<img src={GO}/dot>",
    "lazy image": f"<img src={GO}/dot loading=lazy>",
    "picture": f"<picture><source srcset={GO}/dot><img></picture>",
    "image of a drawing": f"<svg><image href={GO}/dot width=50 height=50 /></svg>",
    "image of a button": f"<input type=image src={GO}/dot>",
    "poster": f"<video poster={GO}/dot></video>",
    "style sheet": f"<link rel=stylesheet href={GO}/red.css><p>text",
    "imported style sheet": f"<link rel=stylesheet href={GO}/import.css><p>text",
    "style sheet of a style": f"<style>@import url({GO}/red.css)</style><p>text",
    "background": f"<p style='background: url({GO}/dot)'>text",
    "background of a style": f"<style>p {{ background: url({GO}/dot) }}</style><p>text",
    "background for print": f"<style>@media print {{ p {{ background: url({GO}/dot) }} }}</style>"
    "<p>text",
    "background of a style sheet": f"<link rel=stylesheet href={GO}/dots.css><p>text",
    "background of an import": f"<style>@import url({GO}/dots.css)</style><p>text",
    "background of a style sheet of data": "<link rel=stylesheet href='data:text/css,"
    f"p {{ background: url({GO}/dot) }}'><p>text",
    "background of a style sheet where no text is": f"<link rel=stylesheet href={GO}/dots.css>"
    "<p style='height: 50px'>",
    "background of a style sheet in the body": f"<body><link rel=stylesheet href={GO}/dots.css>"
    "<p>text",
    "background in a shadow": "<div><template shadowrootmode=open>"
    f"<link rel=stylesheet href={GO}/dots.css><p>text</template></div>",
    "content of a style sheet": f"<link rel=stylesheet href={GO}/before.css><p>text",
    "mark of a list": f"<ul style='list-style-image: url({GO}/red.svg)'><li>text</ul>",
    "frame": f"<iframe src={GO}/red.html></iframe>",
    "lazy frame": f"<iframe src={GO}/red.html loading=lazy></iframe>",
    "image of a frame": f"<iframe src={GO}/dots.html></iframe>",
    "frame of its own text": "<iframe srcdoc='<body bgcolor=red>'></iframe>",
    "image of a frame of its own text": f"<iframe srcdoc='<img src={GO}/dot>'></iframe>",
    "frame of data": "<iframe src='data:text/html,<body bgcolor=red>'></iframe>",
    "image of a frame of data": f"<iframe src='data:text/html,<img src={GO}/dot>'></iframe>",
    "frame of a frame": "<iframe srcdoc=\"<iframe srcdoc='<body bgcolor=red>'>\"></iframe>",
    "object": f"<object type=image/svg+xml data={GO}/red.svg></object>",
    "object of text": f"<object type=text/html data={GO}/red.html></object>",
    "embedded": f"<embed type=image/svg+xml src={GO}/red.svg>",
}
SCRIPTED = {
    "script": f"<script src={GO}/red.js></script>",
    "script that need not be waited for": f"<script async src={GO}/red.js></script>",
    "script of the end": f"<script defer src={GO}/red.js></script>",
    "module": f"<script type=module src={GO}/import.js></script>",
    "image that a script adds in the end": """<script>onload = () => {
        const image = new Image(); image.src = "http://afar.test/dot"; document.body.append(image)
    }</script>""",
    "act of a script in the end": "<script>onload = () => document.body.bgColor = 'red'</script>",
}


class Late:
    """Answers what a document asks for, each after some time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []

    async def __call__(self, url: str, method: str, headers: dict[str, str]) -> Fetched:
        self.asked.append(url)
        await asyncio.sleep(LATE_S)
        self.answered.append(url)
        kind, body = AFAR[url.removeprefix(f"{GO}/")]
        allowed = ("Access-Control-Allow-Origin", "*")
        return Fetched(200, (("Content-Type", kind), allowed), body.encode("latin-1"))


async def prints(
    driver: Driver, documents: dict[str, Document]
) -> AsyncIterator[tuple[str, bytes, bool]]:
    """Print documents in one browser, and tell whether each had all it asked for when loaded."""
    async with running(driver) as browser:
        for name, document in documents.items():
            late = Late()
            page = await browser.open(javascript=document.javascript, answer=late)
            async with asyncio.timeout(30):
                await page.load(document)
            had = list(late.answered)
            pdf = await page.print(document)
            await page.close()
            yield name, pdf, had == late.asked


@pytest.mark.shows("P-11")
def test_a_document_has_loaded_only_when_all_that_it_brings_in_is_there(driver: Driver) -> None:
    documents = {name: Document(html) for name, html in DOCUMENTS.items()}
    documents |= {
        name: Document(f"<body>{html}", javascript=True) for name, html in SCRIPTED.items()
    }

    async def story() -> None:
        # The browser holds up printing by itself too, but no longer than two seconds.
        early, lacking = [], []
        async for name, pdf, had_all in prints(driver, documents):
            if not had_all:
                early.append(name)
            if (255, 0, 0) not in colours_of(pdf):
                lacking.append(name)
        assert (early, lacking) == ([], [])

    asyncio.run(story())


ENDINGS = {
    "stops": "stop()",
    "writes anew": "onload = () => { document.open(); document.write('text anew'); "
    "document.close() }",
    "writes into a frame": "const frame = document.createElement('iframe'); "
    "document.body.append(frame); frame.contentDocument.write('in it'); "
    "frame.contentDocument.close()",
    "removes a frame that loads": "const frame = document.createElement('iframe'); "
    f"frame.src = '{GO}/red.html'; document.body.append(frame); "
    "setTimeout(() => frame.remove(), 20)",
    "throws": "null.x",
    "asks": "alert(1)",
    "goes elsewhere": f"location = '{GO}/red.html'",
    "goes elsewhere while an image comes": "const image = new Image(); "
    f"image.src = '{GO}/dot'; document.body.append(image); "
    f"setTimeout(() => location = '{GO}/red.html', 20)",
    "stops in a script from afar": "</script><script src=http://afar.test/stop.js>",
    "goes to data": "location = 'data:text/html,data'",
    "goes to a file": "location = 'file:///etc/hostname'",
    "writes a mail": "location = 'mailto:a@afar.test'",
    "runs an address": "location = 'javascript:void 0'",
    "downloads": "const link = document.createElement('a'); link.download = 'x'; "
    "link.href = 'data:,x'; document.body.append(link); link.click()",
    "goes elsewhere in the end": f"onload = () => location = '{GO}/red.html'",
    "goes back": "history.back()",
    "goes to a part of itself": "location.hash = 'part'",
}


@pytest.mark.shows("P-11")
def test_whatever_a_script_does_its_document_is_loaded_some_time(driver: Driver) -> None:
    documents = {
        name: Document(f"<body>text<script>{script}</script>", javascript=True)
        for name, script in ENDINGS.items()
    }

    async def story() -> None:
        lost = [
            name async for name, pdf, _ in prints(driver, documents) if "text" not in text_of(pdf)
        ]
        assert lost == []

    asyncio.run(story())


@pytest.mark.shows("P-11")
def test_a_page_that_crashes_while_it_loads_is_told(driver: Driver) -> None:
    async def story() -> None:
        late = Late()
        async with running(driver) as browser:
            page = await browser.open(javascript=False, answer=late)
            loading = asyncio.ensure_future(page.load(Document(f"<iframe src={GO}/red.html>")))
            async with asyncio.timeout(30):
                while not late.asked:
                    await asyncio.sleep(0.01)
                await page.kill()
                with pytest.raises((PageCrashed, BrowserGone)):
                    await loading

    asyncio.run(story())
