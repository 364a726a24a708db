"""The shipped engine without a store and without a clock: over samples by hand, recorded ticks, and
the loads of `scenario`. The same input always gives the same decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ulak.control.collector import MetricsCollector
from ulak.control.config import AdaptiveControlConfig
from ulak.control.controller import WINDOW_MS, AdaptiveController, make_controller
from ulak.control.gathering import feed
from ulak.control.loop_metrics import LoopMetrics
from ulak.control.report import TickReport
from ulak.control.samples import MetricSample
from ulak.control.signals import DEPTH, GUARD, PDF, ControlDecisionEvent, plain
from ulak.control.state import SourceRow
from ulak.control.switches import KillSwitchManager
from ulak.control.tallies import ALONE
from ulak.errors import BadInput

START_MS: Final = 1_000_000_000_000
MOST_SAMPLES: Final = 3_000
"""A day of ticks at 30 s, and a little more."""
MOST: Final = 1e12


class Unlogged(LoopMetrics):
    """Counts and logs nothing: what is simulated has not happened."""

    def record_tick(self, report: TickReport, oscillating: Iterable[str], seconds: float) -> None:
        pass

    def record_event(self, event: ControlDecisionEvent) -> None:
        pass


@dataclass
class Effects:
    """What the decisions do to the guard and the intake that are simulated."""

    retry_after_s: int | None = None
    """None while all are accepted."""
    guard: str = ""

    def set_mode(self, mode: str, *, connection: Any = None) -> None:
        self.guard = mode

    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None:
        self.retry_after_s = retry_after_seconds if active else None


def make_simulated(
    config: AdaptiveControlConfig,
    effects: Effects,
    collect: Callable[[MetricsCollector, int], None],
) -> AdaptiveController:
    """Return the controller of the loop, but one that remembers in this process alone."""
    collector = MetricsCollector(config.control_loop_interval_seconds * 1000)
    return make_controller(
        config,
        collector,
        KillSwitchManager(),
        effects,
        effects,
        metrics=Unlogged(),
        collect=lambda now_ms: collect(collector, now_ms),
    )


def decide(controller: AdaptiveController, now_ms: int) -> dict[str, Any]:
    """Tick once; return what was seen and decided, as JSON has it."""
    controller.tick(now_ms)
    report = controller.report
    lowest: dict[str, float] = {}
    for budget in report.budgets:
        left = lowest.get(budget.subsystem_id, 1.0)
        lowest[budget.subsystem_id] = min(left, budget.budget_remaining_pct)
    return {
        "at_ms": now_ms,
        "state": report.state.value,
        "modes": {name: controller.mode(name).mode for name in controller.subsystems},
        "p95_seconds": {name: plain(r.p95_seconds) for name, r in report.readings.items()},
        "queue_depth": {
            name: plain(r.queue_depth) for name, r in report.readings.items() if name != GUARD
        },
        "budget_remaining": lowest,
        "signals": [
            {
                "signal_type": signal.signal_type.value, "subsystem": signal.subsystem_id,
                "metric": signal.metric_name, "value": plain(signal.trigger_value),
                "threshold": signal.threshold, "outcome": outcome.value, "left_ms": left_ms,
            }
            for signal, outcome, left_ms in report.outcomes
        ],
        "proposals": sorted(controller.proposals),
        "holds": dict(report.holds),
        "insufficient": {
            name: found.reason for name, found in report.sufficiency.items() if found.reason
        },
        "drift": list(report.drift),
        "retry_after_seconds": {
            name: controller.retry_after(name) for name in controller.intakes
        },
        "failure": report.failure,
    }  # fmt: skip


Recorded = Sequence[tuple[int, Sequence[SourceRow]]]
"""When each tick was, and what it had read."""


def replay(config: AdaptiveControlConfig, recorded: Recorded) -> list[dict[str, Any]]:
    """Return what is decided of recorded ticks: with the same configuration, what was decided."""
    rows = dict(recorded)

    def collect(collector: MetricsCollector, now_ms: int) -> None:
        for row in rows[now_ms]:
            feed(collector, row)

    controller = make_simulated(config, Effects(), collect)
    return [decide(controller, now_ms) for now_ms, _ in recorded]


# --- samples by hand ------------------------------------------------------------------

FIELDS: Final = ("at_ms", "p95_seconds", "queue_depth", "requests", "errors")


def simulate_samples(
    config: AdaptiveControlConfig, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what a configuration would decide of samples, one tick each, from the first modes on.

    What a sample does not say was not measured at its tick, and nothing is decided on it. Five
    quiet minutes have gone before the first sample. `at_ms` is one interval after the sample
    before. Raises `BadInput`: a sample cannot be used.
    """
    read = _read_samples(samples, config.control_loop_interval_seconds * 1000)
    by_time = {sample["at_ms"]: sample for sample in read}
    controller = make_simulated(
        config, Effects(), lambda collector, now_ms: _take(collector, by_time[now_ms])
    )
    if read:
        step_ms, first_ms = config.control_loop_interval_seconds * 1000, read[0]["at_ms"]
        for at_ms in range(first_ms - WINDOW_MS, first_ms, step_ms):
            for source_id in (GUARD, PDF):
                controller.collector.ingest(source_id, MetricSample(at_ms, 0, 0, 0.0))
    return {"ticks": [decide(controller, sample["at_ms"]) for sample in read]}


def _read_samples(samples: Any, interval_ms: int) -> list[dict[str, Any]]:
    if not isinstance(samples, list | tuple) or len(samples) > MOST_SAMPLES:
        raise BadInput(f"samples must be a list of at most {MOST_SAMPLES} objects")
    read: list[dict[str, Any]] = []
    for n, sample in enumerate(samples):
        if not isinstance(sample, Mapping) or not sample.keys() <= set(FIELDS):
            raise BadInput(f"samples[{n}] must be an object of {', '.join(FIELDS)}")
        for name, value in sample.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_whole = name in ("p95_seconds", "queue_depth") or isinstance(value, int)
            most = 2**53 if name == "at_ms" else MOST
            if not (is_number and is_whole and 0 <= value <= most):
                kind = "a number" if name in ("p95_seconds", "queue_depth") else "a whole number"
                raise BadInput(f"samples[{n}].{name} must be {kind} from 0 to {most:g}")
        usual = read[-1]["at_ms"] + interval_ms if read else START_MS
        found = {"requests": 0, "errors": 0, "at_ms": usual, **sample}
        if found["errors"] > found["requests"]:
            raise BadInput(f"samples[{n}].errors must not be more than its requests")
        if read and found["at_ms"] <= read[-1]["at_ms"]:
            raise BadInput(f"samples[{n}].at_ms must be later than that of the sample before")
        read.append(found)
    return read


def _take(collector: MetricsCollector, sample: Mapping[str, Any]) -> None:
    at_ms, requests, errors = sample["at_ms"], sample["requests"], sample["errors"]
    p95 = sample.get("p95_seconds", math.nan)
    # All requests lie in a bucket as narrow as can be, so that the quantile is the value itself.
    is_known = not math.isnan(p95)
    edges = (math.nextafter(p95, -1.0), p95, math.inf) if is_known else (1.0, math.inf)
    ends = (0.0, 100.0, 100.0) if is_known else (0.0, 0.0)
    for source_id in (GUARD, PDF):
        collector.ingest(source_id, MetricSample(at_ms, requests, requests - errors, 0.0))
        # A snapshot from the window's beginning makes the collector forget those after it.
        for when_ms, counts in ((at_ms - WINDOW_MS + 1, (0.0,) * len(ends)), (at_ms, ends)):
            collector.ingest_histogram(source_id, "sample", when_ms, edges, {ALONE: counts})
    collector.ingest_gauge(PDF, DEPTH, at_ms, sample.get("queue_depth", math.nan))
    if requests:
        collector.count("5xx_rate", at_ms, errors, requests)
