"""Adaptive control: what processes count, what is decided of it, and who is refused meanwhile."""

from ulak.control.allowlist import AllowlistEntry, AllowlistManager
from ulak.control.budget import (
    BudgetReading,
    BudgetStatus,
    ErrorBudgetCalculator,
    ErrorBudgetConfig,
)
from ulak.control.collector import MetricsCollector, SourceHealth
from ulak.control.config import AdaptiveControlConfig
from ulak.control.controller import (
    AdaptiveController,
    GuardDecision,
    PdfJobStore,
    control_loop_tick,
    install,
)
from ulak.control.decision import DecisionEngine
from ulak.control.guard import GuardConfig
from ulak.control.hysteresis import HysteresisFilter, HysteresisState
from ulak.control.loop import attach
from ulak.control.quantile import Quantile, histogram_quantile
from ulak.control.rate import increase, rate
from ulak.control.report import AdaptiveControllerState
from ulak.control.request_metrics import MetricsMiddleware
from ulak.control.samples import MetricSample, SloEvalResult, SloEvaluator, SloKind, SloTarget
from ulak.control.signals import (
    ControlDecisionEvent,
    ControlSignal,
    PriorityLevel,
    SignalType,
)
from ulak.control.subsystems import Depth, Telemetry, queue_depth, subsystem
from ulak.control.sufficiency import (
    SufficiencyConfig,
    SufficiencyResult,
    TelemetrySufficiencyChecker,
)
from ulak.control.switches import KillSwitchManager
from ulak.control.tallies import Counter, Family, Gauge, Histogram

__all__ = [
    "AdaptiveControlConfig",
    "AdaptiveController",
    "AdaptiveControllerState",
    "AllowlistEntry",
    "AllowlistManager",
    "BudgetReading",
    "BudgetStatus",
    "ControlDecisionEvent",
    "ControlSignal",
    "Counter",
    "DecisionEngine",
    "Depth",
    "ErrorBudgetCalculator",
    "ErrorBudgetConfig",
    "Family",
    "Gauge",
    "GuardConfig",
    "GuardDecision",
    "Histogram",
    "HysteresisFilter",
    "HysteresisState",
    "KillSwitchManager",
    "MetricSample",
    "MetricsCollector",
    "MetricsMiddleware",
    "PdfJobStore",
    "PriorityLevel",
    "Quantile",
    "SignalType",
    "SloEvalResult",
    "SloEvaluator",
    "SloKind",
    "SloTarget",
    "SourceHealth",
    "SufficiencyConfig",
    "SufficiencyResult",
    "Telemetry",
    "TelemetrySufficiencyChecker",
    "attach",
    "control_loop_tick",
    "histogram_quantile",
    "increase",
    "install",
    "queue_depth",
    "rate",
    "subsystem",
]
