"""A job as its users see it: times are datetimes, the id is text, secrets stay hidden."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ulak.clock import Instant, to_datetime
from ulak.core.job import Event, JobRow
from ulak.core.job import Message as StoredMessage
from ulak.core.lifecycle import FINAL
from ulak.ids import to_text
from ulak.store import codec


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stood when it was read. Reading again may answer something newer."""

    id: str
    flow: str
    version: int
    """The version of the flow that this job follows to its end."""
    state: str
    role: str
    tenant: str
    submitter: str
    priority: int
    round: int
    attempt: int
    lapses: int
    code: str | None
    """Why it is held, failed or being undone."""
    created_at: datetime
    changed_at: datetime
    not_before: datetime
    expires_at: datetime | None
    leased_by: str | None
    parked_on: str | None
    cancel_requested: bool
    created: bool = True
    """False when a submit found that this job already existed."""

    @property
    def is_final(self) -> bool:
        """Whether no worker will act on it any more."""
        return self.role in FINAL


@dataclass(frozen=True, slots=True)
class TrailEvent:
    """One committed line of a job's trail, for people and programs outside."""

    seq: int
    kind: str
    from_state: str | None
    to_state: str
    actor: str
    code: str | None
    message: str | None
    details: Any
    round: int
    attempt: int
    worker: str | None
    started_at: datetime | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Message:
    """One outbox message, as a publisher gets it. It may come again: `id` is then the same."""

    id: str
    job_id: str
    topic: str
    key: str
    """Messages of one key are published in order."""
    data: Any
    at: datetime


def message_view(message: StoredMessage) -> Message:
    """Show a line of the outbox."""
    job_id = to_text(message.job_id)
    return Message(
        id=f"{job_id}/{message.seq}/{message.n}", job_id=job_id, topic=message.topic,
        key=message.key, data=codec.decode(message.data), at=to_datetime(message.at),
    )  # fmt: skip


def job_view(row: JobRow, *, created: bool = True, cancel_requested: bool = False) -> Job:
    """Show a stored row."""
    # By position: submit answers one of these each time, and naming the fields takes twice as long.
    return Job(
        to_text(row.id), row.flow, row.flow_version, row.state, row.role, row.tenant,
        row.submitter, row.priority, row.round, row.attempt, row.lapses, row.code,
        to_datetime(row.created_at), to_datetime(row.changed_at), to_datetime(row.not_before),
        None if row.expires_at is None else to_datetime(row.expires_at), row.leased_by,
        row.parked_on, cancel_requested, created,
    )  # fmt: skip


def event_view(event: Event) -> TrailEvent:
    """Show a stored event."""
    return TrailEvent(
        seq=event.seq, kind=event.kind, from_state=event.from_state, to_state=event.to_state,
        actor=event.actor, code=event.code, message=event.message,
        details=None if event.details is None else codec.decode(event.details.encode()),
        round=event.round, attempt=event.attempt, worker=event.worker,
        started_at=_moment(event.started_at), at=to_datetime(event.at),
    )  # fmt: skip


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
