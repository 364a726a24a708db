"""What a batch of ticks must be before any store begins to write it."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.errors import Refused
from ulak.store.protocol import LARGEST_BATCH, Tick


def must_be_a_batch(ticks: Sequence[Tick]) -> None:
    """Refuse the batch before its first write.

    Raises:
        Refused: a schedule has two ticks, a job has no date, or there are too many jobs.
    """
    seen: set[str] = set()
    for tick in ticks:
        name = tick.row.name
        if name in seen:
            raise Refused(f"schedule {name!r} has two ticks in one batch; one is allowed")
        seen.add(name)
        if any(job.row.scheduled_for is None for job in tick.jobs):
            raise Refused(f"schedule {name!r}: a job of its tick has no scheduled_for")
    jobs = sum(len(tick.jobs) for tick in ticks)
    if jobs > LARGEST_BATCH:
        raise Refused(f"{jobs} jobs in one batch of ticks; {LARGEST_BATCH} are allowed")
