"""`Retry-After`: for how long an answer asks to be left alone."""

from __future__ import annotations

from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from ulak.clock import Instant, to_instant


def read_retry_after(text: str | None, now: Instant, *, longest: timedelta) -> timedelta | None:
    """Return what the header `Retry-After` says, a number of seconds or an HTTP date, and `longest`
    at most; None when there is none, or it says nothing usable."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return longest if len(text) > 9 else min(timedelta(seconds=int(text)), longest)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:  # "-0000": UTC, of which the sender says no more
        moment = moment.replace(tzinfo=UTC)
    return min(max(timedelta(microseconds=to_instant(moment) - now), timedelta()), longest)
