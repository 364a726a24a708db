"""Slugs: the part of an address that is made from a title."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from secrets import token_hex
from typing import Final

from slugify import slugify

LONGEST_SLUG: Final = 255


def make_slug(title: str) -> str:
    """Return a title as lower-case ASCII words joined by `-`, Cyrillic and Turkish letters
    transliterated; '' when nothing of it can be written so."""
    return slugify(title, max_length=LONGEST_SLUG)


def candidates(title: str) -> Iterator[str]:
    """Yield the slugs that a post of this title may have, the best first; no end."""
    base = make_slug(title) or f"post-{token_hex(4)}"
    yield base
    for number in count(1):
        suffix = f"-{number}"
        yield base[: LONGEST_SLUG - len(suffix)].rstrip("-") + suffix
