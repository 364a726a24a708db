"""A job as its users see it, and as plain JSON data for the command line and HTTP.

Times are datetimes, the id is text, secrets stay hidden.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from ulak.clock import Instant, rfc3339, to_datetime
from ulak.core.flow import Flow
from ulak.core.job import Event, JobRow, column
from ulak.core.job import Message as StoredMessage
from ulak.core.lifecycle import FINAL
from ulak.ids import to_text
from ulak.store import codec

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ulak.core.backlog import Backlog
    from ulak.engine.outbox import Delivery
    from ulak.engine.why import Why

    R = TypeVar("R", default=Any)
else:  # a default of a type variable is known to checkers, and not yet to every Python
    from typing import TypeVar

    R = TypeVar("R")

HIDDEN = "***"


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _read_date(name: str, job: Job) -> datetime | None:
    return _moment(getattr(job._row, name))


def _date(name: str, about: str) -> Any:
    return property(partial(_read_date, name), doc=about)


class Job(Generic[R]):
    """A job as it stood when it was read. Reading again may answer something newer.

    Type checkers know `Job[int]`, a job of a function that returns an int.
    """

    # A view, not a copy: a submit answers one each time, and few callers read more than its id.
    __slots__ = ("_row", "cancel_requested", "created")

    flow: str = column("_row.flow", "The name of its flow.")
    version: int = column(
        "_row.flow_version", "The version of the flow that this job follows to its end."
    )
    state: str = column("_row.state", "Where it stands, in the flow's own words.")
    role: str = column("_row.role", "What the engine may do with it there.")
    tenant: str = column("_row.tenant", "Whose job it is, '' when nobody said.")
    submitter: str = column("_row.submitter", "Who submitted it, '' when nobody said.")
    priority: int = column("_row.priority", "0 is the most urgent of 0..3.")
    round: int = column("_row.round", "1, and one more with every retry by an operator.")
    attempt: int = column("_row.attempt", "Failed attempts at this stage.")
    lapses: int = column("_row.lapses", "Workers that vanished while they ran this stage.")
    code: str | None = column("_row.code", "Why it is held, failed or being undone.")
    created_at: datetime = _date("created_at", "When it was accepted.")
    changed_at: datetime = _date("changed_at", "When it last changed its state.")
    not_before: datetime = _date("not_before", "No worker begins before this.")
    expires_at: datetime | None = _date("expires_at", "When it ends as expired, if ever.")
    scheduled_for: datetime | None = _date(
        "scheduled_for", "The date of the schedule that submitted it, if one did."
    )
    leased_by: str | None = column("_row.leased_by", "The worker that runs it now.")
    parked_on: str | None = column("_row.parked_on", "The limit of which it waits for a slot.")

    def __init__(
        self, row: JobRow, *, created: bool = True, cancel_requested: bool = False
    ) -> None:
        self._row = row
        self.created = created
        """False when a submit found that this job already existed."""
        self.cancel_requested = cancel_requested
        """A cancel waits until the worker that runs it has stopped."""

    @property
    def id(self) -> str:
        """Its id."""
        return to_text(self._row.id)

    @property
    def is_final(self) -> bool:
        """Whether no worker will act on it any more."""
        return self._row.role in FINAL

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.flow} in {self.state!r} ({self.role})>"

    def _facts(self) -> tuple[object, ...]:
        return (self._row, self.created, self.cancel_requested)


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
class JobEvent(TrailEvent):
    """A line of a trail, as a follower gets it, with its job."""

    job: Job
    """As it stands when the events are handed over, which may be further on."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as a handler gets it. It may come again: `id` is then the same."""

    id: str
    job_id: str
    """'' of a message that no stage has sent."""
    topic: str
    key: str
    """Messages of one key are delivered in order."""
    data: Any
    at: datetime
    tries: int = 0
    """How many tries to hand it to this handler have failed."""


def message_view(message: StoredMessage, tries: int = 0) -> Message:
    return Message(
        id=message_id(message), job_id=to_text(message.job_id) if message.seq else "",
        topic=message.topic, key=message.key, data=codec.decode(message.data),
        at=to_datetime(message.at), tries=tries,
    )  # fmt: skip


def message_id(message: StoredMessage) -> str:
    return f"{to_text(message.job_id)}/{message.seq}/{message.n}"


def event_view(event: Event) -> TrailEvent:
    return TrailEvent(
        seq=event.seq, kind=event.kind, from_state=event.from_state, to_state=event.to_state,
        actor=event.actor, code=event.code, message=event.message,
        details=None if event.details is None else codec.decode(event.details.encode()),
        round=event.round, attempt=event.attempt, worker=event.worker,
        started_at=_moment(event.started_at), at=to_datetime(event.at),
    )  # fmt: skip


def hide(flow: Flow[Any] | None, plain: Any) -> Any:
    """Hide the secret fields of a payload; all of it where nobody knows which they are."""
    if flow is not None:
        return _hide(plain, flow.secret)
    return dict.fromkeys(plain, HIDDEN) if isinstance(plain, dict) else HIDDEN


def hide_result(flow: Flow[Any], plain: Any) -> Any:
    """Hide the secret fields of a result."""
    return _hide(plain, flow.secret_results)


def _hide(plain: Any, names: Collection[str]) -> Any:
    if not isinstance(plain, dict):
        return plain
    return {name: HIDDEN if name in names else value for name, value in plain.items()}


JOB_FIELDS = ("id", *Job.__annotations__, "cancel_requested", "is_final")


def job_document(job: Job) -> dict[str, Any]:
    """Show a job; what a submit alone knows is left out."""
    return _with_times({name: getattr(job, name) for name in JOB_FIELDS})


def event_document(event: TrailEvent) -> dict[str, Any]:
    return _with_times(asdict(event))


def why_document(why: Why) -> dict[str, Any]:
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
