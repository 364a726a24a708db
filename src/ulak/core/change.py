"""One write, and what a store answers to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.flow import Flow
from ulak.core.job import FIRST_MUTABLE, Event, JobRow, Message, NewJob, Request, Result, held_slot
from ulak.core.lifecycle import DONE, FAILED, FINAL, UNDOING, WAITING, Role
from ulak.core.outcome import Left
from ulak.core.policy import Until
from ulak.core.table import Place, needs_of


class Change(NamedTuple):
    """Everything that one decision writes, whole or not at all.

    Exactly one guard is set. With `token`, the change is a worker's: it is written only while
    the stored token is this one. With `version`, it is an operator's or upkeep's: it is written
    only while the stored version is this one and nobody has leased the job.
    """

    row: JobRow
    """The job as it will be; its side columns are not written."""
    commit_id: bytes
    token: int | None = None
    version: int | None = None
    events: tuple[Event, ...] = ()
    results: tuple[Result, ...] = ()
    voids: tuple[str, ...] = ()
    """Stages whose results are removed, because they were undone; `EVERY_STAGE` means all of them,
    but not what operators did (`RELEASED_ACT`, `RETRIED_ACT`)."""
    messages: tuple[Message, ...] = ()
    spawns: tuple[NewJob, ...] = ()
    frees_key: bool = False
    takes_key: bool = False
    frees_slot: str | None = None
    takes_slot: str | None = None
    """The lease goes on into a limited stage: without a free slot nothing is written."""
    answers: tuple[tuple[str, str], ...] = ()
    proofs: tuple[bytes, ...] = ()
    """What is chained into the tenant's proofs, one per event that is one."""
    moved_from: str | None = None
    """The state left, for the counters; None when state and role stay."""
    role_from: Role | None = None
    """The role left with it: a job may begin its undos in the state where it stands."""
    pauses: tuple[tuple[str, Instant], ...] = ()
    """(key, until) of the keys that are paused with it; a longer pause stays as it is."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The change is durable. `requests` came in while the job was leased."""

    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """The version had moved or the job is leased; `row` is how it stands."""

    row: JobRow | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The token had moved: another claim, rescue or give-back came first."""


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """No slot was free for the stage the lease would have gone on to."""

    limit: str


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """Another job holds the dedup key."""

    holder: bytes


Receipt = Committed | Stale | LeaseLost | SlotTaken | KeyTaken

COMMITTED: Final = Committed()
EVERY_STAGE: Final = "*"

RELEASED_ACT: Final = "/released"
RETRIED_ACT: Final = "/retried"
"""Stand for a stage where the result is what an operator did, by the code that was dealt with; no
void removes those."""


# What a text column must hold on every store; longer texts are cut, since losing the tail of a
# message is better than holding the job over it.
LONGEST_TEXT = 4000

_VERSION, _SEQ, _LEASED_BY, _TOKEN = (
    JobRow._fields.index(name) for name in ("version", "seq", "leased_by", "token")
)


class EndJob(Protocol):
    """Makes the job that follows an end; `ulak.OnEnd` is one."""

    @property
    def target(self) -> Flow[Any]:
        """The flow of the job that follows."""

    def complaint(self) -> str | None:
        """Return what is wrong with the declaration, if anything is."""

    def make(self, ended: JobRow, now: Instant, *, commit_id: bytes) -> NewJob | None:
        """Make the job that follows this end, or None for none; whatever it raises, the job
        ends."""


def is_end(before: JobRow, after: JobRow) -> bool:
    """Tell whether a change ends a job: it comes into a final state in which it was not. A
    migration to another version of the flow does not end an ended job again."""
    if after.role not in FINAL or (after.state, after.role) == (before.state, before.role):
        return False
    return before.role not in FINAL or before.flow_version == after.flow_version


class Draft:
    """The one mutable record of the core; it never leaves the decision that made it."""

    __slots__ = (
        "actor",
        "answers",
        "commit_id",
        "events",
        "flow",
        "messages",
        "now",
        "origin",
        "pauses",
        "results",
        "row",
        "spawns",
        "started_at",
        "table",
        "voids",
        "worker",
    )

    def __init__(
        self,
        flow: Flow[Any],
        job: JobRow,
        now: Instant,
        *,
        commit_id: bytes,
        actor: str,
        worker: str | None = None,
        started_at: Instant | None = None,
    ) -> None:
        self.flow = flow
        self.table = flow.table
        self.origin = job
        self.row = job
        self.now = now
        self.commit_id = commit_id
        self.actor = actor
        self.worker = worker
        self.started_at = started_at
        self.events: list[Event] = []
        self.results: tuple[Result, ...] = ()
        self.voids: tuple[str, ...] = ()
        self.messages: tuple[Message, ...] = ()
        self.spawns: tuple[NewJob, ...] = ()
        self.answers: tuple[tuple[str, str], ...] = ()
        self.pauses: tuple[tuple[str, Instant], ...] = ()

    def leave(self, left: Left) -> None:
        """Write what a run leaves with the first event of this change."""
        self.spawns = left.spawns
        if left.messages:
            seq = self.origin.seq + len(self.events) + 1
            self.messages = tuple(m._replace(seq=seq) for m in left.messages)

    def arrive(self, place: Place, *, after_us: int = 0) -> None:
        """Put the job into a state, with everything that the state decides. `after_us` is how long
        a waiting state waits; in any other it delays the stage."""
        now, row = self.now, self.row
        # What has ended is not undone any more: a bad end is entered after its undos only.
        started = "" if place.is_final else row.started
        if row.stood and not place.is_final and row.role != UNDOING:
            started = _started(started, self.table.places[row.state])
        deadline = None
        if after_us and place.role == WAITING:
            deadline = now + after_us
        elif place.deadline_us is not None:
            deadline = now + place.deadline_us
        wake = deadline if place.is_final else earlier(deadline, row.expires_at)
        lane, slot, rate, cost = place.lane, place.slot, place.rate, place.cost
        if place.is_particular:
            lane, slot, rate, cost = needs_of(place, row.tenant, row.keys)
        # Written out in the order of JobRow: this is done for every move, and naming eighteen
        # fields to `_replace` takes four times as long.
        self.row = JobRow._make((
            *row[:FIRST_MUTABLE],
            place.state, place.role, row.version, row.seq, row.round,
            0, 0, now, None, 0, None,  # attempt, lapses, changed_at, code, permanent, resume
            started, row.undo_to, row.has_results, lane, now + after_us, slot, rate, cost,
            None, place.awaits, deadline, wake,  # parked_on, awaits, deadline_at, wake_at
            row.leased_by, row.leased_at, row.token, 0, 0, row.requests,  # stood, lapsed
        ))  # fmt: skip

    def note(
        self,
        kind: str,
        *,
        from_state: str,
        code: str | None = None,
        message: str | None = None,
        details: str | None = None,
        emitted: int = 0,
    ) -> None:
        """Add a line to the trail, leading to where the job stands now."""
        row, origin = self.row, self.origin
        self.events.append(
            Event(
                origin.id,
                origin.seq + len(self.events) + 1,
                kind,
                from_state,
                row.state,
                self.actor,
                clean(code),
                clean(message),
                details,
                row.round,
                origin.attempt + 1,
                self.worker,
                origin.token,
                self.started_at,
                self.now,
                emitted,
                self.commit_id,
            )
        )

    def keep_lease(self, *, enters: bool = False) -> None:
        """Go on to the next stage under the same lease, entering its busy state on the way. With
        `enters`, it is entered after the function that is called before the stage."""
        place = self.table.places[self.row.state]
        busy = place.enters if enters else place.during
        if self.row.role != UNDOING and busy is not None:
            source, attempt, lapses = self.row.state, self.row.attempt, self.row.lapses
            self.arrive(self.table.places[busy])
            # It is the same stage: a retry that is due at once would else have no end.
            self.row = self.row._replace(attempt=attempt, lapses=lapses)
            self.note(kinds.ENTERED, from_state=source, emitted=len(self.messages) * enters)
        self.row = self.row._replace(leased_at=self.now, stood=1)

    def change(self, *, keep: bool = False) -> Change:
        """Close the draft. A worker's change is guarded by its token, any other by version."""
        if self.flow.on_end is not None and is_end(self.origin, self.row):
            self._follow_end(self.flow.on_end)
        origin, row = self.origin, self.row
        # Not whether the job is leased: an act on a job that a worker has leased meanwhile must
        # be refused by the version's guard, never written under that worker's token.
        was_leased = self.worker is not None
        leased_by, token = row.leased_by, row.token
        if was_leased and not keep:
            # The token moves when a lease ends, so that a zombie of this run cannot write.
            leased_by, token = None, token + 1
        row = JobRow._make((
            *row[:_VERSION], origin.version + 1, origin.seq + len(self.events),
            *row[_SEQ + 1 : _LEASED_BY], leased_by, row.leased_at, token, *row[_TOKEN + 1 :],
        ))  # fmt: skip
        held, wanted = origin.slot, row.slot
        if held is not None or wanted is not None:
            held = held_slot(held, leased=was_leased)
            wanted = held_slot(wanted, leased=keep)
        moved = (row.state, row.role) != (origin.state, origin.role)
        return Change(
            row,
            self.commit_id,
            origin.token if was_leased else None,
            None if was_leased else origin.version,
            tuple(self.events),
            self.results,
            self.voids,
            self.messages,
            self.spawns,
            row.dedup_key is not None and row.role in FINAL and self._frees_key(row),
            False,
            held if held != wanted else None,
            wanted if held != wanted else None,
            self.answers,
            tuple(proof_body(e) for e in self.events) if self.flow.proofs else (),
            origin.state if moved else None,
            origin.role if moved else None,
            self.pauses,
        )

    def _follow_end(self, on_end: EndJob) -> None:
        """Submit the job that follows this end. If that fails, the job still ends."""
        row = self.row._replace(leased_by=None)
        try:
            job = on_end.make(row, self.now, commit_id=self.commit_id)
        except Exception as error:  # noqa: BLE001 - code of the user, which must not stop an end
            self.note(
                kinds.ON_END_FAILED, from_state=row.state, code=row.code,
                message=f"{type(error).__name__}: {error}",
            )  # fmt: skip
        else:
            self.spawns += () if job is None else (job,)

    def _frees_key(self, row: JobRow) -> bool:
        """Tell whether this change gives the dedup key back: it is freed exactly once."""
        origin = self.origin
        return frees_key(self.flow, row) and not (
            origin.role in FINAL and frees_key(self.flow, origin)
        )


def frees_key(flow: Flow[Any], row: JobRow) -> bool:
    """Tell whether a job that stands in this final state gives its dedup key back."""
    # A key that was given to a submit of a flow without a rule of its own keeps to the usual one.
    until = Until.FINISHED if flow.dedup is None else flow.dedup.until
    if until is Until.FINISHED:
        return True
    if until is Until.FAILED_FOR_GOOD:
        return row.role != DONE and not may_be_retried(flow, row)
    return not isinstance(until, Until) and row.state in until


def may_be_retried(flow: Flow[Any], row: JobRow) -> bool:
    """Tell whether an operator could retry a job that has ended, at the moment of its end."""
    if row.role != FAILED or (row.permanent and not flow.retries_permanent):
        return False
    if row.expires_at is not None and row.expires_at <= row.changed_at:
        return False
    return flow.operator_retry is None or row.round <= flow.operator_retry.limit()


def proof_body(event: Event) -> bytes:
    """Write the facts of an event that a proof stands for, the same for ever."""
    facts = (
        event.job_id.hex(), event.seq, event.kind, event.from_state or "", event.to_state,
        event.actor, event.code or "", event.message or "", event.details or "", event.at,
    )  # fmt: skip
    return b"\x1f".join(str(fact).encode() for fact in facts)


def clean(text: str | None) -> str | None:
    """Make a text storable everywhere: no NUL, no unpaired surrogate, not endless."""
    if text is None or text == "":
        return None
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 1] + "…"
    if text.isprintable() and text.isascii():
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _started(started: str, place: Place) -> str:
    """Remember a stage that stood leased and has an undo; the latest start counts."""
    if not place.has_undo or place.stage is None:
        return started
    name = place.stage.state
    return " ".join([*(s for s in started.split() if s != name), name])


def earlier(a: Instant | None, b: Instant | None) -> Instant | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)
