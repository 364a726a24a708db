"""How much of each error budget is spent, and how fast it burns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from ulak.control.event_counts import RunningSums, WindowCounts
from ulak.control.samples import MetricSample
from ulak.control.signals import GUARD, PDF

BUDGET_METRICS = {
    "5xx_rate": GUARD,
    "block_rate": GUARD,
    "snapshot_failure_rate": GUARD,
    "failed_jobs_rate": PDF,
    "queue_unavailable_rate": PDF,
}
"""The budget metrics, each with its subsystem."""

BURN_WINDOWS = {
    "5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21_600, "1d": 86_400, "3d": 259_200,
}  # fmt: skip
"""The windows over which burn rates are computed, in seconds."""
LADDER_WINDOW = "1h"

MIN_BUDGET_EVENTS = 1000
MIN_ALERT_EVENTS = 10

# Floating error must not hide that a budget is spent to the last request.
EXHAUSTION_TOLERANCE = 1e-9


@dataclass(frozen=True)
class ErrorBudgetConfig:
    """One budget: a metric over a window, its objective, and the burn rate that is too much."""

    metric: str
    window_seconds: int
    slo_target: float
    burn_rate_threshold: float


@dataclass(frozen=True)
class BudgetStatus:
    """How a budget stands. `burn_rate` is that of the last hour, +Inf where none is allowed."""

    subsystem_id: str
    metric: str
    budget_total: float
    """How many errors the window allows."""
    budget_consumed: float
    budget_remaining_pct: float
    """A share, 1 to 0."""
    burn_rate: float
    is_exhausted: bool
    is_burn_rate_exceeded: bool

    @property
    def has_enough_events(self) -> bool:
        """Whether the window has seen enough to act on."""
        return True

    @property
    def is_acting(self) -> bool:
        """Whether this budget asks for the protective signal of its subsystem."""
        is_triggered = self.is_exhausted or self.is_burn_rate_exceeded
        return is_triggered and self.burn_rate > 1 and self.has_enough_events

    @property
    def is_gone(self) -> bool:
        """Whether what this budget asked for is no longer called for."""
        return self.burn_rate < 1


@dataclass(frozen=True)
class BurnAlert:
    """A budget that burns too fast in a long window, and still does in the short one."""

    severity: str
    long_window: str
    short_window: str
    factor: float


@dataclass(frozen=True)
class BudgetReading(BudgetStatus):
    """A `BudgetStatus` with what it was made of."""

    events: int
    """How many events the window has seen."""
    min_events: int
    burn_rates: Mapping[str, float]
    """For each of `BURN_WINDOWS`."""
    alerts: tuple[BurnAlert, ...]

    @property
    def has_enough_events(self) -> bool:
        return self.events >= self.min_events


@dataclass(frozen=True, slots=True)
class _Pair:
    """Alerts when so much of a period's budget would be spent within the long window."""

    severity: str
    long: str
    short: str
    share: float

    def factor(self, period_seconds: int) -> float:
        return self.share * period_seconds / BURN_WINDOWS[self.long]


# The short windows are a twelfth of the long ones.
PAIRS = (
    _Pair("page", "1h", "5m", 0.02),
    _Pair("page", "6h", "30m", 0.05),
    _Pair("ticket", "1d", "2h", 0.10),
    _Pair("ticket", "3d", "6h", 0.10),
)


def allowed_errors(slo_target: float, window_seconds: float, request_rate: float) -> float:
    """Return how many errors a window allows at so many requests in a second."""
    return (1 - slo_target) * window_seconds * request_rate


def budget_remaining(actual: float, allowed: float) -> float:
    """Return the share of a budget that is left, 0 to 1. Without errors all of it is."""
    if allowed <= 0:
        return 0.0 if actual else 1.0
    return max(0.0, 1 - actual / allowed)


def burn_rate(bad: float, total: float, slo_target: float) -> float:
    """Return how many times faster than evenly a budget is spent: 1 lasts for its whole window."""
    if not bad or not total:
        return 0.0
    return bad / total / (1 - slo_target) if slo_target < 1 else math.inf


class ErrorBudgetCalculator:
    """Evaluates error budgets over rolling windows.

    Args:
        min_budget_events: A budget with fewer events in its window asks for nothing.
        min_alert_events: A window with fewer events mutes its alerts.
    """

    def __init__(
        self,
        configs: list[ErrorBudgetConfig],
        *,
        min_budget_events: int = MIN_BUDGET_EVENTS,
        min_alert_events: int = MIN_ALERT_EVENTS,
    ) -> None:
        self._configs = list(configs)
        self._min_budget_events = min_budget_events
        self._min_alert_events = min_alert_events

    def evaluate(
        self,
        samples: list[MetricSample],
        now_ms: int,
        *,
        counts: Mapping[str, WindowCounts] | None = None,
    ) -> list[BudgetStatus]:
        """Return a `BudgetReading` for each budget, in the order of the configs.

        Args:
            samples: What every budget is judged by where `counts` is not given: an error is a
                request that did not succeed.
            counts: The event counts of each metric; one that is missing has seen nothing.
        """
        if counts is None:
            counts = dict.fromkeys((config.metric for config in self._configs), _read(samples))
        nothing = RunningSums()
        return [
            self._read_budget(config, counts.get(config.metric, nothing), now_ms)
            for config in self._configs
        ]

    def _read_budget(
        self, config: ErrorBudgetConfig, counts: WindowCounts, now_ms: int
    ) -> BudgetReading:
        target = config.slo_target
        bad, total = counts.between(now_ms - config.window_seconds * 1000, now_ms)
        allowed = allowed_errors(target, config.window_seconds, total / config.window_seconds)
        windows = {
            name: counts.between(now_ms - seconds * 1000, now_ms)
            for name, seconds in BURN_WINDOWS.items()
        }
        burns = {name: burn_rate(*seen, target) for name, seen in windows.items()}
        muted = {name for name, (_, seen) in windows.items() if seen < self._min_alert_events}
        burn = burns[LADDER_WINDOW]
        return BudgetReading(
            subsystem_id=BUDGET_METRICS.get(config.metric, GUARD),
            metric=config.metric,
            budget_total=allowed,
            budget_consumed=float(bad),
            budget_remaining_pct=budget_remaining(bad, allowed),
            burn_rate=burn,
            is_exhausted=bad > 0 and bad >= allowed * (1 - EXHAUSTION_TOLERANCE),
            is_burn_rate_exceeded=burn > config.burn_rate_threshold,
            events=total,
            min_events=self._min_budget_events,
            burn_rates=burns,
            alerts=tuple(_find_alerts(config.window_seconds, burns, muted)),
        )


def _find_alerts(
    period_seconds: int, burns: Mapping[str, float], muted: set[str]
) -> list[BurnAlert]:
    found = []
    for pair in PAIRS:
        factor = pair.factor(period_seconds)
        is_over = min(burns[pair.long], burns[pair.short]) > factor
        if is_over and muted.isdisjoint((pair.long, pair.short)):
            found.append(BurnAlert(pair.severity, pair.long, pair.short, factor))
    return found


def _read(samples: list[MetricSample]) -> RunningSums:
    counts = RunningSums()
    for sample in sorted(samples, key=attrgetter("timestamp_ms")):
        errors = max(0, sample.total_requests - sample.successful_requests)
        counts.add(sample.timestamp_ms, errors, sample.total_requests)
    return counts
