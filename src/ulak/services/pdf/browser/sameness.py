"""The same document gives the same bytes: what Chromium writes differently each time is fixed.

Chromium's PDFs have one table of objects and no compressed ones, so both are read by following
the table; nothing that stands in a document's own text is ever taken for structure.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

_DATE: Final = b"20000101000000"
_STAMP: Final = re.compile(rb"/(?:CreationDate|ModDate) \(D:(\d{14})([+\-Z][\d']*)\)")
START: Final = re.compile(rb"startxref\s+(\d+)\s+%%EOF\s*\Z")
_TABLE: Final = re.compile(rb"xref\n0 (\d+)\n")
_STRING: Final = re.compile(rb"\((?:\\.|[^\\()])*\)", re.DOTALL)
# Texts are skipped as wholes: one may hold any word.
_OBJECT: Final = re.compile(rb"\d+ 0 obj(?:\((?:\\.|[^\\()])*\)|[^(])*?endobj", re.DOTALL)
ROOT: Final = re.compile(rb"/Root (\d+) 0 R")
_INFO: Final = re.compile(rb"/Info (\d+) 0 R")
_PAGES: Final = re.compile(rb"/Pages (\d+) 0 R")
_COUNT: Final = re.compile(rb"/Count (\d+)")
_ID: Final = re.compile(rb"\s*/ID\s*\[[^\]]*\]")
ENTRY: Final = 20
"""Bytes of one line of the table."""
_TAIL: Final = 2048


class NotChromiums(ValueError):
    """The bytes are not a PDF as Chromium writes it."""


def same_bytes(pdf: bytes) -> bytes:
    """Give a PDF fixed dates and an identifier that follows from its content.

    Dates are overwritten in place; the identifier stands behind the table, so that no position in
    it changes.

    Raises:
        NotChromiums: it cannot be read.
    """
    table = Table(pdf)
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
    """Count the pages of a PDF.

    Raises:
        NotChromiums: it cannot be read.
    """
    table = Table(pdf)
    catalog = table.read(table.refers(table.trailer, ROOT))
    pages = table.read(table.refers(catalog, _PAGES))
    return table.refers(pages, _COUNT)


class Table:
    """Where the objects are."""

    def __init__(self, pdf: bytes) -> None:
        self._pdf = pdf
        start = START.search(pdf, max(0, len(pdf) - _TAIL))
        found = _TABLE.match(pdf, int(start[1])) if start else None
        if found is None:
            raise NotChromiums("there is no table of objects at the end")
        self.at = found.start()
        """Where the table begins, and every object has ended."""
        self.first = found.end()
        """Where its first line is."""
        self._size = int(found[1])
        self.trailer_at = self.first + self._size * ENTRY
        self.trailer = pdf[self.trailer_at :]
        if not self.trailer.startswith(b"trailer") or b">>" not in self.trailer:
            raise NotChromiums("the table of objects is not followed by a trailer")

    def bounds(self, number: int) -> tuple[int, int]:
        """Give where an object that is no stream begins and ends."""
        begin = self._offset(number)
        found = _OBJECT.match(self._pdf, begin)
        if found is None:
            raise NotChromiums("an object is not where the table says")
        return begin, found.end()

    def read(self, number: int) -> bytes:
        """Give an object without the texts in it."""
        start, end = self.bounds(number)
        return _STRING.sub(b"", self._pdf[start:end])

    def refers(self, text: bytes, pattern: re.Pattern[bytes]) -> int:
        """Give the number that a pattern finds.

        Raises:
            NotChromiums: it finds none.
        """
        found = pattern.search(text)
        if found is None:
            raise NotChromiums("an entry is missing")
        return int(found[1])

    def _offset(self, number: int) -> int:
        at = self.first + number * ENTRY
        try:
            return int(self._pdf[at : at + 10])
        except ValueError as error:
            raise NotChromiums("the table of objects cannot be read") from error


def _fixed(stamp: re.Match[bytes]) -> bytes:
    zone = re.sub(rb"\d", b"0", stamp[2]).replace(b"-", b"+")
    head = stamp[0][: stamp.start(1) - stamp.start()]
    return head + _DATE + zone + b")"
