"""What people and programs outside ask of jobs: decide, release, retry, cancel, signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from secrets import randbelow
from typing import TYPE_CHECKING, Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.acts import answer, approval, must_act
from ulak.core.bounds import must_be_short, must_fit
from ulak.core.change import COMMITTED, Committed, KeyTaken, Receipt
from ulak.core.flow import Flow
from ulak.core.job import JobRow, Request
from ulak.core.lifecycle import FINAL, UNDOING, WAITING
from ulak.core.outcome import AddNote, Asked, Cancel, Decide, Expire, Release, Retry, Signal
from ulak.core.undo import REASONS
from ulak.engine.reads import Reads, write_decision
from ulak.engine.stage_outcomes import make_note
from ulak.engine.telemetry import commit_one
from ulak.engine.view import Job
from ulak.errors import JobNotFound, StaleJob, TransitionNotAllowed
from ulak.errors import KeyTaken as KeyTakenError
from ulak.ids import to_text
from ulak.store import codec
from ulak.store.protocol import JobStore, Store

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

ATTEMPTS_AT_AN_ACT = 5
ATTEMPTS_AT_A_NOTE = 100  # of many who repeat one submission at once, each leaves a line
LOOK_BACK = 100
LOOK_BACK_FOR_REASON = 1000


class Acts(Reads):
    """Acts on jobs by guarded changes: at once when nobody has leased them, else by a request."""

    def decide(
        self,
        job_id: str,
        choice: str | None = None,
        *,
        actor: str,
        note: str = "",
        data: object = None,
        roles: Collection[str] | None = None,
        connection: Any = None,
    ) -> Job:
        """Answer a gate. Of two people deciding at once one wins, the other is told who did.

        Args:
            choice: One of the gate's choices. Without it, the approval: the only choice which
                refuses nothing, or, of several, the one called `approve`; a held job is released.
            data: What the gate's `data` declares.
            roles: The roles of the actor; None when the caller vouches for them.
            connection: Your own open transaction (sqlite3, psycopg or SQLAlchemy), to act in: it
                counts when you commit. Every act takes one.

        Raises:
            TransitionNotAllowed: no such choice here, not by this actor, or without a choice:
                nobody is asked, or none of the choices is the approval.
            StaleJob: somebody else was faster; `decided_by` names them.
        """

        def act(acts: JobActs) -> Job:
            row = acts.get_row(job_id)
            now, flow = acts.store.clock.now(), acts.kernel.get_flow(row)
            try:
                asked = decision(flow, row, choice, actor=actor, note=note, now=now, data=data)
                return acts.act_once(row, asked, roles=roles)
            except TransitionNotAllowed as error:
                raise acts.with_decider(row, error) from None

        return self._act("decide", connection, act)

    def release(self, job_id: str, *, actor: str, note: str = "", connection: Any = None) -> Job:
        """Let a held job go on, to where its flow says.

        `TransitionNotAllowed`: it is not held. `StaleJob`: somebody else was faster.
        """
        asked = Release(actor, note)
        return self._act("release", connection, lambda acts: acts.act_on(job_id, asked))

    def retry(self, job_id: str, *, actor: str, note: str = "", connection: Any = None) -> Job:
        """Run a failed job again, in a new round.

        `TransitionNotAllowed`: it has not failed, or failed for good. `KeyTaken`: another job holds
        its dedup key by now.
        """
        asked = Retry(actor, note)
        return self._act("retry", connection, lambda acts: acts.act_on(job_id, asked))

    def cancel(self, job_id: str, *, actor: str, note: str = "", connection: Any = None) -> Job:
        """End a job: at once, or, when a worker runs it, as soon as its stage has stopped.

        A stage that finishes first keeps its move. Undos run before the job ends. The answer has
        `cancel_requested` set while a worker has yet to stop. `TransitionNotAllowed`: it has
        already ended (`too-late`) or is being undone.
        """
        asked = Cancel(actor, note)
        return self._act("cancel", connection, lambda acts: acts.cancel(job_id, asked))

    def expire(
        self,
        job_id: str,
        *,
        actor: str,
        note: str = "",
        state: str | None = None,
        connection: Any = None,
    ) -> Job:
        """End a job whose time is over by the program's own count, in the flow's expired state.

        An unfinished job that nobody has leased expires as if its `expires` had come; a finished
        one whose table has a move to the expired state makes it. With `state` only a job that
        stands there expires.

        `TransitionNotAllowed`: a worker runs it, it has expired, or its table has no such move.
        `StaleJob`: somebody else was faster.
        """
        asked = Expire(actor, note, state)
        return self._act("expire", connection, lambda acts: acts.act_on(job_id, asked))

    def signal(
        self,
        job: str | tuple[str, str],
        name: str,
        data: object = None,
        *,
        actor: str = "",
        note: str = "",
        tenant: str = "",
        connection: Any = None,
    ) -> Job:
        """Tell a job that something happened outside; it is kept until the job waits for it.

        `job` is its id, or (flow, dedup key) of a job of this `tenant`; `name` is the signal that
        its wait declares, and `data` what the stages after it may read.

        `BadInput`: the data is not what the wait declares, or too large. `TransitionNotAllowed`:
        the flow waits for no such signal, or the job has ended.
        """

        def act(acts: JobActs) -> Job:
            job_id = job
            if not isinstance(job_id, str):
                found = acts.store.find_key(tenant, *job_id)
                if found is None:
                    raise JobNotFound(f"of flow {job_id[0]} with key {job_id[1]!r}")
                job_id = to_text(found)
            return acts.signal(acts.get_row(job_id), name, data, actor=actor, note=note)

        return self._act("signal", connection, act)

    def note(
        self,
        job_id: str,
        kind: str,
        message: str = "",
        /,
        *,
        actor: str,
        connection: Any = None,
        **details: object,
    ) -> Job:
        """Write a line of your own into the trail of a job, in whatever state it is.

        The line is durable when this returns. If a worker runs the job, it comes into the trail
        when the run has ended. `kind` is stored for ever: lower-case words with a dot, such as
        `orders.repeated`. `details` are JSON.

        `BadInput`: the kind is no such word, or the details are no JSON or too large. `StaleJob`:
        the job kept moving.
        """
        line = make_note(kinds.check_kind(kind), must_be_short(message), details)
        asked = AddNote(must_act(actor, message), message, kind, line.details)
        return self._act("note", connection, lambda acts: acts.note(job_id, asked))

    def _act(self, verb: str, connection: Any, act: Callable[[JobActs], Job]) -> Job:
        is_own = connection is None
        return self.kernel.acting_on(
            connection, verb, lambda store: act(JobActs(self.kernel, store, is_own))
        )


class JobActs:
    """Where acts are done: on the store itself, or on its verbs inside a caller's transaction.

    What it writes is committed if the store `is_own`, so that others may be told.
    """

    def __init__(self, kernel: Kernel, store: Store, is_own: bool) -> None:
        self.kernel = kernel
        self.store = store
        self._is_own = is_own

    def get_row(self, job_id: str) -> JobRow:
        return self.kernel.get_row(job_id, self.store)

    def act_on(self, job_id: str, asked: Asked) -> Job:
        """Commit an act on a job as it stands."""
        return self.act_once(self.get_row(job_id), asked)

    def cancel(self, job_id: str, asked: Cancel) -> Job:
        return self.act_or_request(self.get_row(job_id), asked)

    def signal(self, row: JobRow, name: str, data: object, *, actor: str, note: str) -> Job:
        """Tell a job that something happened outside."""
        flow = self.kernel.get_flow(row)
        known = {w.signal for w in flow.declared.waits if w.signal is not None}
        if name not in known:
            waits = ", ".join(sorted(known)) or "nothing"
            raise TransitionNotAllowed(f"{flow.name} waits for {waits}, not for {name!r}")
        _must_not_have_ended(row)
        said = must_fit(codec.encode(_fit_signal(flow, name, data)), "the data of this signal")
        return self.act_or_request(row, Signal(actor or "ulak", note, name, said))

    def note(self, job_id: str, asked: AddNote) -> Job:
        """Write a line into the trail, or leave it for the end of the run."""
        for attempt in range(ATTEMPTS_AT_A_NOTE):
            row = self.get_row(job_id)
            if row.leased_by is not None:
                name, now = self.kernel.new_commit_id().hex(), self.store.clock.now()
                self.store.request(write_note(row, asked, name, now))
                return Job(row)
            with suppress(StaleJob):
                return self.act_once(row, asked)
            time.sleep(randbelow(min(attempt, 20) + 1) / 1000)
        raise StaleJob(f"job {job_id} keeps moving; try again", job_id=job_id)

    def act_once(self, row: JobRow, asked: Asked, roles: Collection[str] | None = None) -> Job:
        """Commit an act on the job as it was read; the second of two operators is told."""
        must_be_short(asked.note)
        job_id = to_text(row.id)
        flow = self.kernel.get_flow(row)
        if row.leased_by is not None:
            raise TransitionNotAllowed(
                f'job {job_id} is in "{row.state}" and a worker runs it now; '
                "only a cancel can be asked of it",
                state=row.state,
            )
        job, receipt = self._commit(flow, row, with_reason(self.store, row, asked), roles)
        if isinstance(receipt, Committed):
            return job
        if isinstance(receipt, KeyTaken):
            raise key_taken(row, receipt)
        later = self.store.trail(row.id, after=row.seq, limit=1)
        who = later[0].actor if later else ""
        did = f"{who} was faster ({later[0].kind})" if later else "somebody was faster"
        raise StaleJob(f"job {job_id}: {did}; read it again", job_id=job_id, decided_by=who)

    def _commit(
        self, flow: Flow[Any], row: JobRow, asked: Asked, roles: Collection[str] | None = None
    ) -> tuple[Job, Receipt]:
        now, commit_id = self.store.clock.now(), self.kernel.new_commit_id()
        change = answer(flow, row, asked, now, commit_id=commit_id, roles=roles)
        if change is None:
            return Job(row), COMMITTED
        receipt = commit_one(self.store, change, self.kernel.telemetry)
        if isinstance(receipt, Committed):
            self._ring()
        return Job(change.row), receipt

    def _ring(self) -> None:
        if self._is_own:
            self.kernel.ring()

    def with_decider(self, row: JobRow, error: TransitionNotAllowed) -> TransitionNotAllowed:
        """Add to an error who has answered the gate that the job has left."""
        place = self.kernel.get_flow(row).table.places.get(row.state)
        if place is not None and place.gate is not None:
            return error
        recent = self.store.trail(row.id, after=max(0, row.seq - LOOK_BACK), limit=LOOK_BACK)
        for event in reversed(recent):
            if event.kind == kinds.DECIDED and event.round == row.round:
                said = f"{error}; {event.actor} has decided: {event.code}"
                return TransitionNotAllowed(
                    said, code=error.code, state=error.state, decided_by=event.actor
                )
        return error

    def act_or_request(self, row: JobRow, asked: Cancel | Signal) -> Job:
        """Act at once when nobody has leased the job, else leave a request for its worker."""
        must_be_short(asked.note)
        job_id = to_text(row.id)
        kind, name, data = "cancel", "", None
        if isinstance(asked, Signal):
            kind, name, data = "signal", asked.name, asked.data
        for _ in range(ATTEMPTS_AT_AN_ACT):
            if row.leased_by is None and _can_act(row, asked):
                job, receipt = self._commit(self.kernel.get_flow(row), row, asked)
                if isinstance(receipt, Committed):
                    return job
            else:
                _must_not_have_ended(row)
                if isinstance(asked, Cancel) and row.role == UNDOING:
                    raise TransitionNotAllowed(
                        f'job {job_id} is in "{row.state}": its undos are running; '
                        "wait until they have ended",
                        state=row.state,
                    )
                now = self.store.clock.now()
                request = Request(row.id, kind, name, asked.actor, asked.note, data, now)
                leased = self.store.request(request)
                self._ring()
                fresh = self.get_row(job_id)
                if fresh.role in FINAL:
                    if self._was_answered(row, asked):
                        return Job(fresh)
                    # Its stage was faster: nobody will ever answer this request.
                    self.store.dismiss(row.id, [(kind, name)])
                elif leased or not _can_act(fresh, asked):
                    return Job(fresh, cancel_requested=kind == "cancel")
            row = self.get_row(job_id)
        raise StaleJob(f"job {job_id} keeps moving; try again", job_id=job_id)

    def _was_answered(self, row: JobRow, asked: Cancel | Signal) -> bool:
        later = self.store.trail(row.id, after=row.seq)
        if isinstance(asked, Signal):
            return any(e.kind == kinds.SIGNALLED and e.code == asked.name for e in later)
        return any(e.kind == kinds.CANCELLED for e in later)


def _can_act(row: JobRow, asked: Cancel | Signal) -> bool:
    """Tell whether a job that nobody has leased can take this now; a signal may come too early."""
    return isinstance(asked, Cancel) or (row.role == WAITING and row.awaits == asked.name)


def _must_not_have_ended(row: JobRow) -> None:
    if row.role in FINAL:
        raise TransitionNotAllowed(f"job {to_text(row.id)} has already ended", code="too-late")


def _fit_signal(flow: Flow[Any], name: str, data: object) -> object:
    """Refuse data that no stage could read: the job would be held over it much later."""
    types = {w.data for w in flow.declared.waits if w.signal == name}
    if data is None or None in types or any(codec.is_instance(data, kind) for kind in types):
        return data
    kind, *others = types
    # With several waits for one signal nobody can tell yet which of them will read it.
    return data if others else codec.convert(data, kind)


def key_taken(row: JobRow, receipt: KeyTaken) -> KeyTakenError:
    """Return the refusal of a retry whose dedup key another job holds by now."""
    holder = to_text(receipt.holder)
    taken = f"job {to_text(row.id)}: its dedup key is held by job {holder} now"
    return KeyTakenError(taken, holder=holder)


def decision(
    flow: Flow[Any],
    row: JobRow,
    choice: str | None,
    *,
    actor: str,
    note: str,
    now: Instant,
    data: object = None,
) -> Decide | Release:
    """Return the answer at the gate of a job, its data as the gate declares; without a choice it is
    the approval, for a held job its release. `TransitionNotAllowed`: nobody is asked here, or
    nobody can tell which choice approves. `BadInput`: the data is not what the gate declares."""
    if choice is None:
        choice = approval(flow, row)
    if choice is None:
        return Release(actor, note)
    place = flow.table.places.get(row.state)
    kind = None if place is None or place.gate is None else place.gate.data
    if kind is not None and data is not None and not codec.is_instance(data, kind):
        data = codec.convert(data, kind)
    return Decide(actor, note, choice, write_decision(choice, actor, note, now, data))


def with_reason(store: JobStore, row: JobRow, asked: Asked) -> Asked:
    """Return the act; the release of a job whose undos go on also says why the job gave up."""
    if not isinstance(asked, Release) or row.undo_to is None:
        return asked
    after = max(0, row.seq - LOOK_BACK_FOR_REASON)
    recent = store.trail(row.id, after=after, limit=LOOK_BACK_FOR_REASON)
    because = next((e.code for e in reversed(recent) if e.kind in REASONS), None)
    return replace(asked, because=because)


def write_note(row: JobRow, asked: AddNote, name: str, now: Instant) -> Request:
    """Write a note as a request to a job that is leased: its line follows the run."""
    data = codec.encode([asked.kind, asked.details])
    return Request(row.id, kinds.NOTE, name, asked.actor, asked.note, data, now)


def read_note(request: Request) -> AddNote:
    """Read a note that was left as a request."""
    kind, details = codec.decode(request.data or b"null")
    return AddNote(request.actor, request.note or "", kind, details, request.name)
