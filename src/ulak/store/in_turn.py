"""The order of a claim in which turns count: among the tenants of fair flows.

Pure: a store says which lanes stand where and finds the jobs of a line; who is next is said here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ulak.clock import Instant
from ulak.core.job import EVERY_TENANT, lane_before
from ulak.store import flow_control as control

PRIORITIES = range(4)

FIRST_LOOK = 4
"""How many jobs of a line are looked at first; each further look is longer."""


class Candidate(NamedTuple):
    """What a claim must know of a job before it takes it."""

    not_before: Instant
    id: Any
    """As the store writes it; it is compared, and nothing else."""
    priority: int
    lapses: int
    slot: str | None
    rate: str | None
    cost: int
    size: int


class Standing(NamedTuple):
    """One lane of a family: when the oldest of each priority is due, and what its tenant had."""

    lane: str
    heads: Sequence[Instant | None]
    passed: int | None
    weight: int | None


Find = Callable[[str, int, int], list[Candidate]]
"""Return the first so many due jobs of a lane and a priority, in order."""
Key = tuple[Any, ...]
"""The order of urgency; one without an id comes before those with one."""
Turn = tuple[int, str, Instant, int]
"""Who is next in a family: how much the tenant has had, the tenant, and which of its lines."""


def is_family(lane: str) -> bool:
    """Tell whether a lane stands for those of every tenant."""
    return lane.endswith(EVERY_TENANT)


def bounds(family: str) -> tuple[str, str]:
    """Return where the lanes of a family begin and end: a slash is followed by a zero."""
    return family[:-1], family[:-2] + "0"


def families_by_turns(lanes: Iterable[str]) -> dict[str, list[str]]:
    """Return the families among these lanes by the name under which their turns are counted.

    The stages of a flow share their turns: a tenant that has had one in the first stage has had
    it in the second.
    """
    found: dict[str, list[str]] = {}
    for lane in filter(is_family, lanes):
        found.setdefault(lane_before(lane), []).append(lane)
    return found


def _tenant(lane: str) -> str:
    return lane.split("/", 3)[3]


class Family:
    """The tenants who share turns while a claim is made, and how much each has had.

    `begins` is what the tenant of the last turn had had before it.
    """

    def __init__(self, name: str, lanes: Sequence[Standing], begins: int) -> None:
        self.name = name
        self.lanes = lanes
        self._begins = begins
        self._passed = {_tenant(at.lane): at.passed or 0 for at in lanes}
        self._weights = {_tenant(at.lane): at.weight or 1 for at in lanes}
        self._began: dict[str, int] = {}

    def had(self, tenant: str) -> int:
        """Return how much a tenant has had; who comes new, or back, has no turns saved up."""
        return max(self._begins, self._passed[tenant])

    def take_turn(self, tenant: str) -> None:
        began = self.had(tenant)
        self._begins = self._began[tenant] = began
        self._passed[tenant] = began + control.price_of_turn(self._weights[tenant])

    def turns(self) -> list[tuple[str, str, int, int]]:
        """Return what is to be stored of the turns that were taken, by tenant."""
        return [
            (self.name, tenant, self._passed[tenant], began)
            for tenant, began in sorted(self._began.items())
        ]


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
        self.tenant = "" if family is None else _tenant(lane)
        self._found: list[Candidate] = []
        self._seen: set[Any] = set()
        self._look = FIRST_LOOK
        self._is_all = False

    def first(self, find: Find) -> Candidate | None:
        """Return the next job of the line, which stays in it."""
        while not self._found and not self._is_all:
            found = find(self.lane, self.priority, self._look)
            # Who is parked leaves the index, who is chosen or passed over does not: look further.
            self._is_all = len(found) < self._look
            self._look = 4 * (self._look + len(self._seen))
            self._found = [c for c in found if c.id not in self._seen][::-1]
            self._seen.update(c.id for c in self._found)
        return self._found[-1] if self._found else None

    def leave(self) -> None:
        self._found.pop()


class InTurn:
    """Answers who is next: the most urgent, or whose turn it is in the family of the first."""

    def __init__(
        self,
        lanes: Iterable[str],
        families: Sequence[Family],
        now: Instant,
        *,
        ageing_us: int,
        find: Find,
    ) -> None:
        self._ageing_us = ageing_us
        self._find = find
        self._urgent: list[tuple[Key, int, Line]] = []
        self._turns: dict[tuple[str, int], list[tuple[Turn, Line]]] = {}
        for number, line in enumerate(_lines(lanes, families, now)):
            self._urgent.append((self._key(line, line.not_before), number, line))
            if line.family is not None:
                waiting = self._turns.setdefault((line.family.name, line.priority), [])
                waiting.append((_turn(line, number, line.not_before), line))
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

    def _key(self, line: Line, not_before: Instant, *job_id: Any) -> Key:
        if self._ageing_us:
            return (not_before + line.priority * self._ageing_us, line.priority, *job_id)
        return (line.priority, not_before, *job_id)

    def _most_urgent(self) -> Line | None:
        """Return the line of the most urgent job; heads that have moved are put right."""
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
        """Return the line of the tenant that has had the least; who waits there is not empty."""
        assert first.family is not None  # noqa: S101 - lines of a family only
        waiting = self._turns[first.family.name, first.priority]
        while True:
            turn, line = waiting[0]
            candidate = line.first(self._find)
            if candidate is None:
                heapq.heappop(waiting)
                continue
            now = _turn(line, turn[-1], candidate.not_before)
            if now == turn:
                return line
            heapq.heapreplace(waiting, (now, line))

    def _wait_again(self, line: Line) -> None:
        """Put a line behind those whose turn comes before it now."""
        assert line.family is not None  # noqa: S101 - lines of a family only
        waiting = self._turns[line.family.name, line.priority]
        turn, _ = waiting[0]
        heapq.heapreplace(waiting, (_turn(line, turn[-1], turn[-2]), line))


def _turn(line: Line, number: int, not_before: Instant) -> Turn:
    assert line.family is not None  # noqa: S101 - lines of a family only
    return line.family.had(line.tenant), line.tenant, not_before, number


def _lines(lanes: Iterable[str], families: Sequence[Family], now: Instant) -> Iterable[Line]:
    for lane in lanes:
        yield from (Line(lane, priority) for priority in PRIORITIES)
    for family in families:
        for standing in family.lanes:
            for priority, head in zip(PRIORITIES, standing.heads, strict=True):
                if head is not None and head <= now:
                    yield Line(standing.lane, priority, not_before=head, family=family)
