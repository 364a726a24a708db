"""How jobs stand: the engine's verbs that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from ulak.core.flow import Flow
from ulak.core.job import JobRow, Result
from ulak.core.keys import short_key
from ulak.core.lifecycle import DONE, FINAL
from ulak.engine.stage_outcomes import returns
from ulak.engine.view import Job
from ulak.errors import BadInput, JobFailed, NotSupported, TransitionNotAllowed
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
        """Return a job as it stands now.

        Raises:
            JobNotFound: there is none.
        """
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
        """Return what the last stage that returned something has returned, or None.

        It is read as the type that the stage, or the job function, says it returns.

        Raises:
            JobFailed: it failed, was cancelled or expired.
            TransitionNotAllowed: it has not ended (`not-finished`), or this program does not
                declare its flow.
            BadInput: what is stored is not of that type.
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
        """Return the type that a stage says it returns."""
        function = self.kernel.functions.get(flow)
        if function is not None:
            return returns(function.function)
        stage = next(s for s in flow.declared.stages if s.state == state)
        return returns(stage.function)

    # --- its database ----------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction of the store's database; answers the driver's connection.

        It commits at the end of the block, and an exception takes everything back. Jobs that are
        submitted with `connection=` are part of it. On SQLite nobody else writes meanwhile, so
        keep it short, and do not use the engine inside but by `connection=`.

        Raises:
            NotSupported: the store has no transaction to share.
            BadInput: the transaction was ended inside; nothing was written.
            Contended: others write for too long; nothing was written.
            StoreError: nothing was written, or it is not known.
        """
        opened = self._transactions("transaction").begin()
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
    """Return the row of a job that has ended well.

    Raises:
        JobNotFound: there is no such job.
        JobFailed: it failed, was cancelled or expired.
        TransitionNotAllowed: it has not ended (`not-finished`).
    """
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
