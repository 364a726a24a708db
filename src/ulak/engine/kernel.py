"""What the parts of an engine share: its store, its flows, its intake and its ring."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ulak.clock import Duration, Instant
from ulak.core.flow import Flow, names
from ulak.core.intake import NORMAL, Submission, SubmitOptions
from ulak.core.job import JobRow, NewJob, queue_of
from ulak.core.lifecycle import FINAL
from ulak.core.policy import LimitTerms, RateTerms
from ulak.core.table import knows
from ulak.engine import flow_control, stage_transactions
from ulak.engine.function import Call, JobFunction
from ulak.engine.intake import Intake
from ulak.engine.new_jobs import find_asking, fit, make_job, must_admit
from ulak.engine.ports import Apart, Handler, Resource
from ulak.engine.telemetry import Listeners
from ulak.engine.tracing import Tracing
from ulak.errors import BadInput, FlowError, JobNotFound, TransitionNotAllowed, UnknownOutcome
from ulak.ids import CommitIds, from_text, to_text
from ulak.store import caller
from ulak.store.processes import tell_of_forks
from ulak.store.protocol import LARGEST_BATCH, Added, Store

if TYPE_CHECKING:
    from ulak.engine.schedules import Declared
    from ulak.engine.worker import Worker

T = TypeVar("T")

log = logging.getLogger("ulak.engine")


def next_part(jobs: Sequence[NewJob], added: Sequence[Added]) -> Sequence[NewJob]:
    """Return the jobs of one call that are stored next, after those that have their answer. Once
    one of them is stored no stop keeps the others out: a call is refused whole or not at all."""
    part = jobs[len(added) : len(added) + LARGEST_BATCH]
    if any(one.created for one in added):
        return [job._replace(is_admitted=True) for job in part]
    return part


class Kernel:
    """The inside of an engine. Programs use the engine; its namespaces and workers use this."""

    def __init__(self, store: Store, submit_timeout_s: float) -> None:
        self.store = store
        self.telemetry = Listeners()
        self.tracing: Tracing | None = None
        self.new_commit_id = CommitIds()
        self.handlers: dict[str, Handler] = {}
        self.resources: dict[type, Resource] = {}
        self.functions: dict[Flow[Any], JobFunction[..., Any]] = {}
        self.queues_apart: dict[str, Apart] = {}
        """The queues that `ulak up` serves by children, and how."""
        self.queues_elsewhere: set[str] = set()
        """The queues whose jobs a queue of another make takes to workers of its own."""
        self.schedules: dict[str, Declared] = {}
        self.attached: dict[str, tuple[Any, Any]] = {}
        """The services of this program, by name, each with what its `attach` has returned."""
        self.shared: dict[Any, Any] = {}
        """What layers above keep once for each engine."""
        self.submit_timeout_s = submit_timeout_s
        self.intake = Intake(store, submit_timeout_s, telemetry=self.telemetry)
        self.working_here: list[Worker] = []
        """The workers of this process that run now until they are stopped."""
        self.is_open = False
        """Whether the store is open, so that no verb has to wait for that."""
        self._flows: dict[tuple[str, int], Flow[Any]] = {}
        self._lock = threading.RLock()
        self._is_listening = self._any_asks = False
        self._rings: list[Callable[[], None]] = []
        tell_of_forks(self)

    def add(self, flow: Flow[Any]) -> None:
        """Register a flow; `Engine.add` says what it refuses."""
        if self.is_open:
            self._refuse_if_unable(flow)
        known = self._flows.setdefault((flow.name, flow.version), flow)
        if known is not flow:
            raise FlowError(
                f"{flow.name}: version {flow.version} is registered twice; "
                "give the newer one a higher version"
            )
        if self.is_open:
            self._any_asks |= flow.table.asks
            if flow.table.limits or flow.table.rates:
                self.store.declare(flow.table.limits, flow.table.rates)

    @property
    def flows(self) -> tuple[Flow[Any], ...]:
        return tuple(self._flows.values())

    def flows_by_version(self) -> dict[tuple[str, int], Flow[Any]]:
        """Return every registered flow by name and version, checked."""
        self.open()
        return self._flows

    def find_flow(self, name: str, version: int) -> Flow[Any] | None:
        return self._flows.get((name, version))

    def get_row(self, job_id: str, store: Store | None = None) -> JobRow:
        """Return the row of a job; with `store`, as that one sees it. `JobNotFound`: there is
        none."""
        row = (store or self.open().store).find_job(from_text(job_id))
        if row is None:
            raise JobNotFound(job_id)
        return row

    def get_flow(self, row: JobRow) -> Flow[Any]:
        """Return the flow of a job; `TransitionNotAllowed` if this program does not declare it."""
        flow = self._flows.get((row.flow, row.flow_version))
        if flow is None:
            raise TransitionNotAllowed(
                f"job {to_text(row.id)} follows {row.flow} version {row.flow_version}, "
                "which this program does not declare",
                code="flow-unknown",
            )
        return flow

    def open(self) -> Self:
        """Check every flow and open the store; `Engine.open` says what it refuses."""
        if self.is_open:
            return self
        with self._lock:
            if not self.is_open:
                limits: dict[str, LimitTerms] = {}
                rates: dict[str, RateTerms] = {}
                for flow in self.flows:
                    limits |= flow.table.limits
                    rates |= flow.table.rates
                    self._any_asks |= flow.table.asks
                    self._refuse_if_unable(flow)
                self._refuse_unknown_queues()
                self.store.open()
                self._tell_unknown_states()
                if limits or rates:
                    self.store.declare(limits, rates)
                self.keep_schedules()
                self.keep_handlers()
                self.intake.open()
                self.is_open = True
        return self

    def close(self) -> None:
        """Store what was accepted and close the store; closing twice is nothing."""
        with self._lock:
            if self.is_open:
                self.intake.close()
                self.store.close()
                self.is_open = False

    def keep_schedules(self) -> None:
        if self.schedules:
            now = self.store.clock.now()
            self.store.keep_schedules([made.row(now) for made in self.schedules.values()])

    def keep_handlers(self) -> None:
        if self.handlers:
            self.store.keep_handlers([handler.row for handler in self.handlers.values()])

    def before_fork(self) -> None: ...  # the store lets what is under way end
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None:
        """Begin anew: threads, and locks that they may hold, are the parent's. What was offered
        there is stored there; the next verb opens the store again."""
        self._lock = threading.RLock()
        self.is_open = False
        self._rings.clear()
        self.intake = Intake(self.store, self.submit_timeout_s, telemetry=self.telemetry)
        self.new_commit_id = CommitIds()

    def _refuse_if_unable(self, flow: Flow[Any]) -> None:
        stage_transactions.refuse_if_unable(self.store.features, flow)
        flow_control.refuse_if_unable(self.store.features, flow)
        target = None if flow.on_end is None else flow.on_end.target
        if target is not None and self._flows.get((target.name, target.version)) is not target:
            raise FlowError(
                f"{flow.name}: its on_end submits {target.name}, which is not registered with "
                "this engine; engine.add(flow) does, before this one is used"
            )

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
        if not self.is_open:
            self.open()
        flow, payload = self.target(flow, arguments)
        submission = Submission(tenant, actor, priority, after, dedup_key, expires, scheduled_for)
        trace = None if self.tracing is None else self.tracing.current()
        return make_job(
            flow, payload, submission, self.store.clock.now(), commit_id=self.new_commit_id(),
            trace=trace,
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
        return flow, payload if flow.payload is None else fit(flow, payload)

    def accept(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store the new jobs of one call, in few transactions, and wait for it. `Overloaded`: their
        flow takes none of them now, or the intake is full. `UnknownOutcome`: a transaction was not
        acknowledged in time; it names every job."""
        flow = find_asking(self, jobs) if self._any_asks else None
        if flow is not None and not jobs[0].is_admitted:
            must_admit(self, flow, jobs)
        added: list[Added] = []
        try:
            if len(jobs) == 1:
                return self.intake.offer_and_wait(jobs, self.submit_timeout_s)
            while len(added) < len(jobs):
                part = next_part(jobs, added)
                added += self.intake.offer_and_wait(part, self.submit_timeout_s)
        except TimeoutError:
            raise self.unknown_outcome(jobs, stored=len(added)) from None
        return added

    def acting_on(self, connection: Any, verb: str, work: Callable[[Store], T]) -> T:
        """Do something with the store, or with its verbs inside a caller's own transaction.
        `BadInput`: the connection cannot be used. `NotSupported`: nor can any. Nothing was
        changed."""
        if connection is None:
            return work(self.open().store)
        guest = caller.find_guest(self.store, verb)
        return caller.use(guest, connection, verb, work, ready=self.open)

    def refuse_on_a_loop(self, verb: str, inside: str = "") -> None:
        """Raise `BadInput` for a verb that would stop the event loop of this thread; `inside` is
        what a stage uses instead."""
        # Its public sister raises where there is none: at each submit, that would be felt.
        if asyncio._get_running_loop() is not None:
            raise BadInput(
                f"engine.{verb} would stop the event loop of this thread; "
                f"await engine.aio.{verb}(...)" + (inside and f", or use {inside} inside a stage")
            )

    def unknown_outcome(self, jobs: Sequence[NewJob], *, stored: int = 0) -> UnknownOutcome:
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

    def on_ring(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Have `ring` called whenever a job may have become due; return the undo. From the first
        time on the store is listened to, which costs something; `store.on_move` tells of moves."""
        self._rings.append(ring)
        with self._lock:
            if not self._is_listening:
                self.store.on_commit(self.ring)
                self._is_listening = True
        return lambda: self._rings.remove(ring)

    def ring(self) -> None:
        """Tell the workers of this process that a job may have become due."""
        for ring in tuple(self._rings):
            ring()
