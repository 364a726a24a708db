"""Time for services: the store's clock decides, rows hold microseconds, people read RFC 3339."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ulak.clock import SECOND, Clock, Instant, micros, rfc3339, to_datetime, to_instant

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

__all__ = ["SECOND", "Clock", "Instant", "micros", "now", "rfc3339", "to_datetime", "to_instant"]


def now(engine: Engine) -> datetime:
    """Return the time by the clock of an engine's store, in UTC: the clock that decides about
    jobs, and that tests turn."""
    return to_datetime(engine.store.clock.now())
