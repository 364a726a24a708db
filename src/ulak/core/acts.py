"""Every rule for people and the clock: what may be asked of a job that nobody has leased.

The same acts on a leased job are recorded as requests and answered by the worker's commit
(`decide`, `RunFacts.asked`) or by whoever finds them afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from ulak.clock import SECOND, Instant, rfc3339, to_datetime
from ulak.core import event as kinds
from ulak.core import undo
from ulak.core.bounds import must_be_short
from ulak.core.change import EVERY_STAGE, RELEASED_ACT, RETRIED_ACT, Change, Draft, frees_key
from ulak.core.checks import refusals_of
from ulak.core.flow import Flow, Gate, names
from ulak.core.job import OF_STATE, JobRow, Result
from ulak.core.lifecycle import BUSY, CLAIMABLE, FAILED, FINAL, HELD, READY, UNDOING, WAITING, Same
from ulak.core.outcome import (
    AddNote,
    Asked,
    Cancel,
    Decide,
    Elapsed,
    Expire,
    Release,
    Retry,
    Signal,
)
from ulak.core.policy import SUBMITTER, Until
from ulak.core.table import Place, enterable, find_missing
from ulak.core.undo import INDIRECT, enter
from ulak.errors import BadInput, TransitionNotAllowed
from ulak.ids import to_text

APPROVE: Final = "approve"


def must_act(actor: str, note: str) -> str:
    """Return who acts, or raise `BadInput` if nobody is named or the note is too long."""
    if not actor:
        raise BadInput("say who acts: actor= must not be empty")
    must_be_short(note)
    return actor


def answer(
    flow: Flow[Any],
    job: JobRow,
    asked: Asked,
    now: Instant,
    *,
    commit_id: bytes,
    roles: Collection[str] | None = None,
) -> Change | None:
    """Return the change that an act makes, or None when the clock has nothing to do yet. Nobody has
    leased the job. `roles` are those of the actor; None when the caller vouches for them.
    `TransitionNotAllowed`: the lifecycle or a guard says no, and why."""
    must_know(flow, job)
    draft = Draft(flow, job, now, commit_id=commit_id, actor=asked.actor)
    if isinstance(asked, Elapsed):
        return _elapsed(draft)
    if isinstance(asked, Signal):
        return _signal(draft, asked)
    if isinstance(asked, AddNote):
        return _note(draft, asked)
    if job.role == UNDOING:
        raise refused(job, "its undos are running; wait until they have ended")
    if isinstance(asked, Decide):
        return _decide(draft, asked, roles)
    if isinstance(asked, Release):
        return _release(draft, asked)
    if isinstance(asked, Retry):
        return _retry(draft, asked)
    if isinstance(asked, Expire):
        return _expire(draft, asked)
    return _cancel(draft, asked)


def must_know(flow: Flow[Any], job: JobRow) -> None:
    """Raise `TransitionNotAllowed` for a job in a state that this version of its flow lacks."""
    missing = find_missing(flow.table, job)
    if missing is not None:
        raise refused(job, lacks(flow, missing), code=kinds.STATE_UNKNOWN)


def lacks(flow: Flow[Any], missing: str) -> str:
    """Return the sentence for what a program's version of a flow is missing."""
    return (
        f'version {flow.version} of {flow.name} in this program lacks "{missing}"; '
        "use a program that has it"
    )


def approval(flow: Flow[Any], job: JobRow) -> str | None:
    """Return the choice that approves at the gate of a job; None if a release lets the job go on.
    It is the only choice that refuses nothing, or, of several, the one called `approve`. If nobody
    is asked, or none of the choices is that one, `TransitionNotAllowed` is raised."""
    must_know(flow, job)
    place = flow.table.places[job.state]
    if place.gate is None:
        if job.role != HELD:
            raise refused(job, "nothing is to be approved here")
        return None
    refusals = refusals_of(flow, place.gate)
    willing = [choice for choice in place.gate.choices if choice not in refusals]
    if len(willing) == 1:
        return willing[0]
    if APPROVE in willing:
        return APPROVE
    raise refused(
        job, f"which choice approves cannot be told; decide {names(list(place.gate.choices))}"
    )


def refused(job: JobRow, why: str, *, code: str | None = None) -> TransitionNotAllowed:
    """Return the refusal of something that a job cannot do where it stands."""
    return TransitionNotAllowed(
        f'job {to_text(job.id)} is in "{job.state}" ({job.role}): {why}', code=code, state=job.state
    )


def _place(draft: Draft, state: str) -> Place:
    """Return where a job goes back to; it may have been held or failed in another program."""
    place = draft.table.places.get(state)
    if place is None:
        raise refused(draft.row, lacks(draft.flow, state), code=kinds.STATE_UNKNOWN)
    return enterable(draft.table, place)


def _decide(draft: Draft, asked: Decide, roles: Collection[str] | None) -> Change:
    job, place = draft.row, draft.table.places[draft.row.state]
    gate = place.gate
    if gate is None:
        asking = [g.state for g in draft.flow.declared.gates]
        where = f"gates are in {names(asking)}" if asking else "this flow has no gates"
        raise refused(job, f"no decision is asked here; {where}")
    if asked.choice not in gate.choices:
        raise refused(job, f'"{asked.choice}" is not a choice; say {names(list(gate.choices))}')
    _must_be_allowed(job, gate, asked, roles)
    draft.results += (Result(job.id, job.round, gate.state, "", asked.data or b"null"),)
    draft.row = job._replace(has_results=1)
    target = draft.table.places[gate.choices[asked.choice]]
    if asked.choice in refusals_of(draft.flow, gate) and target.role != UNDOING:
        undo.give_up(draft, target.state, kind=kinds.DECIDED, code=asked.choice, message=asked.note)
    else:
        enter(draft, target, kind=kinds.DECIDED, code=asked.choice, message=asked.note)
    return draft.change()


def _must_be_allowed(
    job: JobRow, gate: Gate[Any], asked: Decide, roles: Collection[str] | None
) -> None:
    if gate.by and roles is not None and not gate.by & set(roles):
        raise refused(
            job, f"only {names(sorted(gate.by))} may decide here, {asked.actor} may not",
            code="not-permitted",
        )  # fmt: skip
    barred = {job.submitter if who is SUBMITTER else who for who in gate.not_by}
    if asked.actor in barred:
        raise refused(
            job, f"{asked.actor} may not decide here; somebody else must", code="not-permitted"
        )


def _release(draft: Draft, asked: Release) -> Change:
    job, life = draft.row, draft.flow.lifecycle
    if job.role != HELD or job.state != life.held:
        if draft.table.places[job.state].gate is not None:
            raise refused(job, "a decision is asked here; use decide")
        raise refused(job, f'only a job in "{life.held}" can be released')
    if job.undo_to is not None:
        undo.resume(draft, kinds.RELEASED, asked.note, asked.because)
        _remember(draft, RELEASED_ACT, job.code)
        return draft.change()
    to = job.resume if isinstance(life.release_to, Same) else life.release_to
    draft.arrive(_place(draft, to or life.initial))
    draft.note(kinds.RELEASED, from_state=job.state, message=asked.note)
    _remember(draft, RELEASED_ACT, job.code)
    return draft.change()


def _remember(draft: Draft, kind: str, code: str | None) -> None:
    """Leave for later stages when, and by whom, a hold or a failure with this code was ended."""
    line = draft.events[-1]
    said = json.dumps({"seq": line.seq, "at": line.at, "actor": line.actor}, ensure_ascii=False)
    row = draft.row
    draft.results += (Result(row.id, row.round, kind, code or "", said.encode()),)
    draft.row = row._replace(has_results=1)


def _retry(draft: Draft, asked: Retry) -> Change:
    job, flow = draft.row, draft.flow
    if job.role != FAILED:
        raise refused(job, "only a failed job can be retried")
    if job.permanent and not flow.retries_permanent:
        raise refused(job, f"it failed for good ({job.code}); submit a new job instead")
    if job.expires_at is not None and job.expires_at <= draft.now:
        raise refused(
            job, f"its time ran out at {rfc3339(to_datetime(job.expires_at))}; submit a new job",
            code=kinds.TOO_LATE,
        )  # fmt: skip
    after_us = 0
    if flow.operator_retry is not None:
        delay = flow.operator_retry.delay_us(job.round, job.id)
        if delay is None:
            raise refused(
                job, f"it was retried {job.round - 1} times, and this flow allows no more",
                code="retries-spent",
            )  # fmt: skip
        after_us = delay
    target = draft.table.retry_to
    to = job.resume if isinstance(target, Same) else target
    if to is None:
        to = flow.lifecycle.initial
    if to != job.resume:
        draft.voids += (EVERY_STAGE,)
    place = _place(draft, to)
    # The delay is for stages: a gate or a wait that it comes back to keeps its own time.
    draft.arrive(place, after_us=after_us if place.stage is not None else 0)
    draft.row = draft.row._replace(round=job.round + 1, started="")
    details = None
    if (due := draft.row.not_before) > draft.now:
        due_at = rfc3339(to_datetime(due), "milliseconds")
        details = json.dumps({"after_s": after_us / SECOND, "due_at": due_at})
    draft.note(kinds.RETRIED, from_state=job.state, message=asked.note, details=details)
    _remember(draft, RETRIED_ACT, job.code)
    # What its end gave back must be had again, or another job of the same key would run beside it.
    # A program of another release, or with other numbers of retries, may have freed more.
    until = Until.FINISHED if flow.dedup is None else flow.dedup.until
    freed = frees_key(flow, job) or until is Until.FAILED_FOR_GOOD
    return draft.change()._replace(takes_key=job.dedup_key is not None and freed)


def _cancel(draft: Draft, asked: Cancel) -> Change:
    job, life = draft.row, draft.flow.lifecycle
    if job.role in FINAL:
        raise refused(job, "it has already ended", code=kinds.TOO_LATE)
    if job.undo_to is not None:
        raise refused(job, "its undos are owed; release it to try them again")
    draft.answers += (("cancel", ""),)
    undo.give_up(
        draft, life.cancelled, kind=kinds.CANCELLED, code=kinds.CANCELLED_CODE, message=asked.note
    )
    return draft.change()


def _expire(draft: Draft, asked: Expire) -> Change:
    job, end = draft.row, draft.flow.lifecycle.expired
    if asked.state is not None and job.state != asked.state:
        raise refused(job, f'only a job in "{asked.state}" was to expire')
    if job.role in FINAL:
        if (job.state, end) not in draft.table.legal:
            raise refused(job, f'nothing leads from here to "{end}"', code=kinds.TOO_LATE)
        draft.arrive(draft.table.places[end])
        # Why it failed, if it did, stays true.
        draft.row = draft.row._replace(
            code=job.code or kinds.EXPIRED_CODE, permanent=job.permanent, resume=job.resume
        )
        if undo.ends_for_good(draft, end, kinds.EXPIRED):
            draft.row = draft.row._replace(code=kinds.EXPIRED_CODE, permanent=1)
        draft.note(kinds.EXPIRED, from_state=job.state, code=kinds.EXPIRED_CODE, message=asked.note)
    elif job.undo_to is not None:
        raise refused(job, "its undos are owed; release it to try them again")
    else:
        undo.give_up(draft, end, kind=kinds.EXPIRED, code=kinds.EXPIRED_CODE, message=asked.note)
    return draft.change()


def _signal(draft: Draft, asked: Signal) -> Change:
    job, place = draft.row, draft.table.places[draft.row.state]
    if job.role != WAITING or job.awaits != asked.name or place.wait is None:
        raise refused(job, f'it does not wait for "{asked.name}" now')
    draft.results += (Result(job.id, job.round, job.state, "", asked.data or b"null"),)
    draft.row = job._replace(has_results=1)
    target = draft.table.places[place.wait.to or job.state]
    enter(draft, target, kind=kinds.SIGNALLED, code=asked.name, message=asked.note)
    draft.answers += (("signal", asked.name),)
    return draft.change()


def _note(draft: Draft, asked: AddNote) -> Change:
    draft.note(asked.kind, from_state=draft.row.state, message=asked.note, details=asked.details)
    if asked.request is not None:
        draft.answers += ((kinds.NOTE, asked.request),)
    return draft.change()


def _elapsed(draft: Draft) -> Change | None:
    job, now = draft.row, draft.now
    if job.wake_at is None or job.wake_at > now or job.role == UNDOING:
        return None
    place = draft.table.places[job.state]
    if job.deadline_at is not None and job.deadline_at <= now:
        return _deadline(draft)
    if job.role in FINAL or job.undo_to is not None:
        return None
    draft.answers += (("expire", ""),)
    undo.give_up(
        draft, draft.flow.lifecycle.expired, kind=kinds.EXPIRED, code=kinds.EXPIRED_CODE,
        message=f'its time ran out in "{place.state}"',
    )  # fmt: skip
    return draft.change()


def _deadline(draft: Draft) -> Change:
    job, place = draft.row, draft.table.places[draft.row.state]
    asked = place.gate or place.wait
    to = (asked.on_expiry if asked is not None else None) or draft.flow.lifecycle.expired
    target = draft.table.places[to]
    is_refused = place.gate is not None and to in {
        place.gate.choices[choice] for choice in refusals_of(draft.flow, place.gate)
    }
    if job.role in FINAL:
        draft.arrive(target)
        code = None
        if undo.ends_for_good(draft, to, kinds.WAITED):
            code = kinds.EXPIRED_CODE
            draft.row = draft.row._replace(code=code, permanent=1)
        draft.note(kinds.WAITED, from_state=job.state, code=code)
    elif is_refused and target.role != UNDOING:
        undo.give_up(draft, to, kind=kinds.WAITED, code=kinds.EXPIRED_CODE)
    else:
        code = kinds.EXPIRED_CODE if target.role in INDIRECT and target.gate is None else None
        enter(draft, target, kind=kinds.WAITED, code=code)
    return draft.change()


def can_be_taken(job: JobRow, now: Instant) -> bool:
    """Tell whether a claim could lease the job now: it is due, and nobody has it."""
    return (
        job.role in CLAIMABLE
        and job.leased_by is None
        and job.parked_on is None
        and job.not_before <= now
    )


def taken(flow: Flow[Any], job: JobRow, now: Instant, *, worker: str, commit_id: bytes) -> Change:
    """Return the change that leases a job to a worker, entering its busy state on the way. It is
    guarded by the version: of two workers that take the job, or take and claim it, one has it."""
    draft = Draft(flow, job, now, commit_id=commit_id, actor=worker)
    busy = flow.table.entries.get(job.state) if job.role == READY else None
    if busy is not None:
        slot = job.slot
        if slot is not None and job.state in flow.table.keeps:
            slot = OF_STATE + slot
        draft.row = job._replace(state=busy, role=BUSY, changed_at=now, slot=slot)
    draft.note(kinds.TAKEN if busy is None else kinds.ENTERED, from_state=job.state)
    draft.row = draft.row._replace(leased_by=worker, leased_at=now, token=job.token + 1, stood=1)
    return draft.change(keep=True)
