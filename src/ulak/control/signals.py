"""What adaptive control may do, and the record of what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any, Final

GUARD: Final = "guard"
"""The subsystem of the request guard; every other one is a service's."""
PDF: Final = "pdf"

ENFORCE, SHADOW, OFF = "enforce", "shadow", "off"
ACCEPTING, BACKPRESSURE = "accepting", "backpressure"
EVERY: Final = "*"
"""Every tenant, every risk class or every subsystem."""

LOOP, OPERATOR, SWITCH = "adaptive_control", "manual_override", "killswitch"
"""The actors of decision events."""


class SignalType(str, Enum):  # noqa: UP042 - the interface says `str, Enum`
    """Everything that the loop can ask for."""

    SWITCH_TO_SHADOW = "switch_to_shadow"
    RESTORE_ENFORCE = "restore_enforce"
    STOP_ACCEPTING_JOBS = "stop_accepting_jobs"
    RESUME_ACCEPTING_JOBS = "resume_accepting_jobs"


class PriorityLevel(int, Enum):
    """Who decides about a subsystem; a lower level never changes what a higher one holds."""

    KILLSWITCH = 1
    MANUAL_OVERRIDE = 2
    ADAPTIVE_CONTROL = 3
    DEFAULT_CONFIG = 4


class Reason(StrEnum):
    """Why a mode changed."""

    P95_EXCEEDED = "p95_latency_exceeded"
    P95_RECOVERED = "p95_latency_recovered"
    DEPTH_EXCEEDED = "queue_depth_exceeded"
    DEPTH_RECOVERED = "queue_depth_recovered"
    BUDGET_EXHAUSTED = "error_budget_exhausted"
    BURN_EXCEEDED = "burn_rate_exceeded"
    MANUAL_OVERRIDE = "manual_override"
    KILL_SWITCH = "killswitch"


class Outcome(StrEnum):
    """What became of a signal."""

    APPLIED = "applied"
    PROPOSED = "proposed"
    SUPPRESSED_DWELL = "suppressed_dwell"
    SUPPRESSED_COOLDOWN = "suppressed_cooldown"
    SUPPRESSED_OSCILLATION = "suppressed_oscillation"
    OUT_OF_SCOPE = "out_of_scope"
    SUPERSEDED = "superseded"


P95: Final = "p95_api_latency_5m"
DEPTH: Final = "queue_depth"

MODES: Final = {
    SignalType.SWITCH_TO_SHADOW: (ENFORCE, SHADOW),
    SignalType.RESTORE_ENFORCE: (SHADOW, ENFORCE),
    SignalType.STOP_ACCEPTING_JOBS: (ACCEPTING, BACKPRESSURE),
    SignalType.RESUME_ACCEPTING_JOBS: (BACKPRESSURE, ACCEPTING),
}
"""For each signal the mode that it ends and the mode that it begins."""


@dataclass(frozen=True)
class ControlSignal:
    """One action that the loop asks for."""

    signal_type: SignalType
    subsystem_id: str
    metric_name: str
    tenant_id: str
    """`*` is every target of the allow-list."""
    trigger_value: float
    threshold: float
    priority: PriorityLevel
    correlation_id: str
    timestamp_ms: int


@dataclass(frozen=True)
class ControlDecisionEvent:
    """One change of a mode, written in the transaction that changes it."""

    event_id: str
    correlation_id: str
    reason: str
    previous_mode: str
    new_mode: str
    subsystem_id: str
    transition_timestamp_ms: int
    trigger_metric: str | None
    trigger_value: float | None
    threshold: float | None
    burn_rate: float | None
    """The highest burn over an hour among the budgets of the subsystem; None where no request was
    seen or a person acted."""
    actor: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {name: plain(value) for name, value in asdict(self).items()}


def plain(value: Any) -> Any:
    """Return a number as JSON can have it: infinity and NaN as text."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and value != value:
        return "NaN"
    return value
