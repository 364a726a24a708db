"""The loop: a job of a schedule that goes on with what ticks of any process have left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ulak
from tests.conformance.places import place_of
from tests.unit.control.parts import make_config
from ulak import Engine
from ulak.clock import ManualClock, to_datetime
from ulak.control import AdaptiveControlConfig, AllowlistEntry, Depth, Telemetry
from ulak.control.config import TYPES
from ulak.control.loop import NAME, ControlLoop, attach, find_pace
from ulak.control.operations import InvalidConfig, Operations, RestoreRefused
from ulak.control.overrides import INTAKE_MODES, Pinnable
from ulak.control.process_metrics import Publisher
from ulak.control.request_metrics import Requests
from ulak.control.signals import ACCEPTING, BACKPRESSURE, ENFORCE, GUARD, PDF, SHADOW
from ulak.control.state import ControlState, SourceRow, StaleRevision, Superseded
from ulak.control.subsystems import registered, subsystem
from ulak.control.tallies import ALONE, LATENCY_SECONDS, Histogram
from ulak.errors import BadInput, StoreError
from ulak.testing import Harness
from ulak.testing.children import forked
from ulak.wiring import find_guard_state, store_of

QUICK: dict[str, Any] = {
    "dwell_time_seconds": 60, "cooldown_period_seconds": 60, "oscillation_max_transitions": 50,
}  # fmt: skip
Place = tuple[str, ManualClock]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store that several processes may share, and their clock."""
    with place_of(request.param, request, tmp_path) as where:
        yield where if request.param == "postgres" else f"sqlite:///{where}", ManualClock()


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    return f"sqlite:///{tmp_path / 'jobs.db'}", ManualClock()


class Web:
    """A process that serves requests, and publishes what it counts."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.requests = Requests()
        self._engine, self._name = engine, name
        self.restart()

    def restart(self) -> None:
        """Count from zero again, as a process that took the place of this one."""
        self.requests = Requests()
        read = lambda: [tally.read() for tally in self.requests.tallies]  # noqa: E731
        self.publisher = Publisher(self._engine, read, process=self._name)

    def serve(self, seconds: float, times: int = 1, *, status: str = "2xx") -> None:
        for _ in range(times):
            self.requests.begun()
            self.requests.ended("GET", "/jobs", status, seconds)

    def publish(self) -> None:
        self.publisher._silent_s = 60.0
        self.publisher.publish()


class Intake:
    """The intake of a service; what it was told last."""

    def __init__(self) -> None:
        self.told: tuple[bool, int] | None = None

    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None:
        self.told = active, retry_after_seconds


class Process:
    """One process with a loop, a service with a queue, and as many that serve as a test wants."""

    def __init__(self, place: Place, **changes: Any) -> None:
        url, self.clock = place
        self.engine = Engine(store_of(url, clock=self.clock)).open()
        self.depth, self.finished, self.failed = 0, 0, 0
        self.intake, self.webs = Intake(), list[Web]()
        self.renders = Histogram("pdf_render_duration_seconds", "Long.", LATENCY_SECONDS)
        subsystem(
            self.engine, PDF, depth=lambda: Depth(self.depth), admission=self.intake,
            telemetry=lambda: Telemetry(self.finished, self.failed, self.renders.read()),
            creates={"POST": "/pdf/jobs"},
        )  # fmt: skip
        guard = find_guard_state(self.engine)
        assert guard is not None
        self.loop = ControlLoop(self.engine, make_config(**changes), guard)
        self.state, self.operations = self.loop.state, Operations(self.loop)

    def web(self, name: str) -> Web:
        self.webs.append(Web(self.engine, name))
        return self.webs[-1]

    def tick(self, times: int = 1, *, before: Callable[[], None] = lambda: None) -> str:
        """Let an interval pass, have everybody publish, and tick; as often as wanted."""
        said = ""
        for _ in range(times):
            self.clock.advance(self.loop.interval)
            before()
            for web in self.webs:
                web.publish()
            said = self.loop.tick(to_datetime(self.clock.now()), 1)
        return said

    @property
    def report(self) -> Mapping[str, Any]:
        last = self.state.find_last_tick()
        assert last is not None
        return last.report

    def budget(self, metric: str) -> Mapping[str, Any]:
        return next(b for b in self.report["budgets"] if b["metric"] == metric)

    def mode(self, name: str) -> str:
        found = self.state.read_modes().get(name)
        return "" if found is None else found.mode

    def close(self) -> None:
        self.engine.close()


Start = Callable[..., Process]


def starting(place: Place) -> Iterator[Start]:
    made: list[Process] = []

    def begin(**changes: Any) -> Process:
        made.append(Process(place, **changes))
        return made[-1]

    yield begin
    for process in made:
        process.close()


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Start a process on the store; each is another one."""
    yield from starting(place)


@pytest.fixture
def start_sqlite(sqlite_place: Place) -> Iterator[Start]:
    yield from starting(sqlite_place)


# --- a job of a schedule ----------------------------------------------------------------


@pytest.fixture
def harness(sqlite_place: Place) -> Iterator[Harness]:
    url, clock = sqlite_place
    with Harness(url=url, clock=clock) as made:
        attached(made.engine)
        yield made


def attached(engine: Engine, **changes: Any) -> ControlLoop:
    subsystem(engine, PDF, depth=lambda: Depth(0), admission=Intake())
    loop = attach(engine, make_config(**changes), find_guard_state(engine))
    assert loop is not None
    return loop


def ticks_of(harness: Harness) -> list[ulak.Job]:
    return [job for job in harness.engine.jobs(limit=1000) if job.flow == NAME]


@pytest.mark.shows("A-46")
def test_a_tick_is_a_job_of_a_schedule_with_a_queue_of_its_own(harness: Harness) -> None:
    harness.run_until_idle()
    harness.advance(seconds=95)
    jobs = ticks_of(harness)
    assert len(jobs) in (3, 4)
    assert {(job.state, job.submitter) for job in jobs} == {("done", f"schedule:{NAME}")}
    lines = registered(harness.engine).loop.state.find_audit(kind="tick")  # type: ignore[union-attr]
    assert len(lines) == len(jobs), "one line for each, even when nothing happens"
    assert len({data["correlation_id"] for _, data in lines}) == len(jobs)
    declared = harness.engine.kernel.schedules[NAME]
    assert (declared.catch_up, declared.expires) == ("none", timedelta(seconds=30))
    flow: Any = declared.flow
    (stage,) = flow.declared.stages
    assert (flow.queue, stage.queue, stage.limit) == (NAME, None, ulak.Limit(1))
    (resource,) = [r for r in harness.engine.kernel.resources.values() if r.queue == NAME]
    assert resource.places == 1
    others = [f for f in harness.engine.inspect.flows if f.queue == NAME]
    assert [f.name for f in others] == [NAME]


@pytest.mark.shows("A-46")
def test_dates_that_nobody_saw_in_time_are_not_made_up_for(harness: Harness) -> None:
    harness.run_until_idle()
    harness.advance(seconds=31)
    before = len(ticks_of(harness))
    harness.clock.advance(timedelta(hours=3))
    harness.run_until_idle()
    assert len(ticks_of(harness)) - before <= 1


@pytest.mark.shows("A-46", "A-55")
def test_a_changed_interval_changes_the_schedule(harness: Harness) -> None:
    harness.run_until_idle()
    harness.advance(seconds=61)
    loop = registered(harness.engine).loop
    assert loop is not None
    before = len(ticks_of(harness))
    operations = Operations(loop)
    operations.change_config(1, {"control_loop_interval_seconds": 10}, actor="ada", reason="a test")
    harness.advance(seconds=31)
    changed = len(ticks_of(harness))
    harness.advance(seconds=100)
    assert 9 <= len(ticks_of(harness)) - changed <= 11
    assert before < changed
    declared = harness.engine.kernel.schedules[NAME]
    assert declared.expires == timedelta(seconds=10)
    assert find_pace(harness.engine).every_s == pytest.approx(10 / 3)
    assert find_pace(harness.engine).at_least_s == pytest.approx(10 / 3)


@pytest.mark.shows("A-46")
def test_a_tick_that_fails_is_not_tried_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.run_until_idle()

    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(ControlState, "end_tick", fail)
        harness.advance(seconds=31)
    (failed,) = [job for job in ticks_of(harness) if job.state != "done"]
    assert (failed.is_final, failed.attempt) == (True, 1) or failed.state == "failed"
    harness.advance(seconds=300)
    assert harness.job(failed.id).changed_at == failed.changed_at
    assert len([job for job in ticks_of(harness) if job.state == "done"]) >= 9


def test_a_store_without_tables_and_a_program_without_subsystems_have_no_loop() -> None:
    with ulak.connect("memory://") as engine:
        subsystem(engine, PDF, depth=lambda: Depth(0), admission=Intake())
        assert attach(engine, make_config(), find_guard_state(engine)) is None


# --- telemetry of several processes -----------------------------------------------------


@pytest.mark.shows("A-13", "A-24")
def test_the_histograms_of_all_processes_are_added_up(start: Start) -> None:
    process = start()
    fast, slow = process.web("p1"), process.web("p2")

    def serve() -> None:
        fast.serve(0.01, 90)
        slow.serve(4.0, 10)

    process.tick(11, before=serve)
    reading = process.report["readings"][GUARD]
    # Of 100 requests 90 are fast: the quantile lies among the ten slow ones, in (2.5, 5].
    # A mean of the two processes' own quantiles would be lower than either bound.
    assert 2.5 < reading["p95_seconds"] < 5
    assert not reading["is_telemetry_insufficient"]
    assert process.mode(GUARD) == SHADOW
    (event,) = [data for _, data in process.state.find_events()]
    assert event["trigger_value"] == pytest.approx(reading["p95_seconds"])


@pytest.mark.shows("A-23", "A-13")
def test_a_process_that_began_again_is_a_counter_reset(start_sqlite: Start) -> None:
    process = start_sqlite()
    one, other = process.web("p1"), process.web("p2")
    process.tick(2)
    for n in range(12):
        one.serve(0.01, 10)
        other.serve(0.01, 10, status="5xx")
        if n == 6:
            for web in (one, other):
                web.publish()
            process.tick()
            other.restart()
            other.serve(0.01, 10, status="5xx")
        process.tick()
    # 120 and 120, and the ten after the restart.
    budget = process.budget("5xx_rate")
    assert (budget["budget_consumed"], budget["events"]) == (130, 250)


@pytest.mark.shows("A-16", "A-30")
def test_events_are_counted_exactly_through_failures_restarts_and_folding(start: Start) -> None:
    """Every event once, whichever of three processes ticks, and whatever happens between."""
    interval = 1800
    first = start(control_loop_interval_seconds=interval)
    processes, sent = [first], [0, 0]
    first.tick()
    for n in range(1, 40):
        process = processes[n % len(processes)]
        for each in processes:
            each.finished += 10 + n
            each.failed += n % 3
        sent = [sent[0] + n % 3, sent[1] + 10 + n]
        if n == 20:
            refuse_once(process)
        if n == 25:
            change(process, min_sample_ratio=0.5)
        process.tick()
        if n in (8, 25):
            made = start(control_loop_interval_seconds=interval)
            made.finished, made.failed = process.finished, process.failed
            processes.append(made)
        if n == 18:
            # One that has not ticked for longer than samples are kept as they came.
            processes.remove(first)
        if n % 7 == 0:
            process.state.fold(process.state.now_ms)
        budget = process.budget("failed_jobs_rate")
        assert [budget["budget_consumed"], budget["events"]] == sent, n
    first.finished, first.failed = process.finished, process.failed
    first.tick()
    budget = first.budget("failed_jobs_rate")
    assert [budget["budget_consumed"], budget["events"]] == sent
    buckets = first.state.read_buckets()
    assert buckets
    kept = {(row.at_ms, row.source_id) for row in first.state.read_samples(0, 2**62)}
    assert min(at for at, _ in kept) >= first.state.now_ms - 2 * 6 * 3600 * 1000


def refuse_once(process: Process) -> None:
    """Have one tick that cannot be stored."""
    real = process.state.end_tick

    def fail(**_: Any) -> None:
        raise StoreError("the disk is full")

    process.state.end_tick = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        process.tick()
    process.state.end_tick = real  # type: ignore[method-assign]


def change(process: Process, **changes: Any) -> None:
    newest = process.operations.read_config()
    process.operations.change_config(newest.revision, changes, actor="ada", reason="a test")


@pytest.mark.shows("A-16")
def test_two_ticks_between_which_only_one_process_spoke_count_both(start_sqlite: Start) -> None:
    process = start_sqlite()
    one, other = process.web("p1"), process.web("p2")
    process.tick()
    for web in (other, one):
        process.clock.advance(timedelta(seconds=1))
        web.serve(0.01)
        web.publish()
    process.clock.advance(timedelta(seconds=28))
    process.loop.tick(to_datetime(process.clock.now()), 1)
    # The one whose word was not the last one speaks, and no later than that last word.
    other.serve(0.01, 5)
    now = process.clock.now()
    process.clock.advance(timedelta(seconds=-28))
    other.publish()
    process.clock.advance(timedelta(microseconds=now - process.clock.now()) + process.loop.interval)
    process.loop.tick(to_datetime(process.clock.now()), 1)
    assert process.budget("5xx_rate")["events"] == 7
    # What is stored says the same as what this process has in its memory.
    again = start_sqlite()
    again.tick()
    assert again.budget("5xx_rate")["events"] == 7


@pytest.mark.shows("A-16", "A-26")
def test_a_budget_of_more_than_thirty_days_survives_a_restart(start_sqlite: Start) -> None:
    day = 24 * 3600
    options = {"error_budget_window_seconds": 60 * day, "control_loop_interval_seconds": day}
    process = start_sqlite(**options)
    process.tick()
    for _ in range(50):
        process.finished += 7
        process.tick()
        process.state.fold(process.state.now_ms, keep_ms=60 * day * 1000)
    again = start_sqlite(**options)
    again.finished = process.finished
    again.tick()
    assert again.budget("failed_jobs_rate")["events"] == 350


# --- what goes on with another process --------------------------------------------------


def stopped(start: Start, **changes: Any) -> Process:
    """A process whose loop has just stopped the intake."""
    process = start(**{**QUICK, **changes})
    process.depth = 80
    process.tick(11)
    assert process.mode(PDF) == BACKPRESSURE
    return process


@pytest.mark.shows("A-43", "A-48")
def test_another_process_goes_on_with_modes_timers_and_counters(start_sqlite: Start) -> None:
    first = stopped(start_sqlite, dwell_time_seconds=600)
    left = first.report["subsystems"][PDF]["dwell_left_ms"]
    second = start_sqlite(**QUICK)
    second.finished = first.finished = 40
    second.tick()
    told = second.report["subsystems"][PDF]
    assert (told["mode"], told["set_by"]) == (BACKPRESSURE, "adaptive_control")
    assert told["since_ms"] == first.report["subsystems"][PDF]["since_ms"]
    # The dwell that ran keeps its length, though the second process begins with another one.
    assert told["dwell_left_ms"] == left - 30_000
    assert second.budget("failed_jobs_rate")["events"] == 40
    assert second.report["readings"][PDF]["is_telemetry_insufficient"] is False
    second.tick(20)
    assert second.mode(PDF) == ACCEPTING
    assert second.intake.told is not None
    assert second.intake.told[0] is False
    resumed, began = [data for _, data in second.state.find_events()]
    assert (resumed["new_mode"], began["new_mode"]) == (ACCEPTING, BACKPRESSURE)
    span_ms = resumed["transition_timestamp_ms"] - began["transition_timestamp_ms"]
    assert span_ms == 600_000


@pytest.mark.shows("A-17")
def test_a_service_without_a_histogram_is_judged_by_its_samples(start_sqlite: Start) -> None:
    process = start_sqlite(**QUICK)
    intake = Intake()
    subsystem(process.engine, "letters", depth=lambda: Depth(80), admission=intake)
    process.tick(11)
    assert process.mode("letters") == BACKPRESSURE
    assert intake.told is not None


@pytest.mark.shows("A-46")
def test_two_controllers_at_once(start: Start) -> None:
    one, other = start(**QUICK), start(**QUICK)
    for n in range(20):
        for process in (one, other):
            process.depth = 80 if n < 15 else 0
        process = (one, other)[n % 2]
        process.tick()
        # The other one had the date before its lease ended, or has one before it.
        late = (other, one)[n % 2]
        for ago, token in ((0, 0), (1, 1)):
            date = late.clock.now() - ago * 30_000_000
            assert late.loop.tick(to_datetime(date), token) == "superseded"
    events = [data["new_mode"] for _, data in one.state.find_events()]
    assert events == ["accepting", "backpressure"]
    assert len(one.state.find_audit(kind="tick")) == 20


@pytest.mark.shows("A-46", "A-44")
def test_an_older_tick_that_wakes_up_late_writes_nothing(start: Start) -> None:
    old, new = start(**QUICK), start(**QUICK)
    old.depth = new.depth = 80
    old.tick(7)
    kept: list[Any] = []

    def another_ticks() -> Depth:
        # While the old tick reads its sources the next date comes, and another process is faster.
        if not kept:
            kept.append("asked")
            new.depth = 0
            new.tick()
            kept[:] = snapshot(new)
        return Depth(80)

    sub = registered(old.engine).subsystems
    sub[PDF] = type(sub[PDF])(PDF, depth=another_ticks, admission=old.intake)
    with pytest.raises(Superseded):
        old.tick()
    assert snapshot(new) == kept
    assert (old.mode(PDF), old.intake.told) == ("", None)
    assert [d["subject"] for _, d in new.state.find_audit(kind="not-applied")] == [PDF]
    # And it finds its way back with the next date.
    sub[PDF] = type(sub[PDF])(PDF, depth=lambda: Depth(80), admission=old.intake)
    assert old.tick() in ("running", "failsafe")


def snapshot(process: Process) -> list[Any]:
    state, last = process.state, process.state.find_last_tick()
    return [last, state.read_modes(), state.find_events(), state.read_samples(0, 2**62)]


@pytest.mark.shows("A-33", "A-44")
@pytest.mark.parametrize("held_by", ["switch", "override"])
def test_a_switch_that_is_set_between_decision_and_write_is_obeyed(
    start: Start, held_by: str
) -> None:
    process, person = start(**QUICK), start(**QUICK)
    process.depth = 80
    process.tick(7)

    def changing() -> Any:
        # The decision stands; the transaction has not begun.
        now_ms = person.state.now_ms
        if held_by == "switch":
            person.loop.switches.set(PDF, True, actor="ada", reason="stop", now_ms=now_ms)
        else:
            person.loop.overrides.subsystems[PDF] = Pinnable(INTAKE_MODES)
            person.loop.overrides.set(PDF, "accepting", actor="ada", reason="stop", now_ms=now_ms)
        process.state.changing = plain  # type: ignore[method-assign]
        return plain()

    plain = process.state.changing
    process.state.changing = changing  # type: ignore[method-assign]
    assert process.tick() == "failsafe"
    assert process.mode(PDF) in ("", "accepting")
    assert process.intake.told is None
    ((_, line),) = process.state.find_audit(kind="not-applied")
    assert (line["subject"], line["signal"]) == (PDF, "stop_accepting_jobs")
    assert "holds pdf; nothing was changed" in line["error"]
    assert process.tick() == "running"
    assert [d for _, d in process.state.find_events() if d["actor"] == "adaptive_control"] == []


@pytest.mark.shows("A-40")
def test_an_override_restarts_the_dwell(start_sqlite: Start) -> None:
    process = stopped(start_sqlite)
    overrides = process.loop.overrides
    overrides.subsystems[PDF] = Pinnable(INTAKE_MODES)
    process.depth = 0
    process.clock.advance(timedelta(seconds=50))
    now_ms = process.state.now_ms
    overrides.set(PDF, "accepting", actor="ada", reason="a test", now_ms=now_ms, expires_in_ms=1)
    process.tick()
    told = process.report["subsystems"][PDF]
    assert told["dwell_left_ms"] == 60_000, "from the end of the override"


@pytest.mark.shows("A-43")
def test_a_clock_that_is_set_back_neither_shortens_the_dwell_nor_holds_it(
    start_sqlite: Start,
) -> None:
    process = stopped(start_sqlite)
    process.depth = 0
    process.clock.advance(-timedelta(hours=2))
    # The dates of the schedule go on; the time by which they are judged has changed.
    date = process.clock.now() + 7_200_000_000
    left = []
    for n in range(1, 4):
        process.clock.advance(timedelta(seconds=30))
        process.loop.tick(to_datetime(date + n * 30_000_000), 1)
        left.append(process.report["subsystems"][PDF]["dwell_left_ms"])
    assert left[0] > 0
    assert left == sorted(left, reverse=True)
    for n in range(4, 20):
        process.clock.advance(timedelta(seconds=30))
        process.loop.tick(to_datetime(date + n * 30_000_000), 1)
    assert process.mode(PDF) == "accepting"


# --- configuration ----------------------------------------------------------------------


@pytest.mark.shows("A-55")
def test_a_change_is_in_force_from_the_next_tick_on_in_every_process(start_sqlite: Start) -> None:
    one, other = start_sqlite(), start_sqlite()
    one.tick()
    assert one.report["sufficiency"][PDF]["required_samples"] == 8
    now = one.operations.change_config(
        1, {"min_sample_ratio": 0.5, "pdf_slo_target": 0.9, "burn_rate_threshold": 7.0},
        actor="ada", reason="a test",
    )  # fmt: skip
    assert (now.revision, now.actor, now.reason) == (2, "ada", "a test")
    assert one.loop.config.min_sample_ratio == 0.8, "not before"
    for process in (one, other):
        process.finished += 100
        process.tick()
        assert process.loop.config == now.config
        assert process.report["sufficiency"][PDF]["required_samples"] == 5
        other.finished = one.finished
    assert process.budget("failed_jobs_rate")["budget_total"] == pytest.approx(20.0)


@pytest.mark.shows("A-55")
def test_of_two_who_change_one_revision_the_second_is_told(start: Start) -> None:
    one, other = start(), start()
    one.tick()
    one.operations.change_config(1, {"dwell_time_seconds": 9}, actor="ada", reason="first")
    with pytest.raises(StaleRevision) as refused:
        other.operations.change_config(1, {"dwell_time_seconds": 8}, actor="bob", reason="second")
    assert refused.value.status == 409
    assert other.operations.read_config().config.dwell_time_seconds == 9
    # The same once more is harmless, and makes no revision.
    again = other.operations.change_config(2, {"dwell_time_seconds": 9}, actor="bob", reason="same")
    assert again.revision == 2
    # Both have read it; the row decides.
    with pytest.raises(StaleRevision):
        race(one, other)


def race(one: Process, other: Process) -> None:
    found = one.state._find_newest()
    other.operations.change_config(2, {"dwell_time_seconds": 8}, actor="bob", reason="faster")
    one.state._find_newest = lambda: found  # type: ignore[method-assign]
    assert found is not None
    config = found[0].config.changed({"dwell_time_seconds": 7})
    one.state.change_config(2, config, actor="ada", reason="slower")


@pytest.mark.shows("A-55", "A-P21")
def test_a_bad_change_is_refused_whole_counted_and_audited(start_sqlite: Start) -> None:
    process = start_sqlite()
    process.tick()
    before = process.state.find_config()
    with pytest.raises(InvalidConfig) as refused:
        process.operations.change_config(
            1, {"dwell_time_seconds": 0, "burn_rate_threshold": float("nan"), "no_field": 1},
            actor="ada", reason="a test",
        )  # fmt: skip
    assert len(refused.value.members["errors"]) >= 3
    assert process.state.find_config() == before
    assert registered(process.engine).metrics.invalid.read().series == {ALONE: (1.0,)}
    ((_, line),) = process.state.find_audit(kind="config-refused")
    assert (line["actor"], line["errors"]) == ("ada", refused.value.members["errors"])
    process.tick()
    assert process.loop.config == make_config()


values = {
    "control_loop_interval_seconds": st.integers(1, 600),
    "p95_latency_enter_threshold": st.floats(2, 9), "p95_latency_exit_threshold": st.floats(0.1, 1),
    "queue_depth_enter_threshold": st.integers(21, 900),
    "queue_depth_exit_threshold": st.integers(0, 20),
    "guard_slo_target": st.floats(0.5, 1), "dwell_time_seconds": st.integers(1, 9000),
    "enabled": st.booleans(),
    "targets": st.lists(
        st.fixed_dictionaries({
            "tenant_id": st.sampled_from(["*", "acme"]), "endpoint_class": st.just("*"),
            "subsystem_id": st.sampled_from(["guard", "pdf"]),
        }), max_size=2,
    ),
}  # fmt: skip
changes = st.fixed_dictionaries({}, optional=values)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    url = f"sqlite:///{tmp_path_factory.mktemp('audit') / 'jobs.db'}?synchronous=NORMAL"
    process = Process((url, ManualClock()))
    process.operations.read_config()
    yield process
    process.close()


@settings(max_examples=100, deadline=None)
@given(changes, st.sampled_from(["ada", "bob"]))
@pytest.mark.shows("A-P22", "A-55", "A-51")
def test_each_changed_field_leaves_a_line(
    recorded: Process, changed: dict[str, Any], actor: str
) -> None:
    """Feature: slo-adaptive-control, Property 22: changes are audited."""
    recorded.clock.advance(timedelta(seconds=1))
    operations, state = recorded.operations, recorded.state
    old, last = operations.read_config(), newest_line(state)
    new = operations.change_config(old.revision, changed, actor=actor, reason="a test")
    before, after = old.config.document(), new.config.document()
    wanted = {name: (before[name], after[name]) for name in TYPES if before[name] != after[name]}
    lines = [line for number, line in state.find_audit(limit=100) if number > last]
    if not wanted:
        assert [(line["kind"], line["actor"]) for line in lines] == [("config-repeated", actor)]
        lines = []
    assert {line["subject"]: (line["old"], line["new"]) for line in lines} == plain(wanted)
    assert len(lines) == len(wanted)
    for line in lines:
        kind = "allow-list" if line["subject"] == "targets" else "config"
        assert (line["kind"], line["actor"], line["reason"]) == (kind, actor, "a test")
        assert (line["at_ms"], line["revision"]) == (state.now_ms, old.revision + 1)
    assert new.revision == old.revision + bool(wanted)


def plain(value: Any) -> Any:
    return {name: tuple(each) for name, each in json.loads(json.dumps(value)).items()}


def newest_line(state: ControlState) -> int:
    return max((number for number, _ in state.find_audit(limit=1)), default=0)


@pytest.mark.shows("A-51")
def test_a_replaced_list_is_audited_and_in_force_with_the_next_tick(start_sqlite: Start) -> None:
    process = start_sqlite(targets=[AllowlistEntry("*", "*", GUARD)])
    process.depth = 80
    process.tick(11)
    assert (process.mode(PDF), process.report["holds"]) == ("", {PDF: "not in the allow-list"})
    entries = [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "*"}]
    process.operations.replace_allowlist(entries, actor="ada", reason="let it")
    assert process.mode(PDF) == ""
    process.tick()
    assert process.mode(PDF) == BACKPRESSURE
    lines = [line for _, line in process.state.find_audit(kind="allow-list")]
    old = [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": GUARD}]
    assert [(line["actor"], line["old"], line["new"]) for line in lines] == [
        ("ada", old, entries), ("environment", None, old),
    ]  # fmt: skip
    assert lines[0]["at_ms"] > lines[1]["at_ms"]
    # Nobody listed: what was stopped stays, and is not changed silently.
    process.operations.replace_allowlist([], actor="ada", reason="stop")
    process.depth = 0
    process.tick(25)
    assert process.mode(PDF) == BACKPRESSURE


@pytest.mark.shows("A-55")
def test_variables_that_were_changed_make_a_revision_at_the_next_start(start_sqlite: Start) -> None:
    one = start_sqlite()
    one.tick()
    one.operations.change_config(1, {"dwell_time_seconds": 9}, actor="ada", reason="first")
    same = start_sqlite()
    same.tick()
    assert same.loop.config.dwell_time_seconds == 9, "the variables are the same as before"
    other = start_sqlite(dwell_time_seconds=77)
    other.tick()
    assert (other.loop.revision, other.loop.config.dwell_time_seconds) == (3, 77)
    one.tick()
    assert one.loop.config.dwell_time_seconds == 77


@pytest.mark.shows("A-55")
def test_every_field_can_be_stored_and_read_back(recorded: Process) -> None:
    config = recorded.operations.read_config().config
    assert {f.name for f in fields(AdaptiveControlConfig)} == set(TYPES)
    assert config.changed(config.document()) == config
    with pytest.raises(BadInput):
        config.changed({"guard_slo_query": 7})


# --- a restore that a person confirms ---------------------------------------------------


@pytest.mark.shows("A-38", "A-37")
def test_a_restore_waits_for_the_dwell_and_for_recovery(start_sqlite: Start) -> None:
    process = start_sqlite(**{**QUICK, "dwell_time_seconds": 600})
    web = process.web("p1")
    restore = process.operations.restore

    def refused(**options: Any) -> str:
        with pytest.raises(RestoreRefused) as error:
            restore(actor="ada", reason="it is over", **options)
        return str(error.value.members["error_code"])

    assert refused() == "NOT_IN_SHADOW"
    process.tick(11, before=lambda: web.serve(4.0, 5))
    assert process.mode(GUARD) == SHADOW
    # Not even by force.
    assert refused(force=True) == "DWELL_ACTIVE"
    process.tick(19, before=lambda: web.serve(4.0, 5))
    while process.report["subsystems"][GUARD]["dwell_left_ms"]:
        process.tick(before=lambda: web.serve(4.0, 5))
    assert refused() == "NOT_RECOVERED"
    process.tick(12, before=lambda: web.serve(0.01, 5))
    assert list(process.report["proposals"]) == [GUARD]
    now_ms = process.state.now_ms
    process.loop.switches.set(GUARD, True, actor="ada", reason="stop", now_ms=now_ms)
    assert refused(force=True) == "KILLSWITCH_ACTIVE"
    process.loop.switches.set(GUARD, False, actor="ada", reason="go on", now_ms=now_ms)
    event = restore(actor="ada", reason="it is over")
    assert (event["actor"], event["previous_mode"], event["new_mode"], event["burn_rate"]) == (
        "manual_override", SHADOW, ENFORCE, None,
    )  # fmt: skip
    assert process.mode(GUARD) == ENFORCE
    ((_, line),) = process.state.find_audit(kind="restore")
    assert (line["actor"], line["reason"], line["force"]) == ("ada", "it is over", False)
    assert refused() == "NOT_IN_SHADOW"
    # It begins a dwell of its own.
    process.tick(before=lambda: web.serve(4.0, 5))
    assert process.report["subsystems"][GUARD]["dwell_left_ms"] == 570_000
    assert process.report["proposals"] == {}


@pytest.mark.shows("A-38")
def test_a_restore_by_force_is_on_record(start_sqlite: Start) -> None:
    process = start_sqlite(**QUICK)
    web = process.web("p1")
    process.tick(14, before=lambda: web.serve(4.0, 5))
    assert process.mode(GUARD) == SHADOW
    event = process.operations.restore(actor="ada", reason="it must be", force=True)
    assert event["trigger_value"] > 2
    ((_, line),) = process.state.find_audit(kind="restore")
    assert (line["force"], line["event_id"]) == (True, event["event_id"])
    (newest, *_) = process.state.find_events()
    assert newest[1] == event


@pytest.mark.shows("A-38")
def test_of_two_who_confirm_at_once_the_second_is_told(start: Start) -> None:
    one, other = start(**QUICK), start(**QUICK)
    web = one.web("p1")
    one.tick(14, before=lambda: web.serve(4.0, 5))
    modes = other.state.read_modes()
    one.operations.restore(actor="ada", reason="first", force=True)
    other.state.read_modes = lambda: modes  # type: ignore[method-assign]
    with pytest.raises(RestoreRefused) as refused:
        other.operations.restore(actor="bob", reason="second", force=True)
    assert refused.value.members["error_code"] == "NOT_IN_SHADOW"


# --- real processes ---------------------------------------------------------------------

LIVE: dict[str, Any] = {
    "control_loop_interval_seconds": 1, "dwell_time_seconds": 3600,
    "cooldown_period_seconds": 3600, "queue_depth_enter_threshold": 50,
}  # fmt: skip


def live(url: str, folder: str, name: str) -> None:
    """Be a worker with a queue that is too deep and requests that are slow."""
    engine = ulak.connect(url)
    renders = Histogram("pdf_render_duration_seconds", "Long.", LATENCY_SECONDS)
    subsystem(
        engine, PDF, depth=lambda: Depth(80), admission=Intake(),
        telemetry=lambda: Telemetry(0, 0, renders.read()),
    )  # fmt: skip
    attach(engine, make_config(**LIVE), find_guard_state(engine))
    engine.open()
    web = Web(engine, name)
    with engine.working(ulak.WorkerSettings(lease=timedelta(seconds=5))):
        while not Path(folder, "stop").exists():
            web.serve(4.0, 3)
            web.publish()
            time.sleep(0.2)


def primed(url: str) -> None:
    """Store five minutes of telemetry, so that the loop may decide at once."""
    with ulak.connect(url) as engine:
        state = ControlState(engine)
        now_ms = state.now_ms
        edges = list(LATENCY_SECONDS)
        rows = []
        for n in range(300, 0, -1):
            slow = [3.0 * (301 - n) if edge >= 4 else 0.0 for edge in (*edges, 9e9)]
            at_ms = now_ms - n * 1000
            histogram = {"gone": [at_ms, edges, slow]}
            rows.append(SourceRow(at_ms, GUARD, {
                "sample": [at_ms, 3, 3, 4.0], "counts": {}, "histograms": histogram,
            }))  # fmt: skip
            none = {"store": [at_ms, edges, [0.0] * (len(edges) + 1)]}
            rows.append(SourceRow(at_ms, PDF, {
                "sample": [at_ms, 0, 0, 0.0], "counts": {}, "histograms": none,
            }))  # fmt: skip
        assert state.begin_tick(1, "earlier", now_ms)
        state.end_tick(state="running", memory={}, report={"at_ms": now_ms}, rows=rows)


def wait_for(what: Callable[[], Any], within_s: float = 60) -> Any:
    until = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.1)
    return found


@pytest.mark.shows("A-48", "A-46", "A-43")
def test_a_controller_that_is_killed_leaves_its_modes_and_timers_to_the_next(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    primed(url)
    children: list[BaseProcess] = []

    def begin(name: str) -> BaseProcess:
        child = forked().Process(target=live, args=(url, str(tmp_path), name))
        child.start()
        children.append(child)
        return child

    engine = ulak.connect(url)
    try:
        with engine:
            state = ControlState(engine)
            first, second = begin("one"), begin("two")
            wait_for(lambda: len(state.read_modes()) == 2)
            modes = state.read_modes()
            assert {name: mode.mode for name, mode in modes.items()} == {
                GUARD: SHADOW, PDF: BACKPRESSURE,
            }  # fmt: skip
            # Of two controllers one has decided, and each change has one event.
            assert sorted(d["subsystem_id"] for _, d in state.find_events()) == [GUARD, PDF]
            for child in (first, second):
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
                child.join()
            last = state.find_last_tick()
            assert state.read_modes() == modes, "they stay until somebody acts"
            begin("three")
            assert last is not None
            found = wait_for(lambda: newer(state, last.at_ms))
            assert found.process != last.process
            assert state.read_modes() == modes
            for name, mode in modes.items():
                told = found.report["subsystems"][name]
                assert told["dwell_left_ms"] == mode.since_ms + 3_600_000 - found.at_ms
                assert told["since_ms"] == mode.since_ms
            assert len(state.find_events()) == 2
    finally:
        (tmp_path / "stop").touch()
        for child in children:
            child.join(20)
            child.kill()


def newer(state: ControlState, at_ms: int) -> Any:
    last = state.find_last_tick()
    is_whole = last is not None and last.at_ms > at_ms and last.report.get("at_ms") == last.at_ms
    return last if is_whole else None
