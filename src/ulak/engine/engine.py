"""The facade: everything a program does with jobs goes through one `Engine`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from ulak.clock import Duration, Instant, read_micros, seconds
from ulak.core.flow import Flow, names
from ulak.core.intake import NORMAL, LoneSubmitOptions, Submission, SubmitOptions, begin
from ulak.core.job import NewJob, Payload, queue_of
from ulak.core.keys import keys_of, short_key
from ulak.core.lifecycle import FINAL
from ulak.core.policy import Backoff, LimitTerms, RateTerms
from ulak.core.table import knows
from ulak.engine import steering, together
from ulak.engine.aio import AsyncEngine
from ulak.engine.function import Call, JobFunction, JobOptions, make_function
from ulak.engine.intake import Intake, guest_of
from ulak.engine.outbox import Outbox
from ulak.engine.ports import Apart, Publisher, Resource, ResourceFactory, WorkerSettings
from ulak.engine.scheduling import Declared, Scheduling
from ulak.engine.steering import Steering
from ulak.engine.taking import Taking
from ulak.engine.telemetry import Listeners
from ulak.engine.tracing import FLOW, Tracing, describe_submit, submitting
from ulak.engine.transactions import Transactions
from ulak.engine.verify import Finding, verify
from ulak.engine.view import Job
from ulak.engine.why import Why, why
from ulak.errors import (
    BadInput,
    FlowError,
    UnknownOutcome,
)
from ulak.ids import CommitIds, time_ordered_id, to_text, unguessable_id
from ulak.store import caller, codec
from ulak.store.forks import tell_of_forks
from ulak.store.protocol import Added, Store

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

P = TypeVar("P")
R = TypeVar("R")
A = ParamSpec("A")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("ulak.engine")

USUAL = WorkerSettings()
LONGEST_WAIT_S = 0.2


class Engine(Taking, Scheduling, Steering, Outbox, Transactions):
    """Accepts jobs, lets people act on them, and answers how they stand.

    Verbs are synchronous and may be called from any thread; `engine.aio` has the same verbs for
    an event loop. Nothing is opened before the first verb, so an engine may be made at import.
    """

    def __init__(
        self,
        store: Store,
        *,
        flows: Iterable[Flow[Any]] = (),
        submit_timeout: Duration = timedelta(seconds=30),
    ) -> None:
        self.store = store
        self.telemetry = Listeners()
        self.tracing: Tracing | None = None
        self.new_commit_id = CommitIds()
        self.publisher: Publisher | None = None
        self.resources: dict[type, Resource] = {}
        self.functions: dict[Flow[Any], JobFunction[..., Any]] = {}
        self.queues_apart: dict[str, Apart] = {}
        """The queues that `ulak up` serves by children, and how."""
        self._flows: dict[tuple[str, int], Flow[Any]] = {}
        self._declared: dict[str, Declared] = {}
        self.submit_timeout_s = read_micros(submit_timeout, "submit_timeout=") / 1e6
        self.intake = Intake(store, self.submit_timeout_s, telemetry=self.telemetry)
        self._lock = threading.RLock()
        self._is_open = False
        self._is_listening = False
        self.working_here: list[Worker] = []
        """The workers of this process that run now until they are stopped."""
        self._rings: list[Callable[[], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self.aio = AsyncEngine(self)
        tell_of_forks(self)
        for flow in flows:
            self.add(flow)

    # --- declaring --------------------------------------------------------------

    def add(self, flow: Flow[P]) -> Flow[P]:
        """Register a flow, so that it can be submitted and its stages are run.

        Raises:
            FlowError: another flow of this name and version is registered.
            NotSupported: the engine is open, and its store cannot do what the flow asks for.
        """
        if self._is_open:
            together.refuse_if_unable(self.store.features, flow)
            steering.refuse_if_unable(self.store.features, flow)
        known = self._flows.setdefault((flow.name, flow.version), flow)
        if known is not flow:
            raise FlowError(
                f"{flow.name}: version {flow.version} is registered twice; "
                "give the newer one a higher version"
            )
        if self._is_open and (flow.table.limits or flow.table.rates):
            self.store.declare(flow.table.limits, flow.table.rates)
        return flow

    @overload
    def job(self, function: Callable[A, R]) -> JobFunction[A, R]: ...
    @overload
    def job(
        self, *, name: str | None = None, transaction: Literal[True], **options: Unpack[JobOptions]
    ) -> Callable[[Callable[Concatenate[Any, A], R]], JobFunction[A, R]]: ...
    @overload
    def job(
        self, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> Callable[[Callable[A, R]], JobFunction[A, R]]: ...
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
        arguments must be JSON or annotated with types that can be read from JSON. With
        `transaction=True` its first argument is `run.connection`; a submit gives the others.
        """

        def declare(made: Callable[..., R]) -> JobFunction[..., R]:
            job = make_function(made, name=name, retry=retry, options=options)
            self.functions[self.add(job.flow)] = job
            return job

        return declare if function is None else declare(function)

    def resource(
        self, kind: type[R], *, queue: str | None = None, places: int | None = None
    ) -> Callable[[ResourceFactory], ResourceFactory]:
        """Declare how each worker opens its own `kind`: an async context manager.

        A stage asks for it with `run.resource(kind)`. With `queue` only workers that serve that
        queue open it, so that a browser starts where pages are printed and nowhere else; with
        `places` such a worker takes no more jobs of that queue at once, so that none is leased
        to wait for the resource.

        Raises:
            BadInput: places without a queue, or none at all.
        """
        if places is not None and (queue is None or places < 1):
            raise BadInput(f"places={places} of queue={queue!r}; say a queue, and 1 or more")

        def declare(factory: ResourceFactory) -> ResourceFactory:
            self.resources[kind] = Resource(factory, queue, places)
            return factory

        return declare

    def apart(self, queue: str, *, workers: int = 1, lease: Duration | None = None) -> None:
        """Have `ulak up` serve a queue by processes of its own, and not beside the API.

        For stages whose crash or hunger would harm what runs beside them. It is said of a queue,
        since that is what workers serve, and of the engine, since two flows may share a queue;
        said again, the last word counts. `ulak worker` and `engine.working` serve what they are
        told, this queue too.

        Args:
            queue: The queue of a flow or of single stages.
            workers: How many children serve it, each with places of its own.
            lease: How long the jobs of a vanished child stay taken, instead of `--lease`.

        Raises:
            BadInput: nobody would serve it.
        """
        if workers < 1:
            raise BadInput(f'{workers} workers cannot serve the queue "{queue}"; 1 or more can')
        if lease is not None:
            read_micros(lease, "lease=")
        self.queues_apart[queue] = Apart(workers, lease)

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

    @property
    def is_open(self) -> bool:
        """Whether the store is open, so that no verb has to wait for that."""
        return self._is_open

    def open(self) -> Self:
        """Check every flow and open the store; every verb does this by itself.

        Raises:
            FlowError: a declaration cannot work.
            NotSupported: a declaration asks for what this store cannot do.
            StoreError: the store cannot be opened.
        """
        if self._is_open:
            return self
        with self._lock:
            if not self._is_open:
                limits: dict[str, LimitTerms] = {}
                rates: dict[str, RateTerms] = {}
                for flow in self._flows.values():
                    limits.update(flow.table.limits)
                    rates.update(flow.table.rates)
                    together.refuse_if_unable(self.store.features, flow)
                    steering.refuse_if_unable(self.store.features, flow)
                self._refuse_unknown_queues()
                self.store.open()
                self._tell_unknown_states()
                if limits or rates:
                    self.store.declare(limits, rates)
                self.keep_schedules()
                self.intake.open()
                self._is_open = True
        return self

    def close(self) -> None:
        """Store what was accepted and close the store; closing twice is nothing."""
        with self._lock:
            if self._is_open:
                self.intake.close()
                self.store.close()
                self._is_open = False

    def before_fork(self) -> None:
        """Nothing to do: the store lets what is under way end."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        """Begin anew: threads, and locks that they may hold, are the parent's.

        What was offered there is stored there; the next verb opens the store again.
        """
        self._lock = threading.RLock()
        self._is_open = False
        self._rings.clear()
        self._watchers.clear()
        self.intake = Intake(self.store, self.submit_timeout_s, telemetry=self.telemetry)
        self.new_commit_id = CommitIds()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_unknown_queues(self) -> None:
        """A slip of the pen would keep children for nothing, and a resource closed."""
        known = {queue_of(lane) for flow in self._flows.values() for lane in flow.table.lanes}
        said = {*self.queues_apart, *(r.queue for r in self.resources.values() if r.queue)}
        if unknown := sorted(said - known):
            raise FlowError(
                f"no stage is in the queue {names(unknown)}; queues are {names(sorted(known))}"
            )

    def _tell_unknown_states(self) -> None:
        """Log the jobs that this program leaves to others; the start is not refused for them."""
        for count in self.store.counts():
            flow = self._flows.get((count.flow, count.flow_version))
            if flow is None or count.jobs <= 0 or count.role in FINAL:
                continue
            if not knows(flow.table, count.state, count.role):
                log.warning(
                    "jobs are in a state that this program lacks; they are left alone",
                    extra={"flow": f"{flow!r}", "state": count.state, "jobs": count.jobs},
                )

    # --- submitting -------------------------------------------------------------

    @overload
    def submit(self, flow: Flow[P], payload: P, /, **options: Unpack[LoneSubmitOptions]) -> Job: ...
    @overload
    def submit(self, call: Call, /, **options: Unpack[LoneSubmitOptions]) -> Job: ...
    @overload
    def submit(
        self,
        function: Callable[[*Ts], Any],
        /,
        *arguments: *Ts,
        **options: Unpack[LoneSubmitOptions],
    ) -> Job: ...
    def submit(  # type: ignore[misc] # mypy does not see that *Any takes *Ts
        self,
        flow: Any,
        /,
        *arguments: Any,
        tenant: str = "",
        actor: str = "",
        priority: int = NORMAL,
        after: Duration | None = None,
        expires: Duration | None = None,
        dedup_key: str | None = None,
        connection: Any = None,
    ) -> Job:
        """Accept a job: when this returns, it is durable.

        The same dedup key answers the first job with `created=False`.

        Args:
            flow: A flow, or a job function, or one with its arguments (`function.bind(...)`).
            arguments: The payload of the flow, or the arguments of the function.
            tenant: Whose job it is.
            actor: Who submits it.
            priority: 0 is the most urgent of 0..3.
            after: Do not begin before this has passed.
            expires: End it as expired when it is not finished by then.
            dedup_key: The key itself, instead of the flow's rule.
            connection: Your own open transaction (sqlite3, psycopg or SQLAlchemy), to write
                the job in: it is stored when you commit, and found at a worker's next look.

        Raises:
            BadInput: something cannot be used as given.
            NotSupported: the store cannot write in a transaction of yours.
            Overloaded: too much is waiting; nothing was accepted.
            UnknownOutcome: no acknowledgement in time; carries the job's id.
            StoreError: the store could not answer.
        """
        self._refuse_on_a_loop("submit")

        def make() -> NewJob:
            return self.prepare(
                flow, *arguments, tenant=tenant, actor=actor, priority=priority, after=after,
                expires=expires, dedup_key=dedup_key,
            )  # fmt: skip

        with submitting(self.tracing) as span:
            if connection is not None:
                added = caller.add(guest_of(self.store), connection, make)
                self.telemetry.accepted((added,), None)
            else:
                new = make()
                try:
                    added = self.intake.offer_and_wait([new], self.submit_timeout_s)[0]
                except TimeoutError:
                    raise self.unknown_outcome([new]) from None
            describe_submit(span, added.row)
        return Job(added.row, created=added.created)

    @overload
    def submit_many(
        self, flow: Flow[P], payloads: Iterable[P], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    @overload
    def submit_many(
        self,
        flow: Callable[..., Any],
        payloads: Iterable[Any],
        **options: Unpack[SubmitOptions],
    ) -> list[Job]: ...
    def submit_many(
        self, flow: Any, payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]:
        """Accept many jobs of one flow or function, in few transactions; `options` as for `submit`.

        Each payload of a job function is its one argument, or several as `function.bind(...)`.

        Raises:
            UnknownOutcome: a transaction was not acknowledged in time; names every job of the call.
        """
        self._refuse_on_a_loop("submit_many")
        with submitting(self.tracing) as span:
            jobs = self.prepare_many(flow, payloads, options)
            for job in jobs[:1]:
                span.note(FLOW, job.row.flow)
            added: list[Added] = []
            for start in range(0, len(jobs), 500):
                part = jobs[start : start + 500]
                try:
                    added += self.intake.offer_and_wait(part, self.submit_timeout_s)
                except TimeoutError:
                    raise self.unknown_outcome(jobs, stored=start) from None
        return [Job(a.row, created=a.created) for a in added]

    def prepare_many(
        self, flow: Any, payloads: Iterable[Any], options: SubmitOptions
    ) -> list[NewJob]:
        """Make the records of many new jobs of one flow or function."""
        jobs = []
        for payload in payloads:
            if isinstance(payload, Call):
                if not isinstance(flow, JobFunction) or payload.flow is not flow.flow:
                    raise BadInput(f"{payload.flow.name} was bound, and {flow!r} is submitted")
                jobs.append(self.prepare(payload, **options))
            else:
                jobs.append(self.prepare(flow, payload, **options))
        return jobs

    def prepare(
        self,
        flow: Flow[Any] | JobFunction[..., Any] | Call,
        *arguments: Any,
        tenant: str = "",
        actor: str = "",
        priority: int = NORMAL,
        after: Duration | None = None,
        expires: Duration | None = None,
        dedup_key: str | None = None,
        scheduled_for: Instant | None = None,
    ) -> NewJob:
        """Make the records of a new job without storing them; what intake and spawns share."""
        self.open()
        flow, payload = self.target(flow, arguments)
        try:
            if dedup_key is None:
                dedup_key = self.key_of(flow, payload)
            keys = keys_of(flow, payload) if flow.table.keyed else None
        except BadInput:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Not what it says: that may quote the payload.
            raise BadInput(
                f"{flow.name}: no key can be made of this payload ({type(error).__name__})"
            ) from error
        now = self.store.clock.now()
        submission = Submission(
            tenant=tenant, submitter=actor, priority=priority, after=after, expires=expires,
            dedup_key=None if dedup_key is None else short_key(dedup_key),
            scheduled_for=scheduled_for, keys=keys,
        )  # fmt: skip
        trace = None if self.tracing is None else self.tracing.current()
        return begin(
            flow, Payload(codec.encode(payload), flow.schema, trace), submission, now,
            job_id=unguessable_id() if flow.unguessable_ids else time_ordered_id(now),
            commit_id=self.new_commit_id(),
        )  # fmt: skip

    def target(self, flow: Any, arguments: tuple[Any, ...]) -> tuple[Flow[Any], Any]:
        """Read what is to be submitted: a registered flow, and a payload that fits it."""
        if isinstance(flow, JobFunction):
            flow, arguments = flow.bind(*arguments), ()
        if isinstance(flow, Call):
            flow, arguments = flow.flow, (flow.payload, *arguments)
        if len(arguments) > 1:
            raise BadInput(f"{flow!r} takes one payload; pass its fields as one object")
        payload = arguments[0] if arguments else None
        if not isinstance(flow, Flow):
            raise BadInput(f"{flow!r} is no flow and no job function; @engine.job makes one")
        if self._flows.get((flow.name, flow.version)) is not flow:
            raise FlowError(
                f"{flow.name} is not registered with this engine; engine.add(flow) does"
            )
        return flow, self._fit(flow, payload)

    def key_of(self, flow: Flow[Any], payload: Any) -> str | None:
        """Return the dedup key of a payload, by the flow's rule."""
        if flow.dedup is None:
            return None
        rule = flow.dedup.key
        return short_key(codec.canonical(payload) if rule is None else rule(payload))

    def _fit(self, flow: Flow[Any], payload: Any) -> Any:
        kind = flow.payload
        if kind is None or codec.is_instance(payload, kind):
            return payload
        return codec.convert(payload, kind)

    def unknown_outcome(self, jobs: Sequence[NewJob], *, stored: int = 0) -> UnknownOutcome:
        """Say that nobody knows whether these jobs, but for the first ones, were stored."""
        job_ids = [to_text(job.row.id) for job in jobs]
        job_id = job_ids[stored]
        said = f"job {job_id} was"
        if len(jobs) > 1:
            said = f"{stored} of {len(jobs)} jobs are stored, those from {job_id} on were"
        return UnknownOutcome(
            f"{said} not acknowledged within {self.submit_timeout_s:g} s; "
            "read it, or submit again with the same dedup key, to learn what became of it",
            job_id=job_id,
            job_ids=job_ids,
        )

    def _refuse_on_a_loop(self, verb: str) -> None:
        # Its public sister raises where there is none: at each submit, that would be felt.
        if asyncio._get_running_loop() is None:
            return
        raise BadInput(
            f"engine.{verb} would stop the event loop of this thread; "
            f"await engine.aio.{verb}(...), or use run.spawn inside a stage"
        )

    # --- telling ----------------------------------------------------------------

    def why(self, job_id: str, *, tenant: str | None = None) -> Why:
        """Return why a job stands where it stands: a code, a sentence and the facts.

        With a tenant no job of another one is named.

        Raises:
            JobNotFound: there is none.
        """
        return why(self, job_id, tenant=tenant)

    def verify(self) -> list[Finding]:
        """Look at everything that is stored and answer what is wrong; workers may go on."""
        return verify(self)

    # --- waiting ----------------------------------------------------------------

    def wait(
        self, job_id: str, *, until: str | None = None, timeout: Duration | None = None
    ) -> Job:
        """Wait until a job has ended, or stands in the state `until`, and answer it.

        A state in which it stays only for a moment may be missed.

        Raises:
            TimeoutError: it has not come so far in time; nothing was changed.
        """
        self._refuse_on_a_loop("wait")
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + read_micros(timeout, "timeout=") / 1e6
        moved = threading.Event()
        stop = self.on_move(moved.set)
        try:
            while True:
                moved.clear()
                job = self.get(job_id)
                if job.is_final or job.state == until:
                    return job
                left = LONGEST_WAIT_S
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                    if left <= 0:
                        waited = f"after {seconds(timeout or 0):g} s"
                        raise TimeoutError(f'job {job_id} is still in "{job.state}" {waited}')
                moved.wait(left)
        finally:
            stop()

    # --- working ----------------------------------------------------------------

    def worker(self, settings: WorkerSettings = USUAL) -> Any:
        """Make a worker of this engine; `await worker.run()` works until `worker.stop()`."""
        from ulak.engine.worker import Worker

        self.open()
        return Worker(self, settings)

    def work_on(self, job_id: str, settings: WorkerSettings = USUAL) -> Job:
        """Run one job's stages here and now, as a worker would, and answer how it stands then.

        For a queue of another make that carries ids of jobs. Nothing is done when the job is not
        due, is leased by somebody else or has ended: a message that comes twice is harmless.

        Raises:
            JobNotFound: there is none.
            NotSupported: its stage has a rate, which only ordinary claims pay.
        """
        self._refuse_on_a_loop("work_on")
        return asyncio.run(self.aio.work_on(job_id, settings))

    @contextmanager
    def working(self, settings: WorkerSettings = USUAL) -> Iterator[Any]:
        """Run a worker on a thread of its own for as long as the block lasts, then drain it.

        Raises:
            BadInput: on the thread of an event loop, which the drain would stop.
        """
        if asyncio._get_running_loop() is not None:
            raise BadInput(
                "engine.working would stop the event loop of this thread; give the application "
                "lifespan=engine.lifespan(workers=True), or run engine.worker().run() in a task"
            )
        worker = self.worker(settings)
        failures: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(worker.run())
            except BaseException as error:
                # Heard of now, and raised where the block ends, which may be much later.
                log.critical("the worker has ended", exc_info=True)
                failures.append(error)

        thread = threading.Thread(target=work, name="ulak-worker")
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()
        if failures:
            raise failures[0]

    def lifespan(
        self, *, workers: bool = False, settings: WorkerSettings = USUAL
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Return what FastAPI and Starlette take as `lifespan=`: the engine is opened with the
        application and closed with it, and with `workers` a worker runs on its loop and drains.
        """
        from ulak.engine.lifespan import lifespan_of

        return lifespan_of(self, settings if workers else None)

    def on_ring(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Have `ring` called whenever this process may have made a job due; answers the undo."""
        self._rings.append(ring)
        self._listen()
        return lambda: self._rings.remove(ring)

    def on_move(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Have `watcher` called whenever this process has moved jobs; answers the undo."""
        self._watchers.append(watcher)
        self._listen()
        return lambda: self._watchers.remove(watcher)

    def _listen(self) -> None:
        """Have the store call when something may have become due: a program that only submits
        need not know, and a store listens to other processes at a cost."""
        with self._lock:
            if not self._is_listening:
                self.store.on_commit(self._ring)
                self._is_listening = True

    def moved(self) -> None:
        """Tell everybody who waits for a job of this process to look again."""
        for watcher in tuple(self._watchers):
            watcher()

    def _ring(self) -> None:
        for ring in tuple(self._rings):
            ring()
        self.moved()
