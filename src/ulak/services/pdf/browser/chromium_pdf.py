"""What Chromium has printed: made the same each time, its pages counted, its language said, and
characters found that no font has.

Chromium's PDFs have one table of objects and no compressed ones, so they are read by following the
table; nothing that stands in a document's own text is ever taken for structure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from unicodedata import category

from ulak.services.pdf.browser.driver import MARK
from ulak.services.pdf.document import MISSING_GLYPHS, RenderWarning

MOST_CHARACTERS: Final = 20
"""Different characters that are told of one document."""
MOST_BYTES: Final = 128 * 1024 * 1024
"""What is unpacked of one document; the five hundred pages that it may have stay far below."""
LOOKED_AT: Final = 4096
"""Characters in which a document has its first element; a guess, far beyond any comment there."""

_DATE: Final = b"20000101000000"
_STAMP: Final = re.compile(rb"/(?:CreationDate|ModDate) \(D:(\d{14})([+\-Z][\d']*)\)")
_START: Final = re.compile(rb"startxref\s+(\d+)\s+%%EOF\s*\Z")
_TABLE: Final = re.compile(rb"xref\n0 (\d+)\n")
_STRING: Final = re.compile(rb"\((?:\\.|[^\\()])*\)", re.DOTALL)
# Texts are skipped as wholes: one may hold any word.
_OBJECT: Final = re.compile(rb"\d+ 0 obj(?:\((?:\\.|[^\\()])*\)|[^(])*?endobj", re.DOTALL)
_ROOT: Final = re.compile(rb"/Root (\d+) 0 R")
_INFO: Final = re.compile(rb"/Info (\d+) 0 R")
_PAGES: Final = re.compile(rb"/Pages (\d+) 0 R")
_COUNT: Final = re.compile(rb"/Count (\d+)")
_ID: Final = re.compile(rb"\s*/ID\s*\[[^\]]*\]")
_ENTRY: Final = 20
"""Bytes of one line of the table."""
_TAIL: Final = 2048
_LANGUAGE: Final = re.compile(
    r"""<html\b[^>]*?\slang\s*=\s*["']?([A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8}){0,4})(?=["'\s/>])""",
    re.IGNORECASE,
)
_STREAM: Final = b">> stream\n"
_LENGTH: Final = re.compile(rb"/Length (\d{1,12})\b")
_ONE_BYTE_FONT: Final = re.compile(rb"\n(\d+) 0 obj\n<</Type /Font\n/Subtype /Type3\n")
# Chromium names a font by the number of its object.
_FONT: Final = re.compile(rb"/F(\d+) [^ \n]+ Tf\n")
_WIDE: Final = re.compile(rb"<((?:[0-9A-F]{4})*?0000(?:[0-9A-F]{4})*)> Tj")
_NARROW: Final = re.compile(rb"<((?:[0-9A-F]{2})*?00(?:[0-9A-F]{2})*)> Tj")
_GLYPHS: Final = re.compile(rb"<([0-9A-F]+)> Tj")
_SAID: Final = re.compile(rb"/ActualText (?:<FEFF([0-9A-F]*)>|\(((?:\\.|[^\\)])*)\))", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_NEAR: Final = 2048
"""How far before its glyphs the text of a few characters may begin."""


class NotChromiums(ValueError):
    """The bytes are not a PDF as Chromium writes it."""


def same_bytes(pdf: bytes) -> bytes:
    """Give a PDF fixed dates and an identifier that follows from its content.

    Dates are overwritten in place; the identifier stands behind the table, so that no position in
    it changes.

    Raises:
        NotChromiums: it cannot be read.
    """
    table = _Table(pdf)
    start, end = table.bounds(table.refers(table.trailer, _INFO))
    info = _STAMP.sub(_fixed, pdf[start:end])
    trailer = _ID.sub(b"", table.trailer)
    head = b"".join((pdf[:start], info, pdf[end : table.trailer_at]))
    digest = sha256(head)
    digest.update(trailer)
    identifier = digest.hexdigest()[:32].upper().encode("ascii")
    at = trailer.rindex(b">>")
    mark = b"\n/ID [<%b> <%b>]" % (identifier, identifier)
    return b"".join((head, trailer[:at], mark, trailer[at:]))


def count_pages(pdf: bytes) -> int:
    """Return the number of pages; raises as `same_bytes`."""
    table = _Table(pdf)
    catalog = table.read(table.refers(table.trailer, _ROOT))
    pages = table.read(table.refers(catalog, _PAGES))
    return table.refers(pages, _COUNT)


def language_of(html: str) -> str:
    """Return the language of an HTML text, as `<html lang="tr">` says it, or ''."""
    found = _LANGUAGE.search(html, 0, LOOKED_AT)
    return "" if found is None else found[1]


def with_language(pdf: bytes, language: str) -> bytes:
    """Return a PDF with a language in its catalog: its own, else this one.

    Chromium writes it with the structure and not without. The catalog is written again behind all
    other objects, so that none of them moves. Raises as `same_bytes`.
    """
    if not language:
        return pdf
    table = _Table(pdf)
    number = table.refers(table.trailer, _ROOT)
    if b"/Lang" in table.read(number):
        return pdf
    catalog = pdf[slice(*table.bounds(number))]
    closes = catalog.rindex(b">>")
    said = b"\n/Lang (%b)" % language.encode("ascii")
    moved = b"".join((catalog[:closes], said, catalog[closes:], b"\n"))
    entries = bytearray(pdf[table.at : table.trailer_at])
    entry = table.first - table.at + number * _ENTRY
    entries[entry : entry + 10] = b"%010d" % table.at
    begins = b"startxref\n%d\n%%%%EOF\n" % (table.at + len(moved))
    trailer = _START.sub(begins, table.trailer)
    return b"".join((pdf[: table.at], moved, entries, trailer))


@dataclass(frozen=True, slots=True)
class Boxes:
    """What is printed as boxes."""

    characters: tuple[str, ...]
    """Those that are known, in the order in which they are found, each once."""
    count: int


def find_boxes(pdf: bytes) -> Boxes | None:
    """Find the characters that no font has, which print as boxes; None when it unpacks to too much.

    Glyph 0 of every font is its box, and Chromium writes glyphs by their numbers. So what is found
    is what was printed: after fonts of the template and of the system were tried, in generated
    content, headers and footers too, and not in what nobody sees. Which character a box stands for
    is written beside it (`/ActualText`), but for the first of each font; `print_marked` makes that
    one known.

    Text that is drawn as a picture or as an outline has no glyphs any more, and is not seen. Safe
    in any thread.
    """
    narrow = frozenset(found[1] for found in _ONE_BYTE_FONT.finditer(pdf))
    characters: dict[str, None] = {}
    count = 0
    try:
        for content in _contents(pdf):
            texts: set[int] = set()
            for at, boxes, width in _boxes(content, narrow):
                count += boxes
                begin = _text_before(content, at)
                if begin is not None and begin not in texts:
                    texts.add(begin)
                    characters.update(dict.fromkeys(_lacking(content, begin, width)))
    except _TooMuch:
        return None
    characters.pop(MARK, None)
    return Boxes(tuple(characters), count)


def boxes_warning(characters: tuple[str, ...], count: int) -> RenderWarning:
    """Make the warning: the first twenty different characters, and how many boxes there are."""
    told = tuple(f"U+{ord(each):04X}" for each in dict.fromkeys(characters))
    return RenderWarning(MISSING_GLYPHS, characters=told[:MOST_CHARACTERS], count=count)


class _Table:
    """Where the objects of a PDF are."""

    def __init__(self, pdf: bytes) -> None:
        self._pdf = pdf
        start = _START.search(pdf, max(0, len(pdf) - _TAIL))
        found = _TABLE.match(pdf, int(start[1])) if start else None
        if found is None:
            raise NotChromiums("there is no table of objects at the end")
        self.at = found.start()
        self.first = found.end()
        self.trailer_at = self.first + int(found[1]) * _ENTRY
        self.trailer = pdf[self.trailer_at :]
        if not self.trailer.startswith(b"trailer") or b">>" not in self.trailer:
            raise NotChromiums("the table of objects is not followed by a trailer")

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where an object that is no stream begins and ends."""
        at = self.first + number * _ENTRY
        try:
            begin = int(self._pdf[at : at + 10])
        except ValueError as error:
            raise NotChromiums("the table of objects cannot be read") from error
        found = _OBJECT.match(self._pdf, begin)
        if found is None:
            raise NotChromiums("an object is not where the table says")
        return begin, found.end()

    def read(self, number: int) -> bytes:
        """Return an object without the texts in it."""
        return _STRING.sub(b"", self._pdf[slice(*self.bounds(number))])

    def refers(self, text: bytes, pattern: re.Pattern[bytes]) -> int:
        """Return the number that a pattern finds."""
        found = pattern.search(text)
        if found is None:
            raise NotChromiums("an entry is missing")
        return int(found[1])


def _fixed(stamp: re.Match[bytes]) -> bytes:
    zone = re.sub(rb"\d", b"0", stamp[2]).replace(b"-", b"+")
    return b"%b%b%b)" % (stamp[0].partition(stamp[1])[0], _DATE, zone)


class _TooMuch(Exception):
    """There is more to unpack than is looked at."""


def _contents(pdf: bytes) -> Iterator[bytes]:
    """Unpack whatever may draw text, in the order of the file: not fonts, and not images."""
    left = MOST_BYTES
    at = pdf.find(_STREAM)
    while at >= 0:
        head = pdf[max(0, pdf.rfind(b" obj\n", 0, at)) : at + 2]
        begin = at + len(_STREAM)
        at = pdf.find(_STREAM, begin)
        length = _LENGTH.search(head)
        if length is None or b"/Length1 " in head or b"/Subtype /Image" in head:
            continue
        content = pdf[begin : begin + int(length[1])]
        if b"/FlateDecode" in head:
            try:
                content = zlib.decompressobj().decompress(content, left + 1)
            except zlib.error:
                continue
        left -= len(content)
        if left < 0:
            raise _TooMuch
        if b" Tj" in content:
            yield content


def _boxes(content: bytes, narrow: frozenset[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield where glyphs with boxes are, how many boxes, and how many digits a glyph has."""
    begin, width = 0, 4
    for font in (*(_FONT.finditer(content) if narrow else ()), None):
        end = font.start() if font else len(content)
        for found in (_NARROW if width == 2 else _WIDE).finditer(content, begin, end):
            yield found.start(), _glyphs(found[1], width).count(0), width
        if font:
            begin, width = font.end(), 2 if font[1] in narrow else 4


def _glyphs(digits: bytes, width: int) -> list[int]:
    return [int(digits[at : at + width], 16) for at in range(0, len(digits), width)]


def _text_before(content: bytes, at: int) -> int | None:
    """Find the text that stands for the glyphs here; None where the browser has written none."""
    begin = content.rfind(b"/ActualText ", max(0, at - _NEAR), at)
    return None if begin < 0 or content.find(b"EMC", begin, at) >= 0 else begin


def _lacking(content: bytes, begin: int, width: int) -> list[str]:
    """Tell which characters of a text have no glyph of their own."""
    said = _SAID.match(content, begin)
    if said is None:
        return []
    characters = _shown(_decoded(said))
    end = content.find(b"EMC", said.end())
    shown = _GLYPHS.findall(content, said.end(), end if end >= 0 else len(content))
    glyphs = [glyph for digits in shown for glyph in _glyphs(digits, width)]
    if len(glyphs) == len(characters):
        return [each for each, glyph in zip(characters, glyphs, strict=True) if glyph == 0]
    return characters


def _shown(text: str) -> list[str]:
    """Leave out what only joins or varies the others, if there are others."""
    seen = [each for each in text if category(each) != "Cf" and not "\ufe00" <= each <= "\ufe0f"]
    return seen or list(text)


def _decoded(said: re.Match[bytes]) -> str:
    if said[1] is not None:
        whole = said[1][: len(said[1]) // 4 * 4]
        return bytes.fromhex(whole.decode("ascii")).decode("utf-16-be", "replace")
    return _ESCAPED.sub(_unescaped, said[2]).decode("latin-1")


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8) & 0xFF]) if len(found[1]) == 3 else found[1]
