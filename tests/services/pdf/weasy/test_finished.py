"""What is done to a printed document is done whichever engine has printed it."""

from __future__ import annotations

import asyncio
from io import BytesIO

import pikepdf
import pytest

from tests.services.pdf.browser.scene import text_of
from tests.services.pdf.weasy.room import AMPLE, a_pool, document
from ulak.services.pdf.document import Limits, Rendered
from ulak.services.pdf.finishing.composing import compose
from ulak.services.pdf.output import read_output

LETTER = "<html lang=tr><title>Mektup</title><h1>Sevgili</h1><p>Ada</p>"
TERMS = "<html lang=tr><title>Koşullar</title><h1>Koşullar</h1><p>hepsi</p>"
XML = b"<invoice/>"
WANTED = {
    "metadata": {"title": "Mektup 7", "author": "Zeynep"},
    "watermark": {"text": "TASLAK-ОБРАЗЕЦ"},
    "attachments": [
        {
            "name": "invoice.xml", "media_type": "text/xml", "data": "PGludm9pY2UvPg==",
            "relationship": "Data",
        }
    ],
}  # fmt: skip


@pytest.mark.shows("P-55", "P-56", "P-10")
def test_documents_of_weasyprint_are_put_together_marked_and_described() -> None:
    async def story() -> tuple[Rendered, Rendered]:
        documents = (
            document(LETTER, tagged=True, outline=True),
            document(TERMS, tagged=True, outline=True),
        )
        async with a_pool() as pool:
            one, other = [
                await compose(
                    documents, read_output(WANTED), renderer=pool, limits=Limits(),
                    left=lambda: AMPLE,
                )
                for _ in range(2)
            ]  # fmt: skip
            return one, other

    made, again = asyncio.run(story())
    assert made.pdf == again.pdf
    assert made.pages == 2
    assert made.engine.startswith("WeasyPrint/")
    text = text_of(made.pdf)
    assert text.index("Sevgili") < text.index("Koşullar")
    assert text.count("TASLAK-ОБРАЗЕЦ") == 2
    with pikepdf.open(BytesIO(made.pdf)) as opened:
        assert opened.attachments["invoice.xml"].get_file().read_bytes() == XML
        assert str(opened.docinfo["/Title"]) == "Mektup 7"
        assert str(opened.Root.Lang) == "tr"
        with opened.open_outline() as outline:
            assert [entry.title for entry in outline.root] == ["Sevgili", "Koşullar"]
