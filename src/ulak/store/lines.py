"""Lines of a trail that a store writes on its own: claims and lapses are no changes."""

from __future__ import annotations

from typing import Final

from ulak.clock import Instant
from ulak.core.job import Event, JobRow

NO_COMMIT: Final = b""
"""The commit id of events that no change brought."""

SUSPECT_LAPSES: Final = 2
"""A job that was lost so often may be what its workers died of."""
NO_SUSPECTS: Final = SUSPECT_LAPSES - 1


def own_event(
    row: JobRow, kind: str, origin: str, actor: str, worker: str | None, now: Instant
) -> Event:
    """Write the line of a lease that was taken into a busy state, or lost."""
    return Event(
        row.id, row.seq, kind, origin, row.state, actor, None, None, None, row.round,
        row.attempt + 1, worker, row.token, row.leased_at, now, 0, NO_COMMIT,
    )  # fmt: skip
