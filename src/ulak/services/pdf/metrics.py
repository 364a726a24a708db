"""The metrics of the service, by the names that its specification gives them.

What happened to jobs is read from the store (`totals`), so every process shows the same figures
and a dashboard takes their maximum. What was answered 503 is counted here: the store that would
remember it is what does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ulak import Engine
from ulak.control.tallies import ALONE as NO_LABELS
from ulak.control.tallies import Counter
from ulak.kit.clock import now
from ulak.services.pdf import totals
from ulak.services.pdf.callbacks import FLOW as CALLBACKS
from ulak.services.pdf.callbacks import STATES as CALLBACK_STATES
from ulak.services.pdf.document import REASONS
from ulak.services.pdf.failsafe import count_queued, count_workers
from ulak.services.pdf.flow import FLOW
from ulak.services.pdf.model import JOB_CODES
from ulak.services.pdf.totals import ABOVE, ALONE, BOUNDS, STATUSES, SUM, Figures, Totals

COUNTERS: Final = (
    (
        totals.JOBS, "ptf_admin_pdf_jobs", "status", STATUSES,
        "Transitions of jobs into each status, creation included.",
    ),
    (
        totals.FAILURES, "ptf_admin_pdf_failures", "error_code", tuple(map(str, JOB_CODES)),
        "Attempts that failed, by code.",
    ),
    (
        totals.RETRIES, "ptf_admin_pdf_retries", None, (ALONE,),
        "Failed jobs that were queued again.",
    ),
    (
        totals.BLOCKED, "ptf_admin_pdf_url_blocked", "reason", REASONS,
        "Requests of pages that were refused, by reason.",
    ),
)  # fmt: skip
"""Of each: its total, its name without `_total`, its label and every value of that, its help."""
HISTOGRAMS: Final = (
    (totals.RENDER, "pdf_render_duration_seconds", "How long one attempt rendered."),
    (
        totals.WHOLE, "ptf_admin_pdf_render_total_seconds",
        "From the acceptance of a job until it succeeded or gave up.",
    ),
    (
        totals.EXECUTOR, "ptf_admin_pdf_render_executor_seconds",
        "How long one attempt kept a browser: opening, loading and printing.",
    ),
    (totals.BYTES, "ptf_admin_pdf_artifact_bytes", "How large the PDFs are that were stored."),
)  # fmt: skip
UNAVAILABLE: Final = "ptf_admin_pdf_unavailable"


class PdfMetrics:
    """Everything that one process shows of the service."""

    def __init__(self, engine: Engine, *, heartbeat: timedelta) -> None:
        self._engine = engine
        self._heartbeat = heartbeat
        self.totals = Totals(engine)
        self._unavailable = Counter(
            UNAVAILABLE, "Creates and reads that this process answered with 503.",
            known=[NO_LABELS],
        )  # fmt: skip

    def count_unavailable(self) -> None:
        """A request was answered 503."""
        self._unavailable.add(NO_LABELS)

    def tallies(self) -> Iterator[Metric]:
        """Return what this process has counted itself."""
        yield self._unavailable.family()

    def read(self) -> Iterator[Metric]:
        """Return everything else, from the store. Raises StoreError: the store does not answer."""
        figures = self.totals.read()
        yield from families_of(figures)
        yield GaugeMetricFamily(
            "ptf_admin_pdf_queue_depth", "Jobs that are queued and due.", count_queued(self._engine)
        )
        backlog = self._engine.inspect.backlog()
        began = [row.oldest_leased for row in backlog if row.flow == FLOW and row.oldest_leased]
        moment = now(self._engine)
        yield GaugeMetricFamily(
            "ptf_admin_pdf_oldest_running_seconds",
            "How long the oldest of the running jobs has been running; 0 when none is.",
            max(0.0, (moment - min(began, default=moment)).total_seconds()),
        )
        family = GaugeMetricFamily(
            "ptf_admin_pdf_callbacks", "Callbacks that are kept, by where they stand.",
            labels=["state"],
        )  # fmt: skip
        counts = self._engine.inspect.counts()
        counted = {row.state: row.jobs for row in counts if row.flow == CALLBACKS}
        for state in CALLBACK_STATES:
            family.add_metric([state], counted.get(state, 0))
        yield family
        yield GaugeMetricFamily(
            "ptf_admin_pdf_workers", "Workers of the queue that were heard of lately.",
            count_workers(self._engine, heartbeat=self._heartbeat),
        )  # fmt: skip


def families_of(figures: Figures) -> Iterator[Metric]:
    """Return what was counted; every label is there from the beginning, at 0: a rate needs the
    zero before the one."""
    for name, shown, label, values, help in COUNTERS:
        counter = CounterMetricFamily(shown, help, labels=[] if label is None else [label])
        for value in values:
            counter.add_metric(
                [] if label is None else [value], figures.totals.get((name, value), 0.0)
            )
        yield counter
    for name, shown, help in HISTOGRAMS:
        below, buckets = 0.0, []
        for bound in (*map(str, BOUNDS[name]), ABOVE):
            below += figures.totals.get((name, bound), 0.0)
            buckets.append((bound, below))
        histogram = HistogramMetricFamily(shown, help)
        histogram.add_metric([], buckets, figures.totals.get((name, SUM), 0.0))
        yield histogram
