"""What is looked at to count how jobs stand is bounded, and what comes of it is true."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from ulak.core.backlog import MOST_COUNTED, Backlog, add_up
from ulak.core.job import flow_of
from ulak.store.protocol import CountRow
from ulak.store.standing import FEWEST, LAST_NAME, MOST, MOST_LANES, MOST_VISITED, count

NOW = 1_000_000
KINDS = ("due", "delayed", "parked", "leased")


@dataclass
class Stored:
    """Jobs by lane and kind; counts how many of them are looked at, and how often."""

    jobs: dict[str, Counter[str]]
    visited: int = 0
    statements: int = 0

    def ask(self, statement: str, **facts: Any) -> list[Any]:
        """Return what a database would."""
        self.statements += 1
        limit = facts.get("limit", 0)
        lanes = [self.jobs[lane] for lane in facts.get("lanes", ())]
        match statement:
            case "lanes":
                free = [lane for lane, own in self.jobs.items() if own["due"] + own["delayed"]]
                return [(lane,) for lane in sorted(free)[:limit]]
            case "look":
                return [(self._look(own, limit),) for own in lanes]
            case "first":
                return [(NOW,) for _ in lanes]
            case "due" | "delayed":
                return [(self._visit(own[statement], limit),) for own in lanes]
            case "next":
                return [(min((n for n in self._parked() if n >= facts["start"]), default=None),)]
            case "parked":
                parked = self._parked()
                between = [n for n in sorted(parked) if facts["start"] <= n < facts["end"]]
                return self._visit_all([parked[n] for n in between], "parked", limit)
            case "leased":
                found = self._visit_all(list(self.jobs), "leased", limit)
                return [(lane, jobs, NOW) for lane, jobs in found]
            case _:
                return []

    def _look(self, own: Counter[str], limit: int) -> int:
        due = self._visit(own["due"], limit)
        return due + 1_000_000 * self._visit(own["delayed"], limit - due)

    def _visit_all(self, lanes: list[str], kind: str, limit: int) -> list[tuple[str, int]]:
        found = []
        for lane in lanes:
            if jobs := self._visit(self.jobs[lane][kind], limit):
                found.append((lane, jobs))
                limit -= jobs
        return found

    def _visit(self, jobs: int, limit: int) -> int:
        found = min(jobs, limit)
        self.visited += found
        return found

    def _parked(self) -> dict[str, str]:
        """Return the lanes with parked jobs by what those are parked on."""
        return {
            f"{flow_of(lane)}/{lane.partition('#')[2]}": lane
            for lane, own in self.jobs.items()
            if own["parked"]
        }


def backlog(stored: Stored) -> dict[tuple[str, str], Backlog]:
    states = [
        CountRow(flow_of(lane), 1, "new", "ready", own.total()) for lane, own in stored.jobs.items()
    ]
    found = add_up(count(stored.ask, NOW, states), {})
    return {(row.flow, row.queue): row for row in found}


@pytest.mark.shows("E-74")
def test_many_jobs_of_one_kind_are_the_rest_of_their_flow_and_not_counted() -> None:
    flows = {f"q/loop/{kind}@1#a": Counter({kind: 250_000}) for kind in KINDS[:3]}
    flows["q/loop/mixed@1#a"] = Counter(due=7_000, delayed=240_000, parked=2, leased=1_000)
    stored = Stored(flows)
    found = backlog(stored)
    for lane, own in flows.items():
        row = found[flow_of(lane), "q"]
        assert {kind: getattr(row, kind) for kind in KINDS} == {k: own[k] for k in KINDS}
        assert row.at_least == frozenset()
    # A first look at each, and both kinds of the mixed flow up to the bound.
    assert stored.visited < 21_000
    assert stored.statements < 25


@pytest.mark.shows("E-74")
def test_of_two_kinds_with_many_jobs_each_is_exact_up_to_the_bound() -> None:
    for due, delayed, at_least in (
        (MOST_COUNTED, MOST_COUNTED, set()),
        (MOST_COUNTED, 900_000, set()),
        (900_000, MOST_COUNTED, set()),
        (MOST_COUNTED + 1, MOST_COUNTED + 1, {"due", "delayed"}),
    ):
        row = backlog(Stored({"q/loop/f@1#a": Counter(due=due, delayed=delayed)}))["f", "q"]
        assert row.at_least == at_least
        counted = (row.due, row.delayed)
        assert counted == ((MOST_COUNTED, MOST_COUNTED) if at_least else (due, delayed))


@pytest.mark.shows("E-74")
def test_a_flow_with_two_queues_is_exact_in_both_up_to_the_bound() -> None:
    stored = Stored({"a/loop/f@1#a": Counter(due=9_000), "b/loop/f@1#b": Counter(due=11_000)})
    found = backlog(stored)
    assert (found["f", "a"].due, found["f", "a"].at_least) == (9_000, frozenset())
    assert (found["f", "b"].due, found["f", "b"].at_least) == (MOST_COUNTED, {"due"})


@pytest.mark.shows("E-74")
@pytest.mark.parametrize(
    ("flows", "tenants", "most"),
    [(100, 1, 10_000), (10, 1, 200_000), (300, 3, 2_000), (1, 3_000, 1_000), (3, 1, 9_000)],
)
def test_however_jobs_are_spread_few_are_looked_at_and_nothing_false_comes_of_it(
    flows: int, tenants: int, most: int
) -> None:
    dice = Random(f"{flows} {tenants}")  # noqa: S311 - to spread jobs
    jobs = {
        f"q{flow % 7}/loop/f{flow}@1#a/t{tenant}": Counter(
            {kind: dice.choice([0, 0, dice.randrange(20), dice.randrange(most)]) for kind in KINDS}
        )
        for flow in range(flows)
        for tenant in range(tenants)
    }
    for own in jobs.values():
        own["parked"], own["leased"] = own["parked"] if tenants == 1 else 0, own["leased"] // 1000
    stored, real = Stored(jobs), Counter[tuple[str, str]]()
    for lane, own in jobs.items():
        for kind in KINDS:
            real[flow_of(lane), kind] += own[kind]
    for row in backlog(stored).values():
        for kind in KINDS:
            said, true = getattr(row, kind), real[row.flow, kind]
            assert said <= true
            assert said == true or kind in row.at_least
    looked_at = max(MOST_COUNTED, FEWEST * MOST_LANES) + MOST * (flows + 1)
    assert stored.visited <= looked_at + MOST_VISITED + MOST_COUNTED


@pytest.mark.shows("E-74")
def test_more_leased_jobs_than_are_counted_leave_no_flow_sure_of_its_own() -> None:
    stored = Stored(
        {
            "q/loop/a@1#a": Counter(leased=MOST_COUNTED + 5),
            "q/loop/b@1#a": Counter(leased=3, due=600),
            "q/loop/c@1#a": Counter(parked=2),
        }
    )
    found = backlog(stored)
    assert {row.at_least for row in found.values()} == {frozenset({"leased"})}
    assert (found["a", "q"].leased, found["b", "q"].due, found["c", "q"].parked) == (
        MOST_COUNTED, 600, 2,
    )  # fmt: skip


@pytest.mark.shows("E-74")
def test_parked_jobs_are_counted_flow_by_flow_so_that_a_crowd_hides_nobody() -> None:
    names = ["/key/a", "/key/b", "/rate/f/s", "/rate/f/s/k", "/rate/g/s", "f/s", "f/t/k", "g/s"]
    looked_at: list[tuple[str, str]] = []

    def ask(statement: str, **facts: Any) -> list[Any]:
        if statement == "next":
            return [(min((n for n in names if n >= facts["start"]), default=None),)]
        if statement != "parked":
            return []
        start, end, limit = facts["start"], facts["end"], facts["limit"]
        looked_at.append((start, end))
        jobs = 20_000 if start <= "f/s" < end else sum(start <= n < end for n in names)
        return [("q/loop/h@1#s", min(jobs, limit))]

    counts = count(ask, NOW, []).counts
    crowd = ("f/s", "f0")
    assert looked_at == [
        ("", LAST_NAME), ("/key/a", "/key0"), ("/rate/f/s", "/rate/f0"), ("/rate/g/s", "/rate/g0"),
        crowd, ("g/s", "g0"),
    ]  # fmt: skip
    assert [each.jobs for each in counts] == [MOST, 2, 2, 1, 1]
    assert [each.is_exact for each in counts] == [False, True, True, True, True]
