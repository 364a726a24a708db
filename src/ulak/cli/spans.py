"""Times as people type them: spans (45s, 15m, 12h, 30d, 2w) and moments (2026-01-31T12:00:00Z)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=36_500)

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])", re.ASCII)


def read_seconds(text: str, option: str) -> timedelta:
    """Read the span of an option; a bare number is seconds."""
    return read_span(f"{text}s" if text.strip()[-1:].isdigit() else text, option)


def read_span(text: str, option: str) -> timedelta:
    """Read the span of an option, which must name its unit: a guess could be dear. Raises
    `BadParameter`: it is not a span of time."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a span of time; write 45s, 15m, 12h, 30d or 2w", param_hint=option
        )
    length = timedelta(**{UNITS[found[2]]: float(found[1])})
    if length > LONGEST:
        raise typer.BadParameter(f"{text!r} is longer than a hundred years", param_hint=option)
    return length


def read_moment(text: str) -> datetime:
    """Read a moment; without a zone it is in UTC. Raises `BadParameter`: it is not a moment."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2026-01-31T12:00:00Z, 2026-01-31T12:00:00 or 2026-01-31"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


TimeOption = Annotated[
    datetime | None,
    typer.Option(
        parser=read_moment,
        metavar="TIME",
        help="As 2026-01-31T12:00:00Z, 2026-01-31T12:00:00 or 2026-01-31, in UTC without a zone.",
    ),
]
