"""What every store shares about schedules: what a batch of ticks must be, and lines of audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ulak.clock import Instant
from ulak.errors import WriteRefused
from ulak.store.protocol import LARGEST_BATCH, Tick

PAUSED: Final = "pause"
RESUMED: Final = "resume"


def subject_of(name: str) -> str:
    """Return the subject of a line of audit about a schedule."""
    return f"schedule/{name}"


def details_of(next_at: Instant) -> str:
    """Write the details of a line of audit: the date that a pause skips or that ends it."""
    return json.dumps({"next_at": next_at})


def must_be_a_batch(ticks: Sequence[Tick]) -> None:
    """Refuse the batch before its first write.

    Raises:
        WriteRefused: a schedule has two ticks, a job has no date, or there are too many jobs.
    """
    seen: set[str] = set()
    for tick in ticks:
        name = tick.row.name
        if name in seen:
            raise WriteRefused(f"schedule {name!r} has two ticks in one batch; one is allowed")
        seen.add(name)
        if any(job.row.scheduled_for is None for job in tick.jobs):
            raise WriteRefused(f"schedule {name!r}: a job of its tick has no scheduled_for")
    jobs = sum(len(tick.jobs) for tick in ticks)
    if jobs > LARGEST_BATCH:
        raise WriteRefused(f"{jobs} jobs in one batch of ticks; {LARGEST_BATCH} are allowed")
