"""Every rule of a run: the flow, the job, how the run ended and the time give the change.

Pure. What a worker saw comes in as an outcome, what is to be written goes out as a change, and
nothing else is known. The rules for operators and the clock are in `acts`, those for undoing in
`undo`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ulak.clock import Instant, micros
from ulak.core import event as kinds
from ulak.core import undo
from ulak.core.change import Change, Draft
from ulak.core.flow import Flow, names
from ulak.core.job import FIRST_MUTABLE, Event, JobRow, Result
from ulak.core.lifecycle import CANCELLED, CLAIMABLE, EXPIRED, FAILED, FINAL, READY, UNDOING
from ulak.core.outcome import (
    JUST_FINISHED,
    NOTHING,
    Cancel,
    Deferred,
    Elapsed,
    Finished,
    GivenBack,
    Held,
    Lapsed,
    Note,
    Noted,
    Outcome,
    Overran,
    Parked,
    Passed,
    Raised,
)
from ulak.core.policy import Backoff
from ulak.core.table import Place
from ulak.core.undo import INDIRECT, enter, hold
from ulak.errors import TransitionNotAllowed

_KINDS_OF_ENDS = {
    FAILED: kinds.FAILED,
    UNDOING: kinds.FAILED,
    EXPIRED: kinds.EXPIRED,
    CANCELLED: kinds.CANCELLED,
}


class RunFacts(NamedTuple):
    """What a worker knows about the run besides its outcome."""

    worker: str
    started_at: Instant
    may_keep: Callable[[Place], bool] | None = None
    """Whether the lease may go on to the stage of this place, in this worker, now."""
    asked: Cancel | Elapsed | None = None
    """A cancel or an expiry that reached the worker while the stage ran."""
    notes: tuple[Note, ...] = ()
    """What the run has noted; written with whatever ends it."""


def decide(
    flow: Flow[Any],
    job: JobRow,
    outcome: Outcome,
    now: Instant,
    *,
    facts: RunFacts,
    commit_id: bytes,
) -> Change:
    """Return the change that the end of a run makes; the job must be leased.
    `TransitionNotAllowed`: the outcome asks for a move that the table lacks."""
    if facts.asked is None and is_plain(outcome) and job.role != UNDOING and not facts.notes:
        target = flow.table.straight.get(job.state)
        if target is not None and job.dedup_key is None:
            return move_straight(job, target, now, facts=facts, commit_id=commit_id)
    draft = Draft(
        flow, job, now, commit_id=commit_id, actor=facts.worker, worker=facts.worker,
        started_at=facts.started_at,
    )  # fmt: skip
    if facts.notes and not isinstance(outcome, Noted | Overran | GivenBack):
        for kind, message, details in facts.notes:
            draft.note(kind, from_state=job.state, message=message, details=details)
    if isinstance(outcome, Finished):
        if job.role == UNDOING:
            undo.finished(draft, outcome.left, kinds.AFTER_STOP if outcome.after_stop else None)
        else:
            _finished(draft, outcome)
    elif isinstance(outcome, Passed):
        if facts.may_keep is not None and facts.asked is None:
            draft.leave(outcome.left)
            draft.keep_lease(enters=True)
            return draft.change(keep=True)
        _interrupted(draft, GivenBack())
    elif isinstance(outcome, Parked):
        # As a claim parks it: without a line in the trail, since nothing has happened to it.
        draft.row = job._replace(parked_on=outcome.limit, not_before=now, lapsed=0)
    elif isinstance(outcome, Noted):
        return _noted(draft, outcome)
    elif isinstance(outcome, Overran):
        draft.note(kinds.OVERRAN, from_state=job.state, code=kinds.TIMEOUT)
        return draft.change(keep=True)
    else:
        _interrupted(draft, outcome)
    if facts.asked is not None:
        _give_way(draft, facts.asked)
    keep = (
        facts.may_keep is not None
        and draft.row.role in CLAIMABLE
        and draft.row.not_before <= now
        and draft.row.role != UNDOING
        and draft.row.rate is None  # every run is paid for, and only a claim can pay
        and not isinstance(outcome, GivenBack | Passed | Parked)
        and facts.may_keep(draft.table.places[draft.row.state])
    )
    if keep:
        draft.keep_lease()
    return draft.change(keep=keep)


def lapse_answer(flow: Flow[Any], job: JobRow) -> Outcome | None:
    """Return how a run that was lost with its worker counts, or None when it is simply run again. A
    worker that dies is not the fault of its job, until it dies too often: lapses are no
    attempts."""
    if job.lapses >= flow.max_lapses:
        return Held(
            kinds.WORKER_DIED,
            f"{job.lapses} workers vanished while they ran this stage; release it to try again",
        )
    if job.lapsed and flow.on_lapse is not None and job.role != UNDOING:
        return Lapsed()
    return None


def _finished(draft: Draft, outcome: Finished) -> None:
    row = draft.row
    place = draft.table.places[row.state]
    to = outcome.to or place.to
    if to is None or to not in place.ways:
        ways = f'"{row.state}" may move to {names(place.ways)}, not to "{to}"'
        if to is None:
            ways = f'the stage for "{row.state}" may go to {names(place.ways)}; '
            ways += "return Goto(...) to say which"
        raise TransitionNotAllowed(f"job {row.id.hex()}: {ways}", state=row.state)
    draft.leave(outcome.left)
    result = outcome.left.result
    if result is not None and place.stage is not None:
        draft.results += (Result(row.id, row.round, place.stage.state, "", result),)
        draft.row = row._replace(has_results=1)
    target = draft.table.places[to]
    after_us = 0 if outcome.after is None else micros(outcome.after)
    if target.role in INDIRECT:
        kind = _KINDS_OF_ENDS.get(target.role, kinds.MOVED)
        enter(draft, target, kind=kind, after_us=after_us, emitted=len(draft.messages))
        return
    draft.arrive(target, after_us=after_us)
    code = kinds.AFTER_STOP if outcome.after_stop else None
    draft.note(kinds.MOVED, from_state=row.state, code=code, emitted=len(draft.messages))


def _noted(draft: Draft, outcome: Noted) -> Change:
    row = draft.row
    stage = undo.current_stage(draft)
    draft.results += (Result(row.id, row.round, stage, outcome.name, outcome.data),)
    draft.row = row._replace(has_results=1)
    draft.note(kinds.NOTED, from_state=row.state, message=outcome.name)
    return draft.change(keep=True)


def _interrupted(draft: Draft, outcome: Outcome) -> None:
    row = draft.row
    if isinstance(outcome, GivenBack):
        due = draft.now + micros(outcome.after)
        draft.row = row._replace(not_before=due, parked_on=None, lapsed=0)
        draft.note(
            kinds.GIVEN_BACK, from_state=row.state, code=outcome.code, message=outcome.message
        )
    elif isinstance(outcome, Held):
        if outcome.code != kinds.WORKER_DIED:
            draft.row = row._replace(lapsed=0)
        hold(draft, outcome.code, outcome.message, outcome.details)
    elif isinstance(outcome, Deferred):
        _deferred(draft, outcome)
    elif isinstance(outcome, Lapsed):
        code = draft.flow.on_lapse or kinds.WORKER_DIED
        _failed(draft, Raised(code, "the worker that ran this stage vanished"))
    elif isinstance(outcome, Raised):
        # This run has answered for the one that was lost before it.
        draft.row = row._replace(lapsed=0)
        _failed(draft, outcome)


def _deferred(draft: Draft, outcome: Deferred) -> None:
    row = draft.row
    spent = row.attempt
    if outcome.spend_attempt:
        spent += 1
        if _backoff(draft).delay_us(spent, row.id) is None:
            _failed(draft, Raised(kinds.GAVE_UP, outcome.message or "no attempts are left"))
            return
    wait = micros(outcome.after)
    if outcome.key is not None:
        draft.pauses += ((outcome.key, draft.now + wait),)
    draft.row = row._replace(attempt=spent, not_before=draft.now + wait, lapsed=0)
    draft.note(kinds.RETRY, from_state=row.state, message=outcome.message)


def _backoff(draft: Draft) -> Backoff:
    if draft.row.role == UNDOING:
        return draft.flow.undo_retry
    return draft.table.places[draft.row.state].retry or draft.flow.retry


def _failed(draft: Draft, failure: Raised) -> None:
    """Try again after the declared delay, or give up."""
    row = draft.row
    if row.role == UNDOING:
        undo.failed(draft, failure)
        return
    place = draft.table.places[row.state]
    delay = None if failure.permanent else _backoff(draft).delay_us(row.attempt + 1, row.id)
    if delay is None:
        life = draft.flow.lifecycle
        end = life.failed if life.undone is None else life.undone
        undo.give_up(
            draft, end, kind=kinds.FAILED, code=failure.code, message=failure.message,
            details=failure.details, permanent=failure.permanent, failed=life.failed,
        )  # fmt: skip
        return
    via = draft.flow.retry_via
    if via is not None and place.stage is not None:
        draft.row = row._replace(state=via)
        draft.note(
            kinds.FAILED, from_state=row.state, code=failure.code, message=failure.message,
            details=failure.details,
        )  # fmt: skip
        source = draft.table.places[place.stage.state]
        draft.row = row
        draft.arrive(source, after_us=delay)
        draft.row = draft.row._replace(attempt=row.attempt + 1, lapses=row.lapses)
        draft.note(kinds.RETRY, from_state=via, code=failure.code)
        return
    draft.row = row._replace(attempt=row.attempt + 1, not_before=draft.now + delay, lapsed=0)
    draft.note(
        kinds.RETRY, from_state=row.state, code=failure.code, message=failure.message,
        details=failure.details,
    )  # fmt: skip


def _give_way(draft: Draft, asked: Cancel | Elapsed) -> None:
    """Follow a finished move with the cancel or the expiry that came in meanwhile."""
    if draft.row.role in FINAL or draft.row.role == UNDOING:
        return
    life = draft.flow.lifecycle
    end, kind, code, request = life.expired, kinds.EXPIRED, kinds.EXPIRED_CODE, "expire"
    if isinstance(asked, Cancel):
        end, kind, code, request = life.cancelled, kinds.CANCELLED, kinds.CANCELLED_CODE, "cancel"
    draft.actor = asked.actor
    draft.answers += ((request, ""),)
    undo.give_up(draft, end, kind=kind, code=code, message=asked.note)
    draft.actor = draft.worker or draft.actor


def is_plain(outcome: Outcome) -> bool:
    """Tell whether a run just finished, leaving nothing and asking for nothing."""
    return outcome is JUST_FINISHED or (
        type(outcome) is Finished
        and outcome.left is NOTHING
        and outcome.to is None
        and outcome.after is None
        and not outcome.after_stop
    )


def move_straight(
    job: JobRow, target: Place, now: Instant, *, facts: RunFacts, commit_id: bytes
) -> Change:
    """Return the change that moves a job to a place of `Table.straight`, and nothing besides.
    `decide` would return the same, by way of a draft (tests/unit/core/test_straight.py compares
    them). Measured on CPython 3.11: 6 us instead of 11, of the 75 that a no-op job took then."""
    worker, seq = facts.worker, job.seq + 1
    is_ready = target.role == READY
    keep = is_ready and facts.may_keep is not None and facts.may_keep(target)
    row = JobRow._make((
        *job[:FIRST_MUTABLE],
        target.state, target.role, job.version + 1, seq, job.round,
        0, 0, now, None, 0, None,  # attempt, lapses, changed_at, code, permanent, resume
        job.started, job.undo_to, job.has_results, target.lane, now,
        None, None, 0, None, None, None,  # slot, rate, cost, parked_on, awaits, deadline_at
        job.expires_at if is_ready else None,  # wake_at
        job.leased_by if keep else None, now if keep else job.leased_at,
        job.token if keep else job.token + 1,
        1 if keep else 0, 0, job.requests,  # stood, lapsed
    ))  # fmt: skip
    event = Event(
        job.id, seq, kinds.MOVED, job.state, target.state, worker, None, None, None, job.round,
        job.attempt + 1, worker, job.token, facts.started_at, now, 0, commit_id,
    )  # fmt: skip
    return Change(
        row, commit_id, job.token, None, (event,), (), (), (), (), False, False, None, None, (),
        (), job.state, job.role,
    )  # fmt: skip
