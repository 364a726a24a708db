"""The counters of the loop, by the names of its specification, and its log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from ulak.control.decision import NOT_LISTED
from ulak.control.report import TickReport
from ulak.control.signals import (
    ACCEPTING,
    BACKPRESSURE,
    ENFORCE,
    GUARD,
    MODES,
    PDF,
    SHADOW,
    ControlDecisionEvent,
    ControlSignal,
    Outcome,
    Reason,
    SignalType,
    plain,
)
from ulak.control.tallies import ALONE, Counter, Histogram, Tally

log = logging.getLogger("ulak.control")

TICK_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
_PROTECTING: Final = (Reason.BUDGET_EXHAUSTED, Reason.BURN_EXCEEDED)
KNOWN: Final = [
    *((reason, ENFORCE, SHADOW) for reason in (Reason.P95_EXCEEDED, *_PROTECTING)),
    (Reason.MANUAL_OVERRIDE, SHADOW, ENFORCE),
    *((reason, ACCEPTING, BACKPRESSURE) for reason in (Reason.DEPTH_EXCEEDED, *_PROTECTING)),
    (Reason.DEPTH_RECOVERED, BACKPRESSURE, ACCEPTING),
]
"""Every change that the loop or the confirmation of a proposal makes: shown at 0 from the start,
since a rate needs the zero before the one."""
INSUFFICIENT: Final = ("min_samples", "bucket_coverage", "source_stale")


class LoopMetrics:
    """What the ticks of one process have counted."""

    def __init__(self) -> None:
        self.duration = Histogram(
            "adaptive_control_loop_duration_seconds", "How long a tick took.", TICK_SECONDS
        )
        self.signals = Counter(
            "adaptive_control_signal", "Signals that were applied or proposed.", ("signal_type",),
            known=[(kind.value,) for kind in SignalType],
        )  # fmt: skip
        self.transitions = Counter(
            "adaptive_guard_mode_transition", "Changes of the guard's mode.",
            ("from_mode", "to_mode", "reason"),
            known=[(*modes, reason) for reason, *modes in KNOWN if modes[0] in (ENFORCE, SHADOW)],
        )  # fmt: skip
        self.decisions = Counter(
            "adaptive_control_decision", "Changes of any mode.", ("reason", "from_mode", "to_mode"),
            known=KNOWN,
        )  # fmt: skip
        self.oscillations = Counter(
            "adaptive_oscillation_detected", "Ticks that held a mode since it changed too often.",
            ("subsystem",), known=[(GUARD,), (PDF,)],
        )  # fmt: skip
        self.failsafe = Counter(
            "adaptive_control_failsafe", "Times that the loop stopped deciding.", ("reason",),
            known=[("internal_error",), ("all_sources_stale",)], is_plain=True,
        )  # fmt: skip
        self.insufficient = Counter(
            "adaptive_telemetry_insufficient", "Ticks without enough telemetry to decide.",
            ("subsystem", "reason"),
            known=[(name, reason) for name in (GUARD, PDF) for reason in INSUFFICIENT],
        )  # fmt: skip
        self.drift = Counter(
            "adaptive_config_drift", "Ticks whose queries were not the canonical ones.",
            known=[ALONE],
        )  # fmt: skip
        self.invalid = Counter(
            "adaptive_config_validation_error", "Configurations that were refused.", known=[ALONE]
        )

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return tuple(vars(self).values())

    def record_tick(self, report: TickReport, oscillating: Iterable[str], seconds: float) -> None:
        """Count a tick, and log each of its signals and alerts."""
        self.duration.observe(ALONE, (seconds,))
        for signal, outcome, left_ms in report.outcomes:
            if outcome in (Outcome.APPLIED, Outcome.PROPOSED):
                self.signals.add((signal.signal_type.value,))
            log.info("adaptive control signal", extra=_describe(signal, outcome, left_ms))
        for subsystem_id in oscillating:
            self.oscillations.add((subsystem_id,))
            log.warning("oscillation_detected", extra={"subsystem": subsystem_id})
        for subsystem_id, found in report.sufficiency.items():
            reasons = [reason for reason in INSUFFICIENT if reason in found.reason]
            for reason in reasons:
                self.insufficient.add((subsystem_id, reason))
            if reasons:
                facts = {"subsystem": subsystem_id, "reason": found.reason}
                # Where nothing may be touched nothing is missed.
                is_idle = report.holds.get(subsystem_id) == NOT_LISTED
                level = logging.DEBUG if is_idle else logging.WARNING
                log.log(level, "telemetry_insufficient", extra=facts)
        for subsystem_id, hold in report.holds.items():
            if hold.startswith(("kill switch", "manual override")):
                facts = {"subsystem": subsystem_id, "reason": hold}
                log.info("manual_override_active", extra=facts)
        if report.drift:
            self.drift.add(ALONE)
            log.error("config_drift_detected", extra={"queries": report.drift})

    def record_event(self, event: ControlDecisionEvent) -> None:
        """Count a change of a mode."""
        modes = event.previous_mode, event.new_mode
        self.decisions.add((event.reason, *modes))
        if event.subsystem_id == GUARD:
            self.transitions.add((*modes, event.reason))
        log.warning("a mode was changed", extra=event.document())


def _describe(signal: ControlSignal, outcome: Outcome, left_ms: int) -> dict[str, object]:
    return {
        "timestamp": signal.timestamp_ms, "signal_type": signal.signal_type.value,
        "trigger_metric": signal.metric_name, "trigger_value": plain(signal.trigger_value),
        "threshold": signal.threshold, "action": MODES[signal.signal_type][1],
        "correlation_id": signal.correlation_id, "subsystem": signal.subsystem_id,
        "outcome": outcome.value, "left_ms": left_ms,
    }  # fmt: skip
