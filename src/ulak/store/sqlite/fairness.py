"""The order of a claim in which turns count: among the tenants of fair flows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ulak.clock import Instant
from ulak.core.job import EVERY_TENANT
from ulak.store import flow_control as control
from ulak.store.sqlite.writer import Transaction

PRIORITIES = range(4)

_STANDING = """
    FROM jobs INDEXED BY jobs_claimable
    WHERE {lane} AND leased_by IS NULL AND parked_on IS NULL AND lane <> ''
"""
# The lanes of a family in which jobs stand, each found by one step along the index.
_PRESENT = f"""
    WITH RECURSIVE present (lane) AS (
        SELECT (
            SELECT lane {_STANDING.format(lane="lane >= ?1 AND lane < ?2")} ORDER BY lane LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT lane {_STANDING.format(lane="lane > present.lane AND lane < ?2")}
            ORDER BY lane LIMIT 1
        ) FROM present WHERE present.lane IS NOT NULL
    )
"""
_HEADS = ", ".join(
    f"(SELECT not_before {_STANDING.format(lane=f'lane = present.lane AND priority = {priority}')}"
    " ORDER BY not_before LIMIT 1)"
    for priority in PRIORITIES
)
PRESENT = f"""
    {_PRESENT}
    SELECT json_group_array(json_array(present.lane, json_array({_HEADS}), passed, weight))
    FROM present
    LEFT JOIN turns ON turns.lane = ?3 AND turns.tenant = substr(present.lane, length(?1) + 1)
    LEFT JOIN weights ON weights.tenant = substr(present.lane, length(?1) + 1)
    WHERE present.lane IS NOT NULL
"""
NEVER = 2**62
_LATER = ", ".join(
    "ifnull((SELECT min(not_before) "
    + _STANDING.format(lane=f"lane = present.lane AND priority = {priority} AND not_before > ?3")
    + f"), {NEVER})"
    for priority in PRIORITIES
)
NEXT_DUE = f"{_PRESENT} SELECT min(min({_LATER})) FROM present WHERE present.lane IS NOT NULL"
BEGINS = "SELECT coalesce(max(began), 0) FROM turns WHERE lane = ?"
PUT_TURN = """
    INSERT INTO turns (lane, tenant, passed, began) VALUES (?, ?, ?, ?)
    ON CONFLICT (lane, tenant) DO UPDATE SET passed = excluded.passed, began = excluded.began
"""

FIRST_LOOK = 4


class Candidate(NamedTuple):
    """What the claim index tells of a job, without its row; the id in hexadecimal digits."""

    not_before: Instant
    id: str
    priority: int
    lapses: int
    slot: str | None
    rate: str | None
    cost: int


class _Standing(NamedTuple):
    """One lane of a family: when the oldest of each priority is due, and what its tenant had."""

    lane: str
    heads: list[Instant | None]
    passed: int | None
    weight: int | None


_decode_present = msgspec.json.Decoder(list[_Standing]).decode

Find = Callable[[str, int, int], list[Candidate]]
"""Answer the first so many due jobs of a lane and a priority, in order."""
Key = tuple[int, int, str]


def is_family(lane: str) -> bool:
    """Tell whether a lane stands for those of every tenant."""
    return lane.endswith(EVERY_TENANT)


def bounds(family: str) -> tuple[str, str]:
    """Answer where the lanes of a family begin and end: a slash is followed by a zero."""
    return family[:-1], family[:-2] + "0"


def next_due(t: Transaction, family: str) -> Instant | None:
    """Answer when the next delayed job of a family becomes due."""
    found: Instant | None = t.db.execute(NEXT_DUE, (*bounds(family), t.now)).fetchone()[0]
    return None if found == NEVER else found


class Family:
    """The tenants of a family while a claim is made, and how much each has had."""

    def __init__(self, t: Transaction, name: str) -> None:
        self._t = t
        self.name = name
        found = t.db.execute(PRESENT, (*bounds(name), name)).fetchone()[0]
        self.lanes = _decode_present(found)
        self._begins: int = t.db.execute(BEGINS, (name,)).fetchone()[0]
        skip = len(name) - 1
        self._passed = {at.lane[skip:]: at.passed or 0 for at in self.lanes}
        self._weights = {at.lane[skip:]: at.weight or 1 for at in self.lanes}
        self._began: dict[str, int] = {}

    def had(self, tenant: str) -> int:
        """Answer how much a tenant has had; who comes new, or back, has no turns saved up."""
        return max(self._begins, self._passed[tenant])

    def take_turn(self, tenant: str) -> None:
        """A job of this tenant was taken."""
        began = self.had(tenant)
        self._begins = self._began[tenant] = began
        self._passed[tenant] = began + control.price_of_turn(self._weights[tenant])

    def write(self) -> None:
        """Write the turns that were taken."""
        for tenant, began in sorted(self._began.items()):
            self._t.db.execute(PUT_TURN, (self.name, tenant, self._passed[tenant], began))


class Line:
    """The due jobs of one lane and priority, read a few at a time."""

    __slots__ = (
        "_found", "_is_all", "_look", "_seen", "family", "lane", "not_before", "priority", "tenant",
    )  # fmt: skip

    def __init__(
        self, lane: str, priority: int, *, not_before: Instant = 0, family: Family | None = None
    ) -> None:
        self.lane = lane
        self.priority = priority
        self.not_before = not_before
        """No job of the line is older; its id is looked up when it matters, so that a thousand
        tenants do not cost a thousand looks."""
        self.family = family
        self.tenant = "" if family is None else lane[len(family.name) - 1 :]
        self._found: list[Candidate] = []
        self._seen: set[str] = set()
        self._look = FIRST_LOOK
        self._is_all = False

    def first(self, find: Find) -> Candidate | None:
        """Answer the next job of the line, which stays in it."""
        while not self._found and not self._is_all:
            found = find(self.lane, self.priority, self._look)
            # Who is parked leaves the index, who is chosen or passed over does not: look further.
            self._is_all = len(found) < self._look
            self._look = 4 * (self._look + len(self._seen))
            self._found = [c for c in found if c.id not in self._seen][::-1]
            self._seen.update(c.id for c in self._found)
        return self._found[-1] if self._found else None

    def leave(self) -> None:
        """Let the first one go."""
        self._found.pop()


class InTurn:
    """Answers who is next: the most urgent, or whose turn it is in the family of the first."""

    def __init__(self, t: Transaction, lanes: Sequence[str], *, ageing_us: int, find: Find) -> None:
        self._ageing_us = ageing_us
        self._find = find
        self.families = [Family(t, lane) for lane in lanes if is_family(lane)]
        self._urgent: list[tuple[Key, int, Line]] = []
        self._turns: dict[tuple[str, int], list[tuple[int, str, Line]]] = {}
        for number, line in enumerate(self._lines(t, lanes)):
            self._urgent.append((self._key(line, line.not_before, ""), number, line))
            if line.family is not None:
                waiting = self._turns.setdefault((line.family.name, line.priority), [])
                waiting.append((line.family.had(line.tenant), line.tenant, line))
        heapq.heapify(self._urgent)
        for waiting in self._turns.values():
            heapq.heapify(waiting)

    def __iter__(self) -> Iterator[tuple[Line, Candidate]]:
        while (first := self._most_urgent()) is not None:
            line = first if first.family is None else self._whose_turn(first)
            candidate = line.first(self._find)
            if candidate is not None:
                line.leave()
                yield line, candidate
            if line.family is not None:
                self._wait_again(line)

    def write(self) -> None:
        """Write the turns that were taken."""
        for family in self.families:
            family.write()

    def _lines(self, t: Transaction, lanes: Sequence[str]) -> Iterable[Line]:
        for lane in lanes:
            if not is_family(lane):
                yield from (Line(lane, priority) for priority in PRIORITIES)
        for family in self.families:
            for standing in family.lanes:
                for priority, head in zip(PRIORITIES, standing.heads, strict=True):
                    if head is not None and head <= t.now:
                        yield Line(standing.lane, priority, not_before=head, family=family)

    def _key(self, line: Line, not_before: Instant, job_id: str) -> Key:
        if self._ageing_us:
            return (not_before + line.priority * self._ageing_us, line.priority, job_id)
        return (line.priority, not_before, job_id)

    def _most_urgent(self) -> Line | None:
        """Answer the line of the most urgent job; heads that have moved are put right."""
        while self._urgent:
            key, number, line = self._urgent[0]
            first = line.first(self._find)
            if first is None:
                heapq.heappop(self._urgent)
                continue
            now = self._key(line, first.not_before, first.id)
            if now == key:
                return line
            heapq.heapreplace(self._urgent, (now, number, line))
        return None

    def _whose_turn(self, first: Line) -> Line:
        """Answer the line of the tenant that has had the least; who waits there is not empty."""
        assert first.family is not None  # noqa: S101 - lines of a family only
        waiting = self._turns[first.family.name, first.priority]
        while True:
            had, tenant, line = waiting[0]
            now = first.family.had(tenant)
            if now != had:
                heapq.heapreplace(waiting, (now, tenant, line))
            elif line.first(self._find) is None:
                heapq.heappop(waiting)
            else:
                return line

    def _wait_again(self, line: Line) -> None:
        """Put a line behind those whose turn comes before it now."""
        assert line.family is not None  # noqa: S101 - lines of a family only
        waiting = self._turns[line.family.name, line.priority]
        heapq.heapreplace(waiting, (line.family.had(line.tenant), line.tenant, line))
