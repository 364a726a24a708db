"""Texts and times that callers give, as far as every store can keep them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from ulak.core import bounds

LONGEST_NOTE: Final = bounds.LONGEST_NOTE
LONGEST_NAME: Final = 500
# Ten years: nobody means more.
LONGEST_SPAN_S: Final = 3650 * 24 * 3600


def storable(text: str) -> str:
    """Return a text that every store can keep.

    Raises:
        ValueError: it holds a character that PostgreSQL, or UTF-8, has no place for.
    """
    if "\x00" in text:
        raise ValueError("it holds the character NUL, which no store can keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character, which no store can keep") from None
    return text


def _moment(value: Any) -> datetime:
    """Read a time; a bare number is none: by its size it would be seconds or milliseconds."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("write a time as 2026-01-31T12:00:00Z") from None


Note = Annotated[
    str,
    Field(
        max_length=LONGEST_NOTE,
        description="Why, for whoever reads the trail or the audit.",
        examples=["agreed with ada"],
    ),
    AfterValidator(storable),
]
NoteQuery = Annotated[Note, Query()]
"""The note of a DELETE, which has no body."""
Name = Annotated[str, Path(max_length=LONGEST_NAME), AfterValidator(storable)]
"""A name in the path."""
Time = Annotated[AwareDatetime, BeforeValidator(_moment)]
"""A time with its zone, RFC 3339."""
Seconds = Annotated[float, Field(gt=0, le=LONGEST_SPAN_S, allow_inf_nan=False)]
"""A span of time."""
