"""Jobs and trails as plain JSON data: the same names on the command line and over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from ulak.clock import rfc3339
from ulak.engine.view import Job, TrailEvent


def job_document(job: Job) -> dict[str, Any]:
    """Show a job; what a submit alone knows is left out."""
    document = asdict(job)
    del document["created"]
    return {**_with_times(document), "is_final": job.is_final}


def event_document(event: TrailEvent) -> dict[str, Any]:
    """Show one line of a trail."""
    return _with_times(asdict(event))


def _with_times(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: rfc3339(value) if isinstance(value, datetime) else value
        for name, value in document.items()
    }
