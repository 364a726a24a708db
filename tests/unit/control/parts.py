"""A controller of the shipped parts, with what it measures under a test's hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ulak.control import (
    AdaptiveControlConfig,
    AdaptiveController,
    AllowlistEntry,
    BudgetStatus,
    ControlSignal,
    DecisionEngine,
    ErrorBudgetCalculator,
    ErrorBudgetConfig,
    HysteresisFilter,
    KillSwitchManager,
    MetricSample,
    MetricsCollector,
    PriorityLevel,
    SignalType,
    SloEvaluator,
    SufficiencyConfig,
    TelemetrySufficiencyChecker,
)
from ulak.control.budget import BUDGET_METRICS
from ulak.control.controller import COMPLETIONS
from ulak.control.journal import MemoryJournal
from ulak.control.signals import DEPTH, GUARD, P95, PDF
from ulak.control.tallies import LATENCY_SECONDS

EVERYTHING = AllowlistEntry("*", "*", "*")
START_MS = 1_800_000_000_000
INTERVAL_MS = 30_000


def make_config(**changes: Any) -> AdaptiveControlConfig:
    return AdaptiveControlConfig(**{"targets": [EVERYTHING], **changes})


def make_signal(
    kind: SignalType = SignalType.SWITCH_TO_SHADOW, at_ms: int = START_MS, **changes: Any
) -> ControlSignal:
    is_guard = kind in (SignalType.SWITCH_TO_SHADOW, SignalType.RESTORE_ENFORCE)
    known: dict[str, Any] = {
        "subsystem_id": GUARD if is_guard else PDF, "metric_name": P95 if is_guard else DEPTH,
        "tenant_id": "*", "trigger_value": 3.0, "threshold": 2.0,
        "priority": PriorityLevel.ADAPTIVE_CONTROL, "correlation_id": "c", "timestamp_ms": at_ms,
    }  # fmt: skip
    return ControlSignal(kind, **{**known, **changes})


def make_budget(metric: str = "5xx_rate", **changes: Any) -> BudgetStatus:
    known: dict[str, Any] = {
        "subsystem_id": BUDGET_METRICS[metric], "metric": metric, "budget_total": 100.0,
        "budget_consumed": 0.0, "budget_remaining_pct": 1.0, "burn_rate": 0.0,
        "is_exhausted": False, "is_burn_rate_exceeded": False,
    }  # fmt: skip
    return BudgetStatus(**{**known, **changes})


@dataclass
class Guard:
    """The guard as the loop drives it."""

    modes: list[str] = field(default_factory=list)
    failure: Exception | None = None

    def set_mode(self, mode: str, *, connection: Any = None) -> None:
        if self.failure is not None:
            raise self.failure
        self.modes.append(mode)


@dataclass
class Intake:
    """A service's intake as the loop drives it."""

    calls: list[tuple[bool, int]] = field(default_factory=list)
    failure: Exception | None = None

    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append((active, retry_after_seconds))


class Desk:
    """One controller, its parts, and the telemetry of both subsystems."""

    def __init__(
        self, config: AdaptiveControlConfig | None = None, *, now_ms: int = START_MS,
        journal: MemoryJournal | None = None, switches: KillSwitchManager | None = None,
    ) -> None:  # fmt: skip
        self.config = make_config() if config is None else config
        self.now_ms = now_ms
        self.guard, self.intake = Guard(), Intake()
        self.switches = KillSwitchManager() if switches is None else switches
        self.journal = MemoryJournal() if journal is None else journal
        self.collector = MetricsCollector(self.interval_ms)
        self.overridden: set[str] = set()
        self.failure: Exception | None = None
        self.controller = AdaptiveController(
            self.config, self.collector, SloEvaluator(),
            ErrorBudgetCalculator([
                ErrorBudgetConfig(metric, 30 * 86_400, 0.999, self.config.burn_rate_threshold)
                for metric in BUDGET_METRICS
            ]),
            DecisionEngine(self.switches, self.config), HysteresisFilter(self.config),
            TelemetrySufficiencyChecker(SufficiencyConfig(8, 0.8, check_source_stale=True)),
            self.guard, self.intake, journal=self.journal,
            overridden=lambda now_ms: self.overridden, collect=self._collect,
        )  # fmt: skip
        self._cumulative = [0.0] * (len(LATENCY_SECONDS) + 1)

    @property
    def interval_ms(self) -> int:
        return self.config.control_loop_interval_seconds * 1000

    def _collect(self, now_ms: int) -> None:
        if self.failure is not None:
            raise self.failure

    def hear(
        self, *, p95: float | None = 0.1, depth: int = 0, errors: int = 0, requests: int = 100,
        completions: float = 0.0, sources: Sequence[str] = (GUARD, PDF),
    ) -> None:  # fmt: skip
        """Have the sources speak once, now; None is a time without requests."""
        if p95 is not None:
            for place, edge in enumerate((*LATENCY_SECONDS, math.inf)):
                self._cumulative[place] += requests if p95 <= edge else 0
        bounds = (*LATENCY_SECONDS, math.inf)
        for source in sources:
            sample = MetricSample(self.now_ms, requests, requests - errors, p95 or 0.0)
            self.collector.ingest(source, sample)
            series = {(): tuple(self._cumulative)}
            self.collector.ingest_histogram(source, "one", self.now_ms, bounds, series)
        if PDF in sources:
            self.collector.ingest_gauge(PDF, DEPTH, self.now_ms, depth)
            self.collector.ingest_gauge(PDF, COMPLETIONS, self.now_ms, completions)
        if GUARD in sources:
            self.collector.count("5xx_rate", self.now_ms, errors, requests)

    def settle(self, **heard: Any) -> None:
        """Have the sources speak for five minutes, so that there is enough telemetry."""
        for _ in range(11):
            self.now_ms += self.interval_ms
            self.hear(**heard)

    def tick(self, **heard: Any) -> list[ControlSignal]:
        """Let an interval pass, have the sources speak, and tick."""
        self.now_ms += self.interval_ms
        self.hear(**heard)
        return self.controller.tick(self.now_ms)

    def pass_by(self, seconds: int, **heard: Any) -> list[ControlSignal]:
        """Tick through some seconds; return everything that was done."""
        return [
            signal
            for _ in range(math.ceil(seconds * 1000 / self.interval_ms))
            for signal in self.tick(**heard)
        ]
