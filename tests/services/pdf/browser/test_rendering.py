"""Documents become PDFs: complete, always the same, and of the fixed settings."""

from __future__ import annotations

import asyncio
import re
import struct
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest

from tests.services.pdf.browser.yard import (
    A_PICTURE,
    HELD,
    HELD_PAGE,
    Afar,
    a_pool,
    a_yard,
    browser_of,
    sizes_of,
    text_of,
)
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.document import Document, Rendered, Times

A_LETTER = """<!doctype html><html lang="en"><head><title>A letter</title><style>
@page { size: A5; margin: 20mm } h1 { break-after: page; background: #dde } </style></head>
<body><h1>Ağaç, Дерево</h1><p>second page</p></body></html>"""
ITS_SCRIPTS = """<p id=p>plain</p><script>
p.textContent = ["ran", innerWidth, innerHeight, matchMedia("print").matches].join(" ");
</script>"""


def rendered(document: Document, **options: object) -> Rendered:
    async def render() -> Rendered:
        async with a_pool(**options) as pool:
            return await pool.render(document, Times())

    return asyncio.run(render())


@pytest.mark.shows("P-10")
@pytest.mark.parametrize("tagged", [False, True])
def test_the_same_html_in_two_browsers_gives_the_same_bytes(tagged: bool) -> None:
    async def render_twice() -> None:
        document = Document(A_LETTER, tagged=tagged, outline=tagged)
        async with a_pool() as one, a_pool() as other:
            first = await one.render(document, Times())
            # Dates have seconds: were they printed, these would differ.
            await asyncio.sleep(1.1)
            second = await other.render(document, Times())
            assert browser_of(one) != browser_of(other)
            assert first.pdf == second.pdf
            again = await one.render(Document(A_LETTER + "<p>more", tagged=tagged), Times())
            assert _id_of(again.pdf) != _id_of(first.pdf)

    asyncio.run(render_twice())


def _id_of(pdf: bytes) -> bytes:
    found = re.search(rb"/ID \[<(\w{32})> <(\w{32})>\]", pdf)
    assert found is not None
    return found[1]


@pytest.mark.shows("P-9")
def test_the_style_sheet_has_the_page_size_and_backgrounds_are_printed() -> None:
    result = rendered(Document(A_LETTER))
    assert result.pages == 2
    assert sizes_of(result.pdf) == [(420, 595), (420, 595)]
    without = rendered(Document(A_LETTER.replace("background: #dde", "")))
    assert len(without.pdf) < len(result.pdf)
    assert result.engine.startswith("HeadlessChrome/")
    assert {"launch", "load", "print", "total"} == result.timings.keys()


def test_where_the_style_sheet_says_no_size_the_documents_paper_counts() -> None:
    result = rendered(Document("<p>x", paper=(4.0, 6.0)))
    assert sizes_of(result.pdf) == [(288, 432)]


@pytest.mark.shows("P-9", "P-32")
def test_scripts_run_only_when_the_document_asks_and_see_the_fixed_viewport_in_print() -> None:
    assert text_of(rendered(Document(ITS_SCRIPTS)).pdf).strip() == "plain"
    with_scripts = rendered(Document(ITS_SCRIPTS, javascript=True))
    assert text_of(with_scripts.pdf).strip() == "ran 1280 720 true"


@pytest.mark.shows("P-11")
@pytest.mark.parametrize("javascript", [False, True])
@pytest.mark.parametrize("image", ["<img src={}>", "<img loading=lazy src={}>"])
def test_a_document_is_printed_only_when_every_image_is_there(image: str, javascript: bool) -> None:
    html = '<p>text</p><div style="height: 5000px"></div>' + image.format(HELD)
    pdf = printed_when_held(Document(html, javascript=javascript), {HELD: A_PICTURE})
    assert "seen" in text_of(pdf)


def printed_when_held(document: Document, answers: dict[str, tuple[str, bytes]]) -> bytes:
    """Print a document of which something comes late; it must not be complete before."""

    async def render() -> bytes:
        gate = asyncio.Event()
        afar = Afar(answers, gate=gate)
        with a_yard() as directory:
            browser = await DevTools().start(prepare(directory=directory))
            page = await browser.open(
                javascript=document.javascript,
                answer=lambda url, method, headers: afar.fetch(url, method=method, headers=headers),
            )
            loading = asyncio.ensure_future(page.load(document))
            await afar.was_asked.wait()
            # The browser itself holds up printing for a while, but not the end of loading.
            done, _ = await asyncio.wait([loading], timeout=0.3)
            assert not done
            gate.set()
            await loading
            pdf = await page.print(document)
            await browser.kill()
            return pdf

    return asyncio.run(render())


@pytest.mark.shows("P-11")
def test_a_document_is_printed_only_when_its_fonts_are_there() -> None:
    file = next(Path("/usr/share/fonts").rglob("*Mono*Bold*.ttf"))
    family = file.name.partition("Mono")[0]
    url = "https://afar.test/font.ttf"
    html = (
        f"<style>@font-face {{ font-family: Far; src: url({url}) }} p {{ font-family: Far }}"
        "</style><p>in letters from afar"
    )
    pdf = printed_when_held(Document(html), {url: ("font/ttf", file.read_bytes())})
    names = re.findall(rb"/BaseFont /[A-Z]+\+([\w-]+)", pdf)
    assert [name for name in names if name.startswith(family.encode())]


def test_a_broken_image_does_not_hold_up_its_document() -> None:
    result = rendered(
        Document(HELD_PAGE), fetcher=Afar({HELD: ("image/png", b"this is no picture")})
    )
    assert text_of(result.pdf).strip() == "held"


def test_what_scripts_throw_is_told_by_class_and_line_and_never_by_its_message() -> None:
    html = """<p>x</p><script>
    null.planted</script><script>throw "planted"</script>
    <script>Promise.reject(new RangeError("planted"))</script><script>planted(</script>"""
    result = rendered(Document(html, javascript=True))
    assert set(result.script_errors) >= {
        "TypeError at line 2",
        "string at line 2",
        "SyntaxError at line 3",
    }
    assert "planted" not in repr(result.script_errors)


def test_tags_and_outline_are_there_when_they_are_asked_for() -> None:
    plain = rendered(Document(A_LETTER)).pdf
    assert b"/StructTreeRoot" not in plain
    assert b"/Outlines" not in plain
    rich = rendered(Document(A_LETTER, tagged=True, outline=True)).pdf
    assert b"/StructTreeRoot" in rich
    assert b"/Outlines" in rich


def test_a_document_of_many_megabytes_is_taken_and_given_whole() -> None:
    # More than both pipes hold, and the PDF in more than one piece: noise does not compress.
    width = height = 700
    pixels = Random(1).randbytes(width * height * 3)  # noqa: S311 - noise, no secret
    head = struct.pack("<2sIII", b"BM", 54 + len(pixels), 0, 54)
    size = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 0, 0, 0, 0)
    picture = b64encode(head + size + pixels).decode()
    result = rendered(Document(f'<p>above</p><img src="data:image/bmp;base64,{picture}"><p>below'))
    assert len(result.pdf) > 1 << 20
    assert text_of(result.pdf).split() == ["above", "below"]
