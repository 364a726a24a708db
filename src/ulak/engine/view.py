"""A job as its users see it: times are datetimes, the id is text, secrets stay hidden."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from ulak.clock import Instant, to_datetime
from ulak.core.flow import Flow
from ulak.core.job import Event, JobRow
from ulak.core.job import Message as StoredMessage
from ulak.core.lifecycle import FINAL
from ulak.ids import to_text
from ulak.store import codec

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
else:  # a default of a type variable is known to checkers, and not yet to every Python
    from typing import TypeVar

    R = TypeVar("R")

HIDDEN = "***"


class Job(Generic[R]):
    """A job as it stood when it was read. Reading again may answer something newer.

    Type checkers know `Job[int]`, a job of a function that returns an int.
    """

    # A view, not a copy: a submit answers one each time, and few callers read more than its id.
    __slots__ = ("_row", "cancel_requested", "created")

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
    def flow(self) -> str:
        """The name of its flow."""
        return self._row.flow

    @property
    def version(self) -> int:
        """The version of the flow that this job follows to its end."""
        return self._row.flow_version

    @property
    def state(self) -> str:
        """Where it stands, in the flow's own words."""
        return self._row.state

    @property
    def role(self) -> str:
        """What the engine may do with it there."""
        return self._row.role

    @property
    def tenant(self) -> str:
        """Whose job it is, '' when nobody said."""
        return self._row.tenant

    @property
    def submitter(self) -> str:
        """Who submitted it, '' when nobody said."""
        return self._row.submitter

    @property
    def priority(self) -> int:
        """0 is the most urgent of 0..3."""
        return self._row.priority

    @property
    def round(self) -> int:
        """1, and one more with every retry by an operator."""
        return self._row.round

    @property
    def attempt(self) -> int:
        """Failed attempts at this stage."""
        return self._row.attempt

    @property
    def lapses(self) -> int:
        """Workers that vanished while they ran this stage."""
        return self._row.lapses

    @property
    def code(self) -> str | None:
        """Why it is held, failed or being undone."""
        return self._row.code

    @property
    def created_at(self) -> datetime:
        """When it was accepted."""
        return to_datetime(self._row.created_at)

    @property
    def changed_at(self) -> datetime:
        """When it last changed its state."""
        return to_datetime(self._row.changed_at)

    @property
    def not_before(self) -> datetime:
        """No worker begins before this."""
        return to_datetime(self._row.not_before)

    @property
    def expires_at(self) -> datetime | None:
        """When it ends as expired, if ever."""
        return _moment(self._row.expires_at)

    @property
    def scheduled_for(self) -> datetime | None:
        """The date of the schedule that submitted it, if one did."""
        return _moment(self._row.scheduled_for)

    @property
    def leased_by(self) -> str | None:
        """The worker that runs it now."""
        return self._row.leased_by

    @property
    def parked_on(self) -> str | None:
        """The limit of which it waits for a slot."""
        return self._row.parked_on

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
    """Show a message of the outbox."""
    return Message(
        id=message_id(message), job_id=to_text(message.job_id) if message.seq else "",
        topic=message.topic, key=message.key, data=codec.decode(message.data),
        at=to_datetime(message.at), tries=tries,
    )  # fmt: skip


def message_id(message: StoredMessage) -> str:
    """Return the id of a message for the outside."""
    return f"{to_text(message.job_id)}/{message.seq}/{message.n}"


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


def hide(flow: Flow[Any] | None, plain: Any) -> Any:
    """Hide the secret fields of a payload; all of it where nobody knows which they are."""
    if not isinstance(plain, dict):
        return HIDDEN if flow is None else plain
    return {k: HIDDEN if flow is None or k in flow.secret else v for k, v in plain.items()}
