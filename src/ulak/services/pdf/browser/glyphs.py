"""Characters that no font has: each prints as a box, and the printed PDF tells how many there are.

Glyph 0 of every font is its box, and Chromium writes glyphs by their numbers. So what is found is
what was printed: after fonts of the template and of the system were tried, in generated content,
headers and footers too, and not in what nobody sees. Which character a box stands for is written
beside it (`/ActualText`), but for the first of each font; `marking` makes that one known.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from unicodedata import category

from ulak.services.pdf.browser.marking import MARK
from ulak.services.pdf.document import MISSING_GLYPHS, RenderWarning

MOST_CHARACTERS: Final = 20
"""Different characters that are told of one document."""
MOST_BYTES: Final = 128 * 1024 * 1024
"""What is unpacked of one document; the five hundred pages that it may have stay far below."""

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


@dataclass(frozen=True, slots=True)
class _Box:
    at: int
    count: int
    width: int
    """Digits of a glyph."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """What is printed as boxes."""

    characters: tuple[str, ...]
    """Those that are known, in the order in which they are found, each once."""
    count: int
    """How many boxes there are."""


class _TooMuch(Exception):
    """There is more to unpack than is looked at."""


def find_boxes(pdf: bytes) -> Boxes | None:
    """Find the boxes in a PDF of Chromium's; None when it unpacks to too much.

    Text that is drawn as a picture or as an outline has no glyphs any more, and is not seen. Safe
    in any thread.
    """
    narrow = frozenset(found[1] for found in _ONE_BYTE_FONT.finditer(pdf))
    characters: dict[str, None] = {}
    count = 0
    try:
        for content in _contents(pdf):
            texts: set[int] = set()
            for box in _boxes(content, narrow):
                count += box.count
                begin = _text_before(content, box.at)
                if begin is not None and begin not in texts:
                    texts.add(begin)
                    characters.update(dict.fromkeys(_lacking(content, begin, box.width)))
    except _TooMuch:
        return None
    characters.pop(MARK, None)
    return Boxes(tuple(characters), count)


def boxes_warning(characters: tuple[str, ...], count: int) -> RenderWarning:
    """Make the warning: the first twenty different characters, and how many boxes there are."""
    told = tuple(f"U+{ord(each):04X}" for each in dict.fromkeys(characters))
    return RenderWarning(MISSING_GLYPHS, characters=told[:MOST_CHARACTERS], count=count)


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


def _boxes(content: bytes, narrow: frozenset[bytes]) -> Iterator[_Box]:
    if not narrow:
        yield from _boxes_in(content, 0, len(content), is_narrow=False)
        return
    begin, is_narrow = 0, False
    for font in _FONT.finditer(content):
        yield from _boxes_in(content, begin, font.start(), is_narrow=is_narrow)
        begin, is_narrow = font.end(), font[1] in narrow
    yield from _boxes_in(content, begin, len(content), is_narrow=is_narrow)


def _boxes_in(content: bytes, begin: int, end: int, *, is_narrow: bool) -> Iterator[_Box]:
    width = 2 if is_narrow else 4
    for found in (_NARROW if is_narrow else _WIDE).finditer(content, begin, end):
        yield _Box(found.start(), _glyphs(found[1], width).count(0), width)


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
