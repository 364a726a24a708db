"""The edges of deciding, each by its name."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.control.parts import EVERYTHING, START_MS, Desk, make_config, make_signal
from ulak.control import (
    AdaptiveControllerState,
    AllowlistEntry,
    ControlDecisionEvent,
    DecisionEngine,
    HysteresisFilter,
    KillSwitchManager,
    SignalType,
)
from ulak.control.decision import Mode, Reading, Situation
from ulak.control.explanation import explain
from ulak.control.journal import MemoryJournal
from ulak.control.signals import ACCEPTING, BACKPRESSURE, ENFORCE, GUARD, LOOP, PDF, SHADOW, Outcome
from ulak.control.state import LastTick
from ulak.control.status import describe

LATE: dict[str, Any] = {"p95": 5.0}
DEEP: dict[str, Any] = {"depth": 80}
STOP, RESUME = SignalType.STOP_ACCEPTING_JOBS, SignalType.RESUME_ACCEPTING_JOBS
QUICK: dict[str, Any] = {"dwell_time_seconds": 60, "cooldown_period_seconds": 60}


def outcomes(desk: Desk) -> list[tuple[SignalType, str]]:
    return [(signal.signal_type, outcome) for signal, outcome, _ in desk.controller.report.outcomes]


def stopped(**changes: Any) -> Desk:
    """A desk whose intake the loop has just stopped."""
    desk = Desk(make_config(**changes))
    desk.settle(**DEEP)
    assert [signal.signal_type for signal in desk.tick(**DEEP)] == [STOP]
    return desk


def shadowed(**changes: Any) -> Desk:
    """A desk whose guard the loop has just put into shadow."""
    desk = Desk(make_config(**changes))
    desk.settle(**LATE)
    (signal,) = desk.tick(**LATE)
    assert signal.signal_type == SignalType.SWITCH_TO_SHADOW
    return desk


# --- what a tick does with what it sees -------------------------------------------------


@pytest.mark.shows("A-50")
def test_empty_list() -> None:
    desk = Desk(make_config(targets=[]))
    desk.settle(**LATE, **DEEP)
    assert desk.tick(**LATE, **DEEP) == []
    assert desk.controller.report.holds == dict.fromkeys((GUARD, PDF), "not in the allow-list")
    assert (desk.journal.events, desk.guard.modes, desk.intake.calls) == ([], [], [])
    # What somebody else has made of the figures is not applied either.
    desk.controller.apply_signal(make_signal())
    assert (desk.journal.events, desk.controller.modes) == ([], {})


@pytest.mark.shows("A-47")
def test_all_stale(caplog: pytest.LogCaptureFixture) -> None:
    desk = stopped(**QUICK)
    before = dict(desk.controller.modes)
    for _ in range(3):
        desk.now_ms += 2 * desk.interval_ms
        assert desk.controller.tick(desk.now_ms) == []
        assert desk.controller.state == AdaptiveControllerState.SUSPENDED
    assert (desk.controller.modes, len(desk.intake.calls)) == (before, 1)
    lines = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert [(line.reason, line.state) for line in lines] == [("all_sources_stale", "suspended")]
    assert lines[0].correlation_id
    told = describe(desk.controller, desk.now_ms)
    assert (told["failure"], told["failed_at_ms"]) == ("all_sources_stale", lines_at(desk))
    # One source is heard again: the loop runs, and says of no failure that it lasts.
    desk.tick(sources=(GUARD,))
    assert desk.controller.state == AdaptiveControllerState.RUNNING
    told = describe(desk.controller, desk.now_ms)
    assert (told["failure"], told["failed_at_ms"]) == ("", None)


def lines_at(desk: Desk) -> int:
    """When the first of three ticks was."""
    return desk.now_ms - 2 * 2 * desk.interval_ms


@pytest.mark.shows("A-47")
def test_an_exception_is_logged_whole_and_its_reason_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = stopped(**QUICK)
    desk.failure = ValueError("a part failed")
    desk.tick()
    began_ms = desk.now_ms
    desk.tick()
    (line,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert (line.error, line.reason) == ("ValueError: a part failed", "internal_error")
    assert line.modes == {GUARD: ENFORCE, PDF: BACKPRESSURE}
    assert line.correlation_id
    told = describe(desk.controller, desk.now_ms)
    assert (told["failure"], told["failed_at_ms"]) == ("ValueError: a part failed", began_ms)


@pytest.mark.shows("A-27")
def test_zero_traffic() -> None:
    desk = Desk()
    desk.settle(p95=None, requests=0)
    assert desk.tick(p95=None, requests=0) == []
    reading = desk.controller.report.readings[GUARD]
    assert math.isnan(reading.p95_seconds)
    assert not reading.is_telemetry_insufficient
    assert {(b.budget_remaining_pct, b.burn_rate) for b in desk.controller.report.budgets} == {
        (1.0, 0.0)
    }
    # The queue is judged all the same; and no request was seen, so no burn is told.
    (signal,) = desk.tick(p95=None, requests=0, **DEEP)
    assert signal.signal_type == STOP
    assert desk.journal.events[-1].burn_rate is None


@pytest.mark.shows("A-33")
def test_switch_and_signal_in_the_same_tick() -> None:
    desk = Desk()
    desk.settle(**LATE, **DEEP)
    real = desk._collect

    def collect(now_ms: int) -> None:
        real(now_ms)
        desk.switches.set("guard", True, actor="ada", reason="now", now_ms=now_ms)

    desk.controller._collect = collect
    assert [s.subsystem_id for s in desk.tick(**LATE, **DEEP)] == [PDF]
    assert desk.controller.report.holds == {GUARD: "kill switch guard"}
    assert desk.controller.mode(GUARD).mode == ENFORCE


@pytest.mark.shows("A-39")
def test_what_a_person_or_a_switch_holds_is_told_at_every_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.settle(**LATE, **DEEP)
    desk.switches.set("guard", True, actor="ada", reason="a test", now_ms=desk.now_ms)
    desk.overridden = {PDF}
    with caplog.at_level(logging.INFO, "ulak.control"):
        for _ in range(2):
            assert desk.tick(**LATE, **DEEP) == []
    told = [(r.subsystem, r.reason) for r in caplog.records if r.msg == "manual_override_active"]
    assert told == [(GUARD, "kill switch guard"), (PDF, "manual override")] * 2


@pytest.mark.shows("A-36")
@pytest.mark.parametrize(
    ("depth", "mode", "expected"),
    [
        (50, ACCEPTING, []), (51, ACCEPTING, [STOP]),
        (20, BACKPRESSURE, []), (19, BACKPRESSURE, [RESUME]), (35, BACKPRESSURE, []),
    ],
)  # fmt: skip
def test_exactly_at_enter_and_exit_of_the_depth(
    depth: int, mode: str, expected: list[SignalType]
) -> None:
    seen = Situation({PDF: Mode(mode, LOOP, "queue_depth")}, {PDF: Reading(queue_depth=depth)})
    found = DecisionEngine(KillSwitchManager(), make_config()).decide(
        [], [], START_MS, situation=seen
    )
    assert [signal.signal_type for signal in found] == expected


@pytest.mark.shows("A-35")
@pytest.mark.parametrize(
    ("p95", "mode", "expected"),
    [
        (2.0, ENFORCE, []), (math.nextafter(2.0, 3), ENFORCE, [SignalType.SWITCH_TO_SHADOW]),
        (1.0, SHADOW, []), (math.nextafter(1.0, 0), SHADOW, [SignalType.RESTORE_ENFORCE]),
        (math.nan, ENFORCE, []), (math.nan, SHADOW, []),
    ],
)  # fmt: skip
def test_exactly_at_enter_and_exit_of_the_latency(
    p95: float, mode: str, expected: list[SignalType]
) -> None:
    seen = Situation({GUARD: Mode(mode, LOOP, "p95_api_latency_5m")}, {GUARD: Reading(p95)})
    found = DecisionEngine(KillSwitchManager(), make_config()).decide(
        [], [], START_MS, situation=seen
    )
    assert [signal.signal_type for signal in found] == expected


@pytest.mark.shows("A-23")
def test_nan_quantile() -> None:
    desk = shadowed(**QUICK)
    # Nobody asks for anything any more: that is no recovery, and nothing to act on.
    for _ in range(11):
        assert desk.tick(p95=None, requests=0) == []
    assert math.isnan(desk.controller.report.readings[GUARD].p95_seconds)
    assert desk.controller.mode(GUARD).mode == SHADOW
    assert desk.controller.proposals == {}


@pytest.mark.shows("A-22")
def test_saturated_quantile() -> None:
    desk = Desk()
    desk.settle(p95=math.inf)
    (signal,) = desk.tick(p95=math.inf)
    reading = desk.controller.report.readings[GUARD]
    assert reading.is_p95_saturated
    assert signal.signal_type == SignalType.SWITCH_TO_SHADOW
    assert signal.trigger_value == reading.p95_seconds > 2.0
    assert not math.isinf(reading.p95_seconds)


# --- timers -----------------------------------------------------------------------------


@pytest.mark.shows("A-40")
def test_exactly_at_dwell() -> None:
    config = make_config(dwell_time_seconds=60, cooldown_period_seconds=1)
    for late_ms, is_through in ((-1, False), (0, True), (1, True)):
        held = HysteresisFilter(config)
        assert held.apply([make_signal(STOP)], START_MS)
        now_ms = START_MS + 60_000 + late_ms
        assert bool(held.apply([make_signal(RESUME, now_ms)], now_ms)) == is_through
        assert [each.left_ms for each in held.suppressed] == ([] if is_through else [1])


@pytest.mark.shows("A-40")
def test_exactly_at_cooldown() -> None:
    config = make_config(dwell_time_seconds=1, cooldown_period_seconds=60)
    for late_ms, is_through in ((-1, False), (0, True)):
        held = HysteresisFilter(config)
        assert held.apply([make_signal(STOP)], START_MS)
        now_ms = START_MS + 60_000 + late_ms
        # Of its own type alone.
        assert held.apply([make_signal(RESUME, START_MS + 1000)], START_MS + 1000)
        assert bool(held.apply([make_signal(STOP, now_ms)], now_ms)) == is_through


@pytest.mark.shows("A-41")
@pytest.mark.parametrize("seconds", [10, 6000])
def test_config_change_in_cooldown(seconds: int) -> None:
    desk = stopped(dwell_time_seconds=300, cooldown_period_seconds=600)
    changed_ms, timers = desk.now_ms, desk.controller.hysteresis
    desk.pass_by(60, depth=30)
    config = replace(desk.config, dwell_time_seconds=seconds, cooldown_period_seconds=seconds)
    desk.controller.configure(config, now_ms=desk.now_ms)
    # Neither restarted nor made shorter or longer.
    assert timers.dwell_left_ms(PDF, desk.now_ms) == 240_000
    assert timers.cooldown_left_ms(PDF, desk.now_ms, STOP) == 540_000
    desk.pass_by(239, depth=0)
    assert desk.now_ms - changed_ms == 300_000
    assert desk.controller.mode(PDF).mode == ACCEPTING
    # The next timer has the new length.
    assert timers.dwell_left_ms(PDF, desk.now_ms) == seconds * 1000


@pytest.mark.shows("A-43")
def test_clock_step_backwards() -> None:
    desk = stopped(dwell_time_seconds=600, cooldown_period_seconds=600)
    timers = desk.controller.hysteresis
    back_ms = desk.now_ms - 3_600_000
    assert timers.dwell_left_ms(PDF, back_ms) == 600_000, "not an hour and ten minutes"
    assert timers.cooldown_left_ms(PDF, back_ms) == 600_000
    assert timers.dwell_left_ms(PDF, back_ms + 599_999) == 1, "and not a moment less"
    assert timers.cooldown_left_ms(PDF, back_ms + 599_999) == 1
    assert timers.dwell_left_ms(PDF, back_ms + 600_000) == 0


@pytest.mark.shows("A-43")
def test_clock_step_backwards_is_no_change_at_every_reading_of_what_is_stored() -> None:
    journal = MemoryJournal()
    desk = Desk(journal=journal)
    desk.settle(**DEEP)
    desk.tick(**DEEP)
    controller = desk.controller
    history = list(controller.hysteresis.state(PDF).transition_history)
    for n in range(5):
        now_ms = desk.now_ms - 3_600_000 + n * 30_000
        # What a loop does with every tick.
        journal.memory = controller.memory()
        controller.reload()
        assert controller.hysteresis.dwell_left_ms(PDF, now_ms) == 600_000 - n * 30_000
    assert controller.hysteresis.state(PDF).transition_history == history


@pytest.mark.shows("A-48", "A-P14", "A-37")
def test_restart_in_shadow() -> None:
    journal = MemoryJournal()
    first = Desk(make_config(**QUICK), journal=journal)
    first.settle(**LATE)
    first.tick(**LATE)
    second = Desk(make_config(**QUICK), journal=journal, now_ms=first.now_ms)
    assert second.controller.mode(GUARD) == first.controller.mode(GUARD)
    assert second.guard.modes == [], "it adopts the mode and sets none"
    acted = second.pass_by(600, p95=0.1)
    assert {signal.signal_type for signal in acted} == {SignalType.RESTORE_ENFORCE}
    assert second.controller.mode(GUARD).mode == SHADOW, "until a person confirms"
    assert list(second.controller.proposals) == [GUARD]
    # The proposal is there for whoever ticks next, and lapses with what it rests on.
    journal.memory = second.controller.memory()
    third = Desk(make_config(**QUICK), journal=journal, now_ms=second.now_ms)
    assert third.controller.proposals == second.controller.proposals
    third.settle(p95=1.5)
    third.tick(p95=1.5)
    assert third.controller.proposals == {}


# --- oscillation ------------------------------------------------------------------------


@pytest.mark.shows("A-42")
def test_a_mode_that_changes_too_often_is_held_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(make_config(dwell_time_seconds=30, cooldown_period_seconds=30))
    desk.settle()
    for depth in (80, 0, 80):
        assert len(desk.tick(depth=depth)) == 1
    assert not desk.controller.hysteresis.detect_oscillation(PDF)
    assert len(desk.tick(depth=0)) == 1, "intake is opened whatever the count"
    caplog.clear()
    assert desk.tick(depth=100) == [], "exactly twice the threshold"
    assert outcomes(desk) == [(STOP, Outcome.SUPPRESSED_OSCILLATION)]
    assert [r.subsystem for r in caplog.records if r.msg == "oscillation_detected"] == [PDF]
    counted = desk.controller.metrics.oscillations.read().series
    assert counted == {(GUARD,): (0.0,), (PDF,): (2.0,)}
    (signal,) = desk.tick(depth=101)
    assert signal.signal_type == STOP
    (signal,) = desk.tick(depth=0)
    assert signal.signal_type == RESUME
    # Ten dwell times later fewer remain.
    desk.pass_by(270, depth=0)
    assert len(desk.tick(depth=80)) == 1


@pytest.mark.shows("A-42")
@pytest.mark.parametrize(("size", "most", "kept"), [(10, 3, 10), (2, 5, 6)])
def test_the_last_transitions_are_kept(size: int, most: int, kept: int) -> None:
    config = make_config(oscillation_window_size=size, oscillation_max_transitions=most)
    held = HysteresisFilter(config)
    for n in range(20):
        held.record_transition(PDF, "a", "b", START_MS + n)
    history = held.state(PDF).transition_history
    assert history == [(START_MS + n, "a", "b") for n in range(20 - kept, 20)]


# --- changes that cannot be made --------------------------------------------------------


class FullDisk(MemoryJournal):
    """A journal that cannot write events while it is full."""

    is_full = True

    def write_change(
        self, connection: Any, mode: Mode, event: ControlDecisionEvent, memory: Any
    ) -> None:
        super().write_change(connection, mode, event, memory)
        if self.is_full:
            raise OSError(28, "no space left")


@pytest.mark.shows("A-44", "A-P17")
def test_an_event_that_cannot_be_written_is_no_change() -> None:
    journal = FullDisk()
    desk = Desk(journal=journal)
    desk.settle(**LATE)
    assert desk.tick(**LATE) == []
    must_be_unchanged(desk)
    assert desk.guard.modes == []
    journal.is_full = False
    desk.tick(**LATE)  # the failsafe ends, and no signal has been used up
    assert [s.signal_type for s in desk.tick(**LATE)] == [SignalType.SWITCH_TO_SHADOW]


@pytest.mark.shows("A-44")
def test_what_cannot_be_applied_is_rolled_back_and_audited() -> None:
    desk = Desk()
    desk.settle(**LATE)
    desk.guard.failure = ValueError("the guard is gone")
    assert desk.tick(**LATE) == []
    must_be_unchanged(desk)
    ((kind, subject, at_ms, data),) = desk.journal.audit
    assert (kind, subject, at_ms) == ("not-applied", GUARD, desk.now_ms)
    assert data == {"signal": "switch_to_shadow", "error": "ValueError: the guard is gone"}


def must_be_unchanged(desk: Desk) -> None:
    controller = desk.controller
    assert (desk.journal.events, desk.journal.modes, controller.modes) == ([], {}, {})
    assert controller.state == AdaptiveControllerState.FAILSAFE
    assert controller.hysteresis.dwell_left_ms(GUARD, desk.now_ms) == 0
    assert controller.hysteresis.cooldown_left_ms(GUARD, desk.now_ms) == 0
    assert [kind for kind, *_ in desk.journal.audit] == ["not-applied"]
    assert sum(value for (value,) in controller.metrics.decisions.read().series.values()) == 0


@pytest.mark.shows("A-44")
def test_of_two_signals_the_one_that_was_applied_stays() -> None:
    desk = Desk()
    desk.settle(**LATE, **DEEP)
    desk.intake.failure = ValueError("no intake")
    desk.tick(**LATE, **DEEP)
    assert desk.controller.mode(GUARD).mode == SHADOW
    assert desk.controller.mode(PDF).mode == ACCEPTING
    assert [event.subsystem_id for event in desk.journal.events] == [GUARD]
    assert desk.controller.hysteresis.dwell_left_ms(GUARD, desk.now_ms) == 600_000
    assert desk.controller.hysteresis.dwell_left_ms(PDF, desk.now_ms) == 0


# --- what is asked for and not done -----------------------------------------------------


@pytest.mark.shows("A-49")
def test_a_dry_run_evaluates_and_reports_and_applies_nothing() -> None:
    desk = Desk(make_config(enabled=False))
    desk.settle(**LATE, **DEEP)
    for _ in range(3):
        assert desk.tick(**LATE, **DEEP) == []
        assert outcomes(desk) == [
            (SignalType.SWITCH_TO_SHADOW, Outcome.PROPOSED), (STOP, Outcome.PROPOSED),
        ]  # fmt: skip
    desk.controller.apply_signal(make_signal())
    assert (desk.journal.events, desk.guard.modes, desk.intake.calls) == ([], [], [])
    assert desk.controller.report.readings[PDF].queue_depth == 80
    assert make_config().enabled, "it is on by default"
    desk.controller.configure(make_config())
    assert len(desk.tick(**LATE, **DEEP)) == 2


@pytest.mark.shows("A-49")
def test_a_dry_run_leaves_an_intake_that_is_stopped_as_it_is() -> None:
    desk = stopped(**QUICK)
    desk.controller.configure(replace(desk.config, enabled=False))
    desk.pass_by(600, depth=0)
    assert desk.controller.mode(PDF).mode == BACKPRESSURE
    assert len(desk.intake.calls) == 1


@pytest.mark.shows("A-51")
def test_targets_that_leave_the_list_while_shadowed_are_reported_and_not_changed() -> None:
    acme, high = AllowlistEntry("acme", "high", GUARD), AllowlistEntry("*", "low", GUARD)
    desk = shadowed(targets=[acme, high], **QUICK)
    told = describe(desk.controller, desk.now_ms)["subsystems"]
    assert told[GUARD]["stranded_targets"] == []
    assert desk.controller.mode(GUARD).targets == (("acme", "high"), ("*", "low"))
    desk.controller.configure(replace(desk.config, targets=[high]), actor="ada", now_ms=desk.now_ms)
    desk.tick(**LATE)
    told = describe(desk.controller, desk.now_ms)["subsystems"]
    assert told[GUARD]["stranded_targets"] == [["acme", "high"]]
    assert desk.controller.mode(GUARD).targets == (("acme", "high"), ("*", "low"))
    assert (desk.controller.mode(GUARD).mode, desk.guard.modes) == (SHADOW, [SHADOW])
    (change,) = desk.controller.allowlist.changes
    assert change == ((acme, high), (high,), "ada", desk.now_ms - desk.interval_ms)
    # Not even when nothing is listed any more.
    desk.controller.configure(replace(desk.config, targets=[]))
    desk.pass_by(600, p95=0.1)
    assert desk.controller.mode(GUARD).mode == SHADOW


@pytest.mark.shows("A-50")
def test_the_guard_is_shadowed_for_the_listed_targets_alone() -> None:
    entries = [AllowlistEntry("acme", "high", GUARD), AllowlistEntry("*", "*", PDF)]
    desk = shadowed(targets=entries)
    assert desk.journal.modes[GUARD].targets == (("acme", "high"),)


# --- what refused clients are told ------------------------------------------------------


@pytest.mark.shows("A-53")
@pytest.mark.parametrize(
    ("depth", "rate", "dwell_s", "expected"),
    [
        (80, 0.0, 10, 30),  # no rate is known
        (80, 0.0, 45, 45),
        (80, 4.0, 10, 15),  # (80 - 20) / 4
        (80, 4.0, 45, 45),  # the dwell is longer
        (80, 7.0, 1, 9),  # rounded up
        (100_000, 1.0, 10, 600),  # the cap of the estimate
        (100_000, 1.0, 900, 900),  # which is none of the dwell
        (80, 1e9, 1, 1),
    ],
)
def test_the_wait_is_the_longer_of_dwell_and_drain(
    depth: int, rate: float, dwell_s: int, expected: int
) -> None:
    desk = Desk(make_config(dwell_time_seconds=dwell_s, cooldown_period_seconds=10))
    desk.settle(depth=depth, completions=rate)
    desk.tick(depth=depth, completions=rate)
    assert desk.intake.calls == [(True, expected)]
    assert desk.controller.retry_after(PDF) == expected


@pytest.mark.shows("A-53")
def test_the_wait_is_computed_again_at_each_tick() -> None:
    desk = Desk(make_config(dwell_time_seconds=90, cooldown_period_seconds=90))
    desk.settle(depth=320, completions=2.0)
    desk.tick(depth=320, completions=2.0)
    desk.tick(depth=220, completions=2.0)
    desk.tick(depth=60, completions=2.0)
    desk.tick(depth=60, completions=2.0)
    desk.tick(depth=20, completions=2.0)
    assert desk.intake.calls == [
        (True, 150), (True, 100), (True, 30), (True, 20), (True, 1),
    ]  # fmt: skip
    desk.tick(depth=10, completions=2.0)
    assert desk.intake.calls[-1][0] is False
    assert desk.controller.retry_after(PDF) is None


@pytest.mark.shows("A-53")
def test_the_wait_is_computed_again_by_whoever_ticks_next() -> None:
    journal = MemoryJournal()
    first = Desk(make_config(dwell_time_seconds=30), journal=journal)
    first.settle(depth=320, completions=2.0)
    first.tick(depth=320, completions=2.0)
    second = Desk(make_config(dwell_time_seconds=30), journal=journal, now_ms=first.now_ms)
    second.tick(depth=220, completions=2.0)
    assert second.intake.calls == [(True, 100)]
    journal.memory = second.controller.memory()
    # The first one remembers 150; it is the second's 100 that clients are told now.
    first.now_ms = second.now_ms
    first.controller.reload()
    assert first.controller.retry_after(PDF) == 100
    first.tick(depth=320, completions=2.0)
    assert first.intake.calls == [(True, 150), (True, 150)]


@pytest.mark.shows("A-54")
def test_the_report_tells_since_when_and_why() -> None:
    desk = stopped()
    began_ms = desk.now_ms
    desk.pass_by(60, **DEEP)
    told = describe(desk.controller, desk.now_ms)["subsystems"][PDF]
    assert (told["mode"], told["set_by"], told["since_ms"]) == (BACKPRESSURE, LOOP, began_ms)
    assert told["dwell_left_ms"] == 540_000
    assert told["retry_after_seconds"] == 540
    assert desk.controller.mode(PDF).trigger_metric == "queue_depth"


@pytest.mark.shows("A-34")
def test_what_a_tick_did_not_do_is_in_its_report() -> None:
    desk = stopped()
    desk.tick(depth=0)
    assert outcomes(desk) == [(RESUME, Outcome.SUPPRESSED_DWELL)]
    report = {**desk.controller.report.document(), **describe(desk.controller, desk.now_ms)}
    last = LastTick("p1", desk.now_ms, "running", {}, report)
    found = explain(make_config(targets=[EVERYTHING]), last, desk.now_ms)
    assert "waits for the dwell time, 570 s left" in found["subsystems"][PDF]["why"]


@pytest.mark.shows("A-40")
def test_a_kill_switch_restarts_the_dwell_time() -> None:
    desk = Desk(make_config(cooldown_period_seconds=30))
    desk.settle(depth=80)
    set_at_ms = desk.now_ms
    desk.switches.set(PDF, True, actor="ada", reason="a test", now_ms=set_at_ms)
    desk.switches.set(PDF, False, actor="ada", reason="over", now_ms=set_at_ms)
    assert desk.pass_by(570, depth=80) == []
    assert [signal.subsystem_id for signal in desk.pass_by(30, depth=80)] == [PDF]
