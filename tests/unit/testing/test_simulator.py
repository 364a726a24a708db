"""The simulator finds nothing wrong with a good store, and each broken one by itself."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak.clock import Clock, Instant
from ulak.core.change import Change, Committed, Receipt, is_end
from ulak.core.job import JobRow, Message
from ulak.core.lifecycle import CANCELLED, FINAL, UNDOING
from ulak.errors import BadInput
from ulak.store.batches import key_of
from ulak.store.memory import MemoryStore
from ulak.store.postgres import PostgresStore
from ulak.store.redis import RedisStore
from ulak.store.sqlite.store import SqliteStore
from ulak.testing.broken import BROKEN, Gapped
from ulak.testing.simulator import main, simulate


@pytest.mark.shows("E-62", "E-2", "E-49")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_order_of_events_breaks_the_rules(seed: int) -> None:
    report = simulate(seed, 8_000)
    assert report.violations == ()
    assert report.calls >= 8_000
    assert {"crash before", "crash after", "repeat", "late", "zombie"} <= report.faults.keys()
    happened = {"lapsed", "undone", "held", "retried", "cancelled", "signalled", "waited", "ended"}
    assert happened <= report.events.keys()
    assert report.ended.keys() == {"done", "failed", "cancelled", "expired"}
    states = {"delivered", "archived", "failed", "cancelled", "expired"}
    assert {state for state, _ in report.followed} == states
    assert {round_ for _, round_ in report.followed} >= {1, 2}


@pytest.mark.shows("E-62")
def test_the_same_simulation_runs_over_another_store(tmp_path: Path) -> None:
    def sqlite(clock: Clock) -> SqliteStore:
        return SqliteStore(tmp_path / "jobs.db", clock=clock, synchronous="OFF")

    report = simulate(5, 1_500, sqlite)
    assert report.violations == ()


@pytest.mark.shows("E-62")
@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.sampled)])
def test_a_seed_makes_the_same_history_on_postgresql(seed: int, databases: Databases) -> None:
    """Broken by any answer that differs: the next draw is then somebody else's."""
    with databases.lend(make_schema) as url:
        report = simulate(seed, 1_200, lambda clock: PostgresStore(url, clock=clock))
    reference = simulate(seed, 1_200)
    assert report.violations == ()
    assert (report.digest, report.calls) == (reference.digest, reference.calls)
    assert (report.ended, report.events) == (reference.ended, reference.events)


@pytest.mark.shows("E-62", "E-56")
@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.sampled)])
def test_a_seed_makes_the_same_history_on_redis(seed: int, redis_url: str) -> None:
    report = simulate(seed, 1_200, lambda clock: RedisStore(redis_url, clock=clock))
    reference = simulate(seed, 1_200)
    assert report.violations == ()
    assert (report.digest, report.calls) == (reference.digest, reference.calls)
    assert (report.ended, report.events) == (reference.ended, reference.events)


@pytest.mark.shows("E-62")
def test_a_seed_replays_exactly_in_another_process() -> None:
    def digest(hash_seed: str) -> str:
        program = "from ulak.testing.simulator import simulate; print(simulate(7, 2000).digest)"
        child = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        return child.stdout.strip()

    assert digest("1") == digest("2") == simulate(7, 2000).digest
    assert simulate(8, 2000).digest != simulate(7, 2000).digest


@pytest.mark.shows("E-63")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_build_is_found_and_its_seed_replays(broken: type[MemoryStore], seed: int) -> None:
    report = simulate(seed, 20_000, broken)
    assert report.violations
    assert report.trace_tail
    again = simulate(seed, 20_000, broken)
    assert (again.violations, again.trace_tail) == (report.violations, report.trace_tail)


class SlotsThatLeak(MemoryStore):
    def _free_slot(self, limit: str, job_id: bytes) -> int:
        return 0 if job_id[-1] % 8 == 0 else super()._free_slot(limit, job_id)


class KeysThatShareNothing(MemoryStore):
    """Every run of a key of calls finds a slot."""

    def _free_places(self, limit: str) -> int:
        return 1 if limit.startswith("calls/") else super()._free_places(limit)

    def _take_slot(self, limit: str, job_id: bytes) -> bool:
        if super()._free_places(limit) > 0:
            super()._take_slot(limit, job_id)
        return True


class TokensForNothing(MemoryStore):
    """Runs are paid for and the bucket stays as full as it was."""

    def _pay(self, row: JobRow, now: Instant) -> None:
        pass


class BucketsThatNobodyLooksAt(MemoryStore):
    """Who is parked on a rate stays there."""

    def _unpark_paid(self, now: Instant) -> int:
        return 0


class NoUnpark(MemoryStore):
    def _pass_on(self, limit: str, places: int) -> int:
        return 0


class LostMessages(MemoryStore):
    def _post(self, messages: Sequence[Message]) -> None:
        super()._post(messages[:2])


class MessagesOutOfOrder(MemoryStore):
    def _post(self, messages: Sequence[Message]) -> None:
        super()._post(tuple(reversed(messages)))


class KeyFreedBeforeTheUndos(MemoryStore):
    def _put(self, row: JobRow) -> None:
        super()._put(row)
        if row.role == UNDOING:
            self._free_key(key_of(row), row.id)


class CountersThatDrift(MemoryStore):
    def _take_away(self, job_id: bytes) -> None:
        row = self._jobs.get(job_id)
        super()._take_away(job_id)
        if row is not None and row.role == UNDOING:
            self._counts[row.flow, row.flow_version, row.state, row.role] += 1


class RequestsThatAreForgotten(MemoryStore):
    def overdue_leased(self, limit: int) -> list[JobRow]:
        return []

    def due(self, limit: int) -> list[JobRow]:
        return []


class ActsOverALease(MemoryStore):
    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        for change in changes:
            row = self._jobs.get(change.row.id)
            if row is not None and row.version == change.version:
                self._jobs[row.id] = row._replace(leased_by=None)
        return super().commit(changes)


class PrunesTheLiving(MemoryStore):
    def prune(self, *, before: int, limit: int) -> int:
        living = [row.id for row in self._jobs.values() if row.role not in FINAL]
        self._forget(set(living[:1]))
        return super().prune(before=before, limit=limit)


class SpawnOutsideTheTransaction(Gapped):
    """Commits the job first and inserts what it spawns after: a crash in between loses it."""

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        receipts = super().commit([change._replace(spawns=()) for change in changes])
        pairs = zip(changes, receipts, strict=True)
        spawned = [change.spawns for change, receipt in pairs if isinstance(receipt, Committed)]
        if any(spawned):
            self.between()
        self.add([job for jobs in spawned for job in jobs])
        return receipts


class SpawnsOfRefusedChanges(MemoryStore):
    """Inserts what a change spawns from the input, whatever came of the change."""

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        receipts = super().commit(changes)
        self.add([job for change in changes for job in change.spawns])
        return receipts


class SpawnsTwice(MemoryStore):
    def _write_change(self, change: Change, now: Instant) -> None:
        super()._write_change(change, now)
        for job in change.spawns:
            twin = bytes([*job.row.id[:-1], job.row.id[-1] ^ 1])
            row, event = job.row._replace(id=twin), job.event._replace(job_id=twin)
            self._add(job._replace(row=row, event=event), now)


SABOTAGED = {
    SlotsThatLeak: "slot",
    KeysThatShareNothing: "it runs without a slot of calls/",
    TokensForNothing: "its run cost",
    BucketsThatNobodyLooksAt: "never came to its end",
    NoUnpark: "never came to its end",
    LostMessages: "messages",
    MessagesOutOfOrder: "published before",
    KeyFreedBeforeTheUndos: "freed before it ended",
    CountersThatDrift: "counters are off",
    RequestsThatAreForgotten: "never came to its end",
    ActsOverALease: "an act on version",
    PrunesTheLiving: "gone before it ended",
    SpawnsOfRefusedChanges: "too many follow it",
    SpawnsTwice: "too many follow it",
    SpawnOutsideTheTransaction: "no job follows it",
}


@pytest.mark.shows("E-62")
@pytest.mark.parametrize("store", SABOTAGED)
def test_every_check_sees_the_damage_it_is_there_for(store: type[MemoryStore]) -> None:
    report = simulate(1, 12_000, store)
    assert any(SABOTAGED[store] in violation for violation in report.violations), str(report)


def _cancels_are_no_ends(before: JobRow, after: JobRow) -> bool:
    return after.role != CANCELLED and is_end(before, after)


def _undos_are_ends(before: JobRow, after: JobRow) -> bool:
    return is_end(before, after) or (after.role == UNDOING != before.role)


def _final_jobs_end_no_more(before: JobRow, after: JobRow) -> bool:
    return before.role not in FINAL and is_end(before, after)


WRONG_ENDS = {
    _cancels_are_no_ends: "no job follows it",
    _undos_are_ends: "too many follow it",
    _final_jobs_end_no_more: '"archived" in round 1, and no job follows it',
}


@pytest.mark.shows("E-62", "E-72")
@pytest.mark.parametrize("wrong", WRONG_ENDS)
def test_a_wrong_end_is_found(
    wrong: Callable[[JobRow, JobRow], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ulak.core.change.is_end", wrong)
    report = simulate(1, 12_000)
    assert any(WRONG_ENDS[wrong] in violation for violation in report.violations), str(report)


def test_the_command_prints_the_report_and_tells_by_its_exit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = f"sqlite:///{tmp_path}/jobs.db"
    assert main(["--seed", "1", "--calls", "300", "--store", file]) == 0
    assert "no violations" in capsys.readouterr().out
    with pytest.raises(BadInput, match="without jobs"):
        main(["--seed", "1", "--calls", "300", "--store", file])
    assert main(["--seed", "1", "--calls", "1000"]) == 0
    printed = capsys.readouterr().out
    assert "seed 1:" in printed
    assert "no violations" in printed
    monkeypatch.setattr(
        "ulak.testing.simulator.simulate", lambda seed, *_: simulate(seed, 20_000, BROKEN[0])
    )
    assert main(["--seed", "1"]) == 1
    assert "last calls:" in capsys.readouterr().out
