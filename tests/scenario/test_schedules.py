"""Schedules: declared in a program, ticked by its workers, paused by a person."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ulak
from ulak.clock import ManualClock, to_instant
from ulak.engine.schedules import Schedule
from ulak.ids import from_text
from ulak.store.memory import MemoryStore
from ulak.testing import Harness

DAY = timedelta(days=1)


@dataclass
class Night:
    region: str
    pages: int = 1


def report_flow(name: str = "report", **options: Any) -> ulak.Flow[Night]:
    flow = ulak.Flow(
        name, ulak.Lifecycle("due", {"due": ["written"], "written": []}, done=["written"]),
        payload=Night, **options,
    )  # fmt: skip

    @flow.stage("due")
    def write(run: ulak.Run[Night]) -> Any:
        return {"for": str(run.scheduled_for), "region": run.payload.region}

    return flow


def dates(harness: Harness, name: str = "nightly") -> list[str]:
    """The dates that were seen to, in order."""
    return [tick.due_at.strftime("%m-%d %H:%M") for tick in harness.engine.schedules.ticks(name)][
        ::-1
    ]


def one(harness: Harness, name: str = "nightly") -> Schedule:
    (found,) = [s for s in harness.engine.schedules.all() if s.name == name]
    return found


# --- ticking --------------------------------------------------------------------


@pytest.mark.shows("E-59", "E-13", "E-61")
def test_a_schedule_submits_a_job_at_each_of_its_dates(jobs_url: str) -> None:
    flow = report_flow()
    with Harness(flow, url=jobs_url) as harness:
        harness.engine.schedules.add(
            "nightly", flow, Night("north"), cron="0 3 * * *", zone="Europe/Istanbul",
            tenant="acme", priority=2, expires=timedelta(hours=5),
        )  # fmt: skip
        harness.advance(days=3)
        assert dates(harness) == ["01-02 00:00", "01-03 00:00", "01-04 00:00"]
        for tick in harness.engine.schedules.ticks("nightly"):
            job = harness.job(tick.job_id)
            assert (job.state, job.tenant, job.priority) == ("written", "acme", 2)
            assert job.submitter == "schedule:nightly"
            assert job.scheduled_for == job.created_at == tick.due_at
            assert job.expires_at == job.created_at + timedelta(hours=5)
            assert harness.result(job.id) == {"for": str(tick.due_at), "region": "north"}
        assert one(harness).next_at == datetime(2026, 1, 5, tzinfo=UTC)
        assert harness.verify() == []


def test_a_job_function_with_its_arguments_is_scheduled(jobs_url: str) -> None:
    harness = Harness(url=jobs_url)
    done: list[tuple[int, str]] = []

    @harness.engine.job
    def sweep(depth: int, where: str = "here") -> None:
        done.append((depth, where))

    harness.engine.schedules.add("five", sweep, 1, every=timedelta(minutes=5))
    harness.engine.schedules.add("six", sweep.bind(2, where="there"), every=timedelta(minutes=6))
    with harness:
        harness.advance(minutes=12)
        assert sorted(done) == [(1, "here")] * 2 + [(2, "there")] * 2


@pytest.mark.shows("E-59")
def test_on_the_days_when_the_clocks_move_a_job_runs_once() -> None:
    flow = report_flow()
    for day in ("2026-03-28T12:00+00:00", "2026-10-24T12:00+00:00"):
        with Harness(flow, clock=ManualClock(datetime.fromisoformat(day))) as harness:
            harness.engine.schedules.add(
                "nightly", flow, Night("north"), cron="30 2 * * *", zone="Europe/Berlin"
            )
            harness.advance(days=1)
            assert len(harness.engine.schedules.ticks("nightly")) == len(harness.engine.jobs()) == 1


@pytest.mark.shows("E-59")
@pytest.mark.parametrize(
    ("catch_up", "seen"),
    [
        ("none", ["01-02 03:00", "01-06 03:00"]),
        ("last", ["01-02 03:00", "01-05 03:00", "01-06 03:00"]),
        ("all", ["01-02 03:00", "01-03 03:00", "01-04 03:00", "01-05 03:00", "01-06 03:00"]),
    ],
)
def test_dates_that_were_missed_are_caught_up_as_declared(
    jobs_url: str, catch_up: Any, seen: list[str]
) -> None:
    flow = report_flow()
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with Harness(flow, url=jobs_url, clock=ManualClock(start)) as harness:
        harness.engine.schedules.add(
            "nightly", flow, Night("north"), cron="0 3 * * *", catch_up=catch_up
        )
        harness.advance(days=1)
        harness.clock.advance(3 * DAY)  # nobody works
        harness.run_until_idle()
        harness.advance(days=1)
        assert dates(harness) == seen
        assert len(harness.engine.jobs()) == len(seen)


def test_all_of_a_long_outage_is_caught_up_in_order() -> None:
    flow = report_flow()
    with Harness(flow) as harness:
        harness.engine.schedules.add(
            "nightly", flow, Night("north"), every=timedelta(minutes=1), catch_up="all"
        )
        harness.clock.advance(timedelta(hours=10))
        harness.run_until_idle()
        ticks = harness.engine.schedules.ticks("nightly", limit=1000)
        assert len(ticks) == len({tick.job_id for tick in ticks}) == 600
        assert harness.unfinished() == []


def test_a_date_that_comes_while_its_key_is_held_names_the_job_that_holds_it() -> None:
    lifecycle = ulak.Lifecycle("open", {"open": ["closed"], "closed": []}, done=["closed"])
    flow: ulak.Flow[Any] = ulak.Flow("review", lifecycle, dedup=ulak.Dedup())
    flow.gate("open", choices={"close": "closed"})
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, {"of": "books"}, cron="0 3 * * *")
        harness.advance(days=2)
        first, second = harness.engine.schedules.ticks("nightly")
        assert first.job_id == second.job_id
        harness.engine.decide(first.job_id, "close", actor="ada")
        harness.advance(days=1)
        assert len(harness.engine.jobs()) == 2
        assert harness.engine.schedules.ticks("nightly")[0].job_id != first.job_id
        assert harness.verify() == []


def test_a_worker_wakes_for_a_date_and_not_for_its_poll_alone() -> None:
    engine = ulak.connect("memory://")
    ran: list[float] = []

    @engine.job
    def beat() -> None:
        ran.append(time.time())

    engine.schedules.add("beat", beat, every=timedelta(seconds=1))
    deadline = time.monotonic() + 20
    with engine, engine.working(ulak.WorkerSettings(poll=timedelta(seconds=15))):
        while len(ran) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # the real clock is what is tested
    assert len(ran) >= 2
    assert ran[1] - ran[0] < 5


def test_a_schedule_that_is_declared_while_the_engine_is_open_is_kept_at_once() -> None:
    flow = report_flow()
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *")
        assert one(harness).is_declared


def test_a_harness_of_a_program_has_its_schedules() -> None:
    engine = ulak.connect("memory://", flows=[flow := report_flow()])
    engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *")
    with Harness.of(engine) as harness:
        harness.advance(days=2)
        assert len(harness.engine.schedules.ticks("nightly")) == 2


def test_what_is_changed_after_the_declaration_changes_no_job() -> None:
    flow, night = report_flow(), Night("north")
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, night, cron="0 3 * * *")
        night.region = "south"
        harness.advance(days=1)
        (tick,) = harness.engine.schedules.ticks("nightly")
        assert harness.engine.inspect.payload(tick.job_id) == {"region": "north", "pages": 1}


# --- several programs -----------------------------------------------------------


def deploy(
    store: MemoryStore, clock: ManualClock, declare: Callable[[ulak.Engine], None]
) -> Harness:
    """Another process of a program, on the same store."""
    harness = Harness(clock=clock)
    harness.engine = ulak.Engine(store)
    declare(harness.engine)
    harness.engine.open()
    return harness


def declared(region: str, cron: str = "0 3 * * *") -> Callable[[ulak.Engine], None]:
    def declare(engine: ulak.Engine) -> None:
        flow = engine.add(report_flow())
        engine.schedules.add("nightly", flow, Night(region), cron=cron)

    return declare


def regions(harness: Harness) -> list[str]:
    return [
        harness.engine.inspect.payload(tick.job_id)["region"]
        for tick in reversed(harness.engine.schedules.ticks("nightly"))
    ]


@pytest.mark.shows("E-59")
def test_what_was_declared_last_holds_and_others_leave_it_alone() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    old = deploy(store, clock, declared("north"))
    new = deploy(store, clock, declared("south"))
    clock.advance(timedelta(hours=3))
    old.run_until_idle()
    assert old.engine.schedules.ticks("nightly") == []
    new.run_until_idle()
    old.run_until_idle()
    assert regions(new) == ["south"]


@pytest.mark.shows("E-59")
def test_a_date_is_not_lost_when_who_declared_it_otherwise_is_gone() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    new = deploy(store, clock, declared("south"))
    deploy(store, clock, declared("north"))  # of the release before, started once more and ended
    new.advance(hours=3)
    assert new.engine.schedules.ticks("nightly") == []
    new.advance(seconds=10)
    assert regions(new) == ["south"]
    assert dates(new) == ["01-01 03:00"]


def test_a_changed_rule_takes_effect_and_a_removed_one_is_ticked_by_nobody() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    deploy(store, clock, declared("north"))
    later = deploy(store, clock, declared("north", "0 5 * * *"))
    later.advance(days=1)
    assert dates(later) == ["01-01 05:00"]
    without = deploy(store, clock, lambda engine: None)
    without.advance(days=2)
    assert dates(without) == ["01-01 05:00"]
    assert not one(without).is_declared


# --- people ---------------------------------------------------------------------


@pytest.mark.shows("E-59")
def test_a_paused_schedule_submits_nothing_and_skips_what_passed(jobs_url: str) -> None:
    flow = report_flow()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *", catch_up="all")
        harness.advance(days=1)
        paused = engine.schedules.pause("nightly", actor="ada", note="stocktaking")
        assert (paused.paused_by, paused.pause_note) == ("ada", "stocktaking")
        assert paused.paused_at == harness.now
        assert engine.schedules.pause("nightly", actor="bob") == paused
        harness.advance(days=3)
        resumed = engine.schedules.resume("nightly", actor="ada")
        assert resumed.paused_at is None
        assert resumed.next_at == datetime(2026, 1, 5, 3, tzinfo=UTC)
        assert engine.schedules.resume("nightly", actor="ada") == resumed
        harness.advance(days=1)
        assert dates(harness) == ["01-01 03:00", "01-05 03:00"]


def test_a_pause_survives_a_deployment(shared_url: str) -> None:
    for region in ("north", "south"):
        harness = Harness(url=shared_url)
        declared(region)(harness.engine)
        with harness:
            harness.engine.schedules.pause("nightly", actor="ada")
            harness.advance(days=2)
            assert harness.engine.jobs() == []


def test_a_schedule_is_run_now_besides_its_dates() -> None:
    flow = report_flow()
    with Harness(flow) as harness:
        harness.engine.schedules.add(
            "nightly", flow, Night("north"), cron="0 3 * * *", tenant="acme"
        )
        harness.engine.schedules.pause("nightly", actor="ada")
        job = harness.engine.schedules.run("nightly", actor="ada")
        harness.run_until_idle()
        job = harness.job(job.id)
        assert (job.state, job.tenant, job.submitter) == ("written", "acme", "ada")
        assert job.scheduled_for is None
        assert harness.engine.schedules.ticks("nightly") == []
        assert harness.verify() == []


def test_ticks_are_forgotten_with_their_jobs(jobs_url: str) -> None:
    flow = report_flow()
    with Harness(flow, url=jobs_url) as harness:
        harness.engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *")
        harness.advance(days=4)
        before = to_instant(harness.now - 2 * DAY)
        assert harness.engine.store.prune(before=before, limit=100) == 2
        assert dates(harness) == ["01-03 03:00", "01-04 03:00"]
        assert harness.verify() == []


def test_ticks_are_read_page_by_page() -> None:
    flow = report_flow()
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *")
        harness.advance(days=5)
        first = harness.engine.schedules.ticks("nightly", limit=2)
        rest = harness.engine.schedules.ticks("nightly", before=first[-1].due_at)
        assert [tick.due_at.day for tick in first + rest] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("verb", ["get", "ticks", "pause", "resume", "run"])
def test_a_schedule_that_is_not_there_is_named(verb: str) -> None:
    flow = report_flow()
    more = {"actor": "ada"} if verb in ("pause", "resume", "run") else {}
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, Night("north"), cron="0 3 * * *")
        with pytest.raises(ulak.BadInput, match=r"no schedule 'weekly'; .* nightly"):
            getattr(harness.engine.schedules, verb)("weekly", **more)


# --- mistakes -------------------------------------------------------------------


@pytest.mark.shows("E-59")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "schedule nightly: it is never due; give cron= or every="),
        ({"cron": "0 3 * * *", "every": DAY}, "schedule nightly: cron and every are two rules"),
        ({"cron": "0 25 * * *"}, "schedule nightly: .* cannot be read: bad hour"),
        ({"cron": "0 3 * * *", "zone": "Europe/Stambul"}, "schedule nightly: .*not a time zone"),
        ({"every": DAY, "zone": "UTC"}, "schedule nightly: zone='UTC' means nothing to every="),
        ({"every": timedelta(milliseconds=5)}, "schedule nightly: every=.* whole seconds"),
        ({"every": DAY, "catch_up": "some"}, "catch_up='some' is not one of none, last, all"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_when_it_is_declared(
    options: dict[str, Any], said: str
) -> None:
    flow = report_flow()
    engine = ulak.connect("memory://", flows=[flow])
    with pytest.raises(ulak.FlowError, match=said):
        engine.schedules.add("nightly", flow, Night("north"), **options)
    assert engine.schedules.all() == []


def test_what_cannot_be_submitted_is_refused_when_it_is_declared() -> None:
    flow = report_flow()
    engine = ulak.connect("memory://", flows=[flow])

    @engine.job
    def sweep(depth: int) -> None: ...

    schedule: Any = engine.schedules.add
    with pytest.raises(ulak.FlowError, match="schedule s: other is not registered"):
        schedule("s", report_flow("other"), Night("north"), every=DAY)
    with pytest.raises(ulak.BadInput, match=r"schedule s: this is not a Night: .*region"):
        schedule("s", flow, {"pages": 3}, every=DAY)
    with pytest.raises(ulak.BadInput, match=r"schedule s: sweep\(depth: int\)"):
        schedule("s", sweep, every=DAY)
    with pytest.raises(ulak.BadInput, match=r"schedule s: .* is no flow and no job function"):
        schedule("s", print, "hello", every=DAY)
    with pytest.raises(ulak.BadInput, match="priority 7 is not one of"):
        schedule("s", sweep, 1, every=DAY, priority=7)
    with pytest.raises(ulak.BadInput, match="cannot be stored as JSON"):
        schedule("s", sweep, object(), every=DAY)
    for name in ("", "a b", "a/b", "x" * 101):
        with pytest.raises(ulak.FlowError, match="cannot be stored; use letters"):
            schedule(name, sweep, 1, every=DAY)
    schedule("s", sweep, 1, every=DAY)
    with pytest.raises(ulak.FlowError, match="schedule 's' is declared twice"):
        schedule("s", sweep, 2, every=DAY)


def test_a_job_that_the_store_refuses_does_not_stop_its_neighbours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = report_flow()
    with Harness(flow) as harness:
        for name in ("bad", "good"):
            harness.engine.schedules.add(name, flow, Night(name), cron="0 3 * * *")
        store: Any = harness.engine.store
        tick = store.tick

        def refuse(ticks: Any) -> Any:
            if any(t.row.name == "bad" for t in ticks):
                raise ulak.errors.WriteRefused("too large")
            return tick(ticks)

        monkeypatch.setattr(store, "tick", refuse)
        with caplog.at_level(logging.ERROR, "ulak.ticker"):
            harness.advance(hours=4)
        assert len(harness.engine.schedules.ticks("good")) == 1
        assert harness.engine.schedules.ticks("bad") == []
        assert "the job of a schedule is refused" in caplog.text
        monkeypatch.undo()
        harness.run_until_idle()
        (late,) = harness.engine.schedules.ticks("bad")
        assert store.find_job(from_text(late.job_id)) is not None
