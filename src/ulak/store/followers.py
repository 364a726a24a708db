"""What every store shares about followers: which jobs come together, and how many events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from ulak.core.delivery import MOST_EVENTS, count_whole
from ulak.core.job import Event, JobRow
from ulak.store.protocol.outbox import Followed, OutboxRow

Line = tuple[str, int, Event]
"""The key of a delivery, its position, and its event."""

NO_FLOWS: Final[frozenset[str]] = frozenset()


def choose(heads: Sequence[OutboxRow]) -> dict[str, OutboxRow]:
    """Return the heads that are taken together, by key, of those that are due, the longest first.

    One that failed before is alone, so that it fails for itself.
    """
    if heads and heads[0].error is not None:
        return {heads[0].message.key: heads[0]}
    return {head.message.key: head for head in heads if head.error is None}


def gather(
    lines: Iterable[Line], heads: Mapping[str, OutboxRow], jobs: Mapping[bytes, JobRow]
) -> list[Followed]:
    """Put together what is taken: lines are by key and position, and one more than `MOST_EVENTS`
    at least if there are so many."""
    taken: list[Followed] = []
    room = MOST_EVENTS
    for key, own in groupby(lines, key=lambda line: line[0]):
        positions, events = zip(*((position, event) for _, position, event in own), strict=True)
        n = count_whole(events, room)
        is_parted = 0 < n < len(events) and events[n - 1].commit_id == events[n].commit_id
        if not room or (taken and is_parted):
            break  # the next batch has room for it
        taken.append(Followed(heads[key], jobs[events[0].job_id], events[:n], positions[:n]))
        room -= n
    return taken


def read_flows(text: str | None) -> frozenset[str]:
    """Read the flows that are followed, as a store has joined them: a name has no space."""
    return frozenset(text.split()) if text else NO_FLOWS
