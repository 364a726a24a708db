"""Processes tick the same schedules at once and are killed in the middle: no date is lost, and
none makes two jobs."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import ulak
from ulak.clock import SECOND, to_datetime
from ulak.engine.upkeep import Ticker
from ulak.store.faults import POINTS
from ulak.testing import Harness, ManualClock, faults
from ulak.wiring import store_of

SECONDS = 90
DATES = {"each-second": SECONDS, "each-third": SECONDS // 3}
ROUNDS = 4
POINTS_OF_A_TICK = list(POINTS["tick"])


def program(url: str, clock: ManualClock) -> ulak.Engine:
    """A program with two schedules, whose jobs nobody runs."""
    engine = ulak.Engine(store_of(url, clock=clock))

    @engine.job
    def note(what: str) -> None: ...

    engine.schedules.add(
        "each-second", note, "a second", every=timedelta(seconds=1), catch_up="all"
    )
    engine.schedules.add("each-third", note, "three", every=timedelta(seconds=3), catch_up="all")
    return engine


def tick_for_a_while(url: str) -> None:
    """See to the dates of a minute and a half, second by second. Runs in children."""
    clock = ManualClock()
    with program(url, clock) as engine:
        ticker = Ticker(engine.kernel, 0)
        for _ in range(SECONDS):
            clock.advance(timedelta(seconds=1))
            ticker.tick()


def die_and_begin_again(url: str, number: int) -> list[bool]:
    """Run children one after the other, each killed a little later than the one before it."""
    deaths = []
    for n in range(ROUNDS):
        point = POINTS_OF_A_TICK[(number + n) % 3]
        ended = faults.run(tick_for_a_while, url, kill_at=point, nth=1 + 3 * n)
        assert ended.killed or ended.code == 0, ended.errors
        deaths.append(ended.killed)
    return deaths


def each_date_has_one_job(url: str) -> None:
    clock = ManualClock()
    start = clock.now()
    clock.advance(timedelta(seconds=SECONDS))
    with program(url, clock) as engine:
        Ticker(engine.kernel, 0).tick()
        made: Counter[str] = Counter()
        for name, dates in DATES.items():
            step = SECONDS // dates * SECOND
            ticks = engine.schedules.ticks(name, limit=1000)
            expected = [to_datetime(start + step * n) for n in range(dates, 0, -1)]
            assert [tick.due_at for tick in ticks] == expected
            made.update(tick.job_id for tick in ticks)
        assert set(made.values()) == {1}
        assert {job.id for job in engine.jobs(limit=1000)} == made.keys()
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-59")
@pytest.mark.parametrize(
    ("shared_url", "processes"),
    [("sqlite", 2), ("sqlite", 4), ("postgres", 4)],
    indirect=["shared_url"],
)
def test_processes_that_die_while_they_tick_lose_no_date_and_double_none(
    shared_url: str, processes: int
) -> None:
    program(shared_url, ManualClock()).open().close()
    with ThreadPoolExecutor(processes) as pool:
        lives = list(pool.map(lambda n: die_and_begin_again(shared_url, n), range(processes)))
    # The first of each dies at its first tick; later ones may find that others have done it all.
    assert all(deaths[0] for deaths in lives)
    each_date_has_one_job(shared_url)


@pytest.mark.shows("E-59", "E-61")
@pytest.mark.parametrize("point", POINTS_OF_A_TICK)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_worker_killed_at_a_tick_leaves_the_date_to_the_next_one(
    point: str, nth: int, shared_url: str
) -> None:
    crashed = faults.run(work_three_days, shared_url, kill_at=point, nth=nth)
    assert crashed.killed, crashed.errors
    with nightly(shared_url) as harness:
        harness.advance(days=3)
        days = [tick.due_at.day for tick in harness.engine.schedules.ticks("nightly")]
        jobs = harness.engine.jobs()
        assert days == [3, 2, 1]
        assert [job.scheduled_for for job in jobs if job.scheduled_for] == [
            tick.due_at for tick in harness.engine.schedules.ticks("nightly")
        ]
        assert {job.state for job in jobs} == {"done"}
        assert harness.verify() == []


def nightly(url: str) -> Harness:
    harness = Harness(url=url)

    @harness.engine.job
    def report() -> None: ...

    harness.engine.schedules.add("nightly", report, cron="0 3 * * *", catch_up="all")
    return harness


def work_three_days(url: str) -> None:
    with nightly(url) as harness:
        harness.advance(days=3)
