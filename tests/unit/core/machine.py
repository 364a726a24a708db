"""A job on a bench: turn its clock, lease it, end its run, act on it, and read what was written.

It stands for a store of one job, and holds every change to what every change must keep.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from ulak.clock import micros
from ulak.core.acts import answer
from ulak.core.change import Change
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin
from ulak.core.job import Event, JobRow, NewJob, Payload
from ulak.core.lifecycle import BUSY, CLAIMABLE, FINAL, HELD, READY, WAITING, Lifecycle
from ulak.core.outcome import (
    Asked,
    Cancel,
    Decide,
    Elapsed,
    Finished,
    Held,
    Outcome,
    Raised,
    Release,
    Retry,
    Signal,
)
from ulak.core.policy import Until
from ulak.core.table import Place

START = 1_000_000_000
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DONE = Finished()


def work(run: object) -> None: ...


def always(place: Place) -> bool:
    return True


def goto(state: str, **options: Any) -> Finished:
    return Finished(to=state, **options)


def raised(code: str = "down", **options: Any) -> Raised:
    return Raised(code, "it broke", **options)


def stopped(code: str = "look") -> Held:
    return Held(code, "a person must look")


class Machine:
    """One job of a flow."""

    def __init__(self, flow: Flow[Any], *, key: str | None = None, **said: Any) -> None:
        self.flow = flow
        self.now = START
        self._ids = count(1)
        submission = Submission(submitter="ann", dedup_key=key, **said)
        new = begin(
            flow, Payload(b"{}", 1), submission, self.now, job_id=b"j" * 16, commit_id=self._id()
        )
        self.new: NewJob = new
        self.row: JobRow = new.row
        self.trail: list[Event] = [new.event]
        self.changes: list[Change] = []
        self.holds_key = key is not None

    # --- what a store and its clock do ------------------------------------------

    def turn(self, by: timedelta) -> Machine:
        self.now += micros(by)
        return self

    def claim(self, worker: str = "w1") -> Machine:
        """Lease the job as a store does, when it is due or as soon as it will be."""
        row = self.row
        assert row.role in CLAIMABLE, row.state
        assert row.leased_by is None
        assert row.lane in self.flow.table.lanes
        self.now = max(self.now, row.not_before)
        self.row = row._replace(
            leased_by=worker, leased_at=self.now, token=row.token + 1, stood=1, parked_on=None
        )
        busy = self.flow.table.entries.get(row.state)
        if busy is not None and row.role == READY:
            self.row = self.row._replace(
                state=busy, role=BUSY, version=row.version + 1, seq=row.seq + 1
            )
            self.trail.append(
                self.trail[-1]._replace(
                    seq=self.row.seq, kind="entered", from_state=row.state, to_state=busy
                )
            )
        return self

    def lapse(self) -> Machine:
        """Lose the worker, as a store notices it."""
        row = self.row
        assert row.leased_by is not None
        self.row = row._replace(
            leased_by=None, token=row.token + 1, lapses=row.lapses + 1, lapsed=1,
            not_before=self.now, version=row.version + 1, seq=row.seq + 1,
        )  # fmt: skip
        self.trail.append(
            self.trail[-1]._replace(
                seq=self.row.seq, kind="lapsed", from_state=row.state, to_state=row.state
            )
        )
        return self

    def write(self, change: Change) -> Change:
        """Take a change in, and hold it to what every change keeps."""
        before, after = self.row, change.row
        assert (change.token is None) != (change.version is None)
        if change.token is not None:
            assert change.token == before.token
        else:
            assert change.version == before.version
            assert before.leased_by is None
        assert after.version == before.version + 1
        assert after.token >= before.token
        assert after[:10] == before[:10]
        assert [e.seq for e in change.events] == list(range(before.seq + 1, after.seq + 1))
        state = before.state
        for event in change.events:
            assert event.from_state == state
            assert event.commit_id == change.commit_id
            if event.from_state != event.to_state:
                assert (event.from_state, event.to_state) in self.flow.table.legal, event
            state = event.to_state
        assert state == after.state
        assert sum(e.emitted for e in change.events) == len(change.messages)
        assert all(m.seq in {e.seq for e in change.events if e.emitted} for m in change.messages)
        if (before.state, before.role) == (after.state, after.role):
            assert (change.moved_from, change.role_from) == (None, None)
        else:
            assert (change.moved_from, change.role_from) == (before.state, before.role)
        assert not (change.frees_key and change.takes_key)
        if change.frees_key:
            assert self.holds_key, "a key is freed once"
            assert not after.started, "a key is freed after the last undo"
            self.holds_key = False
        if change.takes_key:
            # A key that the release before has freed is taken again, and one that is held stays so.
            until = None if self.flow.dedup is None else self.flow.dedup.until
            assert not self.holds_key or until is Until.FAILED_FOR_GOOD
            self.holds_key = True
        self.row = after
        self.trail.extend(change.events)
        self.changes.append(change)
        assert has_a_way_on(self.flow, after), after
        return change

    # --- what workers and people do ---------------------------------------------

    def end(self, outcome: Outcome, *, keep: Any = None, asked: Any = None) -> Change:
        """End the present run."""
        facts = RunFacts("w1", self.row.leased_at or 0, keep, asked)
        return self.write(
            decide(self.flow, self.row, outcome, self.now, facts=facts, commit_id=self._id())
        )

    def run(self, *outcomes: Outcome) -> Machine:
        """Claim and end a run for each outcome."""
        for outcome in outcomes:
            self.claim().end(outcome)
        return self

    def run_lapsed(self) -> Outcome | None:
        """Claim after a lapse and end the run as `lapse_answer` says."""
        self.claim()
        outcome = lapse_answer(self.flow, self.row)
        if outcome is not None:
            self.end(outcome)
        return outcome

    def act(self, asked: Asked, roles: set[str] | None = None) -> Change | None:
        change = answer(self.flow, self.row, asked, self.now, commit_id=self._id(), roles=roles)
        return None if change is None else self.write(change)

    def decide(self, choice: str, actor: str = "bob", **said: Any) -> Change | None:
        return self.act(Decide(actor, choice=choice, **said))

    def release(self) -> Change | None:
        return self.act(Release("bob", "mended"))

    def retry(self) -> Change | None:
        return self.act(Retry("bob", "again"))

    def cancel(self) -> Change | None:
        return self.act(Cancel("bob", "not wanted"))

    def signal(self, name: str, data: bytes | None = None) -> Change | None:
        return self.act(Signal("bank", name=name, data=data))

    def elapse(self) -> Change | None:
        return self.act(Elapsed())

    # --- what was written -------------------------------------------------------

    @property
    def last(self) -> Event:
        return self.trail[-1]

    @property
    def at(self) -> tuple[str, str]:
        """The state and the role."""
        return self.row.state, self.row.role

    def kinds(self) -> list[str]:
        return [event.kind for event in self.trail]

    def path(self) -> list[str]:
        """Every state the trail has seen, in order, without standing still."""
        states = [self.trail[0].to_state]
        for event in self.trail[1:]:
            if event.to_state != states[-1]:
                states.append(event.to_state)
        return states

    def _id(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")


def has_a_way_on(flow: Flow[Any], row: JobRow) -> bool:
    """E-2: a job that has not ended is claimable, leased, waiting with an end, or held."""
    if row.role in FINAL:
        return row.undo_to is None and row.lane == ""
    if row.role in CLAIMABLE:
        return row.leased_by is not None or row.lane in flow.table.lanes
    if row.role == WAITING:
        return row.awaits is not None or row.wake_at is not None
    return row.role == HELD


def two_steps(undos: str = "", *, life: dict[str, Any] | None = None, **options: Any) -> Flow[Any]:
    """The stages "a" and "b", then "done"; those named in `undos` have an undo."""
    flow: Flow[Any] = Flow(
        "orders", Lifecycle("a", {"a": ["b"], "b": ["done"]}, **(life or {})), **options
    )
    for state in "ab":
        stage = flow.stage(state)(work)
        if state in undos:
            stage.undo(work)
    return flow
