"""What a stage sees: its payload, what earlier stages left, and the ways to act on the outside."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack, overload

from ulak.clock import Instant, to_datetime
from ulak.core.bounds import must_be_short, storable_key
from ulak.core.change import RELEASED_ACT, RETRIED_ACT
from ulak.core.event import check_kind
from ulak.core.flow import Flow, Gate, Stage, Wait
from ulak.core.intake import SubmitOptions
from ulak.core.job import JobRow, column
from ulak.core.lifecycle import UNDOING
from ulak.errors import ResultNotReady
from ulak.ids import to_text

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Decision(Generic[D]):
    """One recorded answer."""

    choice: str
    actor: str
    note: str
    at: datetime
    data: D


@dataclass(frozen=True, slots=True)
class PastAct:
    """An operator's release or retry of a job."""

    round: int
    seq: int
    at: datetime
    actor: str


class Stopped(BaseException):
    """Raised by a stage that ends because its run must stop; `run.checkpoint()` raises it.

    The engine knows why: after a drain or a lost lease the job is given back and no
    attempt is spent, after a cancel it is cancelled, after a timeout it has timed out. It is no
    `Exception`, so that `except Exception` does not swallow it.
    """


class Host(Protocol):
    """What the engine does for a run. `Run` is the words, the host is the work."""

    def payload(self) -> Any: ...
    def now(self) -> Instant: ...
    def find_result(self, stage: str, kind: Any) -> tuple[bool, Any]: ...
    def find_decision(self, gate: Gate[Any]) -> Any: ...
    def find_act(self, kind: str, code: str) -> PastAct | None: ...
    def once(self, name: str, function: Callable[[str], Any]) -> Any: ...
    def emit(self, topic: str, data: object, key: str | None) -> None: ...
    def spawn(self, flow: Flow[Any], payloads: Iterable[object], options: Any) -> list[str]: ...
    def progress(self, fraction: float, note: str | None) -> None: ...
    def note(self, kind: str, message: str, details: dict[str, object]) -> None: ...
    def resource(self, kind: type[T]) -> T: ...
    def connection(self) -> Any: ...


class Run(Generic[P]):
    """One attempt at one stage of one job."""

    __slots__ = ("_host", "_job", "_stop")

    log = logging.getLogger("ulak.run")
    """Its lines carry job id, flow, state and attempt, as those of every other logger do."""

    flow: str = column("_job.flow", "The name of the job's flow.")
    state: str = column(
        "_job.state",
        "The state that the job stands in: the `during` state of a stage that has one.",
    )
    tenant: str = column("_job.tenant", "The tenant the job belongs to, '' when there is none.")
    round: int = column("_job.round", "1, and one more after every retry by an operator.")
    token: int = column(
        "_job.token",
        "Rises with every claim of this job: give it to an outside system that can fence.",
    )

    def __init__(self, job: JobRow, host: Host, stop: Callable[[], bool]) -> None:
        self._job = job
        self._host = host
        self._stop = stop

    @property
    def job_id(self) -> str:
        """The job's id."""
        return to_text(self._job.id)

    @property
    def code(self) -> str | None:
        """In an undo, why the job is undone: the code of its failure, `cancelled`, `expired`, or
        the choice that refused it. None in a stage."""
        return self._job.code if self._job.role == UNDOING else None

    @property
    def now(self) -> datetime:
        """The present time by the store's clock, which all workers of the store share."""
        return to_datetime(self._host.now())

    @property
    def payload(self) -> P:
        """What the job was submitted with."""
        return self._host.payload()  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        """1 for the first attempt at this stage; a lost worker does not count as one."""
        return self._job.attempt + 1

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick this job was made for, when a schedule made it."""
        instant = self._job.scheduled_for
        return None if instant is None else to_datetime(instant)

    @property
    def cancelled(self) -> bool:
        """Whether the stage should stop: a cancel, a timeout, a drain, or a lost lease.

        A plain `def` stage must look at this. An async stage is cancelled as well. A
        stage that returns after it has seen this has finished; `checkpoint` says that it has not.
        """
        return self._stop()

    def checkpoint(self) -> None:
        """End the stage here, by `Stopped`, if it should stop; call it wherever it may be run again
        from."""
        if self._stop():
            raise Stopped

    @property
    def connection(self) -> Any:
        """The transaction in which this stage's move commits, for a stage with `transaction=True`.

        What is written with it is stored with the move or not at all: when the stage raises, or its
        lease was lost, everything is taken back. It begins when it is first asked for. Do not
        commit or roll it back; a savepoint is welcome. `BadInput`: the stage is declared without
        `transaction=True`.
        """
        return self._host.connection()

    def result(self, stage: Stage[Any, R]) -> R:
        """Return what an earlier stage returned; `ResultNotReady` if there is nothing, or it was
        undone."""
        found, value = self._host.find_result(stage.state, stage)
        if not found:
            raise ResultNotReady(
                f'job {self.job_id}: the stage for "{stage.state}" has left no result; '
                "use find_result if that may be"
            )
        return value  # type: ignore[no-any-return]

    def find_result(self, stage: Stage[Any, R]) -> R | None:
        """Return what an earlier stage returned, or None when it left nothing."""
        return self._host.find_result(stage.state, stage)[1]  # type: ignore[no-any-return]

    def decision(self, gate: Gate[D]) -> Decision[D]:
        """Return who decided what at a gate; `ResultNotReady` if nobody has."""
        decision: Decision[D] | None = self._host.find_decision(gate)
        if decision is None:
            raise ResultNotReady(f'job {self.job_id}: nobody has decided in "{gate.state}"')
        return decision

    def released(self, code: str) -> PastAct | None:
        """Return the last release from a hold with this code, of any round, or None."""
        return self._host.find_act(RELEASED_ACT, code)

    def retried(self, code: str) -> PastAct | None:
        """Return the last operator's retry of a failure with this code, of any round, or None."""
        return self._host.find_act(RETRIED_ACT, code)

    def signal(self, wait: Wait[D]) -> D:
        """Return what the signal carried that ended a wait; `ResultNotReady` if none has."""
        found, value = self._host.find_result(wait.state, wait)
        if not found:
            raise ResultNotReady(f'job {self.job_id}: no signal has ended "{wait.state}"')
        return value  # type: ignore[no-any-return]

    @overload
    def once(self, name: str, function: Callable[[str], Awaitable[T]]) -> Awaitable[T]: ...
    @overload
    def once(self, name: str, function: Callable[[str], T]) -> T: ...
    def once(self, name: str, function: Callable[[str], Any]) -> Any:
        """Run an outside effect and record its result durably, before this returns.

        In this round the effect does not run again once its result was recorded, whatever
        happens to the worker. Before that it may: `function` is given `key(name)`, so that the
        outside can tell a repetition. In an async stage give it an async function and await.
        """
        return self._host.once(name, function)

    def key(self, name: str) -> str:
        """Return a key for the outside that is the same on every attempt of this round."""
        return effect_key(self._job, name)

    def emit(self, topic: str, data: object, *, key: str | None = None) -> None:
        """Send a message with this stage's move: with it or not at all, at least once.

        Messages of one key are sent in order; the default key is the job. `BadInput`: topic or key
        is no text of 1 to 500 characters that every store can keep, the data has more than 256 KiB
        as JSON, or the move would bring more than 10,000 messages and jobs, or more than 16 MiB of
        them.
        """
        storable_key(topic, "emit: the topic")
        if key is not None:
            storable_key(key, "emit: the key")
        self._host.emit(topic, data, key)

    def spawn(
        self, flow: Flow[T], payloads: Iterable[T], **options: Unpack[SubmitOptions]
    ) -> list[str]:
        """Submit jobs with this stage's move: with it or not at all. Return their ids.

        A job is not submitted if its dedup key is held: the id of the holder is in its place. An
        async stage may not wait for that look, so the list that it was given is corrected when the
        stage has ended: return the list itself. `BadInput`: as `Engine.submit_many` raises it, or
        as `emit` does for too many.
        """
        return self._host.spawn(flow, payloads, options)

    def note(self, kind: str, message: str = "", /, **details: object) -> None:
        """Write a line into the trail with the commit that ends this run, whatever it came to.

        A run that is lost, or given back, leaves none. `kind` is your own: lower-case words with a
        dot, such as `orders.priced`, stored for ever. `BadInput`: the kind is no such word, the
        details are no JSON or have more than 256 KiB, or the move would bring more than 10,000
        messages, jobs and notes.
        """
        self._host.note(check_kind(kind), must_be_short(message), details)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far the stage is, 0 to 1. Kept at most once a second, not in the trail."""
        self._host.progress(fraction, note)

    def resource(self, kind: type[T]) -> T:
        """Return this worker's resource of that type, as given to the engine."""
        return self._host.resource(kind)


def effect_key(job: JobRow, name: str) -> str:
    """Name one effect of a job for the outside, the same on every attempt of a round. The effects
    of an undo have names of their own, so that none is taken for its stage's."""
    return f"{to_text(job.id)}/{job.round}/{effect_name(job, name)}"


def effect_name(job: JobRow, name: str) -> str:
    return f"undo/{name}" if job.role == UNDOING else name


_FACTS: Final = ("job_id", "flow", "state", "attempt")

# A context variable: whatever a stage calls, in tasks of its own and on threads that copy its
# context, belongs to its run. It holds the row of the job alone: were it the run, then a task, its
# context and its run would keep each other alive.
_NOW: ContextVar[JobRow | None] = ContextVar("ulak_run", default=None)

set_logged_run: Final[Callable[[JobRow], Token[JobRow | None]]] = _NOW.set
"""Say which job's stage runs in this context, for the log."""
reset_logged_run: Final[Callable[[Token[JobRow | None]], None]] = _NOW.reset


def run_facts(row: JobRow) -> dict[str, object]:
    return {
        "job_id": to_text(row.id), "flow": row.flow, "state": row.state,
        "attempt": row.attempt + 1,
    }  # fmt: skip


def mark_records() -> None:
    """Have every record that a stage makes carry its run, whichever logger makes it: for the whole
    process, and once. Handlers and formats stay as the program has set them up."""
    usual = logging.getLogRecordFactory()
    if not isinstance(usual, _Marking):
        logging.setLogRecordFactory(_Marking(usual))


class _Marking:
    """Makes records as the program does, and adds the run that is under way."""

    def __init__(self, usual: Callable[..., logging.LogRecord]) -> None:
        self._usual = usual

    def __call__(self, *arguments: Any, **options: Any) -> logging.LogRecord:
        record = self._usual(*arguments, **options)
        row = _NOW.get()
        if row is not None:
            record.__dict__ = _Attributes(run_facts(row) | record.__dict__)
        return record


class _Attributes(dict[str, Any]):
    """The attributes of a record. Logging refuses an `extra=` that is there already, and a line
    may well say another state: that of the run does not count as being there."""

    def __contains__(self, name: object) -> bool:
        return name not in _FACTS and super().__contains__(name)
