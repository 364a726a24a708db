"""A job as the specification has it, put together from what the engine keeps of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ulak import Engine, Job
from ulak.core.job import JobRow
from ulak.engine.view import TrailEvent
from ulak.kit.clock import to_datetime
from ulak.kit.ids import to_text
from ulak.services.pdf.flow import STATUSES, entries_of
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.submitting import NewPdfJob


def view_of(engine: Engine, row: JobRow) -> PdfJob:
    """Return a job of the flow `pdf` as it stood when its row was read.

    Args:
        engine: For its payload, its trail, its result and its owners.
        row: The job.
    """
    job_id = to_text(row.id)
    given = engine.inspect.payload(job_id, reveal=True)
    times = _times_of(engine.inspect.trail(job_id))
    status = STATUSES[row.state]
    report = engine.inspect.result(job_id) if row.has_results else None
    # Jobs of the release before have no owners but this one.
    owners = {*engine.owners.all(job_id), row.submitter} - {""}
    return PdfJob(
        job_id, row.dedup_key or given["job_key"], status, given["template_name"],
        given["payload"], created_at=to_datetime(row.created_at),
        artifact_key=None if report is None else report.get("artifact_key"),
        **times, tenant_id=row.tenant, owners=frozenset(owners), attempt_id=row.token,
        heartbeat_at=_heard_of(engine, row) if status is PdfJobStatus.RUNNING else None,
        correlation_id=given.get("correlation_id", ""),
    )  # fmt: skip


def view_of_new(new: NewPdfJob, submitted: Job) -> PdfJob:
    """Return a job as it was stored; a worker may have it already."""
    made = new.payload
    return PdfJob(
        submitted.id, made.job_key, PdfJobStatus.QUEUED, made.template_name, made.payload,
        created_at=submitted.created_at, tenant_id=submitted.tenant,
        owners=frozenset({submitted.submitter} - {""}), correlation_id=made.correlation_id,
    )  # fmt: skip


def _heard_of(engine: Engine, row: JobRow) -> datetime | None:
    """Tell when the worker that runs a job was last heard of."""
    renewed = (w.renewed_at for w in engine.store.workers() if w.id == row.leased_by)
    return next(map(to_datetime, renewed), None)


def _times_of(trail: list[TrailEvent]) -> dict[str, Any]:
    """Read what the trail tells of the latest attempt, and how many there were before it."""
    latest: dict[str, Any] = {}
    retries = 0
    for event in trail:
        for entry in entries_of(event):
            if entry.status is PdfJobStatus.QUEUED:
                latest = {}
                retries += entry.is_retry
            elif entry.status is PdfJobStatus.RUNNING:
                latest = {"started_at": event.at}
            elif entry.status is not PdfJobStatus.EXPIRED:
                latest |= {
                    "finished_at": event.at,
                    "error_code": entry.error_code,
                    "error_detail": entry.error_detail,
                }
    return {**latest, "retry_count": retries}
