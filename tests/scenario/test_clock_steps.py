"""Somebody sets the machine's clock: leases and timeouts stand, schedules tick at most once."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, engine_on, eventually, kinds, settings
from ulak.clock import Instant, ManualClock, SystemClock, Uptime, micros
from ulak.engine.upkeep import Ticker
from ulak.store.memory import MemoryStore
from ulak.store.protocol import Claimed, ClaimRequest, Store
from ulak.store.sqlite import SqliteStore
from ulak.testing.conformance import Desk

HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)
LEASED_UNTIL = "SELECT expires_at FROM workers WHERE id = 'w'"


class SteppingClock:
    """The machine's clock, which somebody may set."""

    def __init__(self) -> None:
        self._machine = SystemClock()
        self.set_by_us = 0

    def now(self) -> Instant:
        return self._machine.now() + self.set_by_us

    def uptime(self) -> Uptime:
        return self._machine.uptime()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    clock = ManualClock()
    made: Store = (
        MemoryStore(clock) if request.param == "memory" else SqliteStore(path, clock=clock)
    )
    made.open()
    yield made
    made.close()


def set_clock(store: Store, by: timedelta) -> None:
    assert isinstance(store.clock, ManualClock)
    store.clock.step(by)


def pass_time(store: Store, by: timedelta) -> None:
    assert isinstance(store.clock, ManualClock)
    store.clock.advance(by)


def is_alive(store: Store, worker: str) -> bool:
    (row,) = [row for row in store.workers() if row.id == worker]
    return row.expires_at > store.clock.now()


# --- leases ---------------------------------------------------------------------


@pytest.mark.shows("E-24", "E-25", "E-49")
@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_set_clock_takes_no_live_lease_and_keeps_no_dead_one(store: Store, by: timedelta) -> None:
    desk = Desk(store)
    desk.hire("w")
    desk.submit_many(2)
    assert len(desk.claim("w", 2)) == 2
    desk.hire("other")

    set_clock(store, by)
    assert desk.claim("other", 2) == []
    assert is_alive(store, "w")
    assert {row.lapses for row in desk.jobs()} == {0}

    pass_time(store, LEASE)
    assert not is_alive(store, "w"), "it is dead: nobody has renewed its lease"
    store.renew("other", lease_us=micros(LEASE))
    desk.claim("other", 2)
    assert {row.lapses for row in desk.jobs()} == {1}


@pytest.mark.shows("E-24", "E-25")
def test_a_lease_of_another_start_of_the_machine_has_lapsed(path: Path) -> None:
    before, after = (SqliteStore(path, clock=ManualClock(boot=boot)) for boot in ("one", "two"))
    for store in (before, after):
        store.open()
    desk = Desk(before)
    desk.hire("w")
    desk.submit()
    desk.claim("w", 1)

    assert is_alive(before, "w")
    assert not is_alive(after, "w")
    again = Desk(after)
    again.hire("next")
    (claim,) = again.claim("next", 1)
    assert claim.row.lapses == 1
    for store in (before, after):
        store.close()


@pytest.mark.shows("E-29")
def test_a_step_forward_breaks_no_limit(path: Path) -> None:
    clock, go_on = SteppingClock(), threading.Event()
    running: list[str] = []
    most = 0

    def work(run: ulak.Run[Any]) -> None:
        nonlocal most
        running.append(run.job_id)
        most = max(most, len(running))
        assert go_on.wait(120)
        running.remove(run.job_id)

    flow: ulak.Flow[Any] = ulak.Flow("few", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due", limit=ulak.Limit(2))(work)
    patient = settings(lease=300.0)
    stores = [Counting(path, clock=clock) for _ in range(2)]
    with engine_on(stores[0], flow) as one, engine_on(stores[1], flow) as two:
        jobs = one.submit_many(flow, [{}] * 4)
        with one.working(patient), two.working(patient):
            eventually(lambda: len(running) == 2)
            clock.set_by_us = micros(HOUR)
            for store in stores:
                store.must_claim_again()
            go_on.set()
            for job in jobs:
                assert one.wait(job.id, timeout=SOON).lapses == 0
        assert one.inspect.verify() == []
    assert most == 2


class Counting(SqliteStore):
    """Counts the claims that have begun and ended."""

    claims = 0

    def claim(self, request: ClaimRequest) -> Claimed:
        claimed = super().claim(request)
        self.claims += 1
        return claimed

    def must_claim_again(self) -> None:
        """Wait until a claim has ended that began from now on."""
        before = self.claims
        eventually(lambda: self.claims >= before + 2)


# --- beside the release before, whose leases end by the time of day ---------------


@pytest.mark.shows("E-90")
def test_leases_of_the_release_before_are_respected_and_respect_ours(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    store.open()
    desk = Desk(store)
    desk.hire("w")
    desk.submit()
    desk.claim("w", 1)
    with closing(sqlite3.connect(path)) as db:
        # What the release before asks of a lease: it must go on seeing ours as alive.
        assert db.execute(LEASED_UNTIL).fetchone() == (clock.now() + micros(LEASE),)
        clock.advance(LEASE / 2)
        store.renew("w", lease_us=micros(LEASE))
        assert db.execute(LEASED_UNTIL).fetchone() == (clock.now() + micros(LEASE),)
        # And what it writes: the time of day alone.
        db.execute("UPDATE workers SET boot = NULL, ends_us = NULL WHERE id = 'w'")
        db.commit()
    desk.hire("ours")

    clock.advance(LEASE - timedelta(microseconds=1))
    store.renew("ours", lease_us=micros(LEASE))
    assert desk.claim("ours", 1) == []
    assert is_alive(store, "w")
    clock.advance(timedelta(microseconds=1))
    assert not is_alive(store, "w")
    assert [claim.row.lapses for claim in desk.claim("ours", 1)] == [1]
    store.close()


# --- timeouts -------------------------------------------------------------------


@pytest.mark.shows("E-38")
def test_a_step_forward_runs_no_stage_out_of_its_time(path: Path) -> None:
    clock, started, go_on = SteppingClock(), threading.Event(), threading.Event()
    store = Counting(path, clock=clock)

    def work(run: ulak.Run[Any]) -> bool:
        started.set()
        assert go_on.wait(120)
        time.sleep(0.6)  # two beats of the worker's heart
        return run.cancelled

    flow: ulak.Flow[Any] = ulak.Flow("long", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due", timeout=timedelta(minutes=10))(work)
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow, {})
        assert started.wait(120)
        clock.set_by_us = micros(HOUR)
        store.must_claim_again()
        go_on.set()
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert engine.result(job.id) is False
        assert kinds(engine, job) == ["submitted", "moved"]


# --- schedules ------------------------------------------------------------------


@pytest.fixture
def minutely(store: Store) -> Callable[[], int]:
    """A schedule of every minute that catches up on every date; call it to see to them."""
    flow: ulak.Flow[Any] = ulak.Flow("report", ulak.Lifecycle("due", {"due": ["done"]}))
    flow.stage("due")(lambda run: None)
    engine = engine_on(store, flow)
    engine.schedules.add("minutely", flow, {}, every=timedelta(minutes=1), catch_up="all")
    engine.open()
    ticker = Ticker(engine.kernel, 0)

    def see_to_dates() -> int:
        before = len(engine.schedules.ticks("minutely", limit=1000))
        while ticker.tick():
            pass
        return len(engine.schedules.ticks("minutely", limit=1000)) - before

    return see_to_dates


@pytest.mark.shows("E-59")
def test_a_step_makes_at_most_one_tick_of_each_schedule(
    store: Store, minutely: Callable[[], int]
) -> None:
    pass_time(store, timedelta(minutes=3))
    assert minutely() == 3, "time that has passed is caught up on"
    set_clock(store, 5 * HOUR)
    assert minutely() == 1
    pass_time(store, timedelta(minutes=2))
    assert minutely() == 2, "and so is what comes after a step"
    set_clock(store, -2 * HOUR)
    assert minutely() == 0, "no date comes twice"
    pass_time(store, 2 * HOUR)
    assert minutely() == 0
    pass_time(store, timedelta(minutes=1))
    assert minutely() == 1


@pytest.mark.shows("E-59")
def test_dates_that_were_missed_before_a_step_are_still_run(
    store: Store, minutely: Callable[[], int]
) -> None:
    pass_time(store, timedelta(minutes=150))
    set_clock(store, 5 * HOUR)
    assert minutely() == 150 + 1
