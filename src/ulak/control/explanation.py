"""Why the last tick did what it did, and above all why it did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ulak.control.config import AdaptiveControlConfig
from ulak.control.operations import SILENT_INTERVALS
from ulak.control.signals import ACCEPTING, ENFORCE, GUARD, Outcome
from ulak.control.state import LastTick

PHRASES = {
    Outcome.APPLIED: "was applied",
    Outcome.PROPOSED: "is proposed",
    Outcome.SUPPRESSED_DWELL: "waits for the dwell time",
    Outcome.SUPPRESSED_COOLDOWN: "waits for the cooldown",
    Outcome.SUPPRESSED_OSCILLATION: "is held, since the mode changed too often",
    Outcome.OUT_OF_SCOPE: "is outside of the allow-list",
    Outcome.SUPERSEDED: "is superseded by another signal of this tick",
}


def explain(config: AdaptiveControlConfig, last: LastTick | None, now_ms: int) -> dict[str, Any]:
    """Return what the last tick saw of each subsystem and a sentence on what it made of that; the
    first sentence that holds is the reason."""
    if last is None or not last.report:
        return {"why": "no tick has ended yet: is a worker running?", "subsystems": {}}
    report = last.report
    silent_s = (now_ms - last.at_ms) / 1000
    names = sorted(report.get("subsystems", {}))
    return {
        "why": _explain_loop(config, last, silent_s),
        "state": last.state,
        "process": last.process,
        "seconds_ago": round(silent_s, 1),
        "subsystems": {name: _explain_subsystem(config, report, name) for name in names},
    }


def _explain_loop(config: AdaptiveControlConfig, last: LastTick, silent_s: float) -> str:
    failure = last.report.get("failure", "")
    reasons = [
        (
            silent_s > SILENT_INTERVALS * config.control_loop_interval_seconds,
            f"the loop does not tick: the last tick was {silent_s:.0f} s ago",
        ),
        (last.state == "failsafe", f"the loop is in failsafe and changes nothing: {failure}"),
        (last.state == "suspended", "every source is silent: nothing is decided until one speaks"),
        (bool(last.report.get("drift")), "a configured query is not the canonical one"),
        (not config.enabled, "adaptive control is a dry run: it reports and applies nothing"),
        (not config.targets, "the allow-list is empty: nothing may be touched"),
    ]
    return next((text for holds, text in reasons if holds), "the loop runs")


def _explain_subsystem(
    config: AdaptiveControlConfig, report: Mapping[str, Any], name: str
) -> dict[str, Any]:
    stands, reading = report["subsystems"][name], report.get("readings", {}).get(name, {})
    is_guard = name == GUARD
    metric = "p95_seconds" if is_guard else "queue_depth"
    kind = "p95_latency" if is_guard else "queue_depth"
    found = {
        "mode": stands["mode"], "set_by": stands["set_by"], "metric": metric,
        "value": reading.get(metric),
        "enter": getattr(config, f"{kind}_enter_threshold"),
        "exit": getattr(config, f"{kind}_exit_threshold"),
        "insufficient": report.get("sufficiency", {}).get(name, {}).get("reason", ""),
        "hold": report.get("holds", {}).get(name, ""),
        "dwell_left_ms": stands["dwell_left_ms"], "cooldown_left_ms": stands["cooldown_left_ms"],
        "is_oscillating": stands["is_oscillating"],
        "budgets": [
            {key: budget[key] for key in ("metric", "budget_remaining_pct", "burn_rate")}
            for budget in report.get("budgets", [])
            if budget["subsystem_id"] == name
        ],
        "signals": [
            {key: signal[key] for key in ("signal_type", "metric_name", "outcome", "left_ms")}
            for signal in report.get("outcomes", [])
            if signal["subsystem_id"] == name
        ],
    }  # fmt: skip
    return {"why": _find_reason(found, reading, found["signals"]), **found}


def _find_reason(
    found: Mapping[str, Any], reading: Mapping[str, Any], signals: Sequence[Mapping[str, Any]]
) -> str:
    if found["hold"]:
        return f"nothing is decided: {found['hold']}"
    if not reading:
        return "nothing is measured: its source was never heard"
    if found["insufficient"]:
        return f"nothing is decided: too little telemetry ({found['insufficient']})"
    if signals:
        signal = signals[0]
        left = f", {signal['left_ms'] / 1000:.0f} s left" if signal["left_ms"] else ""
        return f"{signal['signal_type']} {PHRASES[Outcome(signal['outcome'])]}{left}"
    value, metric = found["value"], found["metric"]
    if not isinstance(value, int | float):
        return f"nothing is decided: there is no {metric}"
    if found["mode"] in (ENFORCE, ACCEPTING):
        return f"{metric} {value:g} is not above {found['enter']:g}, and no budget asks for it"
    if found["set_by"] != "adaptive_control":
        return f"{found['mode']} was set by {found['set_by']}: a person takes it back"
    if value >= found["exit"]:
        return f"{metric} {value:g} is not below {found['exit']:g}"
    return "an error budget still burns"
