"""Troubles of housekeeping: each is logged once, until the thing that had it goes well again."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

from ulak.errors import Contended

# More things in trouble at once than a person reads; beyond it all may be named once more.
MOST_REMEMBERED = 10_000


class Troubles:
    """Logs the first failure of a thing, and stays silent about its repeats."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[Hashable] = set()

    def tell(
        self,
        thing: Hashable,
        message: str,
        error: Exception,
        facts: Mapping[str, str],
        *,
        trace: bool = False,
    ) -> None:
        """Log that a thing fails, unless that was logged; with `trace`, also where."""
        if thing in self._told:
            return
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()
        self._told.add(thing)
        extra = {**facts, "error": str(error) or type(error).__name__}
        level = logging.WARNING if isinstance(error, Contended) else logging.ERROR
        self._log.log(level, message, extra=extra, exc_info=error if trace else None)

    def has(self, thing: Hashable) -> bool:
        """Tell whether a thing has failed and has not gone well since."""
        return thing in self._told

    def over(self, thing: Hashable) -> None:
        """A thing went well: its next failure is logged again."""
        self._told.discard(thing)
