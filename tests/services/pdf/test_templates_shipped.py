"""The templates that come with the package, filled with their samples and printed for real."""

# ruff: noqa: RUF001 - Turkish has an i without a dot, and sums a minus sign

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pypdfium2
import pytest

from ulak.services.pdf.configuration import open_renderer
from ulak.services.pdf.document import Rendered
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.templates import Templates

NAMES = ("certificate", "invoice", "report")


def printed(*names: str) -> list[Rendered]:
    templates = Templates()

    async def story() -> list[Rendered]:
        config = PdfRenderConfig(concurrency=1)
        async with open_renderer(config) as renderer:
            return [
                await renderer.render(
                    templates.render(name, templates.get(name).sample()), config.times
                )
                for name in names
            ]

    return asyncio.run(story())


def pages_of(rendered: Rendered) -> Sequence[str]:
    document = pypdfium2.PdfDocument(rendered.pdf)
    try:
        texts = []
        for number in range(len(document)):
            page = document[number]
            text = page.get_textpage()
            texts.append(text.get_text_bounded())
            text.close()
            page.close()
        return texts
    finally:
        document.close()


def size_of(rendered: Rendered) -> tuple[int, int]:
    document = pypdfium2.PdfDocument(rendered.pdf)
    width, height = document.get_page_size(0)
    document.close()
    return round(width), round(height)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.shows("P-57")
def test_there_is_nothing_to_complain_about(name: str) -> None:
    assert Templates().check(name) == []


def test_these_are_all() -> None:
    assert tuple(template.name for template in Templates().list()) == NAMES


@pytest.mark.shows("P-31", "P-9")
def test_an_invoice_is_one_page_with_every_letter_of_turkish() -> None:
    (rendered,) = printed("invoice")
    assert size_of(rendered) == (595, 842)
    (text,) = pages_of(rendered)
    for said in (
        "Işıkçı Öğütücü & Değirmen Sanayi A.Ş.", "Gümüşsuyu Fırıncılık Ltd. Şti.", "15 Kasım 2026",
        "₺126.795,90", "−₺3.770,00", "%20", "“Ekşi maya ve öğütüm”",
    ):  # fmt: skip
        assert said in text


@pytest.mark.shows("P-62")
def test_an_invoice_prints_the_signs_of_lira_and_rouble_as_glyphs_and_not_as_boxes() -> None:
    templates = Templates()
    sample = templates.get("invoice").sample()
    documents = [templates.render("invoice", {**sample, "currency": c}) for c in ("TRY", "RUB")]

    async def story() -> list[Rendered]:
        config = PdfRenderConfig(concurrency=1)
        async with open_renderer(config) as renderer:
            return [await renderer.render(document, config.times) for document in documents]

    for sign, rendered in zip("₺₽", asyncio.run(story()), strict=True):
        assert rendered.warnings == ()
        (text,) = pages_of(rendered)
        assert f"{sign}126.795,90" in text


@pytest.mark.shows("P-9")
def test_a_report_has_twenty_pages_with_running_headers_and_numbers() -> None:
    (rendered,) = printed("report")
    pages = pages_of(rendered)
    assert len(pages) == rendered.pages == 20
    cover, contents, *rest = pages
    assert "Electricity in the group, 2026" in cover
    assert "/ 20" not in cover
    assert "Register of meters" in contents
    for number, text in enumerate(rest, start=3):
        assert f"{number} / 20" in text
        assert "Electricity in the group, 2026" in text
    # The head of the long table stands again on each of its pages, beside the chapter's name.
    register = [text for text in rest if "M-0" in text]
    assert len(register) == 5
    assert all("Calibrated" in text and "Register of meters" in text for text in register)
    assert "Пловдив" in register[0]


@pytest.mark.shows("P-9")
def test_a_certificate_is_one_landscape_page_in_three_alphabets() -> None:
    (rendered,) = printed("certificate")
    assert size_of(rendered) == (842, 595)
    (text,) = pages_of(rendered)
    for said in ("Екатерина Щербакова-Жукова", "Gülşah Ağaoğlu", "Certificate of Mastery"):
        assert said in text


@pytest.mark.shows("P-10")
def test_the_same_sample_is_printed_to_the_same_bytes() -> None:
    first, second = printed("invoice", "invoice")
    assert first.pdf == second.pdf
