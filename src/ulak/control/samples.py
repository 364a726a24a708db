"""What a process measured of its requests, and which objectives that meets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

FEWEST_SAMPLES = 5
"""Fewer say nothing of an objective, which then counts as met."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """What one source counted since its previous sample."""

    timestamp_ms: int
    total_requests: int
    successful_requests: int
    latency_p99_seconds: float
    """NaN where no request was seen; such a value never decides."""
    false_positive_alerts: int = 0


class SloKind(StrEnum):
    """What an objective is about."""

    AVAILABILITY = "availability"
    LATENCY_P99 = "latency_p99"
    CORRECTNESS = "correctness"


@dataclass(frozen=True, slots=True)
class SloTarget:
    """One objective: a share of requests, a latency in seconds or a number of false alerts."""

    kind: SloKind
    target: float
    window_ms: int


@dataclass(frozen=True, slots=True)
class SloEvalResult:
    """How an objective stands. `observed` is NaN for a latency that no sample has."""

    kind: SloKind
    target: float
    observed: float
    met: bool
    error_budget_remaining: float
    """From 1, nothing spent, to 0. Only availability has steps between."""
    samples_in_window: int


DEFAULT_TARGETS = (
    # The target and the period of the budgets, so that status and ladder speak of the same promise.
    SloTarget(SloKind.AVAILABILITY, 0.999, 30 * DAY_MS),
    # The threshold and the window of the guard's own signal.
    SloTarget(SloKind.LATENCY_P99, 2.0, 5 * MINUTE_MS),
    # A false alert is a fault of its own, and an old one must not colour today's status.
    SloTarget(SloKind.CORRECTNESS, 0, DAY_MS),
)


class SloEvaluator:
    """Compares samples with objectives.

    Args:
        targets: Without it, the defaults of the ladder: 99.9 % of requests served over 30 days,
            the slowest p99 within 2 seconds over 5 minutes, and no false alert in a day.
    """

    def __init__(self, targets: Sequence[SloTarget] = DEFAULT_TARGETS) -> None:
        self._targets = tuple(targets)

    def evaluate_all(self, samples: list[MetricSample], now_ms: int) -> list[SloEvalResult]:
        """Return one result for each target, in their order. Windows include both ends.

        With fewer than five samples in its window a target is met and its budget is full.
        """
        return [_evaluate(target, samples, now_ms) for target in self._targets]


def _evaluate(target: SloTarget, samples: list[MetricSample], now_ms: int) -> SloEvalResult:
    start_ms = now_ms - target.window_ms
    inside = [sample for sample in samples if start_ms <= sample.timestamp_ms <= now_ms]
    observed, is_met, remaining = _JUDGES[target.kind](inside, target.target)
    if len(inside) < FEWEST_SAMPLES:
        is_met, remaining = True, 1.0
    return SloEvalResult(target.kind, target.target, observed, is_met, remaining, len(inside))


Judgement = tuple[float, bool, float]


def _judge_availability(samples: list[MetricSample], target: float) -> Judgement:
    total = sum(sample.total_requests for sample in samples)
    observed = sum(sample.successful_requests for sample in samples) / total if total else 1.0
    failed = 1 - observed
    spent = failed / (1 - target) if target < 1 else float(failed > 0)
    return observed, observed >= target, min(1.0, max(0.0, 1 - spent))


def _judge_latency(samples: list[MetricSample], target: float) -> Judgement:
    latencies = [s.latency_p99_seconds for s in samples if not math.isnan(s.latency_p99_seconds)]
    observed = max(latencies, default=math.nan)
    is_met = not observed > target
    return observed, is_met, float(is_met)


def _judge_correctness(samples: list[MetricSample], target: float) -> Judgement:
    observed = float(sum(sample.false_positive_alerts for sample in samples))
    return observed, observed <= target, float(observed <= target)


_JUDGES: dict[SloKind, Callable[[list[MetricSample], float], Judgement]] = {
    SloKind.AVAILABILITY: _judge_availability,
    SloKind.LATENCY_P99: _judge_latency,
    SloKind.CORRECTNESS: _judge_correctness,
}
