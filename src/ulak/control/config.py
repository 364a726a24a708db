"""The configuration of adaptive control."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from ulak.control.allowlist import AllowlistEntry
from ulak.control.tallies import LATENCY_SECONDS
from ulak.errors import BadInput

GUARD_QUERY: Final = "histogram_quantile(0.95, rate(http_request_duration_seconds_bucket[5m]))"
PDF_QUERY: Final = "histogram_quantile(0.95, rate(pdf_render_duration_seconds_bucket[5m]))"


@dataclass(frozen=True)
class AdaptiveControlConfig:
    """Thresholds, timers and targets of the loop."""

    control_loop_interval_seconds: int = 30
    p95_latency_enter_threshold: float = 2.0
    p95_latency_exit_threshold: float = 1.0
    queue_depth_enter_threshold: int = 50
    queue_depth_exit_threshold: int = 20
    error_budget_window_seconds: int = 30 * 24 * 3600
    guard_slo_target: float = 0.999
    pdf_slo_target: float = 0.999
    burn_rate_threshold: float = 2.0
    dwell_time_seconds: int = 600
    cooldown_period_seconds: int = 300
    oscillation_window_size: int = 10
    oscillation_max_transitions: int = 3
    min_sample_ratio: float = 0.8
    min_bucket_coverage_pct: float = 0.80
    targets: list[AllowlistEntry] = field(default_factory=list)
    guard_slo_query: str = GUARD_QUERY
    pdf_slo_query: str = PDF_QUERY
    enabled: bool = True

    def validate(self) -> list[str]:
        """Return everything that is wrong with it; nothing when it can be used."""
        # `not a < b` and not `a >= b`: of a NaN neither is true.
        wrong = [text for is_right, text in self._checks() if not is_right]
        odd = [name for name in NUMBERS if not math.isfinite(getattr(self, name))]
        return wrong + [f"{name} must be a finite number" for name in odd]

    def _checks(self) -> list[tuple[bool, str]]:
        c = self
        order = "exit_threshold must be < enter_threshold for"
        edge = LATENCY_SECONDS[-1]
        return [
            (c.p95_latency_exit_threshold < c.p95_latency_enter_threshold, f"{order} latency"),
            (
                c.queue_depth_exit_threshold < c.queue_depth_enter_threshold,
                f"{order} queue_depth",
            ),
            (0 < c.guard_slo_target <= 1, "guard_slo_target must be in (0, 1]"),
            (0 < c.pdf_slo_target <= 1, "pdf_slo_target must be in (0, 1]"),
            (c.dwell_time_seconds > 0, "dwell_time_seconds must be > 0"),
            (c.cooldown_period_seconds > 0, "cooldown_period_seconds must be > 0"),
            (c.control_loop_interval_seconds > 0, "control_loop_interval_seconds must be > 0"),
            (c.burn_rate_threshold > 0, "burn_rate_threshold must be > 0"),
            (c.p95_latency_exit_threshold > 0, "p95_latency_exit_threshold must be > 0"),
            (c.queue_depth_exit_threshold >= 0, "queue_depth_exit_threshold must be >= 0"),
            (c.error_budget_window_seconds > 0, "error_budget_window_seconds must be > 0"),
            (c.oscillation_window_size > 0, "oscillation_window_size must be > 0"),
            (c.oscillation_max_transitions > 0, "oscillation_max_transitions must be > 0"),
            (0 < c.min_sample_ratio <= 1, "min_sample_ratio must be in (0, 1]"),
            (0 < c.min_bucket_coverage_pct <= 1, "min_bucket_coverage_pct must be in (0, 1]"),
            (
                c.p95_latency_enter_threshold < edge,
                f"p95_latency_enter_threshold must be < {edge}, the highest edge of the histogram",
            ),
            (
                c.control_loop_interval_seconds == c.control_loop_interval_seconds // 1,
                "control_loop_interval_seconds must be whole seconds",
            ),
        ]

    def warnings(self) -> list[str]:
        """Return what works and is less exact than it looks."""
        return [
            f"{name} is {value:g}, which is no edge of the histogram: the p95 is interpolated there"
            for name in ("p95_latency_enter_threshold", "p95_latency_exit_threshold")
            if (value := getattr(self, name)) not in LATENCY_SECONDS
        ]

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; `read_document` reads it back."""
        return asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> AdaptiveControlConfig:
        """Return it with some fields changed. Raises `BadInput`: a field is unknown or of another
        type, or the result is not valid; its text has every error, one to a line."""
        wrong, read = [], {}
        for name, value in changes.items():
            if name not in TYPES:
                wrong.append(f"{name} is no field; fields are {', '.join(TYPES)}")
                continue
            try:
                read[name] = TYPES[name](value)
            except ValueError as error:
                wrong.append(f"{name} {error}")
        made = replace(self, **read)
        wrong += made.validate()
        if wrong:
            raise BadInput("\n".join(wrong))
        return made


def read_document(data: Mapping[str, Any]) -> AdaptiveControlConfig:
    """Return the configuration of a document of `document`; fields that it lacks have their
    defaults, and those of a newer release are left out."""
    return AdaptiveControlConfig().changed({k: v for k, v in data.items() if k in TYPES})


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError("must be a whole number")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def read_targets(value: Any) -> list[AllowlistEntry]:
    """Return the entries of a list of objects. Raises `ValueError`: it is none."""
    names = [f.name for f in fields(AllowlistEntry)]
    if not isinstance(value, list):
        raise ValueError("must be a list of entries")
    for entry in value:
        is_entry = isinstance(entry, dict) and sorted(entry) == sorted(names)
        if not is_entry or not all(isinstance(text, str) and text for text in entry.values()):
            raise ValueError(f"must be a list of objects with the texts {', '.join(names)}")
    return [AllowlistEntry(**entry) for entry in value]


TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    f.name: {"int": _whole, "float": _number, "str": _text, "bool": _flag}.get(
        str(f.type), read_targets
    )
    for f in fields(AdaptiveControlConfig)
}
NUMBERS: Final = tuple(name for name, read in TYPES.items() if read in (_whole, _number))

_VARIABLES: Final = {
    "LOOP_INTERVAL": "control_loop_interval_seconds",
    "P95_LATENCY_ENTER": "p95_latency_enter_threshold",
    "P95_LATENCY_EXIT": "p95_latency_exit_threshold",
    "QUEUE_DEPTH_ENTER": "queue_depth_enter_threshold",
    "QUEUE_DEPTH_EXIT": "queue_depth_exit_threshold",
    "BUDGET_WINDOW": "error_budget_window_seconds",
    "GUARD_SLO_TARGET": "guard_slo_target",
    "PDF_SLO_TARGET": "pdf_slo_target",
    "BURN_RATE_THRESHOLD": "burn_rate_threshold",
    "DWELL_TIME": "dwell_time_seconds",
    "COOLDOWN_PERIOD": "cooldown_period_seconds",
    "OSCILLATION_WINDOW": "oscillation_window_size",
    "OSCILLATION_MAX_TRANSITIONS": "oscillation_max_transitions",
    "MIN_SAMPLE_RATIO": "min_sample_ratio",
    "MIN_BUCKET_COVERAGE": "min_bucket_coverage_pct",
    "TARGETS_JSON": "targets",
    "ENABLED": "enabled",
}
PREFIX: Final = "ADAPTIVE_CONTROL_"
VARIABLES: Final = {PREFIX + name: field_name for name, field_name in _VARIABLES.items()}


def read_environment(variables: Mapping[str, str]) -> AdaptiveControlConfig:
    """Return the configuration that variables name; what they do not name has its default. Raises
    `BadInput`: naming every value that cannot be used."""
    wrong, values = [], {}
    for variable, name in VARIABLES.items():
        text = variables.get(variable, "").strip()
        if text:
            try:
                values[name] = TYPES[name](_parse(text, TYPES[name]))
            except ValueError as error:
                wrong.append(f"{variable} {error}")
    made = replace(AdaptiveControlConfig(), **values)
    wrong += made.validate()
    if wrong:
        raise BadInput("; ".join(wrong))
    return made


def _parse(text: str, read: Callable[[Any], Any]) -> Any:
    if read is _flag:
        known = {"true": True, "1": True, "false": False, "0": False}
        return known.get(text.lower())
    if read is _whole or read is _number:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"is {text!r}; write a number") from None
        return int(value) if math.isfinite(value) and value == int(value) else value
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
