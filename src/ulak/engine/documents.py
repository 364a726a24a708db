"""Jobs and trails as plain JSON data: the same names on the command line and over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from ulak.clock import rfc3339
from ulak.core.backlog import Backlog
from ulak.engine.outbox import Delivery
from ulak.engine.view import Job, TrailEvent
from ulak.engine.why import Why

JOB_FIELDS = (
    "id",
    "flow",
    "version",
    "state",
    "role",
    "tenant",
    "submitter",
    "priority",
    "round",
    "attempt",
    "lapses",
    "code",
    "created_at",
    "changed_at",
    "not_before",
    "expires_at",
    "scheduled_for",
    "leased_by",
    "parked_on",
    "cancel_requested",
    "is_final",
)


def job_document(job: Job) -> dict[str, Any]:
    """Show a job; what a submit alone knows is left out."""
    return _with_times({name: getattr(job, name) for name in JOB_FIELDS})


def event_document(event: TrailEvent) -> dict[str, Any]:
    """Show one line of a trail."""
    return _with_times(asdict(event))


def why_document(why: Why) -> dict[str, Any]:
    """Show why a job stands where it stands."""
    return {"code": why.code, "sentence": why.sentence, "facts": _with_times(dict(why.facts))}


DELIVERY_FIELDS = (
    "id", "handler", "job_id", "topic", "key", "state", "tries", "at", "sent_at", "error",
)  # fmt: skip


def delivery_document(delivery: Delivery) -> dict[str, Any]:
    """Show a delivery, but for what it carries."""
    return _with_times({name: getattr(delivery, name) for name in DELIVERY_FIELDS})


def backlog_document(row: Backlog) -> dict[str, Any]:
    """Show how the jobs of a flow stand in a queue."""
    return _with_times({**asdict(row), "at_least": sorted(row.at_least)})


def _with_times(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: rfc3339(value) if isinstance(value, datetime) else value
        for name, value in document.items()
    }
