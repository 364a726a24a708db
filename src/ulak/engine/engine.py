"""The facade: everything a program does with jobs goes through one `Engine`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
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

from ulak.clock import Duration, read_micros
from ulak.core.event import ENGINE, SUBMITTED_AGAIN, check_kind
from ulak.core.flow import Flow
from ulak.core.intake import NORMAL, CallOptions, LoneSubmitOptions, SubmitOptions
from ulak.core.job import NewJob
from ulak.core.policy import Backoff
from ulak.engine.acts import Acts
from ulak.engine.aio import AsyncEngine
from ulak.engine.flow_control import FlowControl
from ulak.engine.function import Call, JobFunction, JobOptions, make_function
from ulak.engine.inspect import Inspect, Owners, Retention
from ulak.engine.kernel import Kernel
from ulak.engine.new_jobs import add_steps
from ulak.engine.outbox import TRIES, Outbox, make_follower, make_handler, make_message
from ulak.engine.outbox import declare as declare_handler
from ulak.engine.ports import FollowFunction, Receiver, Resource, ResourceFactory, WorkerSettings
from ulak.engine.reads import Waiting, must_wait_for
from ulak.engine.schedules import Schedules
from ulak.engine.tracing import FLOW, describe_submit, submitting
from ulak.engine.view import Job, message_id
from ulak.errors import BadInput
from ulak.store import caller
from ulak.store.protocol import Store

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

P = TypeVar("P")
R = TypeVar("R")
A = ParamSpec("A")
H = TypeVar("H", bound=Receiver)
F = TypeVar("F", bound=FollowFunction)
Ts = TypeVarTuple("Ts")

log = logging.getLogger("ulak.engine")

USUAL = WorkerSettings()


class Engine(Acts):
    """Accepts jobs, lets people act on them, and says how they stand.

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
        if isinstance(store, str):
            raise BadInput("Engine takes a store; ulak.connect(url, flows=...) takes a URL")
        self.kernel = Kernel(store, read_micros(submit_timeout, "submit_timeout=") / 1e6)
        """What its parts share; not for programs."""
        self.schedules = Schedules(self.kernel)
        self.flow_control = FlowControl(self.kernel)
        self.outbox = Outbox(self.kernel)
        self.inspect = Inspect(self.kernel)
        self.owners = Owners(self.kernel)
        self.retention = Retention(self.kernel)
        self.aio = AsyncEngine(self)
        for flow in flows:
            self.add(flow)

    @property
    def store(self) -> Store:
        """The store of its jobs."""
        return self.kernel.store

    def add(self, flow: Flow[P]) -> Flow[P]:
        """Register a flow, so that it can be submitted and its stages are run.

        `FlowError`: another flow of this name and version is registered. `NotSupported`: the engine
        is open, and its store cannot do what the flow asks for.
        """
        self.kernel.add(flow)
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
            self.kernel.functions[self.add(job.flow)] = job
            return job

        return declare if function is None else declare(function)

    def resource(
        self,
        kind: type[R],
        *,
        queue: str | None = None,
        places: int | None = None,
        unready: Callable[[R], str | None] | None = None,
    ) -> Callable[[ResourceFactory], ResourceFactory]:
        """Declare how each worker opens its own `kind`: an async context manager.

        A stage asks for it with `run.resource(kind)`. With `queue` only workers that serve that
        queue open it, so that a browser starts where pages are printed and nowhere else; with
        `places` such a worker takes no more jobs of that queue at once, so that none is leased to
        wait for the resource. `unready` is asked before each claim, on the worker's loop: while it
        says why a resource cannot be used, its worker takes no jobs of that queue, nor is it listed
        as one that serves it. `BadInput`: places or `unready` without a queue, or no place at all.
        """
        if places is not None and (queue is None or places < 1):
            raise BadInput(f"places={places} of queue={queue!r}; say a queue, and 1 or more")
        if unready is not None and queue is None:
            raise BadInput("unready= without a queue; say whose jobs are not to be taken")

        def declare(factory: ResourceFactory) -> ResourceFactory:
            self.kernel.resources[kind] = Resource(factory, queue, places, unready)
            return factory

        return declare

    def on(
        self,
        topic: str,
        *,
        name: str,
        retry: int | Backoff = TRIES,
        give_up: Duration | None = None,
        block: bool = False,
    ) -> Callable[[H], H]:
        """Declare a handler: it gets every message of a topic that is committed from now on.

        Any number may want the same topic, in any program of the store: each gets its own delivery,
        at least once and in order per key. What it returns is kept; it may raise `RetryLater`, or
        `Refused` for good.

        Args:
            topic: What it wants; `*` is every message.
            name: Under which its deliveries are stored, for ever; it is never derived.
            retry: How often a failed delivery is tried again; then it is a dead letter.
            give_up: For how long it is tried; by default only `retry` counts.
            block: A delivery that gave up stops its key until it is redriven or discarded.

        `BadInput`: topic or name is no text of 1 to 500 characters. `FlowError`: another handler of
        this engine has the name.
        """

        def declare(receive: H) -> H:
            made = make_handler(topic, name, receive, retry=retry, give_up=give_up, block=block)
            declare_handler(self.kernel, made)
            return receive

        return declare

    def follow(self, *, name: str, flow: str, retry: int | Backoff = TRIES) -> Callable[[F], F]:
        """Declare a follower: it gets every event of a flow's trails that is committed from now on.

        It is called with a sequence of `JobEvent`, in order per job, and the driver's connection of
        an open transaction. Rows that it writes there and the end of the delivery are one commit,
        so that they are written once; what it does elsewhere may happen again. If it raises, they
        are taken back and tried again later. A store in memory has no connection: None.

        On SQLite nobody else writes meanwhile, so keep it short, and do not use the engine inside
        but by `connection=`. An async function has a loop of its own.

        Args:
            name: Under which its deliveries are stored, for ever. Programs that follow with one
                name share the work.
            flow: The name of the flow; this program need not declare it.
            retry: How often the events of a job are tried again; then that job waits until they are
                redriven or discarded.

        `BadInput`: the name is no text of 1 to 500 characters, or no flow can be named so.
        `FlowError`: another handler of this engine has the name.
        """

        def declare(function: F) -> F:
            declare_handler(self.kernel, make_follower(name, flow, function, retry=retry))
            return function

        return declare

    def open(self) -> Self:
        """Check every flow and open the store; every verb does this by itself.

        `FlowError`: a declaration cannot work. `NotSupported`: it asks for what this store cannot
        do. `StoreError`: the store cannot be opened.
        """
        self.kernel.open()
        return self

    def close(self) -> None:
        """Store what was accepted and close the store; closing twice is nothing."""
        self.kernel.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    @overload
    def submit(self, flow: Flow[P], payload: P, /, **options: Unpack[LoneSubmitOptions]) -> Job: ...
    @overload
    def submit(self, call: Call[R], /, **options: Unpack[LoneSubmitOptions]) -> Job[R]: ...
    @overload
    def submit(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *arguments: *Ts,
        **options: Unpack[LoneSubmitOptions],
    ) -> Job[R]: ...
    @overload
    def submit(
        self, function: Callable[[*Ts], R], /, *arguments: *Ts, **options: Unpack[LoneSubmitOptions]
    ) -> Job[R]: ...
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
        repeat_note: str | None = None,
    ) -> Job:
        """Accept a job: when this returns, it is durable.

        The same dedup key answers the first job with `created=False`.

        Args:
            flow: A flow, or a job function, or one with its arguments (`function.bind(...)`).
            arguments: The payload of the flow, or the arguments of the function.
            priority: 0 is the most urgent of 0..3.
            after: Do not begin before this has passed.
            expires: End it as expired when it is not finished by then.
            dedup_key: The key itself, instead of the flow's rule.
            connection: Your own open transaction (sqlite3, psycopg or SQLAlchemy), to write
                the job in: it is stored when you commit, and found at a worker's next look.
            repeat_note: A kind of note, as for `note`, for the trail of a job that is returned
                because it holds the key.

        Raises:
            BadInput: something cannot be used as given.
            NotSupported: the store cannot write in a transaction of yours.
            Overloaded: too much is waiting, or the flow takes no such job now; nothing was
                accepted, and with `connection` nothing was written.
            UnknownOutcome: no acknowledgement in time; carries the job's id.
            StoreError: the store could not answer.
        """
        kernel = self.kernel
        kernel.refuse_on_a_loop("submit", "run.spawn")
        if repeat_note is not None:
            check_kind(repeat_note)

        def make() -> NewJob:
            return kernel.prepare(
                flow, *arguments, tenant=tenant, actor=actor, priority=priority, after=after,
                expires=expires, dedup_key=dedup_key,
            )  # fmt: skip

        with submitting(kernel.tracing) as span:
            if connection is not None:
                guest = caller.find_guest(kernel.store)
                added = caller.write(guest, connection, lambda: add_steps(kernel, guest, make()))
                kernel.telemetry.accepted((added,), None)
            else:
                (added,) = kernel.accept([make()])
            describe_submit(span, added.row)
        job = Job(added.row, created=added.created)
        if repeat_note is not None and not job.created:
            who = actor or ENGINE
            self.note(job.id, repeat_note, SUBMITTED_AGAIN, actor=who, connection=connection)
        return job

    @overload
    def submit_many(
        self, flow: Flow[P], payloads: Iterable[P], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    @overload
    def submit_many(
        self, flow: Callable[..., Any], payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]: ...
    def submit_many(
        self, flow: Any, payloads: Iterable[Any], **options: Unpack[SubmitOptions]
    ) -> list[Job]:
        """Accept many jobs of one flow or function, in few transactions; `options` as for `submit`.

        Each payload of a job function is its one argument, or several as `function.bind(...)`.
        `Overloaded`: the flow does not take one of them now, so that none is accepted.
        `UnknownOutcome`: a transaction was not acknowledged in time; it names every job of the
        call.
        """
        kernel = self.kernel
        kernel.refuse_on_a_loop("submit_many", "run.spawn")
        with submitting(kernel.tracing) as span:
            jobs = kernel.prepare_many(flow, payloads, options)
            for job in jobs[:1]:
                span.note(FLOW, job.row.flow)
            added = kernel.accept(jobs)
        return [Job(a.row, created=a.created) for a in added]

    def emit(
        self, topic: str, data: object, *, key: str | None = None, connection: Any = None
    ) -> str:
        """Send a message outside a stage, and return its id: when this returns, it is durable.

        Messages of one key are delivered in order; without one it has no order. With `connection`,
        your own open transaction, it is sent when you commit. A stage uses `run.emit`. Raises
        `BadInput`, `NotSupported` and `StoreError` as `submit` does.
        """
        kernel = self.kernel
        kernel.refuse_on_a_loop("emit", "run.emit")
        message = make_message(kernel, topic, data, key)
        kernel.acting_on(connection, "emit", lambda store: store.post_messages([message]))
        return message_id(message)

    @overload
    def call(self, flow: Flow[P], payload: P, /, **options: Unpack[CallOptions]) -> Any: ...
    @overload
    def call(self, call: Call[R], /, **options: Unpack[CallOptions]) -> R: ...
    def call(
        self, flow: Any, /, *arguments: Any, timeout: Duration | None = None, **options: Any
    ) -> Any:
        """Submit a job, wait for its end and return its result; `options` as for `submit`.

        `call(send.bind(42), timeout=10)`. A worker must be running somewhere. When the time is over
        the job goes on all the same: `cancel` ends it. `JobFailed`: it failed, was cancelled or
        expired. `TimeoutError`: it has not ended in time; the text names the job, and why it
        stands.
        """
        must_wait_for(timeout, options)
        job = self.submit(flow, *arguments, **options)
        return self.result(self.wait(job.id, timeout=timeout))

    def wait(
        self, job_id: str, *, until: str | None = None, timeout: Duration | None = None
    ) -> Job:
        """Wait until a job has ended, or stands in the state `until`, and return it.

        A state in which it stays only for a moment may be missed. A store that does not answer is
        waited for as well.

        `BadInput`: its flow has no state `until`. `JobNotFound`: there is no such job.
        `TimeoutError`: it has not come so far in time, and why; nothing was changed.
        """
        self.kernel.refuse_on_a_loop("wait")
        moved = threading.Event()
        with Waiting(self, job_id, until=until, timeout=timeout, ring=moved.set) as waiting:
            while (job := waiting.look()) is None:
                time.sleep(waiting.rest_s)
                moved.wait(waiting.pause_s)
                moved.clear()
            return job

    def worker(self, settings: WorkerSettings = USUAL) -> Worker:
        """Make a worker of this engine; `await worker.run()` works until `worker.stop()`."""
        from ulak.engine.worker import Worker

        self.kernel.open()
        return Worker(self.kernel, settings)

    @contextmanager
    def working(self, settings: WorkerSettings = USUAL) -> Iterator[Worker]:
        """Run a worker on a thread of its own for as long as the block lasts, then drain it.

        `BadInput`: on the thread of an event loop, which the drain would stop.
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
        from ulak.engine.aio import lifespan_of

        return lifespan_of(self, settings if workers else None)
