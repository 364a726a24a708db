"""What adaptive control never does, and always does, whatever it measures."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.control.parts import (
    EVERYTHING,
    START_MS,
    Desk,
    make_budget,
    make_config,
    make_signal,
)
from ulak.control import (
    AdaptiveControllerState,
    AllowlistEntry,
    AllowlistManager,
    ControlSignal,
    DecisionEngine,
    HysteresisFilter,
    KillSwitchManager,
    PriorityLevel,
    SignalType,
)
from ulak.control.config import GUARD_QUERY, NUMBERS
from ulak.control.decision import Mode, Reading, Situation
from ulak.control.journal import MemoryJournal
from ulak.control.signals import (
    BACKPRESSURE,
    DEPTH,
    GUARD,
    LOOP,
    P95,
    PDF,
    SHADOW,
    ControlDecisionEvent,
    Outcome,
)
from ulak.errors import BadInput

EXAMPLES = settings(max_examples=100, deadline=None)

seconds = st.floats(0, 100, allow_nan=False)
readings = st.fixed_dictionaries(
    {
        "p95": st.one_of(st.none(), st.floats(0.001, 50)),
        "depth": st.integers(0, 500),
        "errors": st.integers(0, 100),
        "sources": st.sampled_from([(GUARD, PDF), (GUARD, PDF), (GUARD,), (PDF,), ()]),
    }
)
histories = st.lists(readings, min_size=1, max_size=25)
kinds = st.sampled_from(SignalType)
words = st.text("abcxyz:_", min_size=1, max_size=6)


def decide(config: Any = None, **situation: Any) -> list[ControlSignal]:
    engine = DecisionEngine(KillSwitchManager(), make_config() if config is None else config)
    budgets = situation.pop("budgets", [])
    return engine.decide(budgets, [], START_MS, situation=Situation(**situation))


@EXAMPLES
@given(histories)
@pytest.mark.shows("A-P1", "A-37")
def test_automation_lowers_enforcement_and_never_raises_it(history: list[dict[str, Any]]) -> None:
    """Feature: slo-adaptive-control, Property 1: monotonic safety."""
    desk = Desk(make_config(dwell_time_seconds=30, cooldown_period_seconds=30))
    desk.settle()
    for heard in history:
        desk.tick(**heard)
    assert set(desk.guard.modes) <= {SHADOW}
    changes = [e for e in desk.journal.events if e.subsystem_id == GUARD]
    assert {(e.previous_mode, e.new_mode) for e in changes} <= {("enforce", "shadow")}


@EXAMPLES
@given(st.permutations([
    make_signal(priority=priority, subsystem_id=name, metric_name=metric, tenant_id=tenant)
    for priority in (PriorityLevel.KILLSWITCH, PriorityLevel.ADAPTIVE_CONTROL)
    for name in ("guard", "pdf") for metric in ("a", "b") for tenant in ("*", "acme")
]))  # fmt: skip
@pytest.mark.shows("A-P2", "A-34")
def test_the_highest_level_comes_first_whatever_the_order(signals: list[ControlSignal]) -> None:
    """Feature: slo-adaptive-control, Property 2: priority determinism."""
    engine = DecisionEngine(KillSwitchManager(), make_config())
    ordered = engine._apply_tie_breaker(signals)
    keys = [(s.priority, s.subsystem_id, s.metric_name, s.tenant_id) for s in ordered]
    assert keys == sorted(keys)
    assert ordered[0].priority == PriorityLevel.KILLSWITCH


@EXAMPLES
@given(seconds, st.integers(0, 500), st.sampled_from(["enforce", "shadow"]), st.booleans())
@pytest.mark.shows("A-P3", "A-32")
def test_every_signal_is_one_of_four(p95: float, depth: int, mode: str, burns: bool) -> None:
    """Feature: slo-adaptive-control, Property 3: closed set of actions."""
    found = decide(
        readings={GUARD: Reading(p95), PDF: Reading(queue_depth=depth)},
        modes={GUARD: Mode(mode, LOOP)},
        budgets=[make_budget(burn_rate=9.0, is_burn_rate_exceeded=burns)],
    )
    assert {s.signal_type for s in found} <= set(SignalType)
    assert [t.value for t in SignalType] == [
        "switch_to_shadow", "restore_enforce", "stop_accepting_jobs", "resume_accepting_jobs",
    ]  # fmt: skip
    names = [field.name for field in fields(ControlSignal)]
    assert names == [
        "signal_type", "subsystem_id", "metric_name", "tenant_id", "trigger_value", "threshold",
        "priority", "correlation_id", "timestamp_ms",
    ]  # fmt: skip


@EXAMPLES
@given(histories, st.sampled_from([[], [PDF], [GUARD]]))
@pytest.mark.shows("A-P4", "A-50", "A-45")
def test_nothing_outside_of_the_list_is_touched(
    history: list[dict[str, Any]], listed: list[str]
) -> None:
    """Feature: slo-adaptive-control, Property 4: scope."""
    targets = [AllowlistEntry("*", "*", name) for name in listed]
    desk = Desk(make_config(targets=targets, dwell_time_seconds=30, cooldown_period_seconds=30))
    desk.settle()
    acted = [signal for heard in history for signal in desk.tick(**heard)]
    assert {signal.subsystem_id for signal in acted} <= set(listed)
    assert {event.subsystem_id for event in desk.journal.events} <= set(listed)
    assert GUARD in listed or not desk.guard.modes
    assert PDF in listed or not desk.intake.calls


@EXAMPLES
@given(words, words, words, words)
@pytest.mark.shows("A-50")
def test_an_entry_must_match_all_three(tenant: str, risk: str, name: str, other: str) -> None:
    """Feature: slo-adaptive-control, Property 4: scope."""
    allowed = AllowlistManager([AllowlistEntry(tenant, risk, name)])
    assert allowed.is_in_scope(tenant, risk, name)
    for place in range(3):
        target = [tenant, risk, name]
        target[place] += other
        assert not allowed.is_in_scope(*target)
    assert AllowlistManager([EVERYTHING]).is_in_scope(tenant, risk, name)
    assert AllowlistManager([]).is_empty


@EXAMPLES
@given(histories)
@pytest.mark.shows("A-P5", "A-57", "A-44")
def test_every_change_has_one_whole_event(history: list[dict[str, Any]]) -> None:
    """Feature: slo-adaptive-control, Property 5: one event per mode change."""
    desk = Desk(make_config(dwell_time_seconds=30, cooldown_period_seconds=30))
    desk.settle()
    modes = {GUARD: "enforce", PDF: "accepting"}
    changes = []
    for heard in history:
        desk.tick(**heard)
        for name, before in list(modes.items()):
            after = desk.controller.mode(name).mode
            if after != before:
                changes.append((name, before, after))
                modes[name] = after
    events = desk.journal.events
    assert sorted((e.subsystem_id, e.previous_mode, e.new_mode) for e in events) == sorted(changes)
    assert len({e.event_id for e in events}) == len(events)
    for event in events:
        assert list(event.document()) == [field.name for field in fields(ControlDecisionEvent)]
        if event.subsystem_id == GUARD:
            assert event.burn_rate is not None


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 400_000), kinds), max_size=40))
@pytest.mark.shows("A-P6", "A-P7", "A-40")
def test_no_change_within_the_dwell_and_no_signal_twice_within_the_cooldown(
    steps: list[tuple[int, SignalType]],
) -> None:
    """Feature: slo-adaptive-control, Property 6: dwell time.
    Feature: slo-adaptive-control, Property 7: cooldown."""
    config = make_config(
        dwell_time_seconds=60, cooldown_period_seconds=300, oscillation_max_transitions=1000
    )
    held = HysteresisFilter(config)
    now_ms, changed, signalled = START_MS, dict[str, int](), dict[tuple[str, str], int]()
    for gap_ms, kind in steps:
        now_ms += gap_ms
        signal = make_signal(kind, now_ms)
        name = signal.subsystem_id
        since_change = now_ms - changed.get(name, -(10**15))
        since_signal = now_ms - signalled.get((name, kind), -(10**15))
        passed = held.apply([signal], now_ms)
        if since_change < 60_000 or since_signal < 300_000:
            assert passed == []
            ((_, outcome, left_ms),) = held.suppressed
            is_dwelling = since_change < 60_000
            assert outcome == (
                Outcome.SUPPRESSED_DWELL if is_dwelling else Outcome.SUPPRESSED_COOLDOWN
            )
            assert left_ms == (60_000 - since_change if is_dwelling else 300_000 - since_signal)
        else:
            assert passed == [signal]
            signalled[name, kind] = now_ms
            if kind != SignalType.RESTORE_ENFORCE:
                changed[name] = now_ms


@EXAMPLES
@given(st.text(max_size=60).filter(lambda text: text != GUARD_QUERY), seconds)
@pytest.mark.shows("A-P10", "A-20")
def test_another_query_is_drift_and_nothing_is_decided(query: str, p95: float) -> None:
    """Feature: slo-adaptive-control, Property 10: canonical query."""
    desk = Desk(make_config(guard_slo_query=query))
    desk.settle(p95=5.0, depth=400)
    assert desk.tick(p95=5.0, depth=400) == []
    assert desk.controller.report.drift == ["guard_slo_query"]
    assert desk.controller.metrics.drift.read().series[()] == (1.0,)
    desk.controller.configure(make_config())
    assert len(desk.tick(p95=5.0, depth=400)) == 2


@EXAMPLES
@given(st.sampled_from(["5xx_rate", "failed_jobs_rate"]), st.floats(1.001, 1e6), st.booleans())
@pytest.mark.shows("A-P12", "A-29")
def test_a_burning_budget_protects_its_subsystem(
    metric: str, burn: float, is_exhausted: bool
) -> None:
    """Feature: slo-adaptive-control, Property 12: burn rate triggers protection."""
    budget = make_budget(
        metric, burn_rate=burn, is_exhausted=is_exhausted, is_burn_rate_exceeded=not is_exhausted
    )
    (signal,) = decide(budgets=[budget], readings={GUARD: Reading(0.1), PDF: Reading(0.1, 0)})
    is_guard = metric == "5xx_rate"
    expected = SignalType.SWITCH_TO_SHADOW if is_guard else SignalType.STOP_ACCEPTING_JOBS
    assert (signal.signal_type, signal.metric_name) == (expected, metric)
    assert (signal.trigger_value, signal.threshold) == (burn, 2.0)
    # Calm within the last hour, and what is exhausted asks for nothing any more.
    calm = replace(budget, burn_rate=0.99)
    assert decide(budgets=[calm], readings={GUARD: Reading(0.1), PDF: Reading(0.1, 0)}) == []


@EXAMPLES
@given(st.floats(0.002, 30), st.floats(0.001, 1), st.floats(0, 40))
@pytest.mark.shows("A-P13", "A-P14", "A-35")
def test_latency_shadows_above_enter_and_proposes_below_exit(
    enter: float, share: float, p95: float
) -> None:
    """Feature: slo-adaptive-control, Property 13: latency switches to shadow.
    Feature: slo-adaptive-control, Property 14: recovery is proposed."""
    leave = enter * min(share, 0.999)
    config = make_config(p95_latency_enter_threshold=enter, p95_latency_exit_threshold=leave)
    seen = {GUARD: Reading(p95)}
    enforcing = [s.signal_type for s in decide(config, readings=seen)]
    assert enforcing == ([SignalType.SWITCH_TO_SHADOW] if p95 > enter else [])
    ours = {GUARD: Mode(SHADOW, LOOP, P95)}
    shadowed = [s.signal_type for s in decide(config, readings=seen, modes=ours)]
    assert shadowed == ([SignalType.RESTORE_ENFORCE] if p95 < leave else [])
    theirs = {GUARD: Mode(SHADOW, "ada")}
    assert decide(config, readings=seen, modes=theirs) == []


@EXAMPLES
@given(st.integers(1, 400), st.integers(0, 399), st.integers(0, 500))
@pytest.mark.shows("A-P15", "A-36")
def test_depth_stops_intake_above_enter_and_resumes_it_below_exit(
    enter: int, leave: int, depth: int
) -> None:
    """Feature: slo-adaptive-control, Property 15: queue depth stops intake."""
    leave = min(leave, enter - 1)
    config = make_config(queue_depth_enter_threshold=enter, queue_depth_exit_threshold=leave)
    seen = {PDF: Reading(queue_depth=depth)}
    found = [s.signal_type for s in decide(config, readings=seen)]
    assert found == ([SignalType.STOP_ACCEPTING_JOBS] if depth > enter else [])
    ours = {PDF: Mode(BACKPRESSURE, LOOP, DEPTH)}
    found = [s.signal_type for s in decide(config, readings=seen, modes=ours)]
    assert found == ([SignalType.RESUME_ACCEPTING_JOBS] if depth < leave else [])
    assert decide(config, readings=seen, modes={PDF: Mode(BACKPRESSURE, "ada")}) == []


@EXAMPLES
@given(
    st.sampled_from([ValueError("a part failed"), KeyError("x"), OSError(28, "no space left")]),
    st.booleans(), readings, st.booleans(),
)  # fmt: skip
@pytest.mark.shows("A-P17", "A-P19", "A-47")
def test_a_failing_tick_changes_nothing_and_heals_itself(
    failure: Exception, is_stopped: bool, heard: dict[str, Any], all_stale: bool
) -> None:
    """Feature: slo-adaptive-control, Property 17: failsafe keeps the modes.
    Feature: slo-adaptive-control, Property 19: failsafe ends by itself."""
    desk = Desk(make_config(cooldown_period_seconds=30))
    desk.settle(depth=60 if is_stopped else 0)
    desk.tick(depth=60 if is_stopped else 0)
    modes, calls = dict(desk.journal.modes), list(desk.intake.calls)
    if all_stale:
        desk.now_ms += desk.interval_ms
        assert desk.tick(sources=()) == []
        assert desk.controller.state == AdaptiveControllerState.SUSPENDED
        reason = "all_sources_stale"
    else:
        desk.failure = failure
        assert desk.tick(**heard) == []
        assert desk.controller.state == AdaptiveControllerState.FAILSAFE
        assert type(failure).__name__ in desk.controller.failure
        reason = "internal_error"
    assert desk.controller.metrics.failsafe.read().series[reason,] == (1.0,)
    assert (dict(desk.journal.modes), desk.intake.calls, desk.guard.modes) == (modes, calls, [])
    desk.failure = None
    if not all_stale:
        # One source is silent still: the tick completes, and the state stays.
        desk.now_ms += desk.interval_ms
        desk.tick(sources=(GUARD,))
        assert desk.controller.state == AdaptiveControllerState.FAILSAFE
    desk.tick()
    assert desk.controller.state == AdaptiveControllerState.RUNNING


@EXAMPLES
@given(st.sampled_from(["few", "silent", "gaps"]), seconds, st.integers(51, 500))
@pytest.mark.shows("A-P18", "A-18")
def test_without_enough_telemetry_nothing_is_decided_and_it_is_said_once(
    kind: str, p95: float, depth: int
) -> None:
    """Feature: slo-adaptive-control, Property 18: sufficiency gates decisions."""
    heard: dict[str, Any] = {"p95": 2.5 + p95, "depth": depth}
    desk = Desk()
    if kind == "few":
        desk.tick(**heard)
    else:
        desk.settle(**heard)
        if kind == "gaps":
            desk.now_ms += 3 * desk.interval_ms
    desk.controller.metrics.insufficient = type(desk.controller.metrics.insufficient)(
        "x", "x", ("subsystem", "reason")
    )
    sources = (PDF,) if kind == "silent" else (GUARD, PDF)
    desk.now_ms += desk.interval_ms if kind == "silent" else 0
    acted = desk.tick(**heard, sources=sources)
    assert [s for s in acted if s.subsystem_id == GUARD] == []
    counted = desk.controller.metrics.insufficient.read().series
    assert {labels[0] for labels in counted} >= {GUARD}
    assert all(value == (1.0,) for value in counted.values())


@EXAMPLES
@given(st.sampled_from(["global", "guard", "pdf", "degrade_mode"]), st.integers(0, 599))
@pytest.mark.shows("A-P20", "A-33", "A-39")
def test_a_switch_suspends_what_it_covers_and_a_cooldown_follows(name: str, after_s: int) -> None:
    """Feature: slo-adaptive-control, Property 20: kill switch."""
    desk = Desk()
    desk.settle(p95=5.0, depth=100)
    desk.switches.set(name, True, actor="ada", reason="a test", now_ms=desk.now_ms)
    covered = {"global": {GUARD, PDF}, "guard": {GUARD}, "pdf": {PDF}, "degrade_mode": set()}[name]
    acted = {signal.subsystem_id for signal in desk.tick(p95=5.0, depth=100)}
    assert acted == {GUARD, PDF} - covered
    desk.switches.set(name, False, actor="ada", reason="over", now_ms=desk.now_ms)
    desk.now_ms += after_s * 1000 - desk.interval_ms
    desk.hear(p95=5.0, depth=100)
    waited_ms = after_s * 1000
    found = DecisionEngine(desk.switches, desk.config).decide(
        [], [], desk.now_ms + desk.interval_ms,
        situation=Situation(readings={GUARD: Reading(5.0), PDF: Reading(queue_depth=100)}),
    )  # fmt: skip
    allowed = {signal.subsystem_id for signal in found}
    assert allowed == ({GUARD, PDF} if waited_ms >= 300_000 else {GUARD, PDF} - covered)


bad_values = st.one_of(
    st.tuples(st.sampled_from(NUMBERS), st.sampled_from([float("nan"), float("inf"), "x", None])),
    st.tuples(st.sampled_from(NUMBERS), st.floats(-100, -0.5)),
    st.tuples(st.sampled_from(["guard_slo_target", "min_sample_ratio"]), st.floats(1.01, 9)),
    st.tuples(words.map("no_{}".format), st.just(1)),
)


@EXAMPLES
@given(bad_values)
@pytest.mark.shows("A-P21", "A-55")
def test_a_bad_configuration_is_refused_whole(bad: tuple[str, Any]) -> None:
    """Feature: slo-adaptive-control, Property 21: invalid config is refused."""
    config = make_config()
    before = json.dumps(config.document())
    with pytest.raises(BadInput) as refused:
        config.changed({"pdf_slo_target": 7, bad[0]: bad[1]})
    assert "pdf_slo_target must be in (0, 1]" in str(refused.value) or bad[0] == "pdf_slo_target"
    assert bad[0] in str(refused.value) or "exit_threshold must be" in str(refused.value)
    assert json.dumps(config.document()) == before


@EXAMPLES
@given(st.integers(1, 6), st.integers(1, 12))
@pytest.mark.shows("A-P23", "A-42")
def test_more_changes_than_allowed_are_an_alert_and_a_hold(most: int, changes: int) -> None:
    """Feature: slo-adaptive-control, Property 23: oscillation."""
    config = make_config(
        dwell_time_seconds=10, cooldown_period_seconds=1, oscillation_max_transitions=most
    )
    held = HysteresisFilter(config)
    now_ms, stops = START_MS, (SignalType.STOP_ACCEPTING_JOBS, SignalType.RESUME_ACCEPTING_JOBS)
    for number in range(changes):
        held.record_transition(PDF, "a", "b", now_ms + number)
    assert held.detect_oscillation(PDF) == (changes > most)
    now_ms += 20_000
    stop, resume = (make_signal(kind, now_ms) for kind in stops)
    assert bool(held.apply([stop], now_ms)) == (changes <= most)
    far = make_signal(stops[0], now_ms + 20_000, trigger_value=4.01, threshold=2.0)
    assert held.apply([far], now_ms + 20_000) == [far]
    assert held.apply([resume], now_ms + 40_000) == [resume]
    # Ten dwell times later all is forgotten.
    late = now_ms + 40_000 + 10 * 10_000 + 1
    assert held.apply([make_signal(stops[0], late)], late) != []


@EXAMPLES
@given(histories)
@pytest.mark.shows("A-P24", "A-P25", "A-58")
def test_every_tick_is_counted_and_every_signal_logged_whole(
    history: list[dict[str, Any]],
) -> None:
    """Feature: slo-adaptive-control, Property 24: metrics of the loop.
    Feature: slo-adaptive-control, Property 25: log of signals."""
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    log = logging.getLogger("ulak.control")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        desk = Desk(make_config(dwell_time_seconds=30, cooldown_period_seconds=30))
        desk.settle()
        acted = [signal for heard in history for signal in desk.tick(**heard)]
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    metrics = desk.controller.metrics
    assert sum(metrics.duration.read().series[()][:-1]) == len(history)
    counted = sum(value for (value,) in metrics.signals.read().series.values())
    assert counted == len(acted)
    changed = sum(value for (value,) in metrics.decisions.read().series.values())
    assert changed == len(desk.journal.events)
    found = [vars(line) for line in lines if line.msg == "adaptive control signal"]
    assert sum(line["outcome"] in ("applied", "proposed") for line in found) == len(acted)
    needed = {
        "timestamp", "signal_type", "trigger_metric", "trigger_value", "threshold", "action",
        "correlation_id", "subsystem", "outcome",
    }  # fmt: skip
    assert all(needed <= line.keys() for line in found)
    json.dumps([{name: line[name] for name in needed} for line in found])


@EXAMPLES
@given(st.booleans(), st.integers(0, 599))
@pytest.mark.shows("A-43", "A-48")
def test_a_restart_keeps_modes_and_timers(is_guard: bool, after_s: int) -> None:
    """Feature: slo-adaptive-control, Property 6: dwell time."""
    journal = MemoryJournal()
    first = Desk(journal=journal)
    heard: dict[str, Any] = {"p95": 5.0} if is_guard else {"depth": 80}
    first.settle(**heard)
    first.tick(**heard)
    name = GUARD if is_guard else PDF
    assert first.controller.mode(name).mode in (SHADOW, BACKPRESSURE)
    second = Desk(journal=journal, now_ms=first.now_ms)
    assert second.controller.mode(name) == first.controller.mode(name)
    left = second.controller.hysteresis.dwell_left_ms(name, first.now_ms + after_s * 1000)
    assert left == 600_000 - after_s * 1000
