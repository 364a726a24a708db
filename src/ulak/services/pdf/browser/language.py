"""The language of a document, said in its PDF too where the browser has left it out.

Chromium writes it with the structure and not without.
"""

from __future__ import annotations

import re
from typing import Final

from ulak.services.pdf.browser.sameness import ENTRY, ROOT, START, Table

LOOKED_AT: Final = 4096
"""Characters in which a document has its first element; a guess, far beyond any comment there."""

_LANGUAGE: Final = re.compile(
    r"""<html\b[^>]*?\slang\s*=\s*["']?([A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8}){0,4})(?=["'\s/>])""",
    re.IGNORECASE,
)


def language_of(html: str) -> str:
    """Return the language of an HTML text, as `<html lang="tr">` says it, or ''."""
    found = _LANGUAGE.search(html, 0, LOOKED_AT)
    return "" if found is None else found[1]


def with_language(pdf: bytes, language: str) -> bytes:
    """Return a PDF with a language in its catalog: its own, else this one.

    The catalog is written again behind all other objects, so that none of them moves.

    Raises:
        NotChromiums: it cannot be read.
    """
    if not language:
        return pdf
    table = Table(pdf)
    number = table.refers(table.trailer, ROOT)
    if b"/Lang" in table.read(number):
        return pdf
    start, end = table.bounds(number)
    catalog = pdf[start:end]
    closes = catalog.rindex(b">>")
    said = b"\n/Lang (%b)" % language.encode("ascii")
    moved = b"".join((catalog[:closes], said, catalog[closes:], b"\n"))
    entries = bytearray(pdf[table.at : table.trailer_at])
    entry = table.first - table.at + number * ENTRY
    entries[entry : entry + 10] = b"%010d" % table.at
    begins = b"startxref\n%d\n%%%%EOF\n" % (table.at + len(moved))
    trailer = START.sub(begins, table.trailer)
    return b"".join((pdf[: table.at], moved, entries, trailer))
