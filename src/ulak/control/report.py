"""What one tick has seen and done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from ulak.control.budget import BudgetStatus
from ulak.control.decision import Reading
from ulak.control.samples import SloEvalResult
from ulak.control.signals import ControlSignal, Outcome, plain
from ulak.control.sufficiency import SufficiencyResult


class AdaptiveControllerState(str, Enum):  # noqa: UP042 - the interface says `str, Enum`
    """How it stands with the loop."""

    RUNNING = "running"
    FAILSAFE = "failsafe"
    SUSPENDED = "suspended"


@dataclass
class TickReport:
    """What one tick has seen and done, for the status and the audit."""

    at_ms: int
    correlation_id: str
    state: AdaptiveControllerState = AdaptiveControllerState.RUNNING
    readings: dict[str, Reading] = field(default_factory=dict)
    sufficiency: dict[str, SufficiencyResult] = field(default_factory=dict)
    budgets: list[BudgetStatus] = field(default_factory=list)
    objectives: list[SloEvalResult] = field(default_factory=list)
    holds: dict[str, str] = field(default_factory=dict)
    """Why no decision was made about a subsystem."""
    drift: list[str] = field(default_factory=list)
    outcomes: list[tuple[ControlSignal, Outcome, int]] = field(default_factory=list)
    """Each signal, what became of it, and for a suppressed one the milliseconds left."""
    failure: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        outcomes = [
            {**asdict(signal), "outcome": outcome, "left_ms": left}
            for signal, outcome, left in self.outcomes
        ]
        found: dict[str, Any] = _plain({**asdict(self), "outcomes": outcomes})
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Enum) else plain(value)
