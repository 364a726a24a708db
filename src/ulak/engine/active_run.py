"""One run while it runs: what its stage may ask for, and what it leaves."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.bounds import must_be_few, must_fit
from ulak.core.change import Change, Committed, LeaseLost, Receipt, clean
from ulak.core.decide import RunFacts, decide
from ulak.core.flow import Flow, Gate
from ulak.core.job import JobRow, Message, NewJob, Payload, Request, Result
from ulak.core.lifecycle import UNDOING
from ulak.core.outcome import Cancel, Elapsed, Held, Note, Noted, Outcome, Overran
from ulak.core.run import Decision, PastAct, Run, effect_key, effect_name
from ulak.core.table import Place
from ulak.engine import stage_transactions
from ulak.engine.committer import Entry
from ulak.engine.reads import Results, read_payload
from ulak.engine.stage_outcomes import Abandoned, make_note, read_before, read_return, write_effect
from ulak.errors import BadInput, FlowError, StoreError
from ulak.ids import to_text
from ulak.store import codec
from ulak.store.protocol import Progress
from ulak.store.transaction import StageTransaction

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

log = logging.getLogger("ulak.worker")

T = TypeVar("T")

_UNREAD: Final = object()

# How often a thread that waits for its record looks whether anybody will still write it.
LONGEST_SILENCE_S = 1.0


@dataclass(slots=True, eq=False, repr=False)
class ActiveRun:
    """A leased job in this worker, from its claim until its lease is given back."""

    worker: Worker
    flow: Flow[Any]
    row: JobRow
    place: Place
    payload_bytes: Payload
    results: tuple[Result, ...]
    started_at: Instant
    kept_since: Instant
    pool: str
    kept_stages: int = 0
    deadline: int = 0
    """When its time is over, by `StoreTime.passed_us`."""
    stopping: bool = False
    saw_stop: bool = False
    draining: bool = False
    overran: bool = False
    lost: bool = False
    beats_over: int = 0
    """How many beats it has gone on since it was cancelled for its time."""
    asked: Cancel | Elapsed | None = None
    messages: tuple[Message, ...] = ()
    spawns: tuple[NewJob, ...] = ()
    notes: tuple[Note, ...] = ()
    unsure_spawns: tuple[tuple[list[NewJob], list[str]], ...] = ()
    """Jobs spawned with keys, and the ids that the stage was given, until holders are known."""
    task: asyncio.Task[None] | None = None
    interrupt: Callable[[], None] | None = None
    """Ends a stage that runs in a process of its own."""
    outcome: Outcome | None = None
    change: Change | None = None
    transaction: StageTransaction | None = None
    """What the stage writes in, from the first `run.connection` until it has ended."""
    noted: threading.Event | None = None
    """Set when the line is written that says it is over its time; None when there is none."""
    thread_lock: threading.Lock = field(default_factory=threading.Lock)
    _payload: Any = _UNREAD
    _added_bytes: int = 0
    _loop_lock: asyncio.Lock | None = None
    _effects: set[str] = field(default_factory=set)

    def function(self) -> Callable[[Run[Any]], Any]:
        if self.row.role != UNDOING:
            stage = self.place.stage
            if stage is None:
                raise FlowError(f'{self.flow.name}: no stage leaves "{self.row.state}"')
            if self.place.enters is not None and stage.before_function is not None:
                return stage.before_function
            return stage.function
        owed = self.row.started.split()[-1]
        undo = self.flow.table.places[owed].stage
        if undo is None or undo.undo_function is None:
            raise FlowError(f'{self.flow.name}: the undo of "{owed}" is gone; declare it again')
        return undo.undo_function

    def is_before(self) -> bool:
        return self.place.enters is not None and self.row.role != UNDOING

    def read_return(self, returned: object) -> Outcome:
        if self.place.enters is not None and self.row.role != UNDOING:
            return read_before(returned, self.messages, self.spawns)
        return read_return(returned, self.messages, self.spawns)

    def is_transactional(self) -> bool:
        """Whether it may ask for a transaction of its own; an undo may not."""
        if self.place.enters is not None or self.row.role == UNDOING:
            return False
        return self.place.stage is not None and self.place.stage.transaction

    def stage_name(self) -> str:
        """Name the stage whose results this run reads and writes."""
        if self.row.role == UNDOING:
            return self.row.started.split()[-1]
        return self.row.state if self.place.stage is None else self.place.stage.state

    def timeout_us(self) -> int:
        """How long this run may take; an undo has as long as its stage."""
        if self.row.role != UNDOING:
            return self.place.timeout_us
        return self.flow.table.places[self.stage_name()].timeout_us

    def go_on(self, change: Change, now: Instant) -> None:
        """Begin the next stage under the same lease."""
        if change.results:
            self.results = self.results + change.results
        self.row = change.row
        self.place = self.flow.table.places[self.row.state]
        self.started_at = now
        self.kept_stages += 1
        self.overran = False
        self.messages = ()
        self.spawns = ()
        self.notes = ()
        self._added_bytes = 0
        self.unsure_spawns = ()
        self.change = None
        self.noted = None

    @property
    def where(self) -> str:
        return self.pool.partition("/")[0]

    def is_stopping(self) -> bool:
        """What `run.cancelled` answers."""
        if self.stopping:
            self.saw_stop = True
        return self.stopping

    def ask(self, request: Request) -> bool:
        """Take in a cancel or an expiry. Signals wait in the store; upkeep dismisses what is asked
        of a job that undoes."""
        if self.row.role == UNDOING:
            return False
        if request.kind == "cancel":
            self.asked = Cancel(request.actor, request.note or "")
        elif request.kind == "expire":
            self.asked = Elapsed(note=request.note or "")
        else:
            return False
        self.stopping = True
        return True

    def facts(self) -> RunFacts:
        worker = self.row.leased_by or self.worker.id
        return RunFacts(worker, self.started_at, None, self.asked, self.notes)

    def decide(self, outcome: Outcome) -> Change:
        """Return the change that an outcome of this run makes; its lease does not go on."""
        return decide(
            self.flow, self.row, outcome, self.worker.now(), facts=self.facts(),
            commit_id=self.worker.new_commit_id(),
        )  # fmt: skip

    def hold_instead(self, why: str, row: JobRow | None = None) -> Change:
        """The minimal change that can always be written: this job stops for a person."""
        row = row or self.row
        held = Held(kinds.COMMIT_REJECTED, ascii(why)[:500])
        facts = RunFacts(row.leased_by or self.worker.id, self.started_at)
        commit_id = self.worker.new_commit_id()
        return decide(self.flow, row, held, self.worker.now(), facts=facts, commit_id=commit_id)

    def note_overrun(self) -> None:
        """Write down that a run is past its time and does not stop.

        A thread cannot be stopped, and a task may swallow its cancel: the lease stays, so that no
        successor starts beside it. While it records an effect the row is about to move; then the
        next beat finds it again.
        """
        if self.is_recording() or not self.thread_lock.acquire(blocking=False):
            return
        try:
            self.overran = True
            change = self.decide(Overran())
            self.noted = threading.Event()
            noted = partial(self.overran_noted, change)
            entry = Entry(change, noted, partial(self.hold_instead, row=self.row))
            self.row = change.row
            self.worker.committer.offer([entry])
        finally:
            self.thread_lock.release()

    def overran_noted(self, offered: Change, written: Change, receipt: Receipt) -> None:
        if written is not offered or not isinstance(receipt, Committed):
            self.lost = True
        if self.noted is not None:
            self.noted.set()

    def payload(self) -> Any:
        if self._payload is _UNREAD:
            self._payload = read_payload(self.flow, self.payload_bytes)
        return self._payload

    def now(self) -> Instant:
        return self.worker.now()

    def find_result(self, stage: str, kind: Any) -> tuple[bool, Any]:
        return Results(self.results).find(stage, kind)

    def find_decision(self, gate: Gate[Any]) -> Decision[Any] | None:
        return Results(self.results).find_decision(gate)

    def find_act(self, kind: str, code: str) -> PastAct | None:
        return Results(self.results).find_act(kind, code)

    def once(self, name: str, function: Callable[[str], Any]) -> Any:
        if self.where == "loop":
            if not inspect.iscoroutinefunction(function):
                raise BadInput(
                    f"once({name!r}) in an async stage needs an async function; "
                    "a plain one would stop every other stage of this worker"
                )
            return self._once_async(name, function)
        if inspect.iscoroutinefunction(function):
            raise BadInput(f"once({name!r}) in a plain stage needs a plain function, not async")
        return self._once_plain(name, function)

    def emit(self, topic: str, data: object, key: str | None) -> None:
        job_id, n = self.row.id, len(self.messages)
        encoded = must_fit(codec.encode(data), f"emit({topic!r}): the message")
        self._make_room(1, len(encoded))
        now = self.worker.now()
        self.messages += (Message(job_id, 0, n, key or job_id.hex(), topic, encoded, now),)

    def note(self, kind: str, message: str, details: dict[str, object]) -> None:
        line = make_note(kind, message, details)
        self._make_room(1, len(line.details or ""))
        self.notes += (line,)

    def spawn(self, flow: Flow[Any], payloads: Iterable[object], options: Any) -> list[str]:
        made = self.worker.kernel.prepare_many(flow, payloads, options)
        self._make_room(len(made), sum(len(job.payload.data) for job in made))
        self.spawns += tuple(made)
        ids = [to_text(job.row.id) for job in made]
        if any(job.row.dedup_key is not None for job in made):
            self.unsure_spawns += ((made, ids),)
            if self.where != "loop":  # which no store may hold up: there it is done at the end
                self.find_holders()
        return ids

    def _make_room(self, count: int, size: int) -> None:
        added = len(self.messages) + len(self.spawns) + len(self.notes)
        must_be_few(added + count, self._added_bytes + size)
        self._added_bytes += size

    def find_holders(self) -> None:
        """Replace every spawned job by the holder of its dedup key, if the key is held.

        A key that is taken after this look and before the commit is not seen.
        """
        own: dict[tuple[str, str, str | None], bytes] = {}
        for job in self.spawns:
            own.setdefault(_key(job), job.row.id)
        unsure, self.unsure_spawns = self.unsure_spawns, ()
        given_up: set[bytes] = set()
        for made, ids in unsure:
            for n, job in enumerate(made):
                if job.row.dedup_key is None:
                    continue
                holder = self._find_holder(job.row, job.row.dedup_key) or own[_key(job)]
                if holder != job.row.id:
                    ids[n] = to_text(holder)
                    given_up.add(job.row.id)
        self.spawns = tuple(job for job in self.spawns if job.row.id not in given_up)

    def _find_holder(self, child: JobRow, key: str) -> bytes | None:
        try:
            holder = self.worker.store.find_key(child.tenant, child.flow, key)
        except StoreError as error:
            # The stage goes on, as it would without a key: its commit waits for the store.
            log.warning("a key could not be read", extra={"error": str(error)})
            return None
        # This job's own key may be freed by the commit that spawns.
        return None if holder == self.row.id else holder

    def progress(self, fraction: float, note: str | None) -> None:
        if not 0 <= fraction <= 1:
            raise BadInput(f"progress {fraction} is not between 0 and 1")
        self.worker.progress[self.row.id] = Progress(
            self.row.id, float(fraction), clean(note), self.worker.now()
        )

    def resource(self, kind: type[T]) -> T:
        return self.worker.resource(kind)

    def connection(self) -> Any:
        return stage_transactions.begin(self)

    def _recorded(self, name: str, function: Callable[..., Any]) -> tuple[bool, Any]:
        return Results(self.results).recorded(self.stage_name(), name, self.row.round, function)

    def record(self, name: str, data: bytes) -> None:
        """Record an effect from a thread, and wait until that is durable.

        Raises:
            Abandoned: it could not be recorded, and the stage must end.
        """
        done = threading.Event()
        receipts: list[Receipt] = []

        def settle(written: Change, receipt: Receipt) -> None:
            receipts.append(receipt if written is change else LeaseLost())
            done.set()

        with self.thread_lock:
            change = self.decide(Noted(name, data))
            self.worker.committer.offer([Entry(change, settle, self.hold_instead)])
            while not done.wait(LONGEST_SILENCE_S):
                if self.worker.committer.has_stopped:
                    receipts.append(LeaseLost())
                    break
            self._take_over(change, receipts[0])

    def _take_over(self, change: Change, receipt: Receipt) -> None:
        if not isinstance(receipt, Committed):
            self.lost = self.stopping = True
            raise Abandoned
        self.row = change.row
        self.results = self.results + change.results
        for request in receipt.requests:
            self.worker.ask(self, request)

    def _begin_effect(self, name: str) -> str:
        """Return the name under which an effect is stored; it must not be running already."""
        if not name or "/" in name:
            raise BadInput(f"once({name!r}): a name is not empty and holds no slash")
        # An undo's effects are its own: it must not find what its stage did under the same name.
        stored = effect_name(self.row, name)
        if stored in self._effects:
            raise BadInput(f"once({name!r}) is running already in this stage; name each effect")
        if self.change is not None or self.worker.committer.has_stopped:
            raise Abandoned  # its record could not be written any more
        self._effects.add(stored)
        return stored

    def _once_plain(self, name: str, function: Callable[[str], Any]) -> Any:
        stored = self._begin_effect(name)
        try:
            found, value = self._recorded(stored, function)
            if found:
                return value
            value = function(effect_key(self.row, name))
            self.record(stored, write_effect(name, value))
            return value
        finally:
            self._effects.discard(stored)

    async def _once_async(self, name: str, function: Callable[[str], Awaitable[Any]]) -> Any:
        stored = self._begin_effect(name)
        try:
            found, value = self._recorded(stored, function)
            if found:
                return value
            value = await function(effect_key(self.row, name))
            await self._record_async(stored, write_effect(name, value))
            return value
        finally:
            self._effects.discard(stored)

    async def _record_async(self, name: str, data: bytes) -> None:
        if self._loop_lock is None:
            self._loop_lock = asyncio.Lock()
        async with self._loop_lock:
            if self.change is not None:
                raise Abandoned  # the stage has ended without waiting for this effect
            change = self.decide(Noted(name, data))
            future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

            def settle(written: Change, receipt: Receipt) -> None:
                if not future.done():
                    future.set_result(receipt if written is change else LeaseLost())

            self.worker.committer.offer([Entry(change, settle, self.hold_instead)])
            cancelled = await _even_if_cancelled(future)
            self._take_over(change, future.result())
            if cancelled is not None:
                raise cancelled

    def is_recording(self) -> bool:
        return self._loop_lock is not None and self._loop_lock.locked()

    async def quiet(self) -> None:
        """Wait until no effect of this run is being recorded; its record would move the row."""
        while self._loop_lock is not None and self._loop_lock.locked():
            # The stage has ended: a cancel that comes now must not keep its end from being told.
            with suppress(asyncio.CancelledError):
                async with self._loop_lock:
                    pass


def _key(job: NewJob) -> tuple[str, str, str | None]:
    return job.row.tenant, job.row.flow, job.row.dedup_key


async def _even_if_cancelled(future: asyncio.Future[Receipt]) -> asyncio.CancelledError | None:
    """Wait for a receipt. The effect has happened: no cancel may come before its record."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
