"""Compensation: what a job that ends early still owes, and in which order it is paid.

While undos run, the job's role is `undoing`. It enters its end only by the last undo's change,
which also frees its dedup key; until then nobody may retry, release or cancel it.
"""

from __future__ import annotations

from typing import Final

from ulak.core import event as kinds
from ulak.core.change import Draft, clean
from ulak.core.job import OF_UNDO, is_of_state, lane_for
from ulak.core.lifecycle import BUSY, CANCELLED, EXPIRED, FAILED, FINAL, HELD, UNDOING
from ulak.core.outcome import NOTHING, Left, Raised
from ulak.core.table import Place, enterable

_CODES = {CANCELLED: kinds.CANCELLED_CODE, EXPIRED: kinds.EXPIRED_CODE}
REASONS = frozenset(
    {kinds.FAILED, kinds.CANCELLED, kinds.EXPIRED, kinds.DECIDED, kinds.SIGNALLED, kinds.WAITED}
)
"""The events that may begin undos; their code is why."""


def give_up(
    draft: Draft,
    to: str,
    *,
    kind: str,
    code: str,
    message: str | None = None,
    details: str | None = None,
    permanent: bool = False,
    failed: str | None = None,
    emitted: int = 0,
) -> None:
    """End the job in `to`, after the undos of every stage that has started.

    Args:
        kind: The event that says why, with `code`, `message` and `details`.
        permanent: No retry will mend it.
        failed: Where it ends instead when there is nothing to undo.
        emitted: How many messages are written with that event.
    """
    row = draft.row
    owed = _with_present_stage(draft)
    permanent = permanent or ends_for_good(draft, to if owed else failed or to, kind)
    via, came = draft.flow.retry_via, row.state
    if via is not None and row.role == BUSY and not owed and (via, to) in draft.table.legal:
        draft.row = row._replace(state=via)
        draft.note(kinds.FAILED, from_state=row.state, code=code, message=message)
        draft.row, came = row, via
    if owed:
        _begin(draft, owed, to)
    else:
        draft.arrive(draft.table.places[failed or to])
    if owed or draft.row.role in FINAL or draft.row.state == draft.flow.lifecycle.held:
        draft.row = draft.row._replace(
            code=clean(code), permanent=int(permanent), resume=row.resume or row.state
        )
    draft.note(kind, from_state=came, code=code, message=message, details=details, emitted=emitted)


def ends_for_good(draft: Draft, to: str, kind: str) -> bool:
    """Tell whether the failed state is where a cancelled or an expired job ends: then for good."""
    is_meant = kind in (kinds.CANCELLED, kinds.EXPIRED)
    is_late = kind == kinds.WAITED and to == draft.flow.lifecycle.expired
    return (is_meant or is_late) and draft.table.places[to].role == FAILED


def finished(draft: Draft, left: Left = NOTHING, code: str | None = None) -> None:
    """Void what the stage of an undo left, and go on to the next undo or to the end."""
    draft.leave(left)
    row, emitted = draft.row, len(draft.messages)
    owed = row.started.split()
    stage = owed.pop()
    draft.voids += (stage,)
    if owed:
        draft.row = row._replace(
            started=" ".join(owed), lane=_lane(draft, owed[-1]), attempt=0, lapses=0,
            not_before=draft.now, lapsed=0, stood=0,
        )  # fmt: skip
        draft.note(kinds.UNDONE, from_state=row.state, code=code, message=stage, emitted=emitted)
        return
    draft.note(kinds.UNDONE, from_state=row.state, code=code, message=stage, emitted=emitted)
    end = draft.table.places[row.undo_to or draft.flow.lifecycle.failed]
    draft.row = row._replace(started="", undo_to=None)
    draft.arrive(end)
    if end.is_final:
        draft.row = draft.row._replace(code=row.code, permanent=row.permanent, resume=row.resume)
    elif end.state == draft.flow.lifecycle.held:
        # Nothing is left of what it did: a release begins at the start, or where the flow says.
        draft.row = draft.row._replace(code=row.code)
    draft.note(kinds.ENDED, from_state=row.state, code=row.code)


def failed(draft: Draft, failure: Raised) -> None:
    """One undo failed: try it again, or hold the job until a person has looked."""
    row = draft.row
    stage = row.started.split()[-1]
    delay = draft.flow.undo_retry.delay_us(row.attempt + 1, row.id)
    if delay is not None and not failure.permanent:
        draft.row = row._replace(attempt=row.attempt + 1, not_before=draft.now + delay, lapsed=0)
        draft.note(
            kinds.RETRY, from_state=row.state, code=failure.code, details=failure.details,
            message=f"undo of {stage}: {failure.message}",
        )  # fmt: skip
        return
    hold_undo(draft, f"undo of {stage}: {failure.message}", failure.details)


def hold_undo(draft: Draft, message: str, details: str | None = None) -> None:
    """Hold a job whose undo cannot be finished; what it owes stays written in the row."""
    # Why it gave up stays in the trail: the row says why it is held now.
    row = draft.row
    place = draft.table.places[draft.flow.lifecycle.held]
    draft.row = row._replace(
        state=place.state, role=HELD, attempt=0, lapses=0, lapsed=0, stood=0, lane="",
        slot=None, rate=None, cost=0, parked_on=None, wake_at=None, deadline_at=None,
        changed_at=draft.now, code=kinds.UNDO_FAILED,
    )  # fmt: skip
    draft.note(
        kinds.HELD, from_state=row.state, code=kinds.UNDO_FAILED, message=message, details=details
    )


def resume(draft: Draft, kind: str, message: str | None, because: str | None) -> None:
    """Go on undoing after a person has released a job held with `undo-failed`. `because` is the
    code with which it gave up; the row has another while it is held."""
    row = draft.row
    end = draft.table.places[row.undo_to or draft.flow.lifecycle.failed]
    _begin(draft, row.started.split(), end.state)
    draft.row = draft.row._replace(code=because or _CODES.get(end.role, kinds.GAVE_UP))
    draft.note(kind, from_state=row.state, message=message)


def current_stage(draft: Draft) -> str:
    """Name the stage that a run works for: the one being undone, or the one of its state."""
    row = draft.row
    if row.role == UNDOING:
        return row.started.split()[-1]
    stage = draft.table.places[row.state].stage
    return row.state if stage is None else stage.state


def _with_present_stage(draft: Draft) -> list[str]:
    row = draft.row
    owed = row.started.split()
    place = draft.table.places[row.state]
    if row.stood and place.has_undo and place.stage is not None:
        owed = [*(s for s in owed if s != place.stage.state), place.stage.state]
    return owed


def _begin(draft: Draft, owed: list[str], to: str) -> None:
    row, life = draft.row, draft.flow.lifecycle
    stood = row.resume if row.state == life.held and row.resume else row.state
    not_before = draft.now
    place = draft.table.places[stood]
    if row.state != stood:
        # Another job may have the slot of that state by now.
        stood = enterable(draft.table, place).state
    state, slot = life.undoing or stood, None
    if row.state == state and row.slot is not None and is_of_state(row.slot):
        slot = OF_UNDO + row.slot[1:]
    if row.lapsed and row.leased_at is not None and place.undo_wait_us:
        # Its last run vanished and may still be working somewhere; the undo comes after the
        # moment by which that run must have ended.
        not_before = max(not_before, row.leased_at + place.undo_wait_us)
    draft.row = row._replace(
        state=state, role=UNDOING, attempt=0, lapses=0, changed_at=draft.now,
        started=" ".join(owed), undo_to=to, lane=_lane(draft, owed[-1]),
        not_before=not_before, slot=slot, rate=None, cost=0, parked_on=None, awaits=None,
        deadline_at=None, wake_at=None, stood=0, lapsed=0,
    )  # fmt: skip


def _lane(draft: Draft, stage: str) -> str:
    return lane_for(draft.table.undo_lanes[stage], draft.row.tenant)


INDIRECT: Final = frozenset({HELD, UNDOING, FAILED, EXPIRED, CANCELLED})


def enter(
    draft: Draft,
    place: Place,
    *,
    kind: str,
    code: str | None = None,
    message: str | None = None,
    after_us: int = 0,
    emitted: int = 0,
) -> None:
    """Put the job into the state of `place` by the road that its role asks for."""
    row, life = draft.row, draft.flow.lifecycle
    if place.role in INDIRECT and place.gate is None:
        if place.state == life.held:
            hold(draft, code or kinds.HELD, message, kind=kind, emitted=emitted)
            return
        end, nothing_owed = place.state, place.state
        if place.role == UNDOING:
            end, nothing_owed = life.undone or life.failed, life.failed
        give_up(
            draft, end, kind=kind, code=code or _CODES.get(place.role, kinds.GAVE_UP),
            message=message, failed=nothing_owed, emitted=emitted,
        )  # fmt: skip
        return
    draft.arrive(place, after_us=after_us)
    draft.note(kind, from_state=row.state, code=code, message=message, emitted=emitted)


def hold(
    draft: Draft,
    code: str,
    message: str | None,
    details: str | None = None,
    *,
    kind: str = kinds.HELD,
    emitted: int = 0,
) -> None:
    """Stop the job for a person; it remembers where it stood and what it still owes."""
    row = draft.row
    if row.role == UNDOING:
        hold_undo(draft, f"{code}: {message}" if message else code, details)
        return
    draft.arrive(draft.table.places[draft.flow.lifecycle.held])
    # A lapsed run may still be working somewhere: an undo that follows a hold must know it too.
    draft.row = draft.row._replace(code=clean(code), resume=row.state, lapsed=row.lapsed)
    draft.note(
        kind, from_state=row.state, code=code, message=message, details=details, emitted=emitted
    )
