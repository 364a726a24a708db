"""Rows are written in one order, whatever the order of the batch: triggers tell which."""

# ruff: noqa: S608 - the statements are built from names that are in this file

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest

from ulak.core.change import Change, Committed, SlotTaken
from ulak.core.flow import Flow
from ulak.core.job import NewJob
from ulak.core.lifecycle import Lifecycle
from ulak.core.outcome import Finished, Left, Raised
from ulak.core.policy import Dedup, Limit, LimitTerms, Until
from ulak.store.sqlite import SqliteStore
from ulak.testing.conformance import Desk
from ulak.testing.conformance.flows import LINE, NARROW, NARROW_LIMIT, PROVEN, TIGHT, work

TABLES = {
    "jobs": "hex({row}.id)",
    "dedup": "{row}.tenant || '/' || {row}.flow || '/' || {row}.key",
    "slots": "{row}.limit_name",
    "proof_heads": "{row}.tenant",
}


@dataclass
class Writes:
    """What a connection wrote, row by row."""

    store: SqliteStore

    def __post_init__(self) -> None:
        db = self.store._writer.db
        db.execute("CREATE TEMP TABLE written (n INTEGER PRIMARY KEY, tab TEXT, name TEXT)")
        for table, name in TABLES.items():
            for verb, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
                db.execute(
                    f"CREATE TEMP TRIGGER {table}_{verb} AFTER {verb} ON main.{table} BEGIN "
                    f"INSERT INTO written (tab, name) VALUES ('{table}', {name.format(row=row)}); "
                    "END"
                )

    def take(self) -> list[tuple[str, list[str]]]:
        """Return the runs of writes to one table since the last call, in their order."""
        db = self.store._writer.db
        rows = db.execute("SELECT tab, name FROM written ORDER BY n").fetchall()
        db.execute("DELETE FROM written")
        return [(tab, [name for _, name in run]) for tab, run in groupby(rows, lambda r: r[0])]


@pytest.fixture
def desk(store: SqliteStore) -> Desk:
    return Desk(store)


@pytest.fixture
def writes(store: SqliteStore) -> Writes:
    return Writes(store)


def shuffled(things: Sequence[Any]) -> list[Any]:
    mixed = list(things)
    random.Random(7).shuffle(mixed)  # noqa: S311 - a shuffle, not a secret
    assert mixed != list(things)
    return mixed


def assert_ordered(written: list[tuple[str, list[str]]], tables: list[str]) -> None:
    assert [table for table, _ in written] == tables
    for _, names in written:
        assert names == sorted(names)


def everything_flow() -> Flow[Any]:
    """A key, a limit and proofs: its last commit writes to every table."""
    flow: Flow[Any] = Flow(
        "everything",
        Lifecycle("only", {"only": ["done"]}),
        dedup=Dedup(until=Until.FINISHED),
        proofs=True,
    )
    flow.stage("only", limit=Limit(50))(work)
    return flow


EVERYTHING = everything_flow()


def leased_everything(desk: Desk, n: int) -> list[Any]:
    desk.store.declare(EVERYTHING.table.limits)
    for k in range(n):
        # Keys and tenants fall while ids rise.
        desk.submit(EVERYTHING, dedup_key=f"k{90 - k}", tenant=f"t{9 - k % 3}")
    desk.hire("w")
    return [claim.row for claim in desk.claim("w", n, EVERYTHING)]


@pytest.mark.shows("E-21")
def test_a_batch_of_new_jobs_is_written_by_id_and_then_by_key(desk: Desk, writes: Writes) -> None:
    jobs = [desk.new(EVERYTHING, dedup_key=f"k{90 - k}") for k in range(30)]
    mixed = shuffled(jobs)
    added = desk.store.add(mixed)
    assert_ordered(writes.take(), ["jobs", "dedup", "proof_heads"])
    assert [a.row for a in added] == [job.row for job in mixed]
    # With one among them that is there already, the batch is decided one by one.
    more = [desk.new(EVERYTHING, dedup_key=f"m{90 - k}") for k in range(30)]
    again = desk.new(EVERYTHING, dedup_key="k90")
    mixed = shuffled([*more, again])
    added = desk.store.add(mixed)
    assert_ordered(writes.take(), ["jobs", "dedup", "proof_heads"])
    assert [a.row.id for a in added] == [(jobs[0] if j is again else j).row.id for j in mixed]
    assert [a.created for a in added] == [job is not again for job in mixed]


@pytest.mark.shows("E-21", "E-47")
def test_chains_of_several_tenants_are_taken_last_and_by_tenant(desk: Desk, writes: Writes) -> None:
    jobs = [desk.new(EVERYTHING, dedup_key=f"k{k}", tenant=f"t{k % 3}") for k in range(30)]
    desk.store.add(shuffled(jobs))
    new, held, heads = writes.take()
    # Jobs that have most of their columns in common are one statement, so they come by tenant.
    assert [len(set(new[1])), held[1]] == [30, sorted(held[1])]
    for tenant in ("t0", "t1", "t2"):
        own = [name for name in new[1] if name in _names(jobs, tenant)]
        assert own == sorted(own)
    assert heads == ("proof_heads", ["t0", "t1", "t2"])


def _names(jobs: Sequence[NewJob], tenant: str) -> set[str]:
    return {job.row.id.hex().upper() for job in jobs if job.row.tenant == tenant}


@pytest.mark.shows("E-21")
def test_a_batch_of_changes_is_written_jobs_keys_slots_heads_each_in_order(
    desk: Desk, writes: Writes
) -> None:
    rows = leased_everything(desk, 30)
    writes.take()
    desk.write(*shuffled([desk.end(row, flow=EVERYTHING) for row in rows]))
    assert_ordered(writes.take(), ["jobs", "dedup", "slots", "proof_heads"])


@pytest.mark.shows("E-21")
def test_a_batch_with_a_refused_change_is_written_in_the_same_order(
    desk: Desk, writes: Writes
) -> None:
    rows = leased_everything(desk, 30)
    writes.take()
    changes = [desk.end(row, flow=EVERYTHING) for row in rows]
    changes[4] = changes[4]._replace(token=99)
    mixed = shuffled(changes)
    receipts = desk.store.commit(mixed)
    assert_ordered(writes.take(), ["jobs", "dedup", "slots", "proof_heads"])
    refused = [c for c, r in zip(mixed, receipts, strict=True) if not isinstance(r, Committed)]
    assert refused == [changes[4]]


@pytest.mark.shows("E-21")
def test_spawned_jobs_and_their_keys_keep_the_order(desk: Desk, writes: Writes) -> None:
    rows = desk.leased(10)
    writes.take()
    new = [desk.new(LINE, dedup_key=f"s{90 - k}") for k in range(10)]
    ends: list[Change] = [
        desk.end(row, Finished(Left(spawns=(job,))))
        for row, job in zip(rows, reversed(new), strict=True)
    ]
    desk.write(*shuffled(ends))
    written = writes.take()
    assert [table for table, _ in written] == ["jobs", "dedup"]
    moved, spawned = written[0][1][:10], written[0][1][10:]
    assert (moved, spawned) == (sorted(moved), sorted(spawned))
    assert written[1][1] == sorted(written[1][1])


@pytest.mark.shows("E-21")
def test_leases_lapses_and_what_is_forgotten_are_written_in_order(
    desk: Desk, writes: Writes
) -> None:
    desk.store.declare({f"{TIGHT.name}/only": LimitTerms(50), NARROW_LIMIT: LimitTerms(50)})
    rows = [desk.submit(flow) for _ in range(10) for flow in (PROVEN, TIGHT)]
    desk.hire("a", "b")
    assert len(desk.look("b", 5, [PROVEN]).claims) == 5
    assert len(desk.look("a", 5, [TIGHT]).claims) == 5
    writes.take()
    desk.turn(minutes=5)
    desk.hire("w")
    desk.look("w", 0, [TIGHT])
    assert_ordered(writes.take(), ["jobs", "slots", "proof_heads"])
    taken = [claim.row for claim in desk.look("w", 20, [PROVEN]).claims]
    assert len(taken) == 10
    assert_ordered(writes.take(), ["jobs"])
    give_up = Raised("boom", "", permanent=True)
    desk.write(*[desk.end(row, give_up, flow=PROVEN) for row in taken])
    for k in range(5):
        desk.submit(LINE, dedup_key=f"p{9 - k}", priority=k % 4)
    ended = [desk.end(c.row, give_up) for c in desk.claim("w", 5)]
    desk.write(*[change._replace(frees_key=False) for change in ended])
    desk.turn(days=1)
    writes.take()
    assert desk.store.prune(before=desk.now, limit=100) == len(rows) // 2 + 5
    assert_ordered(writes.take(), ["jobs", "dedup"])


@pytest.mark.shows("E-21", "E-29")
def test_of_two_that_want_the_last_slot_the_older_job_gets_it_in_any_order(desk: Desk) -> None:
    desk.store.declare({NARROW_LIMIT: LimitTerms(1)})
    first, second = desk.leased(2, NARROW)
    ends = [desk.end(row, flow=NARROW, keep=True) for row in (second, first)]
    assert desk.store.commit(ends) == [SlotTaken(NARROW_LIMIT), Committed()]


@pytest.mark.shows("E-30")
def test_of_two_with_one_key_in_a_batch_the_first_of_the_caller_is_stored(desk: Desk) -> None:
    older, newer = desk.new(LINE, dedup_key="k"), desk.new(LINE, dedup_key="k")
    added = desk.store.add([newer, older])
    assert [(a.row.id, a.created) for a in added] == [(newer.row.id, True), (newer.row.id, False)]


def test_a_job_that_ends_hands_its_key_to_the_job_it_spawns(desk: Desk) -> None:
    desk.submit(LINE, dedup_key="k")
    desk.hire("w")
    desk.finish(desk.lease())
    heir = desk.new(LINE, dedup_key="k")
    desk.write(desk.end(desk.lease(), Finished(Left(spawns=(heir,)))))
    assert desk.store.find_key("", "line", "k") == heir.row.id
