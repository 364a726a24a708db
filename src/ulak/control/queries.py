"""The two signals of this version: which histogram, over which window, by which method."""

from __future__ import annotations

from dataclasses import dataclass

from ulak.control.config import GUARD_QUERY, PDF_QUERY, AdaptiveControlConfig
from ulak.control.samples import MINUTE_MS
from ulak.control.signals import GUARD, PDF

CONFIG_DRIFT = "config_drift_detected"
"""The alert when a configured query is not the canonical one."""


@dataclass(frozen=True, slots=True)
class CanonicalSignal:
    """What a subsystem is judged by, and the query that says so in PromQL."""

    subsystem_id: str
    query: str
    histogram: str
    quantile: float
    window_ms: int


GUARD_SIGNAL = CanonicalSignal(
    GUARD, GUARD_QUERY, "http_request_duration_seconds", 0.95, 5 * MINUTE_MS
)
PDF_SIGNAL = CanonicalSignal(PDF, PDF_QUERY, "pdf_render_duration_seconds", 0.95, 5 * MINUTE_MS)


def find_drift(config: AdaptiveControlConfig) -> list[str]:
    """Return the fields whose query is not the canonical text, to the letter."""
    canonical = {"guard_slo_query": GUARD_SIGNAL.query, "pdf_slo_query": PDF_SIGNAL.query}
    return [name for name, query in canonical.items() if getattr(config, name) != query]
