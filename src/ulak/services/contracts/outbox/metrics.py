"""The figures of the outbox for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from ulak.services.contracts.outbox.figures import WINDOW, Figures

_OVER = f"over the last {WINDOW.total_seconds():.0f} s"


def metrics_of(figures: Figures) -> Iterator[Metric]:
    """Return the gauges: the same from every process, so that a dashboard takes their maximum."""
    yield GaugeMetricFamily(
        "hos_outbox_backlog", "Events that are to be sent and were not yet.", figures.backlog
    )
    yield GaugeMetricFamily(
        "hos_outbox_oldest_pending_seconds", "How long the oldest of them has been waiting.",
        figures.oldest.total_seconds(),
    )  # fmt: skip
    yield GaugeMetricFamily(
        "hos_outbox_dead", "Events that gave up, each of which blocks its subject.", figures.dead
    )
    yield GaugeMetricFamily(
        "hos_outbox_rejected", "Events that the remote refused, each of which blocks its subject.",
        figures.rejected,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "hos_outbox_drift", "Events that the remote has judged otherwise, ever.", figures.drift
    )
    yield GaugeMetricFamily(
        "hos_outbox_error_ratio", f"Share of attempted events of which an attempt failed, {_OVER}.",
        figures.error_rate,
    )  # fmt: skip
    latency = GaugeMetricFamily(
        "hos_outbox_latency_seconds", f"How long the remote took, {_OVER}; absent without any.",
        labels=["quantile"],
    )  # fmt: skip
    for quantile, took in (("0.95", figures.p95), ("0.99", figures.p99)):
        if took is not None:
            latency.add_metric([quantile], took.total_seconds())
    yield latency
