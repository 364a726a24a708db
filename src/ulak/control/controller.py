"""One tick: from what was measured to what changes."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from ulak.control.allowlist import AllowlistManager
from ulak.control.budget import (
    BUDGET_METRICS,
    ErrorBudgetCalculator,
    ErrorBudgetConfig,
)
from ulak.control.collector import MetricsCollector
from ulak.control.config import AdaptiveControlConfig
from ulak.control.decision import DecisionEngine, Mode, Reading, Situation, first_mode
from ulak.control.hysteresis import HysteresisFilter
from ulak.control.journal import Journal, MemoryJournal
from ulak.control.loop_metrics import LoopMetrics
from ulak.control.queries import GUARD_SIGNAL, find_drift
from ulak.control.rate import quantile_over
from ulak.control.report import AdaptiveControllerState, TickReport
from ulak.control.samples import SloEvaluator
from ulak.control.signals import (
    BACKPRESSURE,
    DEPTH,
    GUARD,
    LOOP,
    MODES,
    P95,
    PDF,
    SHADOW,
    ControlDecisionEvent,
    ControlSignal,
    Outcome,
    PriorityLevel,
    Reason,
    SignalType,
)
from ulak.control.sufficiency import (
    SufficiencyConfig,
    TelemetrySufficiencyChecker,
    required_samples,
)
from ulak.control.switches import KillSwitchManager
from ulak.errors import UlakError

log = logging.getLogger("ulak.control")

LONGEST_DRAIN_S: Final = 600
"""A backlog may take longer to drain than a client can sensibly be told to wait."""
UNKNOWN_DRAIN_S: Final = 30
"""The wait of refused clients while no job has ended yet."""


COMPLETIONS: Final = "completions_per_second"
WINDOW_MS: Final = GUARD_SIGNAL.window_ms
ERROR, ALL_STALE = "internal_error", "all_sources_stale"


class GuardDecision(Protocol):
    """The request guard, as far as the loop may change it."""

    def set_mode(self, mode: str, *, connection: Any = None) -> None: ...


class PdfJobStore(Protocol):
    """The intake of a service, as far as the loop may change it."""

    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None: ...


class AdaptiveController:
    """Ties the parts of the loop together; only `apply_signal` changes anything outside of it."""

    def __init__(
        self,
        config: AdaptiveControlConfig,
        metrics_collector: MetricsCollector,
        slo_evaluator: SloEvaluator,
        budget_calculator: ErrorBudgetCalculator,
        decision_engine: DecisionEngine,
        hysteresis_filter: HysteresisFilter,
        sufficiency_checker: TelemetrySufficiencyChecker,
        guard_decision: GuardDecision,
        pdf_job_store: PdfJobStore,
        *,
        intakes: Mapping[str, PdfJobStore] | None = None,
        journal: Journal | None = None,
        metrics: LoopMetrics | None = None,
        overridden: Callable[[int], Collection[str]] = lambda now_ms: (),
        collect: Callable[[int], None] = lambda now_ms: None,
    ) -> None:
        self.config = config
        self.collector = metrics_collector
        self.evaluator = slo_evaluator
        self.budgets = budget_calculator
        self.decisions = decision_engine
        self.hysteresis = hysteresis_filter
        self.sufficiency = sufficiency_checker
        self.guard = guard_decision
        self.intakes: dict[str, PdfJobStore] = {PDF: pdf_job_store, **(intakes or {})}
        self.journal: Journal = MemoryJournal() if journal is None else journal
        self.metrics = LoopMetrics() if metrics is None else metrics
        self.allowlist = AllowlistManager(config.targets)
        self.modes: dict[str, Mode] = {}
        self.proposals: dict[str, ControlSignal] = {}
        """Restores that wait for a person, by subsystem."""
        self.failed_at_ms: int | None = None
        self.failure = ""
        self.report = TickReport(0, "")
        self._overridden = overridden
        self._collect = collect
        self._state = AdaptiveControllerState.RUNNING
        self._is_stopped_for: dict[str, int] = {}
        self.reload()

    @property
    def state(self) -> AdaptiveControllerState:
        return self._state

    @property
    def subsystems(self) -> list[str]:
        return sorted({GUARD, *self.intakes})

    def mode(self, subsystem_id: str) -> Mode:
        """Return the mode of a subsystem."""
        return self.modes.get(subsystem_id) or first_mode(subsystem_id)

    def reload(self) -> None:
        """Go on with the modes and timers that are stored."""
        self.modes, memory = self.journal.load()
        if not memory and not self.modes:
            return
        self.hysteresis.load(memory.get("timers", {}))
        if "condition" in memory:
            condition = memory["condition"]
            self._state = AdaptiveControllerState(condition["state"])
            self.failure, self.failed_at_ms = condition["failure"], condition["since_ms"]
            self._is_stopped_for = dict(condition.get("stopped_for", {}))
            signals = [_read_signal(data) for data in condition.get("proposals", [])]
            self.proposals = {signal.subsystem_id: signal for signal in signals}
        known = memory.get("changed_at_ms", {})
        for subsystem_id, mode in self.modes.items():
            timers = self.hysteresis.state(subsystem_id)
            # By a clock that was set back a change that is known is in the future.
            is_later = timers.last_transition_ms < mode.since_ms != known.get(subsystem_id)
            if timers.current_mode != mode.mode or is_later:
                before = timers.current_mode or first_mode(subsystem_id).mode
                self.hysteresis.record_transition(subsystem_id, before, mode.mode, mode.since_ms)

    def memory(self) -> dict[str, Any]:
        """Return the timers, the state, the proposals and the waits of refused clients, for
        the next tick wherever it runs."""
        return {
            "timers": self.hysteresis.document(),
            "condition": {
                "state": self._state.value, "failure": self.failure,
                "since_ms": self.failed_at_ms, "stopped_for": self._is_stopped_for,
                "proposals": [asdict(signal) for signal in self.proposals.values()],
            },
            "changed_at_ms": {name: mode.since_ms for name, mode in self.modes.items()},
        }  # fmt: skip

    def configure(
        self, config: AdaptiveControlConfig, *, actor: str = LOOP, now_ms: int = 0
    ) -> None:
        """Take a configuration into force; timers that run keep their length."""
        if config == self.config:
            return
        if config.targets != self.config.targets:
            self.allowlist.update(config.targets, actor, now_ms)
        self.config = self.decisions.config = self.hysteresis.config = config

    def tick(self, now_ms: int) -> list[ControlSignal]:
        """Look, decide and act once; return the signals that were applied or proposed. Whatever
        fails changes no mode: the state is then `failsafe`."""
        began = time.perf_counter()
        report = self.report = TickReport(now_ms, str(uuid.uuid4()))
        try:
            acted = self._tick(now_ms, report)
        except Exception as error:  # noqa: BLE001 - the loop must outlive whatever a part raises
            self._fail(error, report)
            acted = []
        report.state = self._state
        oscillating = filter(self.hysteresis.detect_oscillation, self.subsystems)
        self.metrics.record_tick(report, oscillating, time.perf_counter() - began)
        return acted

    def apply_signal(self, signal: ControlSignal) -> None:
        """Change the mode of a subsystem, with its event, in one transaction.

        A restore is only proposed. A subsystem that is not in the allow-list, or that stands in the
        mode already, is left alone. Raises what the subsystem or the journal does; nothing is
        changed then.
        """
        subsystem_id = signal.subsystem_id
        targets = self.allowlist.find_targets(subsystem_id)
        if not targets or not self.config.enabled:
            return
        if signal.signal_type == SignalType.RESTORE_ENFORCE:
            self.proposals[subsystem_id] = signal
            return
        before, after = MODES[signal.signal_type]
        if self.mode(subsystem_id).mode != before:
            return
        shadowed = tuple((each.tenant_id, each.endpoint_class) for each in targets)
        mode = Mode(
            after, LOOP, signal.metric_name, signal.timestamp_ms,
            shadowed if after == SHADOW else (),
        )  # fmt: skip
        event = ControlDecisionEvent(
            event_id=str(uuid.uuid4()), correlation_id=signal.correlation_id,
            reason=self._find_reason(signal), previous_mode=before, new_mode=after,
            subsystem_id=subsystem_id, transition_timestamp_ms=signal.timestamp_ms,
            trigger_metric=signal.metric_name, trigger_value=signal.trigger_value,
            threshold=signal.threshold, burn_rate=self._find_burn(subsystem_id), actor=LOOP,
        )  # fmt: skip
        wait_s = self.find_retry_after(subsystem_id, signal.timestamp_ms, is_new=True)
        with self.journal.changing() as connection:
            self.journal.write_change(connection, mode, event, self.memory())
            if subsystem_id == GUARD:
                self.guard.set_mode(after, connection=connection)
            else:
                self.intakes[subsystem_id].set_backpressure(
                    after == BACKPRESSURE, wait_s, connection=connection
                )
        self.modes[subsystem_id] = mode
        self._is_stopped_for[subsystem_id] = wait_s
        self.metrics.record_event(event)

    def find_retry_after(self, subsystem_id: str, now_ms: int, *, is_new: bool = False) -> int:
        """Return how many seconds a refused client should wait."""
        left_s = self.hysteresis.dwell_left_ms(subsystem_id, now_ms) / 1000
        if is_new:
            left_s = max(left_s, self.config.dwell_time_seconds)
        reading = self.report.readings.get(subsystem_id, Reading())
        surplus = (reading.queue_depth or 0) - self.config.queue_depth_exit_threshold
        if reading.completions_per_second <= 0:
            return max(UNKNOWN_DRAIN_S, math.ceil(left_s))
        drain_s = min(LONGEST_DRAIN_S, surplus / reading.completions_per_second)
        return max(1, math.ceil(max(left_s, drain_s)))

    def _tick(self, now_ms: int, report: TickReport) -> list[ControlSignal]:
        was_failing = self._state == AdaptiveControllerState.FAILSAFE
        self._collect(now_ms)
        health = self.collector.check_health(now_ms)
        if health and all(source.is_stale for source in health):
            self._suspend(report)
            return []
        report.drift = find_drift(self.config)
        self._measure(now_ms, report)
        overridden = self._overridden(now_ms)
        for subsystem_id in self.subsystems:
            hold = self.decisions.find_hold(subsystem_id, now_ms, overridden)
            if hold is not None:
                report.holds[subsystem_id] = hold
        signals = self.decisions.decide(
            report.budgets, report.objectives, now_ms,
            situation=Situation(
                self.modes, report.readings, overridden, report.correlation_id
            ),
        )  # fmt: skip
        self._drop_lapsed_proposals(signals)
        if was_failing:
            if not any(source.is_stale for source in health):
                self._recover()
            return []
        self._recover()
        for subsystem_id in self.subsystems:
            switched_ms = self.decisions.killswitch.changed_at(subsystem_id)
            self.hysteresis.restart_dwell(subsystem_id, min(switched_ms, now_ms))
        acted = self._act(signals, now_ms, report)
        self._renew_stops(now_ms)
        return acted

    def _measure(self, now_ms: int, report: TickReport) -> None:
        interval_ms = self.config.control_loop_interval_seconds * 1000
        health = {source.source_id: source for source in self.collector.check_health(now_ms)}
        samples = self.collector.get_all_samples(now_ms - WINDOW_MS, now_ms)
        report.objectives = self.evaluator.evaluate_all(samples, now_ms)
        counts = self.collector.event_counts
        report.budgets = self.budgets.evaluate(samples, now_ms, counts=counts or None)
        for subsystem_id in filter(health.__contains__, self.subsystems):
            histogram = self.collector.get_histogram(subsystem_id)
            # The canonical histograms are needed; another service may have none.
            is_needed = bool(histogram) or subsystem_id in (GUARD, PDF)
            found = self.sufficiency.check(
                self.collector.get_samples(subsystem_id, now_ms - WINDOW_MS, now_ms),
                [health[subsystem_id]], now_ms=now_ms, window_ms=WINDOW_MS,
                interval_ms=interval_ms, histogram=histogram if is_needed else None,
            )  # fmt: skip
            p95 = quantile_over(GUARD_SIGNAL.quantile, histogram, now_ms, WINDOW_MS)
            report.sufficiency[subsystem_id] = found
            report.readings[subsystem_id] = Reading(
                p95.value, self._read_gauge(subsystem_id, DEPTH), not found.is_sufficient,
                self._read_gauge(subsystem_id, COMPLETIONS) or 0.0, p95.is_saturated,
            )  # fmt: skip

    def _read_gauge(self, subsystem_id: str, name: str) -> float | None:
        found = self.collector.find_gauge(subsystem_id, name)
        return None if found is None else found[1]

    def _act(
        self, signals: Sequence[ControlSignal], now_ms: int, report: TickReport
    ) -> list[ControlSignal]:
        first: dict[str, ControlSignal] = {}
        for signal in signals:
            if signal.subsystem_id in first:
                report.outcomes.append((signal, Outcome.SUPERSEDED, 0))
            else:
                first[signal.subsystem_id] = signal
        if not self.config.enabled:
            report.outcomes += [(signal, Outcome.PROPOSED, 0) for signal in first.values()]
            return []
        passed = self.hysteresis.apply(list(first.values()), now_ms)
        report.outcomes += self.hysteresis.suppressed
        acted: list[ControlSignal] = []
        for signal in passed:
            try:
                self.apply_signal(signal)
            except Exception as error:
                for undone in passed[len(acted) :]:
                    self.hysteresis.take_back(undone)
                data = {"signal": signal.signal_type.value, "error": _describe(error)}
                self.journal.write_audit("not-applied", signal.subsystem_id, now_ms, data)
                raise
            acted.append(signal)
            is_proposal = signal.signal_type == SignalType.RESTORE_ENFORCE
            outcome = Outcome.PROPOSED if is_proposal else Outcome.APPLIED
            report.outcomes.append((signal, outcome, 0))
        return acted

    def _renew_stops(self, now_ms: int) -> None:
        """Tell refused clients how long they should wait, as it stands now."""
        for subsystem_id, intake in self.intakes.items():
            mode = self.mode(subsystem_id)
            is_ours = mode.mode == BACKPRESSURE and mode.set_by == LOOP and self.config.enabled
            if not is_ours or subsystem_id in self.report.holds:
                continue
            wait_s = self.find_retry_after(subsystem_id, now_ms)
            if wait_s != self._is_stopped_for.get(subsystem_id):
                with self.journal.changing() as connection:
                    intake.set_backpressure(True, wait_s, connection=connection)
                self._is_stopped_for[subsystem_id] = wait_s

    def retry_after(self, subsystem_id: str) -> int | None:
        """Return the seconds that refused clients must wait; None while all are accepted."""
        is_stopped = self.mode(subsystem_id).mode == BACKPRESSURE
        return self._is_stopped_for.get(subsystem_id) if is_stopped else None

    def _drop_lapsed_proposals(self, signals: Sequence[ControlSignal]) -> None:
        wanted = {s.subsystem_id for s in signals if s.signal_type == SignalType.RESTORE_ENFORCE}
        self.proposals = {k: signal for k, signal in self.proposals.items() if k in wanted}

    def _suspend(self, report: TickReport) -> None:
        if self._state == AdaptiveControllerState.FAILSAFE:
            return
        if self._state != AdaptiveControllerState.SUSPENDED:
            self._enter(AdaptiveControllerState.SUSPENDED, ALL_STALE, "", report)

    def _recover(self) -> None:
        self._state = AdaptiveControllerState.RUNNING
        self.failure, self.failed_at_ms = "", None

    def _fail(self, error: Exception, report: TickReport) -> None:
        report.failure = _describe(error)
        if self._state != AdaptiveControllerState.FAILSAFE:
            self._enter(AdaptiveControllerState.FAILSAFE, ERROR, report.failure, report)
        self.failure = report.failure

    def _enter(
        self, state: AdaptiveControllerState, reason: str, failure: str, report: TickReport
    ) -> None:
        self._state, self.failure = state, failure or reason
        self.failed_at_ms = report.at_ms
        self.metrics.failsafe.add((reason,))
        modes = {name: self.mode(name).mode for name in self.subsystems}
        log.error(
            "adaptive control decides nothing until this is over",
            extra={
                "state": state.value, "reason": reason, "error": failure, "modes": modes,
                "correlation_id": report.correlation_id,
            },
            exc_info=reason == ERROR,
        )  # fmt: skip

    def _find_reason(self, signal: ControlSignal) -> Reason:
        is_recovery = signal.signal_type in (
            SignalType.RESUME_ACCEPTING_JOBS, SignalType.RESTORE_ENFORCE,
        )  # fmt: skip
        if signal.metric_name == P95:
            return Reason.P95_RECOVERED if is_recovery else Reason.P95_EXCEEDED
        if signal.metric_name == DEPTH:
            return Reason.DEPTH_RECOVERED if is_recovery else Reason.DEPTH_EXCEEDED
        budget = next((b for b in self.report.budgets if b.metric == signal.metric_name), None)
        is_exhausted = budget is not None and budget.is_exhausted
        return Reason.BUDGET_EXHAUSTED if is_exhausted else Reason.BURN_EXCEEDED

    def _find_burn(self, subsystem_id: str) -> float | None:
        """Return the highest burn rate among the budgets that have seen a request."""
        own = [b for b in self.report.budgets if b.subsystem_id == subsystem_id]
        seen = [b for b in own if getattr(b, "events", b.budget_total)]
        return max((b.burn_rate for b in seen), default=None)


def make_controller(
    config: AdaptiveControlConfig,
    collector: MetricsCollector,
    switches: KillSwitchManager,
    guard: GuardDecision,
    pdf_intake: PdfJobStore,
    **options: Any,
) -> AdaptiveController:
    """Return a controller with the parts that a configuration asks for."""
    interval_ms = config.control_loop_interval_seconds * 1000
    needed = required_samples(WINDOW_MS, interval_ms, config.min_sample_ratio)
    enough = SufficiencyConfig(needed, config.min_bucket_coverage_pct, check_source_stale=True)
    targets = {GUARD: config.guard_slo_target, PDF: config.pdf_slo_target}
    window_s, burn = config.error_budget_window_seconds, config.burn_rate_threshold
    budgets = [
        ErrorBudgetConfig(metric, window_s, targets[subsystem_id], burn)
        for metric, subsystem_id in BUDGET_METRICS.items()
    ]
    return AdaptiveController(
        config, collector, SloEvaluator(), ErrorBudgetCalculator(budgets),
        DecisionEngine(switches, config), HysteresisFilter(config),
        TelemetrySufficiencyChecker(enough), guard, pdf_intake, **options,
    )  # fmt: skip


def _read_signal(data: Mapping[str, Any]) -> ControlSignal:
    priority = PriorityLevel(data["priority"])
    kind = SignalType(data["signal_type"])
    return ControlSignal(**{**data, "signal_type": kind, "priority": priority})


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_of_process: list[AdaptiveController] = []


def install(controller: AdaptiveController) -> None:
    """Make a controller the one that `control_loop_tick` runs."""
    _of_process[:] = [controller]


def control_loop_tick(now_ms: int) -> list[ControlSignal]:
    """Run one tick of the controller of this process. Raises `UlakError`: it has none."""
    if not _of_process:
        raise UlakError("this process has no adaptive controller; ulak.control.install sets one")
    return _of_process[0].tick(now_ms)
