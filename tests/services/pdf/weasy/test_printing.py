"""What WeasyPrint prints behind the same contract as the browser."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import sys
from pathlib import Path

import pikepdf
import pytest

from tests.services.pdf.browser.scene import RED, colours_of
from tests.services.pdf.browser.yard import sizes_of, text_of
from tests.services.pdf.weasy.room import (
    AMPLE,
    Asked,
    a_pool,
    document,
    outline_of,
    picture,
    printed,
)
from ulak.services.pdf.document import Fetched, Limits
from ulak.services.pdf.model import PermanentPdfError

FIVE = "".join(f"<h1 style='break-before: page'>Page {n}</h1>" for n in range(1, 6))


@pytest.mark.shows("P-56")
def test_a_document_is_printed_and_the_result_names_the_engine() -> None:
    rendered = printed("<!doctype html><title>Çay</title><p>Günayd\u0131n, Ayşe & <b>Müller</b>")
    assert rendered.engine.startswith("WeasyPrint/")
    assert rendered.pages == 1
    assert "Günayd\u0131n, Ayşe & Müller" in text_of(rendered.pdf)
    assert rendered.timings.keys() == {"launch", "load", "print", "total"}
    assert rendered.blocked == {}


@pytest.mark.shows("P-9")
def test_the_paper_is_the_templates_without_margins_unless_the_style_sheet_says_so() -> None:
    red = "<body style='margin: 0; background: red'>x"
    plain = printed(red, paper=(4.0, 3.0))
    assert sizes_of(plain.pdf) == [(288, 216)]
    own = printed(f"<style>@page {{ size: 5in 6in; margin: 1in }}</style>{red}", paper=(4.0, 3.0))
    assert sizes_of(own.pdf) == [(360, 432)]


def test_ranges_take_pages_in_their_own_order() -> None:
    rendered = printed(FIVE, ranges="2,4-", outline=True, tagged=True)
    assert rendered.pages == 3
    assert [word for word in text_of(rendered.pdf).split() if word.isdigit()] == ["2", "4", "5"]
    assert outline_of(rendered.pdf) == ["Page 2", "Page 4", "Page 5"]


def test_a_range_of_no_page_fails() -> None:
    with pytest.raises(PermanentPdfError) as failed:
        printed(FIVE, ranges="9-")
    assert (failed.value.code, failed.value.detail) == ("TEMPLATE_ERROR", "page_range")


def test_tags_and_outline_are_there_when_they_are_asked_for() -> None:
    html = f"<html lang=tr><title>Ba\u015fl\u0131k</title>{FIVE}"
    both, neither = printed(html, tagged=True, outline=True).pdf, printed(html).pdf
    assert outline_of(both) == [f"Page {n}" for n in range(1, 6)]
    assert outline_of(neither) == []
    for pdf, tagged in ((both, True), (neither, False)):
        with pikepdf.open(io.BytesIO(pdf)) as opened:
            assert ("/StructTreeRoot" in opened.Root) is tagged
            assert str(opened.Root.Lang) == "tr"
            assert str(opened.docinfo["/Title"]) == "Ba\u015fl\u0131k"


@pytest.mark.shows("P-10")
def test_the_same_document_gives_the_same_bytes_in_every_process() -> None:
    html = (
        "<title>t</title><link rel=attachment href='data:text/plain,x'>"
        f"<a rel=attachment href='data:text/plain,y'>a</a><img src='{picture('RGBA', 9, 7)}'>"
        f"<p style='font-family: serif'>ğüşiöç{FIVE}"
    )

    async def twice() -> list[bytes]:
        async with a_pool() as pool:
            asked = document(html, tagged=True, outline=True)
            return [(await pool.render(asked, AMPLE)).pdf for _ in range(2)]

    found = asyncio.run(twice()) + asyncio.run(twice())
    assert len(set(found)) == 1
    assert b"/ID" in found[0] or b"ObjStm" in found[0]
    with pikepdf.open(io.BytesIO(found[0])) as opened:
        assert len(opened.trailer.ID) == 2
        assert "/CreationDate" not in opened.docinfo


def test_what_the_document_holds_itself_is_printed() -> None:
    font = Path("/usr/share/fonts/truetype/liberation/LiberationMono-Regular.ttf")
    if not font.exists():
        font = next(Path("/usr/share/fonts").rglob("LiberationMono-Regular.ttf"))
    face = base64.b64encode(font.read_bytes()).decode()
    html = (
        f"<style>@font-face {{ font-family: Own; src: url(data:font/ttf;base64,{face}) }}"
        f"p {{ font-family: Own }}</style><p>own</p><img src='{picture('RGB', 9, (0, 0, 255))}'>"
    )
    rendered = printed(html)
    with pikepdf.open(io.BytesIO(rendered.pdf)) as opened:
        fonts = {
            str(font["/BaseFont"]) for font in opened.objects
            if isinstance(font, pikepdf.Dictionary) and font.get("/Type") == "/Font"
        }  # fmt: skip
    assert any("Mono" in name or "Own" in name for name in fonts), fonts
    assert (0, 0, 255) in colours_of(rendered.pdf)


@pytest.mark.parametrize(
    ("html", "limits", "word"),
    [
        ("<p>x" * 50, Limits(dom_nodes=60), "dom_too_large"),
        (FIVE, Limits(pages=4), "too_many_pages"),
        ("<p>x", Limits(output_bytes=100), "output_too_large"),
        ("<p>" + "x" * 200, Limits(html_bytes=100), "html_too_large"),
        ("<div>" * 3000 + "x", Limits(), "nested_too_deep"),
    ],
)
@pytest.mark.shows("P-32", "P-56")
def test_what_exceeds_a_limit_fails_and_says_which(html: str, limits: Limits, word: str) -> None:
    with pytest.raises(PermanentPdfError) as failed:
        printed(html, {"limits": limits})
    assert (failed.value.code, failed.value.detail) == ("TEMPLATE_ERROR", word)


@pytest.mark.parametrize("mode", ["RGB", "P"])
@pytest.mark.shows("P-32")
def test_an_image_that_does_not_fit_into_memory_fails_the_document(mode: str) -> None:
    # The one is decoded while it is printed; at the other WeasyPrint would shrug and leave it out.
    html = f"<img src='{picture(mode, 9000, 3)}'>"
    small = {"limits": Limits(memory_bytes=96 * 1024 * 1024)}
    with pytest.raises(PermanentPdfError) as failed:
        printed(html, small)
    assert (failed.value.code, failed.value.detail) == ("TEMPLATE_ERROR", "memory_exceeded")
    assert printed("<p>x", small).pages == 1


def test_a_status_that_no_resource_may_have_fails_the_document() -> None:
    async def missing(url: str) -> Fetched:
        return Fetched(404, (), b"")

    html = "<img src='https://pictures.test/a.png'>"
    assert printed(html, {"fetcher": Asked(missing)}).pages == 1
    with pytest.raises(PermanentPdfError) as failed:
        printed(html, {"fetcher": Asked(missing)}, fail_on_status=frozenset({404}))
    assert (failed.value.code, failed.value.detail) == ("TEMPLATE_ERROR", "resource_status")


def test_what_was_fetched_is_printed() -> None:
    async def answer(url: str) -> Fetched:
        if url.endswith(".css"):
            return Fetched(200, (("Content-Type", "text/css"),), b"p { color: #00ff00 }")
        return Fetched(200, (("content-type", "image/png"),), RED)

    html = (
        "<link rel=stylesheet href='https://a.test/a.css'><p style='font-size: 80px'>&#9608;</p>"
        "<img width=90 height=90 src='https://a.test/a.png'>"
    )
    fetcher = Asked(answer)
    rendered = printed(html, {"fetcher": fetcher})
    assert sorted(fetcher.urls) == ["https://a.test/a.css", "https://a.test/a.png"]
    assert {(255, 0, 0), (0, 255, 0)} <= colours_of(rendered.pdf)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("javascript", True),
        ("header", "<p>h</p>"),
        ("footer", "<p>f</p>"),
        ("single_page", True),
        ("wait_for", "p"),
        ("wait_for_expression", "true"),
        ("fail_on_script_error", True),
        ("omit_background", True),
    ],
)
@pytest.mark.shows("P-56")
def test_what_takes_a_browser_is_refused_and_never_left_out(name: str, value: object) -> None:
    with pytest.raises(PermanentPdfError, match=name) as failed:
        printed("<p>x", **{name: value})
    assert (failed.value.code, failed.value.detail) == ("TEMPLATE_ERROR", "page_options")


def test_the_worker_has_nothing_of_weasyprint() -> None:
    program = """
import asyncio, sys
from tests.services.pdf.weasy.room import AMPLE, a_pool, document

async def work():
    async with a_pool() as pool:
        await pool.render(document("<p>x"), AMPLE)
        print({"weasyprint", "pydyf", "fontTools"} & {name.split(".")[0] for name in sys.modules})

asyncio.run(work())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[4], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "set()\n"
