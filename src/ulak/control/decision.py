"""Which actions the figures of a tick ask for; nothing here knows a timer or a table."""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ulak.control.budget import BudgetStatus
from ulak.control.config import AdaptiveControlConfig
from ulak.control.queries import find_drift
from ulak.control.samples import SloEvalResult
from ulak.control.signals import (
    ACCEPTING,
    BACKPRESSURE,
    DEPTH,
    ENFORCE,
    EVERY,
    GUARD,
    LOOP,
    P95,
    PDF,
    SHADOW,
    ControlSignal,
    PriorityLevel,
    SignalType,
)
from ulak.control.switches import KillSwitchManager

NOT_LISTED: Final = "not in the allow-list"
FAR_ABOVE: Final = 2
"""So many times the enter threshold is a backlog that no oscillation may keep intake open for."""


@dataclass(frozen=True)
class Reading:
    """What a tick has measured of one subsystem."""

    p95_seconds: float = math.nan
    """Of the canonical histogram; NaN without requests."""
    queue_depth: float | None = None
    is_telemetry_insufficient: bool = False
    completions_per_second: float = 0.0
    is_p95_saturated: bool = False


@dataclass(frozen=True)
class Mode:
    """The mode of a subsystem, and who has set it why."""

    mode: str
    set_by: str = ""
    trigger_metric: str = ""
    since_ms: int = 0
    targets: tuple[tuple[str, str], ...] = ()
    """Of the guard: the tenants and risk classes that are shadowed."""


ENFORCING: Final = Mode(ENFORCE)
TAKING: Final = Mode(ACCEPTING)


def first_mode(subsystem_id: str) -> Mode:
    """Return the mode of a subsystem that nothing has changed yet."""
    return ENFORCING if subsystem_id == GUARD else TAKING


@dataclass
class Situation:
    """What the decision engine looks at besides budgets and objectives."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    readings: Mapping[str, Reading] = field(default_factory=dict)
    overridden: Collection[str] = ()
    """Subsystems whose mode a person has pinned."""
    correlation_id: str = ""

    def mode(self, subsystem_id: str) -> Mode:
        return self.modes.get(subsystem_id) or first_mode(subsystem_id)


class DecisionEngine:
    """The rules of the ladder."""

    def __init__(self, killswitch: KillSwitchManager, config: AdaptiveControlConfig) -> None:
        self.killswitch = killswitch
        self.config = config

    def decide(
        self,
        budget_statuses: list[BudgetStatus],
        eval_results: list[SloEvalResult],
        now_ms: int,
        *,
        situation: Situation | None = None,
    ) -> list[ControlSignal]:
        """Return every signal that the figures ask for, in the order of `_apply_tie_breaker`.

        The first signal of a subsystem acts. Subsystems that a kill switch or an override holds,
        or that are not in the allow-list, get none; nor does any when a query has drifted.
        `eval_results` are for the status: no objective of theirs has a threshold to act on.
        """
        seen = situation or Situation()
        correlation_id = seen.correlation_id or str(uuid.uuid4())
        if find_drift(self.config):
            return []
        signals: list[ControlSignal] = []
        for subsystem_id in self._subsystems(seen, budget_statuses):
            if self.find_hold(subsystem_id, now_ms, seen.overridden) is not None:
                continue
            budgets = [b for b in budget_statuses if b.subsystem_id == subsystem_id]
            found = self._decide_for(subsystem_id, budgets, seen)
            signals += (
                ControlSignal(
                    kind, subsystem_id, metric, EVERY, value, threshold,
                    PriorityLevel.ADAPTIVE_CONTROL, correlation_id, now_ms,
                )
                for kind, metric, value, threshold in found
            )  # fmt: skip
        return self._apply_tie_breaker(signals)

    def find_hold(
        self, subsystem_id: str, now_ms: int, overridden: Collection[str] = ()
    ) -> str | None:
        """Return what keeps automation from deciding about a subsystem; None when nothing does."""
        switch = self.killswitch.covers(subsystem_id)
        if switch is not None:
            return f"kill switch {switch}"
        if subsystem_id in overridden:
            return "manual override"
        released = self.killswitch.released_at(subsystem_id)
        if released and now_ms - released < self.config.cooldown_period_seconds * 1000:
            return "cooldown after a kill switch"
        if not any(t.subsystem_id in (EVERY, subsystem_id) for t in self.config.targets):
            return NOT_LISTED
        return None

    def _apply_tie_breaker(self, signals: list[ControlSignal]) -> list[ControlSignal]:
        """Order signals: the highest level first, equals by subsystem, metric and tenant."""
        return sorted(
            signals, key=lambda s: (s.priority, s.subsystem_id, s.metric_name, s.tenant_id)
        )

    def _subsystems(self, seen: Situation, budgets: Iterable[BudgetStatus]) -> list[str]:
        named = {GUARD, PDF, *seen.readings, *seen.modes, *(b.subsystem_id for b in budgets)}
        return sorted(named)

    def _decide_for(
        self, subsystem_id: str, budgets: list[BudgetStatus], seen: Situation
    ) -> list[tuple[SignalType, str, float, float]]:
        reading = seen.readings.get(subsystem_id, Reading())
        if reading.is_telemetry_insufficient:
            return []
        mode, config = seen.mode(subsystem_id), self.config
        if subsystem_id == GUARD:
            metric, value = P95, reading.p95_seconds
            enter, exit = config.p95_latency_enter_threshold, config.p95_latency_exit_threshold
            open_mode, protect, recover = ENFORCE, *_GUARD_SIGNALS
        else:
            metric = DEPTH
            value = math.nan if reading.queue_depth is None else reading.queue_depth
            enter = float(config.queue_depth_enter_threshold)
            exit = float(config.queue_depth_exit_threshold)
            open_mode, protect, recover = ACCEPTING, *_INTAKE_SIGNALS
        burning = [budget for budget in budgets if budget.is_acting]
        if mode.mode == open_mode:
            # No comparison with NaN is true: without data nothing happens.
            found = [(protect, metric, value, enter)] if value > enter else []
            threshold = config.burn_rate_threshold
            return found + [(protect, b.metric, b.burn_rate, threshold) for b in burning]
        is_ours = mode.mode in (SHADOW, BACKPRESSURE) and mode.set_by == LOOP
        cause = next((b for b in budgets if b.metric == mode.trigger_metric), None)
        is_calm = not burning and (cause is None or cause.is_gone)
        return [(recover, metric, value, exit)] if is_ours and is_calm and value < exit else []


_GUARD_SIGNALS: Final = (SignalType.SWITCH_TO_SHADOW, SignalType.RESTORE_ENFORCE)
_INTAKE_SIGNALS: Final = (SignalType.STOP_ACCEPTING_JOBS, SignalType.RESUME_ACCEPTING_JOBS)
