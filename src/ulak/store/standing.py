"""How jobs stand, counted along the indexes: the part that both databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ulak.clock import Instant
from ulak.core.backlog import (
    DELAYED,
    DUE,
    LEASED,
    MOST_COUNTED,
    PARKED,
    EndCount,
    LaneCount,
    Standing,
)
from ulak.store.flow_control import ON_KEY, ON_RATE

Counts = Iterable[tuple[str, int]]
"""Lanes, each with a number of jobs."""
Lanes = Sequence[tuple[str, int, int, Instant]]
"""Lanes, each with how many jobs are due, how many are delayed, and the first date of them."""

LIMIT = MOST_COUNTED + 1
"""One more than is told shows that there are more."""


def make_standing(
    now: Instant,
    lanes: Lanes,
    parked: Iterable[LaneCount],
    leased: Counts,
    ends: Iterable[tuple[str, str, int, Instant]],
) -> Standing:
    """Put together what was counted, each count up to `LIMIT`."""
    are_all = len(lanes) < LIMIT
    counts = [
        LaneCount(lane, kind, min(jobs, MOST_COUNTED), are_all and jobs < LIMIT)
        for lane, due, delayed, _ in lanes
        for kind, jobs in ((DUE, due), (DELAYED, delayed))
    ]
    oldest = {lane: first for lane, _, _, first in lanes if first <= now}
    counts += [*parked, *bound(LEASED, leased)]
    return Standing(now, counts, oldest, [EndCount(*end) for end in ends])


def bound(kind: str, counts: Counts) -> Iterator[LaneCount]:
    """Return the counts of jobs that were counted together, `LIMIT` at most: if there are so many,
    no lane is sure of its own."""
    found = list(counts)
    is_exact = sum(jobs for _, jobs in found) <= MOST_COUNTED
    for lane, jobs in found:
        yield LaneCount(lane, kind, min(jobs, MOST_COUNTED), is_exact)


def count_parked(
    find: Callable[[str], str | None], count: Callable[[str, str], Counts]
) -> Iterator[LaneCount]:
    """Count parked jobs flow by flow, as far as what they wait for names one.

    Args:
        find: Returns the first name at or after another on which a job is parked.
        count: Counts the jobs that are parked between two names, without the second.
    """
    name = find("")
    while name is not None:
        end = _end_of_group(name)
        yield from bound(PARKED, count(name, end))
        name = find(end)


def _end_of_group(name: str) -> str:
    """Return what follows everything of the same flow, or every key: a slash is followed by a
    zero."""
    if name.startswith(ON_KEY):
        return ON_KEY[:-1] + "0"
    mark = ON_RATE if name.startswith(ON_RATE) else ""
    return mark + name.removeprefix(mark).partition("/")[0] + "0"
