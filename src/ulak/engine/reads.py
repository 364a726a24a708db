"""How jobs stand: the engine's verbs that change nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast, overload

from ulak.clock import Duration, read_micros, seconds, to_datetime
from ulak.core.bounds import must_fit, short_key
from ulak.core.flow import Flow, Gate, Stage, names
from ulak.core.job import JobRow, Payload, Result
from ulak.core.lifecycle import DONE, FINAL
from ulak.core.run import Decision, PastAct
from ulak.engine.stage_outcomes import PayloadUnreadable, returns
from ulak.engine.view import Job
from ulak.engine.why import why
from ulak.errors import (
    BadInput,
    JobFailed,
    NotSupported,
    StoreError,
    TransitionNotAllowed,
    WriteRefused,
)
from ulak.ids import from_text
from ulak.store import codec
from ulak.store.protocol import JobFilter
from ulak.store.transaction import TransactionStore, holding

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


R = TypeVar("R")

EVERY_JOB = JobFilter()
# The event that ended a job is among so many of the last: few follow an end.
LOOK_BACK = 20


class Reads:
    """How jobs stand. A foreign flow's jobs can be read, but not acted upon."""

    kernel: Kernel

    def get(self, job_id: str) -> Job:
        """Return a job as it stands now; `JobNotFound` if there is none."""
        row = self.kernel.get_row(job_id)
        asked = row.requests > 0 and any(
            r.kind == "cancel" for r in self.kernel.store.pending_requests(row.id)
        )
        return Job(row, cancel_requested=asked)

    def find(self, flow: str, key: str, *, tenant: str = "") -> Job | None:
        """Return the job that holds a dedup key now, or None when it is free."""
        found = self.kernel.open().store.find_key(tenant, flow, short_key(key))
        row = None if found is None else self.kernel.store.find_job(found)
        return None if row is None else Job(row)

    def jobs(
        self, where: JobFilter = EVERY_JOB, *, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return jobs, newest first; `after` is the id of the last one of the page before.

        A filter that no index serves says so (`where.unserved`).
        """
        cursor = None if after is None else from_text(after)
        return [
            Job(r) for r in self.kernel.open().store.list_jobs(where, after=cursor, limit=limit)
        ]

    @overload
    def result(self, job: Job[R]) -> R: ...
    @overload
    def result(self, job: str) -> Any: ...
    def result(self, job: Job[Any] | str) -> Any:
        """Return what the last stage that returned something has returned, or None, as the type
        that the stage, or the job function, says it returns.

        `JobFailed`: it failed, was cancelled or expired. `TransitionNotAllowed`: it has not ended
        (`not-finished`), or this program does not declare its flow. `BadInput`: what is stored is
        not of that type.
        """
        job_id = job if isinstance(job, str) else job.id
        row = must_have_succeeded(self.kernel, job_id)
        flow = self.kernel.get_flow(row)
        found = find_result(self.kernel, row, flow)
        if found is None:
            return None
        try:
            return codec.decode(found.data, self._type_of(flow, found.stage))
        except BadInput as error:
            raise BadInput(
                f'job {job_id}: the result of "{found.stage}": {error}; '
                "engine.inspect.result reads it as plain data"
            ) from None

    def _type_of(self, flow: Flow[Any], state: str) -> Any:
        function = self.kernel.functions.get(flow)
        if function is not None:
            return returns(function.function)
        stage = next(s for s in flow.declared.stages if s.state == state)
        return returns(stage.function)

    # --- its database ----------------------------------------------------------

    @contextmanager
    def transaction(self, *, quiet: bool = False) -> Iterator[Any]:
        """Open a transaction of the store's database; answers the driver's connection.

        It commits at the end of the block, and an exception takes everything back. Jobs that are
        submitted with `connection=` are part of it. On SQLite nobody else writes meanwhile, so
        keep it short, and do not use the engine inside but by `connection=`. With `quiet` it wakes
        no worker: for rows of yours alone.

        Raises:
            NotSupported: the store has no transaction to share.
            BadInput: the transaction was ended inside; nothing was written.
            Contended: others write for too long; nothing was written.
            StoreError: nothing was written, or it is not known.
        """
        opened = self._transactions("transaction").begin(quiet=quiet)
        try:
            store = self.kernel.store
            with holding(store) if store.features.one_writer else nullcontext():
                yield opened.connection
            opened.commit()
        finally:
            opened.roll_back()

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend the driver's connection for reading only: nobody waits for it, on SQLite neither.

        Raises:
            NotSupported: the store has no transaction to share.
            StoreError: the database does not answer.
        """
        with self._transactions("reading").reading() as connection:
            yield connection

    def _transactions(self, verb: str) -> TransactionStore:
        store = self.kernel.open().store
        if not store.features.open_transactions:
            raise NotSupported(
                f"engine.{verb}() is not to be had from the {store.features.name} store: it "
                "has no transaction that rows of yours could be in; connect to SQLite or "
                "PostgreSQL"
            )
        return cast(TransactionStore, store)


def must_have_succeeded(kernel: Kernel, job_id: str) -> JobRow:
    """Return the row of a job that has ended well; `Engine.result` says what else is raised."""
    row = kernel.get_row(job_id)
    if row.role == DONE:
        return row
    if row.role not in FINAL:
        raise TransitionNotAllowed(
            f'job {job_id} has not ended, it is in "{row.state}"; engine.wait waits for its end',
            code="not-finished",
            state=row.state,
        )
    events = kernel.store.trail(row.id, after=max(0, row.seq - LOOK_BACK), limit=LOOK_BACK)
    last = next((e for e in reversed(events) if e.from_state != e.to_state == row.state), None)
    code = row.code or (last and last.code) or row.role
    message = "" if last is None else last.message or ""
    text = f'job {job_id} has ended in "{row.state}" ({code})'
    raise JobFailed(
        f"{text}: {message}" if message else text,
        job_id=job_id, state=row.state, code=code, message=message,
    )  # fmt: skip


def find_result(kernel: Kernel, row: JobRow, flow: Flow[Any]) -> Result | None:
    """Return what the last stage that returned something has left, however the job stands."""
    stages = {s.state for s in flow.declared.stages}
    stored = kernel.store.find_results(row.id) if row.has_results else []
    left = [r for r in stored if r.name == "" and r.stage in stages]
    if len(left) <= 1:
        return left[0] if left else None
    moved = [e.from_state for e in kernel.store.trail(row.id)]
    order = {_stage_of(flow, state): n for n, state in enumerate(moved) if state is not None}
    return max(left, key=lambda r: (r.round, order.get(r.stage, -1)))


def _stage_of(flow: Flow[Any], state: str) -> str:
    place = flow.table.places.get(state)
    return state if place is None or place.stage is None else place.stage.state


log = logging.getLogger("ulak.engine")

POLL_S = 0.2
# Other processes must first learn of a wait, before they ring for it.
SECOND_LOOK_S = 0.01
# Between two looks, so that many waits in a busy process leave it most of the time.
REST_PER_LOOK: Final = 3.0


class Waiting:
    """One wait for one job: `look` until there is an answer, `rest_s` and `pause_s` in between.
    `ring` is called from any thread when it is time to look again."""

    def __init__(
        self,
        reads: Reads,
        job_id: str,
        *,
        until: str | None,
        timeout: Duration | None,
        ring: Callable[[], None],
    ) -> None:
        self._reads = reads
        self._job_id = job_id
        self._until = until
        self._ring = ring
        self._timeout = timeout
        self._deadline = None
        if timeout is not None:
            self._deadline = time.monotonic() + read_micros(timeout, "timeout=") / 1e6
        self._looks = 0
        self._store_error: StoreError | None = None
        self._stop: Callable[[], None] = lambda: None
        self.rest_s = 0.0
        """For how long not to look again, whatever rings."""

    def __enter__(self) -> Self:
        self._stop = self._reads.kernel.open().store.on_move(self._ring)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    @property
    def pause_s(self) -> float:
        """For how long to sleep at most before the next look."""
        pause = SECOND_LOOK_S if self._looks == 1 else POLL_S
        if self._deadline is not None:
            pause = min(pause, self._deadline - time.monotonic())
        return max(0.0, pause)

    def look(self) -> Job[Any] | None:
        """Return the job if it has come so far, else None. Blocks while the store is read. A store
        that does not answer is tried again at the next look. Raises as `Engine.wait` does."""
        began = time.monotonic()
        job = self._read()
        self._looks += 1
        if job is not None:
            must_be_a_state(self._reads.kernel, job, self._until)
            if job.is_final or job.state == self._until:
                return job
        ended = time.monotonic()
        if self._deadline is not None and ended >= self._deadline:
            raise TimeoutError(self._complain(job))
        self.rest_s = min(REST_PER_LOOK * (ended - began), self.pause_s)
        return None

    def _read(self) -> Job[Any] | None:
        try:
            job = self._reads.get(self._job_id)
        except WriteRefused:
            raise
        except StoreError as error:
            if self._store_error is None:
                log.warning("a wait goes on without the store", extra={"error": str(error)})
            self._store_error = error
            return None
        self._store_error = None
        return job

    def _complain(self, job: Job[Any] | None) -> str:
        waited = f"after {seconds(self._timeout or 0):g} s"
        if job is None:
            return f"job {self._job_id}: the store does not answer {waited}: {self._store_error}"
        said = f'job {self._job_id} is still in "{job.state}" {waited}'
        try:
            return f"{said}: {why(self._reads.kernel, self._job_id).sentence}"
        except StoreError:
            return said


def must_wait_for(timeout: Duration | None, options: Mapping[str, object]) -> None:
    """Raise `BadInput` for a call that could not be waited for, before anything is submitted."""
    if timeout is not None:
        read_micros(timeout, "timeout=")
    if options.get("connection") is not None:
        raise BadInput(
            "engine.call waits for a job, which is not stored before your transaction has ended; "
            "use engine.submit(..., connection=...), and engine.wait after the commit"
        )


def must_be_a_state(kernel: Kernel, job: Job[Any], until: str | None) -> None:
    """Raise `BadInput` for a state that the job's flow does not have: the wait would be in vain."""
    flow = None if until is None else kernel.find_flow(job.flow, job.version)
    if flow is not None and until not in flow.table.places:
        raise BadInput(
            f"{job.flow} has no state {until!r}; it has {names(list(flow.table.places))}"
        )


class Results:
    """The stored results of one job. A stage sees its latest round; an effect only this one."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Iterable[Result]) -> None:
        self._stored = {(r.stage, r.name, r.round): r.data for r in stored}

    def find(self, stage: str, kind: Any) -> tuple[bool, Any]:
        """Return whether a stage or a wait left something, and what, as its declared type."""
        data = self._latest(stage)
        if data is None:
            return False, None
        wanted = returns(kind.function) if isinstance(kind, Stage) else kind.data or Any
        try:
            return True, codec.decode(data, wanted)
        except BadInput as error:
            raise PayloadUnreadable(f'the result of "{stage}": {error}') from error

    def find_decision(self, gate: Gate[Any]) -> Decision[Any] | None:
        """Return what was decided at a gate, or None."""
        data = self._latest(gate.state)
        return None if data is None else read_decision(data, gate)

    def find_act(self, kind: str, code: str) -> PastAct | None:
        """Return the last release or retry of a job that was held or failed with a code."""
        rounds = [r for stage, name, r in self._stored if (stage, name) == (kind, code)]
        if not rounds:
            return None
        said = codec.decode(self._stored[kind, code, max(rounds)])
        return PastAct(max(rounds), said["seq"], to_datetime(said["at"]), said["actor"])

    def recorded(
        self, stage: str, name: str, round_: int, function: Callable[..., Any]
    ) -> tuple[bool, Any]:
        """Return whether an effect's result is recorded in this round, and which it is."""
        data = self._stored.get((stage, name, round_))
        if data is None:
            return False, None
        return True, codec.decode(data, returns(function))

    def _latest(self, stage: str) -> bytes | None:
        rounds = [r for s, name, r in self._stored if s == stage and name == ""]
        return self._stored[(stage, "", max(rounds))] if rounds else None


def write_decision(choice: str, actor: str, note: str, at: int, data: object) -> bytes:
    """Return a decision as the gate's result; `BadInput` if it is too large."""
    said = {"choice": choice, "actor": actor, "note": note, "at": at, "data": data}
    return must_fit(codec.encode(said), "this decision")


def read_decision(data: bytes, gate: Gate[Any]) -> Decision[Any]:
    """Read a decision back, its data as the gate declares."""
    said = codec.decode(data)
    carried = said["data"]
    if gate.data is not None and carried is not None:
        carried = codec.convert(carried, gate.data)
    return Decision(said["choice"], said["actor"], said["note"], to_datetime(said["at"]), carried)


def read_payload(flow: Flow[Any], payload: Payload) -> Any:
    """Decode a payload, through the flow's `upgrade` when it was stored in an older shape.
    `PayloadUnreadable`: it does not fit the declared type."""
    kind = Any if flow.payload is None else flow.payload
    try:
        if payload.schema == flow.schema or flow.upgrade is None:
            return codec.decode(payload.data, kind)
        return codec.convert(flow.upgrade(payload.schema, codec.decode(payload.data)), kind)
    except (BadInput, LookupError, TypeError, ValueError) as error:
        raise PayloadUnreadable(
            f"the payload (schema {payload.schema}) cannot be read: {error}"
        ) from error
