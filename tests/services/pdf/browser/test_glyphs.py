"""Characters that no font has are found in what was printed, by name, and nothing else is."""

from __future__ import annotations

import asyncio
import zlib
from base64 import b64decode, b64encode
from typing import Any

import pytest

from tests.services.pdf.browser.yard import a_pool
from ulak.services.pdf.browser import chromium_pdf
from ulak.services.pdf.browser.chromium_pdf import Boxes, find_boxes
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import OutputTooLarge, PageCrashed, PageFailed, Unfit
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Rendered, RenderWarning, Times

# For private use, at the very end of what there is: no font of any system has these.
NOBODYS, NOR_THIS = "\U0010fffd", "\U0010fff0"
A_FONT = zlib.decompress(
    b64decode(
        "eNqNUT1LA0EUnN1NQgxBk0auCHKKhYXgByIWio2NoijapFKPfBZ35tAEYmdp6e8QbQQre7G00MbKQsQfENOZc3ZvEQ"
        "0EHJh9b97bfTu3BwEggzMouNt7M/NrLxt3gJhi9bAUeCFWcE19Qb1T80+r691qjvqDerZe8cr3l70n5lfkYp2F5Kjo"
        "Mn8jJ+tBsy2LzCDOuaT8RsmDgyz1q9aB1w6RQIo6Te0eeUFFTmfagHSoF8LGSZO+CLmp+9BeyffbieeDkeVPKKV94O"
        "ZxH7+j6IgOg4JEDJ5RbrTEOdpNmV2BvxCmIukm7kj0Q8kiXyGJf0EfT9h8lQAiQrlmkIuHvu2udWZvsixwFTZm9Htw"
        "pGOGG3dRZKh3ZM25ws+35KIvQ9iuY7P4ZTh7Lj+e13kvO7Cu7xnTDhJD3JM2nnQuMUy1BQ9lVLBL1tCCT30c/6vB+A"
        "bA30+H"
    )
)
"""One that has U+10FFFD and nothing else, as TrueType."""
MAY_BE_COPIED = 305
"""Where it says whether it may be part of a document (fsType of its OS/2 table)."""
ORDINARY = "Ağaç, Дерево, Ελληνικά, 1 250,00 €, a–b, “x”, a\u00a0b, a\u00adb, a\u200bb, fi ﬁ"  # noqa: RUF001


def rendered(*documents: Document, driver: object = None) -> list[Rendered]:
    async def render() -> list[Rendered]:
        async with a_pool(driver) as pool:  # type: ignore[arg-type]
            return [await pool.render(document, Times()) for document in documents]

    return asyncio.run(render())


def missing(*characters: str, count: int) -> tuple[RenderWarning, ...]:
    return (RenderWarning("missing_glyphs", characters=characters, count=count),)


def a_font(*, embeds: bool) -> str:
    """Return the font as a URL; one that forbids to be copied is printed in another way."""
    font = bytearray(A_FONT)
    font[MAY_BE_COPIED] = 0 if embeds else 2
    return f"data:font/ttf;base64,{b64encode(font).decode()}"


@pytest.mark.shows("P-62")
@pytest.mark.parametrize("tagged", [False, True])
def test_a_character_that_no_font_has_is_named(tagged: bool) -> None:
    html = f"<p>{ORDINARY} {NOBODYS}</p><p><b>{NOR_THIS}{NOBODYS}</b></p>"
    plain, lacking = rendered(
        Document(f"<p>{ORDINARY}</p>", tagged=tagged), Document(html, tagged=tagged)
    )
    assert plain.warnings == ()
    assert lacking.warnings == missing("U+10FFFD", "U+10FFF0", count=3)
    assert "U+" not in repr(lacking), "logs may tell a result, and never what a document says"


@pytest.mark.shows("P-62")
@pytest.mark.parametrize("embeds", [True, False])
def test_fonts_that_the_template_brings_count(embeds: bool) -> None:
    style = f"<style>@font-face {{ font-family: M; src: url({a_font(embeds=embeds)}) }} "
    html = style + "p { font-family: M }</style><p>"
    has, has_not = rendered(Document(html + NOBODYS), Document(html + NOBODYS + NOR_THIS + "a"))
    assert has.warnings == ()
    assert has_not.warnings == missing("U+10FFF0", count=1)


@pytest.mark.shows("P-62")
def test_it_is_what_is_printed_that_counts() -> None:
    hidden = f"<p>shown<span hidden>{NOBODYS}</span></p><title>{NOBODYS}</title>"
    generated = f"<style>p::after {{ content: '{NOBODYS}' }}</style><p>shown</p>"
    scripted = f"<p id=p>x</p><script>p.textContent = '{NOBODYS}'</script>"
    by_header = Document(
        "<style>@page { margin: 20mm }</style><p>shown</p>",
        header=f'<b style="font-size: 9px">{NOBODYS}</b>',
    )
    found = rendered(
        Document(hidden), Document(generated), Document(scripted),
        Document(scripted, javascript=True), by_header,
    )  # fmt: skip
    said = [each.warnings for each in found]
    box = missing("U+10FFFD", count=1)
    assert said == [(), box, (), box, box]


@pytest.mark.shows("P-62")
def test_the_other_driver_finds_the_same() -> None:
    (found,) = rendered(Document(f"<p>{ORDINARY}{NOBODYS}"), driver=PlaywrightDriver())
    assert found.warnings == missing("U+10FFFD", count=1)


def test_of_many_characters_the_first_twenty_are_named_and_all_are_counted() -> None:
    many = "".join(chr(0x10FF00 + n) for n in range(30))
    (found,) = rendered(Document(f"<p>{many}"))
    (warning,) = found.warnings
    assert warning.characters == tuple(f"U+{0x10FF00 + n:X}" for n in range(20))
    assert warning.count == 30


def test_marks_joiners_and_the_right_to_left_are_told_as_what_they_are() -> None:
    family = f"{NOBODYS}\u200d{NOR_THIS}\ufe0f"
    joined, reversed_, marker = rendered(
        Document(f"<p>{family}"),
        Document(f"<b><bdo dir=rtl>ab {NOBODYS} cd</bdo></b>"),
        Document(f"<style>li::marker {{ content: '{NOBODYS}' }}</style><ul><li>x</ul>"),
    )
    assert joined.warnings == missing("U+10FFFD", "U+10FFF0", count=2)
    assert reversed_.warnings == missing("U+10FFFD", count=1)
    assert marker.warnings == missing("U+10FFFD", count=1)


def test_what_is_named_is_what_is_a_box_by_itself() -> None:
    # Which of these a machine has fonts for does not matter: beside one that nobody has, those
    # that another font stands in for are not given up.
    characters = ["☃", "中", "ก", "\U0001f600", "א", "ψ", NOBODYS]
    alone = rendered(*(Document(f"<p>x {each}") for each in characters))
    boxes = {
        f"U+{ord(c):04X}" for c, found in zip(characters, alone, strict=True) if found.warnings
    }
    assert "U+10FFFD" in boxes
    apart = "".join(f"<p>x {each} y" for each in characters)
    listed = '<p style=\'font: bold 20pt "Liberation Serif", Tinos, "Times New Roman", serif\'>Ada '
    joined = [" ".join(characters), " ".join(reversed(characters)), "Ada 漢字 \U0001f600 ☃"]
    first, *others = rendered(Document(apart), *(Document(listed + each) for each in joined))
    assert set(first.warnings[0].characters) == boxes
    # In one line a browser may give up more than it has to; each is there once, however.
    for found in (first, *others):
        (warning,) = found.warnings
        assert warning.count == len(warning.characters)


def test_boxes_of_a_picture_are_counted_though_nothing_names_them() -> None:
    text = f"<text y='20'>{NOBODYS}a</text>"
    picture = f"<svg xmlns='http://www.w3.org/2000/svg' width='90' height='40'>{text}</svg>"
    (found,) = rendered(Document(f'<img src="data:image/svg+xml,{picture}">'))
    assert found.warnings == missing(count=1)


class Failing(DevTools):
    """A driver whose pages cannot be printed a second time, for one reason or another."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def start(self, launch: Launch) -> Any:
        browser: Any = await super().start(launch)
        opening = browser.open

        async def refuse(document: Document) -> bytes:
            raise self._error

        async def open_page(**options: Any) -> Any:
            page = await opening(**options)
            page.print_marked = refuse
            return page

        browser.open = open_page
        return browser


@pytest.mark.parametrize(
    "error", [PageFailed(), PageCrashed(), TimeoutError(), OutputTooLarge(), Unfit("x", "y")]
)
def test_where_the_names_are_not_to_be_had_the_document_is_printed_all_the_same(
    error: Exception,
) -> None:
    (found,) = rendered(Document(f"<p>{NOBODYS} x {NOR_THIS}"), driver=Failing(error))
    assert found.warnings == missing("U+10FFF0", count=2)


# --- by the bytes ---------------------------------------------------------------


def a_pdf(content: bytes, *, packed: bool = True, more: bytes = b"") -> bytes:
    """The parts of a PDF that are looked at, as Chromium writes them."""
    body = zlib.compress(content) if packed else content
    kind = b"/Filter /FlateDecode\n" if packed else b""
    stream = b"4 0 obj\n<<%b/Length %d>> stream\n%b\nendstream\nendobj\n" % (kind, len(body), body)
    return b"%PDF-1.4\n" + more + stream


A_NARROW_FONT = b"9 0 obj\n<</Type /Font\n/Subtype /Type3\n/FirstChar 0>>\nendobj\n"
NONE = Boxes((), 0)


@pytest.mark.parametrize(
    ("content", "more", "expected"),
    [
        (b"BT\n/F5 12 Tf\n<00440055> Tj\nET", b"", NONE),
        (b"<0044> Tj <01000010> Tj", b"", NONE),
        (b"/Span<</ActualText <FEFF00A0> >> BDC\n<0003> Tj\nEMC\n<0000> Tj", b"", Boxes((), 1)),
        (b"/Span<</ActualText (\\() >> BDC\n<0000> Tj\nEMC", b"", Boxes(("(",), 1)),
        (b"/Span<</ActualText (\\047) >> BDC\n<0000> Tj\nEMC", b"", Boxes(("'",), 1)),
        (b"/Span<</ActualText <FEFFDBFFDFFF> >> BDC\n<0000> Tj\nEMC", b"", Boxes((), 1)),
        # A base that has its glyph, and a mark that has none.
        (
            b"/Span<</ActualText <FEFF00650301> >> BDC\n<0048> Tj\n1 0 Td <0000> Tj\nEMC", b"",
            Boxes(("\u0301",), 1),
        ),
        # Of two bytes one may be zero, of one byte none.
        (b"/F5 9 Tf\n<0041> Tj\n/F9 9 Tf\n<41> Tj", A_NARROW_FONT, NONE),
        (
            b"/F9 9 Tf\n/Span<</ActualText <FEFFD83DDE00> >> BDC\n<00> Tj\nEMC\n/F5 9 Tf\n<41> Tj",
            A_NARROW_FONT, Boxes(("\U0001f600",), 1),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [True, False])
def test_glyph_0_is_found_however_it_is_written(
    content: bytes, more: bytes, expected: Boxes, packed: bool
) -> None:
    assert find_boxes(a_pdf(content, packed=packed, more=more)) == expected


def test_fonts_images_and_what_cannot_be_unpacked_are_left_alone() -> None:
    image = a_pdf(b"<0000> Tj", packed=False).replace(b"<</Length", b"<</Subtype /Image\n/Length")
    font = a_pdf(b"<0000> Tj", packed=False).replace(b"<</Length", b"<</Length1 9\n/Length")
    broken = a_pdf(b"x").replace(zlib.compress(b"x"), b"no zlib")
    assert find_boxes(image + font + broken) == NONE
    assert find_boxes(b"") == NONE


def test_what_unpacks_to_too_much_is_said_to_be_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium_pdf, "MOST_BYTES", 1000)
    assert find_boxes(a_pdf(b" " * 990 + b"<0044> Tj")) == NONE
    assert find_boxes(a_pdf(b" " * 2000)) is None
    (found,) = rendered(Document(f"<p>{ORDINARY * 20}"))
    assert found.warnings == (RenderWarning("glyphs_unchecked"),)
