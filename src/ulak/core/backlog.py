"""How unfinished jobs stand, counted as people mean it: by flow and queue, up to a bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, NamedTuple

from ulak.clock import SECOND, Instant, to_datetime
from ulak.core.job import flow_of, queue_of
from ulak.core.lifecycle import DONE, HELD

DUE: Final = "due"
DELAYED: Final = "delayed"
PARKED: Final = "parked"
LEASED: Final = "leased"

MOST_COUNTED: Final = 10_000
"""So many jobs of a kind are counted, and so many lanes are looked at."""
RATE_OVER_US: Final = 60 * SECOND
"""Ends are counted over so long, or less when there are many."""
MOST_ENDS: Final = 1000
"""So many of the last ends are looked at: each is a row to be read."""


class LaneCount(NamedTuple):
    """How many jobs of a lane stand in one way."""

    lane: str
    kind: str
    """`due`, `delayed`, `parked` or `leased`."""
    jobs: int
    is_exact: bool = True
    """False when there are more: no more were counted."""


class EndCount(NamedTuple):
    """How many jobs of a flow have ended lately with a role."""

    flow: str
    role: str
    jobs: int
    first_at: Instant
    """When the first of them did."""


class Standing(NamedTuple):
    """How the jobs of a store stand, as it was asked to count them."""

    at: Instant
    counts: list[LaneCount]
    oldest_due: Mapping[str, Instant]
    """Since when a job of a lane has been due, by lane."""
    ends: list[EndCount]
    """The last ones, `MOST_ENDS` at most, of the last minute."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How the jobs of a flow stand in a queue."""

    flow: str
    queue: str
    _: KW_ONLY
    due: int = 0
    delayed: int = 0
    parked: int = 0
    leased: int = 0
    held: int = 0
    """For a person to decide."""
    at_least: frozenset[str] = frozenset()
    """The kinds of which there are more than was counted; the others are exact."""
    oldest_due: datetime | None = None
    """Since when the first of those that are due has been due."""
    ended_per_second: float = 0.0
    """In the last minute, or over the last 1,000 ends of all flows."""
    done_per_second: float = 0.0
    """Of those, the ones that ended well."""


def add_up(standing: Standing, held: Mapping[str, int], queues: Mapping[str, str]) -> list[Backlog]:
    """Return the counts of lanes by flow and queue.

    Args:
        standing: What a store has counted.
        held: How many jobs of a flow are held. They are in no lane, as ended ones: both count for
            the queue of their flow.
        queues: The queue of a flow, where it is not its name.
    """
    jobs: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    more: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    oldest: dict[tuple[str, str], Instant] = {}
    ended: Counter[tuple[str, str]] = Counter()
    done: Counter[tuple[str, str]] = Counter()
    for count in standing.counts:
        place = flow_of(count.lane), queue_of(count.lane)
        jobs[place][count.kind] += count.jobs
        if not count.is_exact:
            more[place].add(count.kind)
    for lane, since in standing.oldest_due.items():
        place = flow_of(lane), queue_of(lane)
        oldest[place] = min(since, oldest.get(place, since))
    for flow, number in held.items():
        jobs[flow, queues.get(flow, flow)][HELD] += number
    for end in standing.ends:
        place = end.flow, queues.get(end.flow, end.flow)
        ended[place] += end.jobs
        done[place] += end.jobs if end.role == DONE else 0
    since = standing.at - RATE_OVER_US
    if ended.total() >= MOST_ENDS:
        since = min(end.first_at for end in standing.ends)
    span_s = max(standing.at - since, 1) / SECOND
    found = []
    for place in sorted(jobs.keys() | ended.keys()):
        own, first = jobs[place], oldest.get(place)
        found.append(
            Backlog(
                *place, due=own[DUE], delayed=own[DELAYED], parked=own[PARKED],
                leased=own[LEASED], held=own[HELD], at_least=frozenset(more[place]),
                oldest_due=None if first is None else to_datetime(first),
                ended_per_second=ended[place] / span_s, done_per_second=done[place] / span_s,
            )
        )  # fmt: skip
    return found
