"""What differs between two prints is fixed, and nothing that a document says is taken for it."""

from __future__ import annotations

import asyncio

import pypdfium2
import pytest

from tests.services.pdf.browser.yard import a_yard
from ulak.services.pdf.browser.chromium_pdf import NotChromiums, count_pages, same_bytes
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.document import Document, Fetched

# Every word that the structure is read by, as a text of the document's own.
TRICKS = "endobj /Pages 3 0 R /Count 99 /CreationDate (D:19990101000000+00'00') startxref 1 %%EOF"


def printed(document: Document) -> bytes:
    async def refuse(url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        return None

    async def render() -> bytes:
        with a_yard() as directory:
            browser = await DevTools().start(prepare(directory=directory))
            page = await browser.open(javascript=False, answer=refuse)
            await page.load(document)
            pdf = await page.print(document)
            await browser.kill()
            return pdf

    return asyncio.run(render())


@pytest.mark.shows("P-10")
@pytest.mark.parametrize("tagged", [False, True])
def test_dates_are_overwritten_in_place_and_the_identifier_follows_from_the_content(
    tagged: bool,
) -> None:
    html = f'<html lang="{TRICKS}"><title>{TRICKS}</title><h1>{TRICKS}</h1>' + (
        '<p style="break-after: page">x</p>' * 6
    )
    pdf = printed(Document(html, tagged=tagged, outline=tagged))
    fixed = same_bytes(pdf)
    assert count_pages(pdf) == count_pages(fixed) == 6
    document = pypdfium2.PdfDocument(fixed)
    assert len(document) == 6
    assert document.get_metadata_value("CreationDate") == "D:20000101000000+00'00'"
    assert document.get_metadata_value("ModDate") == "D:20000101000000+00'00'"
    assert document.get_metadata_value("Title") == TRICKS
    document.close()
    # Another day's print of the same, and one that says something else.
    another_day = pdf.replace(b"/CreationDate (D:2", b"/CreationDate (D:3")
    assert another_day != pdf
    assert same_bytes(another_day) == fixed
    assert same_bytes(fixed) == fixed
    other = pdf.replace(b"/Creator (C", b"/Creator (K")
    assert same_bytes(other)[-80:] != fixed[-80:]


@pytest.mark.parametrize("cut", [0, 20, 200])
def test_what_is_no_pdf_of_chromiums_is_said_to_be_none(cut: int) -> None:
    pdf = printed(Document("<p>x"))
    broken = pdf[: len(pdf) - cut] if cut else b""
    with pytest.raises(NotChromiums):
        count_pages(broken)
    with pytest.raises(NotChromiums):
        same_bytes(broken)
