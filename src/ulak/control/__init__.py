"""What processes measure of themselves, and what is made of it."""

from ulak.control.budget import (
    BudgetReading,
    BudgetStatus,
    ErrorBudgetCalculator,
    ErrorBudgetConfig,
)
from ulak.control.collector import MetricsCollector, SourceHealth
from ulak.control.quantile import Quantile, histogram_quantile
from ulak.control.rate import increase, rate
from ulak.control.samples import MetricSample, SloEvalResult, SloEvaluator, SloKind, SloTarget
from ulak.control.sufficiency import (
    SufficiencyConfig,
    SufficiencyResult,
    TelemetrySufficiencyChecker,
)

__all__ = [
    "BudgetReading",
    "BudgetStatus",
    "ErrorBudgetCalculator",
    "ErrorBudgetConfig",
    "MetricSample",
    "MetricsCollector",
    "Quantile",
    "SloEvalResult",
    "SloEvaluator",
    "SloKind",
    "SloTarget",
    "SourceHealth",
    "SufficiencyConfig",
    "SufficiencyResult",
    "TelemetrySufficiencyChecker",
    "histogram_quantile",
    "increase",
    "rate",
]
