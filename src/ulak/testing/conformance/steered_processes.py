"""Flow control under several processes, some of which are killed in the middle of it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from ulak.store.protocol import Store
from ulak.testing.children import forked
from ulak.testing.conformance.desk import Desk, Reopen, Suite
from ulak.testing.conformance.flows import KEYED, RATED, SHARED
from ulak.testing.conformance.processes import PATIENCE, in_children

LEASE = timedelta(hours=1)


class TestSteeredProcesses(Suite):
    """Never above a limit, never above a rate, nobody starved: whoever dies meanwhile."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not (store.features.shared and store.features.flow_control):
            pytest.skip("this store serves one process, or has no flow control")
        desk = Desk(store)
        desk.declare(KEYED, RATED)
        return desk

    @pytest.mark.shows("E-29", "E-60")
    @pytest.mark.parametrize("processes", [2, 4])
    def test_no_key_is_run_by_more_than_its_limit_while_workers_are_killed(
        self, desk: Desk, reopen: Reopen, processes: int
    ) -> None:
        for n in range(40):
            desk.submit_keyed("ab"[n % 2], KEYED)
        with _victims(_die_with_slots, reopen):
            most = max(in_children(_run_keyed, reopen, processes))
        assert 1 <= most <= 2
        held = Counter(s.limit for s in desk.store.slots() if s.job_id is not None)
        assert sum(held.values()) <= 2, "what the killed ones held is still theirs"
        desk.turn(hours=2)
        desk.hire("heir", lease=timedelta(hours=9))
        assert _run_keyed(desk, "heir") <= 2
        assert {row.state for row in desk.jobs()} == {"done"}
        assert all(slot.job_id is None for slot in desk.store.slots())

    @pytest.mark.shows("E-60")
    @pytest.mark.parametrize("processes", [2, 4])
    def test_no_rate_is_exceeded_while_workers_are_killed(
        self, desk: Desk, reopen: Reopen, processes: int
    ) -> None:
        for n in range(40):
            desk.submit_keyed("k", RATED, cost=n % 2 + 1)
        with _victims(_die_with_tokens, reopen):
            in_children(_claim_rated, reopen, processes)
        assert _spent(desk) <= 6
        assert _spent(desk) >= 5, "whoever asked last found no more than a token"
        desk.turn(seconds=1)
        desk.hire("heir", lease=timedelta(hours=9))
        before = _spent(desk)
        _claim_rated(desk, "heir")
        assert 3 <= _spent(desk) - before <= 5

    @pytest.mark.shows("E-60")
    @pytest.mark.parametrize("processes", [2, 4])
    def test_no_tenant_is_starved_while_workers_are_killed(
        self, desk: Desk, reopen: Reopen, processes: int
    ) -> None:
        desk.submit_many(200, SHARED, tenant="big")
        desk.submit_many(5, SHARED, tenant="small")
        desk.submit_many(5, SHARED, tenant="tiny")
        with _victims(_die_with_turns, reopen):
            in_children(_claim_some, reopen, processes)
        claimed = Counter(row.tenant for row in desk.jobs() if row.token)
        assert claimed["small"] == claimed["tiny"] == 5
        assert claimed["big"] >= 5


@contextmanager
def _victims(work: Callable[[Desk, str], None], reopen: Reopen, number: int = 2) -> Iterator[None]:
    """Start processes that kill themselves in the middle of their work, beside the block."""
    context = forked()
    started = [context.Process(target=_victim, args=(work, reopen, n)) for n in range(number)]
    for child in started:
        child.start()
    try:
        yield
    finally:
        for child in started:
            child.join(PATIENCE)
    assert [child.exitcode for child in started] == [-signal.SIGKILL] * number


def _victim(work: Callable[[Desk, str], None], reopen: Reopen, number: int) -> None:
    store = reopen()
    store.open()
    desk, name = Desk(store), f"victim{number}"
    desk.hire(name, lease=LEASE)
    work(desk, name)
    os.kill(os.getpid(), signal.SIGKILL)


def _die_with_slots(desk: Desk, worker: str) -> None:
    """Lease one job and leave it leased for ever."""
    while any(row.role != "done" and row.leased_by is None for row in desk.jobs()):
        if desk.claim(worker, 1, KEYED):
            return
        desk.store.unpark(100)


def _die_with_tokens(desk: Desk, worker: str) -> None:
    desk.claim(worker, 1, RATED)


def _die_with_turns(desk: Desk, worker: str) -> None:
    desk.claim(worker, 2, SHARED)


def _run_keyed(desk: Desk, worker: str) -> int:
    """Run keyed jobs until only those of the dead are left; answer the most of one key at once."""
    most = 0
    while any(row.role != "done" and not _is_lost(row.leased_by, worker) for row in desk.jobs()):
        claims = desk.claim(worker, 2, KEYED)
        for claim in claims:
            leased = [row.slot for row in desk.jobs() if row.leased_by is not None]
            most = max(most, max(Counter(leased).values(), default=0))
            desk.finish(claim.row, flow=KEYED)
        if not claims:
            # Who parks while another frees the slot is let in by upkeep (E-29).
            desk.store.unpark(100)
            if _is_blocked(desk):
                return most
    return most


def _is_lost(leased_by: str | None, worker: str) -> bool:
    return leased_by is not None and leased_by.startswith("victim") and worker != "heir"


def _is_blocked(desk: Desk) -> bool:
    """Whether the dead hold every slot of whatever is left."""
    rows = [row for row in desk.jobs() if row.role != "done"]
    held = Counter(row.slot for row in rows if _is_lost(row.leased_by, ""))
    waiting = {row.slot for row in rows if row.leased_by is None}
    others = [r for r in rows if r.leased_by is not None and not _is_lost(r.leased_by, "")]
    return not others and all(held[slot] >= 2 for slot in waiting)


def _claim_rated(desk: Desk, worker: str) -> int:
    """Claim until the bucket pays for nobody."""
    taken = 0
    while claims := desk.claim(worker, 1, RATED):
        taken += len(claims)
    return taken


def _spent(desk: Desk) -> int:
    return sum(row.cost * row.token for row in desk.jobs())


def _claim_some(desk: Desk, worker: str) -> int:
    return sum(len(desk.claim(worker, 1, SHARED)) for _ in range(20))
