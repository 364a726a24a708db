"""What a PDF says of itself without being asked: title and language, as its HTML has them."""

from __future__ import annotations

import asyncio
import io

import pikepdf
import pytest

from tests.services.pdf.browser.yard import a_pool, text_of
from ulak.services.pdf.browser.chromium_pdf import NotChromiums, language_of, with_language
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Times
from ulak.services.pdf.templates import SHIPPED, Templates

A_LETTER = """<!doctype html><html lang="tr-TR"><head><title>Ağaç (1)</title></head>
<body><h1>Ağaç</h1><p>/Lang (xx) startxref 5 %%EOF</p></body></html>"""


def printed(driver: Driver, *documents: Document) -> list[bytes]:
    async def render() -> list[bytes]:
        async with a_pool(driver) as pool:
            return [(await pool.render(one, Times())).pdf for one in documents]

    return asyncio.run(render())


@pytest.mark.shows("P-55")
@pytest.mark.parametrize("driver", [DevTools, PlaywrightDriver])
def test_title_and_language_are_in_the_pdf_with_and_without_structure(
    driver: type[DevTools] | type[PlaywrightDriver],
) -> None:
    documents = [Document(A_LETTER, tagged=tagged, outline=tagged) for tagged in (True, False)]
    for pdf in printed(driver(), *documents):
        with pikepdf.open(io.BytesIO(pdf)) as read:
            assert str(read.docinfo.Title) == "Ağaç (1)"
            assert str(read.Root.Lang) == "tr-TR"
            assert bool(read.Root.ViewerPreferences.DisplayDocTitle) is True
            assert not read.check_pdf_syntax()
        assert "Ağaç" in text_of(pdf)


@pytest.mark.shows("P-55")
def test_templates_are_tagged_and_have_an_outline_unless_they_say_otherwise() -> None:
    templates = Templates((SHIPPED,))
    documents = [templates.render(name, templates.get(name).sample()) for name in templates.names()]
    assert len(documents) == 3
    for pdf in printed(DevTools(), *documents):
        with pikepdf.open(io.BytesIO(pdf)) as read:
            assert read.Root.MarkInfo.Marked
            assert "/StructTreeRoot" in read.Root
            assert "/Outlines" in read.Root
            assert str(read.docinfo.Title)
            assert len(str(read.Root.Lang)) == 2


@pytest.mark.parametrize(
    ("html", "language"),
    [
        ('<!doctype html><html lang="tr"><p>', "tr"),
        ("<HTML class=a LANG=en-GB>", "en-GB"),
        ("<html lang='zh-Hant-TW' dir=ltr>", "zh-Hant-TW"),
        ("<html><body lang=tr>", ""),
        ('<html lang="">', ""),
        ('<html lang="(x)">', ""),
        ('<html data-lang="tr">', ""),
        ("<p lang=tr>", ""),
        ("", ""),
    ],
)
def test_the_language_is_that_of_the_html_element(html: str, language: str) -> None:
    assert language_of(html) == language


def test_a_language_that_is_there_stays_and_none_is_made_up() -> None:
    [pdf] = printed(DevTools(), Document(A_LETTER))
    assert with_language(pdf, "en") == pdf
    assert with_language(b"anything", "") == b"anything"
    with pytest.raises(NotChromiums):
        with_language(b"anything", "en")
