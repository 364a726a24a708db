"""How it stands with adaptive control: for the operations API, for a scrape, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ulak.control.controller import AdaptiveController
from ulak.control.decision import Mode, first_mode
from ulak.control.report import AdaptiveControllerState
from ulak.control.signals import BACKPRESSURE, GUARD, LOOP, PDF, SHADOW, plain

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ulak.control.loop import ControlLoop


def describe(controller: AdaptiveController, now_ms: int) -> dict[str, Any]:
    """Return what stands after a tick and is not in its report: modes, timers, proposals."""
    timers = controller.hysteresis
    return {
        "subsystems": {
            name: {
                "mode": controller.mode(name).mode,
                "set_by": controller.mode(name).set_by or "default",
                "since_ms": controller.mode(name).since_ms,
                "dwell_left_ms": timers.dwell_left_ms(name, now_ms),
                "cooldown_left_ms": timers.cooldown_left_ms(name, now_ms),
                "is_oscillating": timers.detect_oscillation(name),
                "retry_after_seconds": controller.retry_after(name),
                "stranded_targets": [
                    list(target)
                    for target in controller.mode(name).targets
                    if not controller.allowlist.is_in_scope(*target, name)
                ],
            }
            for name in controller.subsystems
        },
        "proposals": {
            name: {"since_ms": signal.timestamp_ms, "p95_seconds": plain(signal.trigger_value)}
            for name, signal in controller.proposals.items()
        },
        "failure": controller.failure,
        "failed_at_ms": controller.failed_at_ms,
    }


def read_gauges(loop: ControlLoop) -> Iterator[Metric]:
    """Return how the last tick of any process has left things. Raises `StoreError`."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    last, now_ms = loop.state.find_last_tick(), loop.state.now_ms
    modes, config = loop.state.read_modes(), loop.config
    report: Mapping[str, Any] = {} if last is None else last.report
    pinned = loop.overrides.modes(now_ms)

    def gauge(name: str, help: str, labels: str, values: Mapping[Any, float]) -> Metric:
        names = labels.split()
        family = GaugeMetricFamily(name, help, labels=names)
        for key, value in values.items():
            family.add_metric([key] if isinstance(key, str) else list(key), value)
        return family

    known = report.get("subsystems", {})
    names, readings = list(known), report.get("readings", {})
    pdf, guard = modes.get(PDF, first_mode(PDF)), modes.get(GUARD, first_mode(GUARD))

    def since(mode: Mode, wanted: str) -> dict[Any, float]:
        is_so = mode.mode == wanted and mode.set_by == LOOP
        return {(): max(0, now_ms - mode.since_ms) / 1000 if is_so else 0.0}

    yield gauge(
        "adaptive_control_state", "1 for the state of the loop, 0 for the others.",
        "subsystem state",
        {(name, s.value): float(last is not None and last.state == s.value)
         for name in names for s in AdaptiveControllerState},
    )  # fmt: skip
    yield gauge(
        "adaptive_control_enabled", "1 while signals are applied.", "", {(): config.enabled}
    )
    if last is not None:
        yield gauge(
            "adaptive_control_last_tick_seconds", "How long ago the last tick was.", "",
            {(): max(0, now_ms - last.at_ms) / 1000},
        )  # fmt: skip
    yield gauge(
        "adaptive_control_proposals", "1 while a restore waits for a person.", "subsystem",
        {name: float(name in report.get("proposals", {})) for name in names},
    )  # fmt: skip
    yield gauge(
        "adaptive_pdf_backpressure_active", "1 while new PDF jobs are refused.", "",
        {(): pdf.mode == BACKPRESSURE},
    )  # fmt: skip
    yield gauge(
        "adaptive_pdf_backpressure_seconds", "How long new PDF jobs have been refused.", "",
        since(pdf, BACKPRESSURE),
    )  # fmt: skip
    yield gauge(
        "adaptive_guard_shadow_seconds", "How long the loop has kept the guard in shadow.", "",
        since(guard, SHADOW),
    )  # fmt: skip
    yield gauge(
        "adaptive_control_retry_after_seconds", "The wait of refused clients.", "",
        {(): known.get(PDF, {}).get("retry_after_seconds") or 0},
    )  # fmt: skip
    yield gauge(
        "adaptive_cooldown_active", "1 while a cooldown runs.", "subsystem",
        {name: float(known[name]["cooldown_left_ms"] > 0) for name in names},
    )  # fmt: skip
    yield gauge(
        "adaptive_manual_override_active", "1 while a person or a switch holds the mode.",
        "subsystem",
        {name: float(name in pinned or loop.switches.covers(name) is not None) for name in names},
    )  # fmt: skip
    yield gauge(
        "adaptive_p95_seconds", "The 95th percentile of the canonical histogram.", "subsystem",
        {name: float(r["p95_seconds"]) for name, r in readings.items()},
    )  # fmt: skip
    yield gauge(
        "adaptive_queue_depth", "Jobs that wait.", "subsystem",
        {n: r["queue_depth"] for n, r in readings.items() if r["queue_depth"] is not None},
    )  # fmt: skip
    budgets = {(b["subsystem_id"], b["metric"]): b for b in report.get("budgets", [])}
    yield gauge(
        "adaptive_error_budget_remaining_pct", "What is left of an error budget, 1 to 0.",
        "subsystem metric",
        {key: b["budget_remaining_pct"] for key, b in budgets.items()},
    )  # fmt: skip
    yield gauge(
        "adaptive_burn_rate", "How many times too fast a budget burns.",
        "subsystem metric window",
        {(*key, w): float(v) for key, b in budgets.items() for w, v in b["burn_rates"].items()},
    )  # fmt: skip
