"""The facade: everything a program does with jobs goes through one `Engine`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from ulak.core.acts import answer
from ulak.core.change import Committed, KeyTaken
from ulak.core.flow import Flow
from ulak.core.intake import NORMAL, Submission, begin
from ulak.core.job import JobRow, NewJob, Payload, Request
from ulak.core.lifecycle import FINAL, WAITING
from ulak.core.outcome import Asked, Cancel, Decide, Release, Retry, Signal
from ulak.core.policy import Backoff
from ulak.engine.aio import AsyncEngine
from ulak.engine.function import Call, JobFunction, make_function
from ulak.engine.intake import Intake
from ulak.engine.ports import Publisher, ResourceFactory, WorkerSettings
from ulak.engine.results import write_decision
from ulak.engine.view import Job, TrailEvent, event_view, job_view
from ulak.errors import (
    BadInput,
    FlowError,
    JobNotFound,
    ResultNotReady,
    StaleJob,
    TransitionNotAllowed,
    UnknownOutcome,
)
from ulak.errors import KeyTaken as KeyTakenError
from ulak.ids import from_text, time_ordered_id, to_text, unguessable_id
from ulak.store import codec
from ulak.store.protocol import Added, CountRow, JobFilter, Store

P = TypeVar("P")
R = TypeVar("R")
A = ParamSpec("A")

EVERY_JOB = JobFilter()
USUAL = WorkerSettings()
HIDDEN = "***"
LONGEST_WAIT_S = 0.2
ATTEMPTS_AT_AN_ACT = 5


class Engine:
    """Accepts jobs, lets people act on them, and answers how they stand.

    Verbs are synchronous and may be called from any thread; `engine.aio` has the same verbs for
    an event loop. Nothing is opened before the first verb, so an engine may be made at import.
    """

    def __init__(
        self,
        store: Store,
        *,
        flows: Iterable[Flow[Any]] = (),
        submit_timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        self.store = store
        self.publisher: Publisher | None = None
        self.resources: dict[type, ResourceFactory] = {}
        self._flows: dict[tuple[str, int], Flow[Any]] = {}
        self.submit_timeout_s = submit_timeout.total_seconds()
        self.intake = Intake(store)
        self._lock = threading.RLock()
        self._is_open = False
        self._rings: list[Callable[[], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self.aio = AsyncEngine(self)
        for flow in flows:
            self.add(flow)

    # --- declaring --------------------------------------------------------------

    def add(self, flow: Flow[P]) -> Flow[P]:
        """Register a flow, so that it can be submitted and its stages are run.

        Raises:
            FlowError: another flow of this name and version is registered.
        """
        known = self._flows.setdefault((flow.name, flow.version), flow)
        if known is not flow:
            raise FlowError(
                f"{flow.name}: version {flow.version} is registered twice; "
                "give the newer one a higher version"
            )
        return flow

    def job(
        self,
        function: Callable[A, R] | None = None,
        *,
        name: str | None = None,
        retry: int | Backoff = 3,
        **options: Any,
    ) -> Any:
        """Make a durable job of a plain function; `options` are those of `Flow` and of a stage.

        The function's name is stored as the flow's; give `name=` to be free to rename it. Its
        arguments must be JSON or annotated with types that can be read from JSON.
        """

        def declare(made: Callable[A, R]) -> JobFunction[A, R]:
            job = make_function(made, name=name, retry=retry, options=options)
            self.add(job.flow)
            return job

        return declare if function is None else declare(function)

    def resource(self, kind: type[R]) -> Callable[[ResourceFactory], ResourceFactory]:
        """Declare how each worker opens its own `kind`: an async context manager.

        A stage asks for it with `run.resource(kind)`.
        """

        def declare(factory: ResourceFactory) -> ResourceFactory:
            self.resources[kind] = factory
            return factory

        return declare

    def publish(self, publisher: Publisher) -> Publisher:
        """Declare the function that sends outbox messages; it may see a message twice."""
        self.publisher = publisher
        return publisher

    @property
    def flows(self) -> tuple[Flow[Any], ...]:
        """Every registered flow."""
        return tuple(self._flows.values())

    def flows_by_version(self) -> dict[tuple[str, int], Flow[Any]]:
        """Every registered flow by name and version, checked."""
        self.open()
        return self._flows

    # --- life -------------------------------------------------------------------

    def open(self) -> Self:
        """Check every flow and open the store; every verb does this by itself.

        Raises:
            FlowError: a declaration cannot work, or stored jobs stand in a state it lacks.
            StoreError: the store cannot be opened.
        """
        if self._is_open:
            return self
        with self._lock:
            if not self._is_open:
                limits: dict[str, int] = {}
                for flow in self._flows.values():
                    limits.update(flow.table.slots)
                self.store.open()
                self._refuse_lost_states()
                if limits:
                    self.store.set_limits(limits)
                self.store.on_commit(self._ring)
                self._is_open = True
        return self

    def close(self) -> None:
        """Store what was accepted and close the store; closing twice is nothing."""
        with self._lock:
            if self._is_open:
                self.intake.close()
                self.store.close()
                self._is_open = False

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_lost_states(self) -> None:
        for count in self.store.counts():
            flow = self._flows.get((count.flow, count.flow_version))
            if flow is not None and count.jobs > 0 and count.state not in flow.table.places:
                raise FlowError(
                    f"{flow.name}: {count.jobs} stored jobs of version {flow.version} are in "
                    f'"{count.state}", which this version lacks; put the state back or '
                    f"declare the change as version {flow.version + 1}"
                )

    # --- submitting -------------------------------------------------------------

    def submit(
        self,
        flow: Flow[P] | JobFunction[..., Any] | Call,
        payload: Any = None,
        *arguments: Any,
        tenant: str = "",
        actor: str = "",
        priority: int = NORMAL,
        after: timedelta | None = None,
        expires: timedelta | None = None,
        dedup_key: str | None = None,
    ) -> Job:
        """Accept a job: when this returns, it is durable.

        The same dedup key answers the first job with `created=False`.

        Args:
            flow: A flow and its payload, or a job function and its arguments.
            payload: What the flow declares, or the first argument of the function.
            arguments: The other arguments of a job function.
            tenant: Whose job it is.
            actor: Who submits it.
            priority: 0 is the most urgent of 0..3.
            after: Do not begin before this has passed.
            expires: End it as expired when it is not finished by then.
            dedup_key: The key itself, instead of the flow's rule.

        Raises:
            BadInput: something cannot be used as given.
            Overloaded: too much is waiting; nothing was accepted.
            UnknownOutcome: no acknowledgement in time; carries the job's id.
            StoreError: the store could not answer.
        """
        self._refuse_on_a_loop("submit")
        new = self.prepare(
            flow, payload, *arguments, tenant=tenant, actor=actor, priority=priority, after=after,
            expires=expires, dedup_key=dedup_key,
        )  # fmt: skip
        try:
            added = self.intake.offer_and_wait([new], self.submit_timeout_s)[0]
        except TimeoutError:
            raise self.unknown_outcome(new) from None
        return job_view(added.row, created=added.created)

    def submit_many(self, flow: Flow[P], payloads: Iterable[P], **options: Any) -> list[Job]:
        """Accept many jobs of one flow, in few transactions; `options` as for `submit`."""
        self._refuse_on_a_loop("submit_many")
        jobs = [self.prepare(flow, payload, **options) for payload in payloads]
        added: list[Added] = []
        for start in range(0, len(jobs), 500):
            part = jobs[start : start + 500]
            try:
                added += self.intake.offer_and_wait(part, self.submit_timeout_s)
            except TimeoutError:
                raise self.unknown_outcome(part[0]) from None
        return [job_view(a.row, created=a.created) for a in added]

    def prepare(
        self,
        flow: Flow[Any] | JobFunction[..., Any] | Call,
        payload: Any = None,
        *arguments: Any,
        tenant: str = "",
        actor: str = "",
        priority: int = NORMAL,
        after: timedelta | None = None,
        expires: timedelta | None = None,
        dedup_key: str | None = None,
    ) -> NewJob:
        """Make the records of a new job without storing them; what intake and spawns share."""
        self.open()
        if isinstance(flow, JobFunction):
            flow = flow.bind(*(() if payload is None and not arguments else (payload, *arguments)))
        elif arguments:
            raise BadInput(f"{flow!r} takes one payload; pass its fields as one object")
        if isinstance(flow, Call):
            flow, payload = flow.flow, flow.payload
        if self._flows.get((flow.name, flow.version)) is not flow:
            raise FlowError(
                f"{flow.name} is not registered with this engine; engine.add(flow) does"
            )
        payload = self._fit(flow, payload)
        if dedup_key is None and flow.dedup is not None:
            rule = flow.dedup.key
            dedup_key = codec.canonical(payload) if rule is None else rule(payload)
        now = self.store.clock.now()
        submission = Submission(
            tenant=tenant, submitter=actor, priority=priority, after=after, expires=expires,
            dedup_key=_short_key(dedup_key),
        )  # fmt: skip
        return begin(
            flow, Payload(codec.encode(payload), flow.schema), submission, now,
            job_id=unguessable_id() if flow.unguessable_ids else time_ordered_id(now),
            commit_id=os.urandom(16),
        )  # fmt: skip

    def _fit(self, flow: Flow[Any], payload: Any) -> Any:
        kind = flow.payload
        if kind is None or codec.is_instance(payload, kind):
            return payload
        return codec.convert(payload, kind)

    def unknown_outcome(self, job: NewJob) -> UnknownOutcome:
        """Say that nobody knows whether this job was stored."""
        job_id = to_text(job.row.id)
        return UnknownOutcome(
            f"job {job_id} was not acknowledged within {self.submit_timeout_s:g} s; "
            "read it, or submit again with the same dedup key, to learn what became of it",
            job_id=job_id,
        )

    def _refuse_on_a_loop(self, verb: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise BadInput(
            f"engine.{verb} would stop the event loop of this thread; "
            f"await engine.aio.{verb}(...), or use run.spawn inside a stage"
        )

    # --- acting -----------------------------------------------------------------

    def decide(
        self,
        job_id: str,
        choice: str,
        *,
        actor: str,
        note: str = "",
        data: object = None,
        roles: Collection[str] | None = None,
    ) -> Job:
        """Answer a gate. Of two people deciding at once one wins, the other is told who did.

        Args:
            job_id: The job.
            choice: One of the gate's choices.
            actor: Who decides; stored in the trail.
            note: Why, for people.
            data: What the gate's `data` declares.
            roles: The roles of the actor; None when the caller vouches for them.

        Raises:
            TransitionNotAllowed: no such choice here, or not by this actor.
            StaleJob: somebody else was faster; `decided_by` names them.
        """
        row = self._row(job_id)
        flow = self._flow_of(row)
        place = flow.table.places.get(row.state)
        gate = None if place is None else place.gate
        carried = data
        if gate is not None and gate.data is not None and data is not None:
            carried = (
                codec.convert(data, gate.data) if not codec.is_instance(data, gate.data) else data
            )
        said = write_decision(choice, actor, note, self.store.clock.now(), carried)
        return self._act_once(row, Decide(actor, note, choice, said), roles=roles)

    def release(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """Let a held job go on, to where its flow says.

        Raises:
            TransitionNotAllowed: it is not held.
            StaleJob: somebody else was faster.
        """
        return self._act_once(self._row(job_id), Release(actor, note))

    def retry(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """Run a failed job again, in a new round.

        Raises:
            TransitionNotAllowed: it has not failed, or failed for good.
            KeyTaken: another job holds its dedup key by now.
        """
        return self._act_once(self._row(job_id), Retry(actor, note))

    def cancel(self, job_id: str, *, actor: str, note: str = "") -> Job:
        """End a job: at once, or, when a worker runs it, as soon as its stage has stopped.

        A stage that finishes first keeps its move. Undos run before the job ends. The answer
        has `cancel_requested` set while a worker has yet to stop.

        Raises:
            TransitionNotAllowed: it has already ended (`too-late`) or is being undone.
        """
        asked = Cancel(actor, note)
        return self._act_or_request(self._row(job_id), asked, "cancel", "", None)

    def signal(
        self,
        job: str | tuple[str, str],
        name: str,
        data: object = None,
        *,
        actor: str = "",
        note: str = "",
        tenant: str = "",
    ) -> Job:
        """Tell a job that something happened outside; it is kept until the job waits for it.

        Args:
            job: The job's id, or (flow, dedup key).
            name: The signal its wait declares.
            data: What the stages after it may read.
            actor: Who says so.
            note: For people.
            tenant: Whose key it is, with (flow, key).
        """
        if isinstance(job, tuple):
            found = self.open().store.find_key(tenant, job[0], job[1])
            if found is None:
                raise JobNotFound(f"of flow {job[0]} with key {job[1]!r}")
            job = to_text(found)
        row = self._row(job)
        flow = self._flow_of(row)
        known = {w.signal for w in flow.declared.waits if w.signal is not None}
        if name not in known:
            waits = ", ".join(sorted(known)) or "nothing"
            raise TransitionNotAllowed(f"{flow.name} waits for {waits}, not for {name!r}")
        if row.role in FINAL:
            raise TransitionNotAllowed(f"job {job} has already ended", code="too-late")
        said = codec.encode(data)
        asked = Signal(actor or "ulak", note, name, said)
        return self._act_or_request(row, asked, "signal", name, said)

    def _act_once(self, row: JobRow, asked: Asked, roles: Collection[str] | None = None) -> Job:
        """Commit an act on the job as it was read; the second of two operators is told."""
        flow = self._flow_of(row)
        if row.leased_by is not None:
            raise TransitionNotAllowed(
                f'job {to_text(row.id)} is in "{row.state}" and a worker runs it now; '
                "only a cancel can be asked of it",
                state=row.state,
            )
        change = answer(
            flow, row, asked, self.store.clock.now(), commit_id=os.urandom(16), roles=roles
        )
        if change is None:
            return job_view(row)
        receipt = self.store.commit([change])[0]
        if isinstance(receipt, Committed):
            self._ring()
            return job_view(change.row)
        if isinstance(receipt, KeyTaken):
            holder = to_text(receipt.holder)
            raise KeyTakenError(
                f"job {to_text(row.id)}: its dedup key is held by job {holder} now", holder=holder
            )
        raise self._stale(row)

    def _stale(self, row: JobRow) -> StaleJob:
        job_id = to_text(row.id)
        later = self.store.trail(row.id, after=row.seq, limit=1)
        who = later[0].actor if later else ""
        did = f"{who} was faster ({later[0].kind})" if later else "somebody was faster"
        return StaleJob(f"job {job_id}: {did}; read it again", job_id=job_id, decided_by=who)

    def _act_or_request(
        self, row: JobRow, asked: Cancel | Signal, kind: str, name: str, data: bytes | None
    ) -> Job:
        """Act at once when nobody has leased the job, else leave a request for its worker."""
        for _ in range(ATTEMPTS_AT_AN_ACT):
            now = self.store.clock.now()
            waits = isinstance(asked, Cancel) or (row.role == WAITING and row.awaits == asked.name)
            if row.leased_by is None and waits:
                change = answer(self._flow_of(row), row, asked, now, commit_id=os.urandom(16))
                receipt = None if change is None else self.store.commit([change])[0]
                if change is not None and isinstance(receipt, Committed):
                    self._ring()
                    return job_view(change.row)
            else:
                if row.role in FINAL:
                    raise TransitionNotAllowed(
                        f"job {to_text(row.id)} has already ended", code="too-late"
                    )
                request = Request(row.id, kind, name, asked.actor, asked.note, data, now)
                self.store.request(request)
                self._ring()
                fresh = self._row(to_text(row.id))
                if isinstance(asked, Cancel) or fresh.role != WAITING:
                    return job_view(fresh, cancel_requested=kind == "cancel")
            row = self._row(to_text(row.id))
        raise StaleJob(f"job {to_text(row.id)} keeps moving; try again", job_id=to_text(row.id))

    # --- reading ----------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """Answer a job as it stands now.

        Raises:
            JobNotFound: there is none.
        """
        row = self._row(job_id)
        asked = row.requests > 0 and any(
            r.kind == "cancel" for r in self.store.pending_requests(row.id)
        )
        return job_view(row, cancel_requested=asked)

    def jobs(
        self, where: JobFilter = EVERY_JOB, *, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Answer jobs, newest first; `after` is the id of the last one of the page before."""
        cursor = None if after is None else from_text(after)
        return [job_view(r) for r in self.open().store.list_jobs(where, after=cursor, limit=limit)]

    def trail(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[TrailEvent]:
        """Answer what happened to a job, in order."""
        row = self._row(job_id)
        return [event_view(e) for e in self.store.trail(row.id, after=after, limit=limit)]

    def payload(self, job_id: str, *, reveal: bool = False) -> Any:
        """Answer a job's payload as plain data; secret fields are hidden unless revealed."""
        row = self._row(job_id)
        stored = self.store.find_payload(row.id)
        if stored is None:
            raise JobNotFound(job_id)
        plain = codec.decode(stored.data)
        flow = self._flows.get((row.flow, row.flow_version))
        if flow is None or reveal or not isinstance(plain, dict):
            return plain
        return {k: HIDDEN if k in flow.secret else v for k, v in plain.items()}

    def result(self, job_id: str) -> Any:
        """Answer what the last stage that returned something has returned, as plain data.

        Raises:
            ResultNotReady: no stage has returned anything.
        """
        row = self._row(job_id)
        flow = self._flow_of(row)
        stages = {s.state for s in flow.declared.stages}
        left = [r for r in self.store.find_results(row.id) if r.name == "" and r.stage in stages]
        if not left:
            raise ResultNotReady(f"job {job_id} has left no result; it is in {row.state!r}")
        moved = [e.from_state for e in self.store.trail(row.id)]
        order = {_stage_of(flow, state): n for n, state in enumerate(moved) if state is not None}
        last = max(left, key=lambda r: (r.round, order.get(r.stage, -1)))
        return codec.decode(last.data)

    def counts(self) -> list[CountRow]:
        """Answer how many jobs stand in each state, exactly and cheaply."""
        return self.open().store.counts()

    def wait(self, job_id: str, *, timeout: timedelta | None = None) -> Job:
        """Wait until a job has ended and answer it.

        Raises:
            TimeoutError: it has not ended in time; nothing was changed.
        """
        self._refuse_on_a_loop("wait")
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        moved = threading.Event()
        stop = self.on_move(moved.set)
        try:
            while True:
                moved.clear()
                job = self.get(job_id)
                if job.is_final:
                    return job
                left = LONGEST_WAIT_S
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(
                            f'job {job_id} is still in "{job.state}" after {timeout}'
                        )
                moved.wait(left)
        finally:
            stop()

    def _row(self, job_id: str) -> JobRow:
        row = self.open().store.find_job(from_text(job_id))
        if row is None:
            raise JobNotFound(job_id)
        return row

    def _flow_of(self, row: JobRow) -> Flow[Any]:
        flow = self._flows.get((row.flow, row.flow_version))
        if flow is None:
            raise TransitionNotAllowed(
                f"job {to_text(row.id)} follows {row.flow} version {row.flow_version}, "
                "which this program does not declare",
                code="flow-unknown",
            )
        return flow

    # --- working ----------------------------------------------------------------

    def worker(self, settings: WorkerSettings = USUAL) -> Any:
        """Make a worker of this engine; `await worker.run()` works until `worker.stop()`."""
        from ulak.engine.worker import Worker

        self.open()
        return Worker(self, settings)

    @contextmanager
    def working(self, settings: WorkerSettings = USUAL) -> Iterator[Any]:
        """Run a worker on a thread of its own for as long as the block lasts, then drain it."""
        worker = self.worker(settings)
        thread = threading.Thread(target=lambda: asyncio.run(worker.run()), name="ulak-worker")
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()

    def on_ring(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Have `ring` called whenever this process may have made a job due; answers the undo."""
        self._rings.append(ring)
        return lambda: self._rings.remove(ring)

    def on_move(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Have `watcher` called whenever this process has moved jobs; answers the undo."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def moved(self) -> None:
        """Tell everybody who waits for a job of this process to look again."""
        for watcher in tuple(self._watchers):
            watcher()

    def _ring(self) -> None:
        for ring in tuple(self._rings):
            ring()
        self.moved()


def _short_key(key: str | None) -> str | None:
    """Keep a key as it is when it is short, else by its digest: keys are compared, not read."""
    if key is None or len(key) <= 200:
        return key
    import hashlib

    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _stage_of(flow: Flow[Any], state: str) -> str:
    place = flow.table.places.get(state)
    return state if place is None or place.stage is None else place.stage.state
