"""What it means to take one job by its id: the change that leases it to whoever asked."""

from __future__ import annotations

from typing import Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.change import Change
from ulak.core.draft import Draft
from ulak.core.flow import Flow
from ulak.core.job import OF_STATE, JobRow
from ulak.core.lifecycle import BUSY, CLAIMABLE, READY


def can_be_taken(job: JobRow, now: Instant) -> bool:
    """Tell whether a claim could lease the job now: it is due, and nobody has it."""
    return (
        job.role in CLAIMABLE
        and job.leased_by is None
        and job.parked_on is None
        and job.not_before <= now
    )


def taken(
    flow: Flow[Any], job: JobRow, now: Instant, *, worker: str, commit_id: bytes
) -> Change:  # fmt: skip
    """Return the change that leases a job to a worker, entering its busy state on the way.

    It is guarded by the version, and a leased job takes no such change: of two who take a job,
    or take and claim it, one has it.
    """
    draft = Draft(flow, job, now, commit_id=commit_id, actor=worker)
    busy = flow.table.entries.get(job.state) if job.role == READY else None
    if busy is not None:
        slot = job.slot
        if slot is not None and job.state in flow.table.keeps:
            slot = OF_STATE + slot
        draft.row = job._replace(state=busy, role=BUSY, changed_at=now, slot=slot)
    draft.note(kinds.TAKEN if busy is None else kinds.ENTERED, from_state=job.state)
    draft.row = draft.row._replace(leased_by=worker, leased_at=now, token=job.token + 1, stood=1)
    return draft.change(keep=True)
