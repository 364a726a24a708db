"""Processes: what threads may not do to each other, processes may not either."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import TypeVar

import pytest

from ulak.core.outcome import Held
from ulak.core.policy import LimitTerms
from ulak.store.protocol import Added, Store
from ulak.testing.children import forked
from ulak.testing.conformance.claims import claim_everything
from ulak.testing.conformance.desk import Desk, Reopen, Suite, is_noticed
from ulak.testing.conformance.flows import LINE, TIGHT, TIGHT_LIMIT

T = TypeVar("T")

CHILDREN = 4
PLACES = 3
PATIENCE = 120.0
KEYS = [f"k{n}" for n in range(50)]


class TestProcesses(Suite):
    """Several processes may use a store at once, if it says so."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.shared:
            pytest.skip("this store serves one process")
        return Desk(store)

    def test_four_processes_claim_a_thousand_jobs_once_each(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        for _ in range(4):
            desk.submit_many(250)
        claimed = [job_id for ids in in_children(_claim, reopen) for job_id in ids]
        assert len(claimed) == 1000
        assert len(set(claimed)) == 1000
        assert {row.token for row in desk.jobs()} == {1}

    @pytest.mark.shows("E-29")
    def test_four_processes_never_run_more_than_a_limit_allows(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        desk.store.declare({TIGHT_LIMIT: LimitTerms(PLACES)})
        desk.submit_many(100, TIGHT)
        most = max(in_children(_run_limited, reopen))
        assert 1 <= most <= PLACES
        assert {row.state for row in desk.jobs()} == {"done"}
        assert all(slot.job_id is None for slot in desk.store.slots())

    @pytest.mark.shows("E-30")
    def test_four_processes_that_submit_the_same_keys_make_each_job_once(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        answers = [added for page in in_children(_submit, reopen) for added in page]
        assert sum(added.created for added in answers) == len(KEYS)
        assert {added.row.id for added in answers} == {row.id for row in desk.jobs()}
        assert len(desk.jobs()) == len(KEYS)

    @pytest.mark.shows("E-79")
    def test_a_move_by_another_process_rings_for_those_who_watch(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        rung = threading.Event()
        store = reopen()  # what another process has: nothing in common but the database
        store.open()
        try:
            other = Desk(store)
            rows = other.leased(200)
            stop = desk.store.on_move(rung.set)
            for row in rows:  # the others may learn late that this one watches
                other.write(other.end(row, Held("odd", "look")))
                if rung.wait(0.05):
                    break
            assert rung.wait(PATIENCE)
            stop()
        finally:
            store.close()

    def test_a_commit_of_another_process_is_noticed_once(self, desk: Desk, reopen: Reopen) -> None:
        desk.submit()
        desk.store.changed_elsewhere()
        assert not desk.store.changed_elsewhere()
        in_children(_submit, reopen, 1)
        assert is_noticed(desk.store)
        # The child has committed several times, so it may have rung several times; no longer.
        deadline = time.monotonic() + PATIENCE
        while desk.store.changed_elsewhere():
            assert time.monotonic() < deadline, "the same ring is reported again and again"
            time.sleep(0.05)


def hire(desk: Desk, worker: str) -> None:
    """Register the worker that a process is."""
    desk.hire(worker, lease=timedelta(hours=1))


def in_children(
    work: Callable[[Desk, str], T],
    reopen: Reopen,
    children: int = CHILDREN,
    *,
    prepare: Callable[[Desk, str], object] = hire,
) -> list[T]:
    """Do the work in several processes at once, each with a name of its own, once all of them are
    prepared for it."""
    context = forked()
    start, answers = context.Barrier(children), context.Queue()
    started = [
        context.Process(target=_child, args=(prepare, work, reopen, f"w{n}", start, answers))
        for n in range(children)
    ]
    for child in started:
        child.start()
    try:
        return [answers.get(timeout=PATIENCE) for _ in started]
    finally:
        for child in started:
            child.join(PATIENCE)
        answers.close()


def _child(
    prepare: Callable[[Desk, str], object],
    work: Callable[[Desk, str], T],
    reopen: Reopen,
    worker: str,
    start: Barrier,
    answers: Queue[T],
) -> None:
    store = reopen()
    store.open()
    try:
        desk = Desk(store)
        prepare(desk, worker)
        start.wait(PATIENCE)
        answers.put(work(desk, worker))
    finally:
        store.close()


def _claim(desk: Desk, worker: str) -> list[bytes]:
    return claim_everything(desk.store, worker)


def _run_limited(desk: Desk, worker: str) -> int:
    """Run limited jobs to their end; answer how many were seen running at once."""
    most = 0
    while any(row.role != "done" for row in desk.jobs()):
        claims = desk.claim(worker, 2, TIGHT)
        for claim in claims:
            most = max(most, sum(row.leased_by is not None for row in desk.jobs()))
            desk.finish(claim.row, flow=TIGHT)
        if not claims:
            # Who parks while another frees the slot is let in by upkeep (E-29).
            desk.store.unpark(100)
    return most


def _submit(desk: Desk, worker: str) -> list[Added]:
    pages = [KEYS[n : n + 10] for n in range(0, len(KEYS), 10)]
    return [
        added
        for page in pages
        for added in desk.store.add([desk.new(LINE, dedup_key=key) for key in page])
    ]
