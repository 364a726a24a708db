"""The two signals of this version: which histogram, over which window, by which method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CONFIG_DRIFT = "config_drift_detected"
"""The alert when a configured query is not the canonical one."""


@dataclass(frozen=True, slots=True)
class CanonicalQuery:
    """What a subsystem is judged by, and the text that says so."""

    subsystem_id: str
    text: str
    histogram: str
    quantile: float
    window_ms: int


GUARD_QUERY = CanonicalQuery(
    "guard",
    "histogram_quantile(0.95, rate(http_request_duration_seconds_bucket[5m]))",
    "http_request_duration_seconds",
    0.95,
    300_000,
)
PDF_QUERY = CanonicalQuery(
    "pdf",
    "histogram_quantile(0.95, rate(pdf_render_duration_seconds_bucket[5m]))",
    "pdf_render_duration_seconds",
    0.95,
    300_000,
)


class ConfiguredQueries(Protocol):
    """As much of the configuration as says what is measured."""

    @property
    def guard_slo_query(self) -> str: ...

    @property
    def pdf_slo_query(self) -> str: ...


def find_drift(config: ConfiguredQueries) -> list[str]:
    """Return the fields whose query is not the canonical text, to the letter."""
    configured = {
        "guard_slo_query": (config.guard_slo_query, GUARD_QUERY),
        "pdf_slo_query": (config.pdf_slo_query, PDF_QUERY),
    }
    return [name for name, (text, query) in configured.items() if text != query.text]
