"""Races: two processes that want the same rows at the same moment.

Each test names the mistake that it is there for; the store that makes it fails the test.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple, TypeVar

import pytest

from ulak.core.change import Committed, KeyTaken, LeaseLost, Receipt
from ulak.core.job import JobRow
from ulak.core.outcome import Cancel, Raised, Retry
from ulak.store.protocol import Store
from ulak.testing.children import forked
from ulak.testing.conformance.desk import PATIENCE_S, Desk, Reopen, Suite, patiently
from ulak.testing.conformance.flows import DATED, SINGLE

T = TypeVar("T")

WORKER = "w"
BROKEN = Raised("boom", "it broke")


class Racer(NamedTuple):
    """One of the two processes of a race, with a store of its own."""

    desk: Desk
    number: int
    """0 or 1."""
    meet: Callable[[], object]
    """Returns when the other one has come as far."""
    shared: Any
    """Whole numbers that both of them see, under one lock."""

    def leased(self) -> list[JobRow]:
        """Read the jobs that the worker of both holds, when both are there to read them."""
        self.meet()
        rows = self.desk.store.leased(WORKER)
        self.meet()
        return rows


class TestRaces(Suite):
    """What two processes do at once comes out as if one had been first."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.shared:
            pytest.skip("this store serves one process")
        return Desk(store)

    @pytest.mark.shows("E-17")
    def test_of_two_batches_with_stale_changes_exactly_the_winners_are_written(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        """Broken by events, counters or receipts that come from the batch and not from the rows
        that the guarded update moved: then the loser's are there as well."""
        first, second = race(_commit_the_same, reopen)
        for mine, others in zip(first, second, strict=True):
            won = [job for job, (_, receipt) in mine.items() if isinstance(receipt, Committed)]
            lost = [job for job, (_, receipt) in mine.items() if receipt == LeaseLost()]
            theirs = [job for job, (_, receipt) in others.items() if isinstance(receipt, Committed)]
            assert len(won) + len(lost) == len(mine) == 200
            assert len(won) + len(theirs) == 300
            assert not set(won) & set(theirs)
            # Whoever is first writes all of its own but the one that is stale, the other the rest.
            assert {len(won), len(theirs)} == {199, 101}
            for winner, jobs in ((mine, won), (others, theirs)):
                for job in jobs:
                    moved = desk.store.trail(job)[1:]
                    assert [event.commit_id for event in moved] == [winner[job][0]]
        assert {row.state for row in desk.jobs()} == {"done"}
        assert [count.jobs for count in desk.store.counts()] == [300 * len(first)]

    @pytest.mark.shows("E-30")
    def test_a_key_that_is_freed_and_taken_at_the_same_moment_has_one_job(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        """Broken by an `add` that looks whether the key is free and inserts afterwards."""
        most, made = zip(
            *race(_hand_keys_over, reopen, shared=shared_numbers(len(KEYS))), strict=True
        )
        assert max(most) == 1
        # Both got their turns: it was a race.
        assert min(made) > 0
        assert desk.store.scan_orphans() == []
        assert list(desk.store.scan_keys()) == []

    @pytest.mark.shows("E-30")
    def test_an_expired_key_is_taken_over_by_one_of_two(self, desk: Desk, reopen: Reopen) -> None:
        """Broken by a takeover that does not ask whether the key is still the old job's."""
        for mine, others in zip(*race(_take_expired_over, reopen), strict=True):
            for key in KEYS:
                (job, created), (other_job, other_created) = mine[key], others[key]
                assert job == other_job
                assert created != other_created
        assert len(list(desk.store.scan_keys())) == len(KEYS)

    @pytest.mark.shows("E-30")
    def test_a_retry_and_a_submit_of_its_key_have_one_winner(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        """Broken by a retry that moves the job before, or without, taking its key back."""
        retries, submits = race(_retry_against_submit, reopen)
        assert any(isinstance(receipt, KeyTaken) for receipt, _ in retries)
        for (receipt, retried), (holder, created) in zip(retries, submits, strict=True):
            if created:
                assert receipt == KeyTaken(holder)
            else:
                assert receipt == Committed()
                assert holder == retried
        assert {(k.job_id, k.key) for k in desk.store.scan_keys()} == {
            (row.id, row.dedup_key) for row in desk.jobs() if row.role == "ready"
        }

    @pytest.mark.shows("E-48")
    def test_the_sum_of_the_counters_is_exact_at_every_read(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        """Broken by a fold in two transactions, and by a reader of two statements."""
        written = shared_numbers(2)
        reads: list[tuple[int, int, int]] = []
        over = threading.Event()

        def read() -> None:
            while not over.is_set():
                at_least = written[ACKNOWLEDGED]
                found = sum(count.jobs for count in desk.store.counts())
                reads.append((at_least, found, written[ANNOUNCED]))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            race(_move_and_fold, reopen, shared=written)
        finally:
            over.set()
            reader.join()
        sums = [found for _, found, _ in reads]
        assert len(set(sums)) > 10, "it was read while it was written"
        assert sums == sorted(sums)
        assert all(at_least <= found <= at_most for at_least, found, at_most in reads)
        assert {found % BATCH for found in sums} == {0}
        jobs = desk.jobs()
        assert {(c.state, c.jobs) for c in desk.store.counts()} == {
            (state, sum(row.state == state for row in jobs))
            for state in {row.state for row in jobs}
        }


# --- what each of the two does ------------------------------------------------------

BATCHES = 6
KEYS = [f"k{n}" for n in range(6)]
BATCH = 10
ANNOUNCED, ACKNOWLEDGED = 0, 1


def _commit_the_same(racer: Racer) -> list[dict[bytes, tuple[bytes, Receipt]]]:
    """Commit batches of 200 that overlap in 100; each has one stale change, early in the overlap.

    Both have the token of every job, as a worker and its rescued ghost do just before the rescue.
    """
    desk, written = racer.desk, []
    for _ in range(BATCHES):
        if racer.number == 0:
            desk.submit_many(300, SINGLE)
            desk.claim(WORKER, 300, SINGLE)
        rows = sorted(racer.leased())
        assert len(rows) == 300
        own = rows[:200] if racer.number == 0 else rows[100:]
        stale = rows[100 + racer.number].id
        changes = [desk.end(row, flow=SINGLE) for row in own]
        changes = [c._replace(token=99) if c.row.id == stale else c for c in changes]
        if racer.number:
            changes.reverse()
        racer.meet()
        receipts = patiently(desk.store.commit, changes)
        written.append({c.row.id: (c.commit_id, r) for c, r in zip(changes, receipts, strict=True)})
    return written


def _hand_keys_over(racer: Racer) -> tuple[int, int]:
    """Submit the same keys again and again, and cancel at once what that made.

    Returns how many jobs of one key were seen to be there at once, and how many were made.
    """
    desk, alive = racer.desk, racer.shared
    most = made = 0
    racer.meet()
    for n in range(60):
        keys = KEYS if (n + racer.number) % 2 else KEYS[::-1]
        jobs = [desk.new(dedup_key=key) for key in keys]
        added = patiently(desk.store.add, jobs)
        mine = [answer.row for answer in added if answer.created]
        with alive.get_lock():
            for row in mine:
                alive[KEYS.index(str(row.dedup_key))] += 1
                most = max(most, alive[KEYS.index(str(row.dedup_key))])
        made += len(mine)
        time.sleep(0.002)  # long enough for the other one to make the same mistake
        with alive.get_lock():
            for row in mine:
                alive[KEYS.index(str(row.dedup_key))] -= 1
        if mine:
            patiently(desk.write, *(desk.act(row, Cancel("ada")) for row in mine))
    return most, made


def _take_expired_over(racer: Racer) -> list[dict[str, tuple[bytes, bool]]]:
    """Submit the same keys, in opposite orders, each time when they have just expired."""
    desk, answers = racer.desk, []
    keys = KEYS[::-1] if racer.number else KEYS
    for _ in range(40):
        desk.turn(hours=2)
        jobs = [desk.new(DATED, dedup_key=key) for key in keys]
        racer.meet()
        added = patiently(desk.store.add, jobs)
        answers.append({key: (a.row.id, a.created) for key, a in zip(keys, added, strict=True)})
    return answers


def _retry_against_submit(racer: Racer) -> list[tuple[Any, Any]]:
    """One retries failed jobs, the other submits new ones with their keys."""
    desk = racer.desk
    answers: list[tuple[Any, Any]] = []
    keys = [f"key-{n}" for n in range(40)]
    failed: list[JobRow] = []
    if racer.number == 0:
        desk.store.add([desk.new(SINGLE, dedup_key=key) for key in keys])
        claims = desk.claim(WORKER, len(keys), SINGLE)
        failed = desk.write(*(desk.end(claim.row, BROKEN, flow=SINGLE) for claim in claims))
    racer.meet()
    for n, key in enumerate(keys):
        if racer.number == 0:
            row = next(row for row in failed if row.dedup_key == key)
            change = desk.act(row, Retry("ada"), flow=SINGLE)
            racer.meet()
            # Now the one is first, now the other.
            time.sleep(0.0005 * (n % 8))
            (receipt,) = patiently(desk.store.commit, [change])
            answers.append((receipt, row.id))
        else:
            job = desk.new(SINGLE, dedup_key=key)
            racer.meet()
            (added,) = patiently(desk.store.add, [job])
            answers.append((added.row.id, added.created))
    return answers


def _move_and_fold(racer: Racer) -> None:
    """Submit jobs, take them on, and fold after each; say how many there are, before and after."""
    desk, written = racer.desk, racer.shared
    worker = f"{WORKER}{racer.number}"
    desk.hire(worker, lease=timedelta(hours=1))
    racer.meet()
    for _ in range(60):
        with written.get_lock():
            written[ANNOUNCED] += BATCH
        desk.submit_many(BATCH)
        with written.get_lock():
            written[ACKNOWLEDGED] += BATCH
        desk.write(*(desk.end(claim.row) for claim in desk.claim(worker, BATCH)))
        desk.store.fold_counts()


# --- how they are run -----------------------------------------------------------------


def shared_numbers(n: int) -> Any:
    """Make so many whole numbers, zero, that every process of a race sees."""
    return forked().Array("i", n)


def race(work: Callable[[Racer], T], reopen: Reopen, *, shared: Any = None) -> list[T]:
    """Do the work in two processes at once; answer what each of them answers, 0 before 1."""
    context = forked()
    start, answers = context.Barrier(2), context.Queue()
    children = [
        context.Process(target=_racer, args=(work, reopen, number, start, answers, shared))
        for number in range(2)
    ]
    for child in children:
        child.start()
    try:
        came = sorted((answers.get(timeout=PATIENCE_S) for _ in children), key=lambda a: a[0])
    finally:
        start.abort()
        for child in children:
            child.join(PATIENCE_S)
        answers.close()
    for _, _, failure in came:
        assert failure is None, failure
    return [answer for _, answer, _ in came]


def _racer(
    work: Callable[[Racer], T],
    reopen: Reopen,
    number: int,
    start: Barrier,
    answers: Queue[tuple[int, T | None, str | None]],
    shared: Any,
) -> None:
    store = reopen()
    try:
        store.open()
        desk = Desk(store)
        desk.hire(WORKER, lease=timedelta(days=365))
        answers.put((number, work(Racer(desk, number, _meeting(start), shared)), None))
    except BaseException:  # noqa: BLE001 - a child tells its parent, whatever it was
        start.abort()
        answers.put((number, None, traceback.format_exc()))
    finally:
        store.close()


def _meeting(start: Barrier) -> Callable[[], object]:
    return lambda: start.wait(PATIENCE_S)
