"""How jobs stand, counted along the indexes of both databases.

What is looked at is bounded, however many jobs are stored. Each kind is counted a little way. The
number of all unfinished jobs of a flow is stored, so that one kind need not be counted to its end:
it is the rest. Only the others are counted on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from ulak.clock import Instant
from ulak.core.backlog import (
    DELAYED,
    DUE,
    LEASED,
    MOST_COUNTED,
    MOST_ENDS,
    PARKED,
    RATE_OVER_US,
    EndCount,
    LaneCount,
    Standing,
    find_place,
)
from ulak.core.intake import PRIORITIES
from ulak.core.job import flow_of, queue_of
from ulak.core.lifecycle import CLAIMABLE
from ulak.store.flow_control import ON_KEY, ON_RATE
from ulak.store.protocol import CountRow

MOST_LANES: Final = 500
"""So many lanes are looked at; a fair flow has one for each tenant with jobs."""
FEWEST: Final = 20
MOST: Final = 500
"""So many jobs of a lane are looked at first: the fewer, the more lanes there are."""
MOST_VISITED: Final = 30_000
"""So many jobs are counted on after that."""
LAST_NAME: Final = "\U0010ffff"
LIMIT: Final = MOST_COUNTED + 1

Counts = Sequence[tuple[str, int]]
Ask = Callable[..., Iterable[Any]]
"""Takes the name of a statement and its values, and returns rows. They may be on their way until
they are read: what is asked for before that shares a round trip."""

# The databases fill in their tables with the conditions of an index, and how values are written.
_OF_LANE = "FROM {claimable} AND lane = lanes.lane"
_FIRST = " UNION ALL ".join(
    f"SELECT min(not_before) AS first {_OF_LANE} AND priority = {n}" for n in PRIORITIES
)
# Each delayed job counts as a million, so that one look finds both numbers.
_MILLION = 1_000_000
STATEMENTS: Final = {
    "lanes": """
        WITH RECURSIVE lanes (lane) AS (
            SELECT min(lane) FROM {claimable}
            UNION ALL
            SELECT (SELECT min(lane) FROM {claimable} AND lane > lanes.lane)
            FROM lanes WHERE lane IS NOT NULL
        )
        SELECT lane FROM lanes WHERE lane IS NOT NULL LIMIT {limit}
    """,
    "look": f"""
        SELECT (
            SELECT sum(CASE WHEN not_before <= {{now}} THEN 1 ELSE {_MILLION} END) FROM (
                SELECT not_before {_OF_LANE} ORDER BY priority, not_before LIMIT {{limit}}
            ) AS seen
        ) FROM {{lanes}} ORDER BY place
    """,  # noqa: S608 - made of constants
    # Not with the look: a plan of both would seem too dear to be kept, and is dear to make.
    "first": f"""
        SELECT (SELECT min(first) FROM ({_FIRST}) AS seen) FROM {{lanes}} ORDER BY place
    """,  # noqa: S608 - made of constants
    **{
        kind: f"""
            SELECT (
                SELECT count(*) FROM (
                    SELECT 1 {_OF_LANE} AND priority IN (0, 1, 2, 3)
                    AND not_before {comparison} {{now}} LIMIT {{limit}}
                ) AS counted
            ) FROM {{lanes}} ORDER BY place
        """  # noqa: S608 - made of constants
        for kind, comparison in ((DUE, "<="), (DELAYED, ">"))
    },
    "next": "SELECT min(parked_on) FROM {parked} AND parked_on >= {start}",
    # In the order of an index, so that it is read and no more of the table than is counted.
    PARKED: """
        SELECT lane, count(*) FROM (
            SELECT lane FROM {parked} AND parked_on >= {start} AND parked_on < {end}
            ORDER BY parked_on LIMIT {limit}
        ) AS counted GROUP BY lane
    """,
    LEASED: """
        SELECT lane, count(*), min(leased_at) FROM (
            SELECT lane, leased_at FROM {leased} LIMIT {limit}
        ) AS counted GROUP BY lane
    """,
    "ends": """
        SELECT flow, role, count(*), min(changed_at) FROM (
            SELECT flow, role, changed_at FROM {ended} AND changed_at > {since}
            ORDER BY changed_at DESC LIMIT {limit}
        ) AS counted GROUP BY flow, role
    """,
}
CONDITIONS: Final = {
    "claimable": "leased_by IS NULL AND parked_on IS NULL AND lane <> ''",
    "parked": "parked_on IS NOT NULL",
    "leased": "leased_by IS NOT NULL",
    "ended": "lane = '' AND role <> 'held' AND role <> 'waiting'",
}


def write_statements(jobs: str, lanes: str, values: str) -> dict[str, str]:
    """Write the statements for a database: table with `{index}`, what returns `lane` and `place`
    of `{lanes}`, and how a value is written with `{name}` and `{type}`.
    """
    types = {"limit": "bigint", "now": "bigint", "since": "bigint", "lanes": "text[]"}
    words = {
        name: values.format(name=name, type=types.get(name, "text"))
        for name in ("limit", "now", "since", "start", "end", "lanes")
    }
    words["lanes"] = lanes.format(lanes=words["lanes"])
    for index, condition in CONDITIONS.items():
        words[index] = f"{jobs.format(index=f'jobs_{index}')} WHERE {condition}"
    return {name: statement.format(**words) for name, statement in STATEMENTS.items()}


@dataclass(slots=True)
class Part:
    """Jobs of one kind that are counted together."""

    kind: str
    found: Counts
    is_exact: bool = True
    _: KW_ONLY
    flow: str
    """'' when they may be of several."""
    on: Callable[[int], tuple[Counts, bool]] | None = None
    ranges: int = 1


def count(ask: Ask, now: Instant, states: Iterable[CountRow]) -> Standing:
    """Count how jobs stand by statements that `ask` runs at one moment, `now`."""
    asked = ask("lanes", limit=MOST_LANES), ask(LEASED, limit=LIMIT)
    parked = ask(PARKED, start="", end=LAST_NAME, limit=MOST), ask("next", start="")
    ends = ask("ends", since=now - RATE_OVER_US, limit=MOST_ENDS)
    lanes, leased = [lane for (lane,) in asked[0]], list(asked[1])
    look = min(max(MOST_COUNTED // max(len(lanes), 1), FEWEST), MOST)
    looks, firsts = ask("look", lanes=lanes, now=now, limit=look), ask("first", lanes=lanes)
    seen = {lane: (*n, *date) for lane, n, date in zip(lanes, looks, firsts, strict=True)}
    cut_short = [DUE, DELAYED] if len(lanes) == MOST_LANES else []
    if sum(jobs for _, jobs, _ in leased) == LIMIT:
        cut_short.append(LEASED)
    parts = [*_find_free(ask, now, seen, look), *_find_parked(ask, *parked)]
    parts += [Part(LEASED, [(lane, jobs)], flow=flow_of(lane)) for lane, jobs, _ in leased]
    _count_on(parts, is_rest_known=not cut_short)
    counts = [
        LaneCount(lane, part.kind, min(jobs, MOST_COUNTED), part.is_exact)
        for part in parts
        for lane, jobs in part.found
    ]
    # There may be more of these in every flow.
    lanes = sorted({each.lane for each in counts})
    counts += [LaneCount(lane, kind, 0, is_exact=False) for lane in lanes for kind in cut_short]
    totals: Counter[tuple[str, str]] = Counter()
    for row in states:
        if not cut_short or row.role not in CLAIMABLE:
            totals[row.flow, row.role] += row.jobs
    return Standing(
        now, counts, {lane: first for lane, (_, first) in seen.items() if first <= now},
        {lane: first for lane, _, first in leased if first is not None},
        [EndCount(*end) for end in ends], totals,
    )  # fmt: skip


def _find_free(
    ask: Ask, now: Instant, seen: Mapping[str, tuple[int, Instant]], look: int
) -> Iterator[Part]:
    """Return jobs neither leased nor parked, `look` of a lane or fewer were seen; long lanes of one
    place are counted on together."""

    def count_lanes(kind: str, lanes: Sequence[str], limit: int) -> tuple[Counts, bool]:
        found = [jobs for (jobs,) in ask(kind, lanes=lanes, now=now, limit=limit)]
        return list(zip(lanes, found, strict=True)), max(found) < limit

    long: defaultdict[tuple[str, str], dict[str, tuple[int, int]]] = defaultdict(dict)
    for lane, (jobs, _) in seen.items():
        delayed, due = divmod(jobs, _MILLION)
        if due + delayed < look:
            yield Part(DUE, [(lane, due)], flow=flow_of(lane))
            yield Part(DELAYED, [(lane, delayed)], flow=flow_of(lane))
        else:
            long[find_place(lane)][lane] = delayed, due
    for (flow, _), own in long.items():
        for n, kind in enumerate((DELAYED, DUE)):
            on = partial(count_lanes, kind, list(own))
            found = [(lane, jobs[n]) for lane, jobs in own.items()]
            yield Part(kind, found, is_exact=False, flow=flow, on=on, ranges=len(own))


def _find_parked(
    ask: Ask, first: Iterable[Any], following: Iterable[tuple[str | None]]
) -> Iterator[Part]:
    """Return parked jobs; many of them flow by flow, as far as what they wait for names one."""

    def add_up(found: Counts, limit: int) -> tuple[Counts, bool]:
        return found, sum(jobs for _, jobs in found) < limit

    def count_range(start: str, end: str, limit: int) -> tuple[Counts, bool]:
        return add_up(list(ask(PARKED, start=start, end=end, limit=limit)), limit)

    found, are_all = add_up(list(first), MOST)
    ((name,),), short = following, list(found) if are_all else []
    while name is not None and not are_all:
        flow, end = _find_group(name)
        asked, following = ask(PARKED, start=name, end=end, limit=MOST), ask("next", start=end)
        found, is_exact = add_up(list(asked), MOST)
        if is_exact:
            short += found
        else:
            on = partial(count_range, name, end)
            yield Part(PARKED, found, is_exact=False, flow=flow, on=on)
        ((name,),) = following
    yield from (Part(PARKED, [each], flow=flow_of(each[0])) for each in short)


def _find_group(name: str) -> tuple[str, str]:
    """Return the flow that such a name tells, if it does, and what follows all names of it."""
    if name.startswith(ON_KEY):
        return "", ON_KEY[:-1] + "0"
    mark = ON_RATE if name.startswith(ON_RATE) else ""
    flow = name.removeprefix(mark).partition("/")[0]
    return flow, f"{mark}{flow}0"


def _count_on(parts: Sequence[Part], *, is_rest_known: bool) -> None:
    """Count parts to their end, or up to the bound; where only one kind is left, it is the rest."""
    left = MOST_VISITED
    flows: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        flows[part.flow].append(part)
    for flow, own in flows.items():
        queues = {queue_of(lane) for part in own for lane, _ in part.found}
        for part in sorted(own, key=lambda part: sum(jobs for _, jobs in part.found)):
            open_kinds = {part.kind for part in own if not part.is_exact}
            if is_rest_known and flow and len(open_kinds) < 2 and len(queues) == 1:
                break
            limit = min(LIMIT, left // part.ranges)
            if not part.is_exact and part.on is not None and limit > MOST:
                part.found, part.is_exact = part.on(limit)
                left -= sum(jobs for _, jobs in part.found)
