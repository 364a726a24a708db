"""How unfinished jobs stand, counted as people mean it: by flow and queue, up to a bound."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, NamedTuple

from ulak.clock import SECOND, Instant, to_datetime
from ulak.core.job import flow_of, queue_of
from ulak.core.lifecycle import CLAIMABLE, DONE, HELD

DUE: Final = "due"
DELAYED: Final = "delayed"
PARKED: Final = "parked"
LEASED: Final = "leased"

Place = tuple[str, str]

MOST_COUNTED: Final = 10_000
"""So many jobs of a kind are counted."""
RATE_OVER_US: Final = 60 * SECOND
"""Ends are counted over so long, or less when there are many."""
MOST_ENDS: Final = 500
"""So many of the last ends are looked at: each is a row to be read."""


class LaneCount(NamedTuple):
    """How many jobs of a lane stand in one way."""

    lane: str
    kind: str
    jobs: int
    is_exact: bool = True
    """False when there are more: no more were counted."""


class EndCount(NamedTuple):
    """How many jobs of a flow have ended lately with a role."""

    flow: str
    role: str
    jobs: int
    first_at: Instant


class Standing(NamedTuple):
    """How the jobs of a store stand, as it was asked to count them."""

    at: Instant
    counts: list[LaneCount]
    oldest_due: Mapping[str, Instant]
    oldest_leased: Mapping[str, Instant]
    ends: list[EndCount]
    """The last ones, `MOST_ENDS` at most, of the last minute."""
    totals: Mapping[tuple[str, str], int]
    """How many jobs of a flow have a role, exactly."""


def bounded_counts(jobs: Mapping[Place, int]) -> list[LaneCount]:
    """Return what is known of lanes and kinds of which every job was counted."""
    return [
        LaneCount(*place, min(number, MOST_COUNTED), number <= MOST_COUNTED)
        for place, number in jobs.items()
        if number
    ]


def last_ends(ended: Iterable[tuple[Instant, str, str]], now: Instant) -> list[EndCount]:
    """Count the last of those that have ended: when, of which flow, with which role."""
    dates: defaultdict[Place, list[Instant]] = defaultdict(list)
    for at, flow, role in heapq.nlargest(MOST_ENDS, ended):
        if at > now - RATE_OVER_US:
            dates[flow, role].append(at)
    return [EndCount(*place, len(each), min(each)) for place, each in dates.items()]


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
    at_least: frozenset[str] = frozenset()
    """The kinds of which there are more than was counted; the others are exact."""
    oldest_due: datetime | None = None
    oldest_leased: datetime | None = None
    ended_per_second: float = 0.0
    """In the last minute, or over the last 500 ends of all flows."""
    done_per_second: float = 0.0
    """Of those, the ones that ended well."""


def add_up(standing: Standing, queues: Mapping[str, str]) -> list[Backlog]:
    """Return the counts of lanes by flow and queue. `queues` has the queue of a flow where it is
    not its name. Held and ended jobs are in no lane: they count for that one."""
    jobs: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    more: defaultdict[Place, set[str]] = defaultdict(set)
    ended: Counter[Place] = Counter()
    done: Counter[Place] = Counter()
    for count in standing.counts:
        place = find_place(count.lane)
        jobs[place][count.kind] += count.jobs
        if not count.is_exact:
            more[place].add(count.kind)
    _find_rest(jobs, more, standing.totals)
    for (flow, role), number in standing.totals.items():
        if role == HELD:
            jobs[flow, queues.get(flow, flow)][HELD] += number
    for end in standing.ends:
        place = end.flow, queues.get(end.flow, end.flow)
        ended[place] += end.jobs
        done[place] += end.jobs if end.role == DONE else 0
    since = standing.at - RATE_OVER_US
    if ended.total() >= MOST_ENDS:
        since = min(end.first_at for end in standing.ends)
    span_s = max(standing.at - since, 1) / SECOND
    due, leased = _find_oldest(standing.oldest_due), _find_oldest(standing.oldest_leased)
    return [
        Backlog(
            *place, due=own[DUE], delayed=own[DELAYED], parked=own[PARKED], leased=own[LEASED],
            held=own[HELD], at_least=frozenset(more[place]),
            oldest_due=due.get(place), oldest_leased=leased.get(place),
            ended_per_second=ended[place] / span_s, done_per_second=done[place] / span_s,
        )
        for place in sorted(jobs.keys() | ended.keys())
        for own in (jobs[place],)
    ]  # fmt: skip


def find_place(lane: str) -> Place:
    return flow_of(lane), queue_of(lane)


def _find_rest(
    jobs: Mapping[Place, Counter[str]],
    more: Mapping[Place, set[str]],
    totals: Mapping[tuple[str, str], int],
) -> None:
    """Make the one kind of a flow exact that was not counted to its end: it is all the rest."""
    queues = Counter(flow for flow, _ in jobs)
    for place, kinds in more.items():
        if len(kinds) == 1 and queues[place[0]] == 1:
            (kind,), own = kinds, jobs[place]
            total = sum(totals.get((place[0], role), 0) for role in CLAIMABLE)
            if total >= own.total():
                own[kind] += total - own.total()
                kinds.clear()


def _find_oldest(since: Mapping[str, Instant]) -> dict[Place, datetime]:
    oldest: dict[Place, Instant] = {}
    for lane, at in since.items():
        place = find_place(lane)
        oldest[place] = min(at, oldest.get(place, at))
    return {place: to_datetime(at) for place, at in oldest.items()}
