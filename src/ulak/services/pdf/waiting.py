"""Waits for jobs to end on behalf of callers who ask for it, and for so many at once."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

from ulak import Engine
from ulak.errors import JobNotFound

LONGEST_WAIT_S: Final = 60
"""The longest wait of one request; what lies between often cuts after a minute."""
# Each looks at its job when one has moved, and five times a second besides: a guess at what one
# process does beside its other work.
MOST_WAITING: Final = 100

HELD: Final = "held"
"""No worker touches a held job: whoever waits for its end is told."""


class Waiting:
    """Lets requests wait without a thread; at most `at_most` of them at a time."""

    def __init__(self, engine: Engine, *, at_most: int = MOST_WAITING) -> None:
        self._engine = engine
        self._at_most = at_most
        self._waiting = 0

    async def until_ended(self, job_id: str, seconds: float) -> None:
        """Come back when a job has ended, or when the time is over.

        At once where too many wait already: their callers ask again, which costs less than
        refusing them.

        Raises:
            StoreError: the store does not answer.
        """
        if self._waiting >= self._at_most:
            return
        self._waiting += 1
        try:
            with suppress(TimeoutError, JobNotFound):  # one that is pruned meanwhile has ended
                await self._engine.aio.wait(
                    job_id, until=HELD, timeout=timedelta(seconds=seconds)
                )  # fmt: skip
        finally:
            self._waiting -= 1
