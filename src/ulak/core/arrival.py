"""How a job comes into a state: straight, through a person, or through its undos first.

A stage, a gate, a signal and a deadline all end here, so that none of them can put a job into
`held` without a way back, or into a bad end past the undos that it owes.
"""

from __future__ import annotations

from typing import Final

from ulak.core import event as kinds
from ulak.core import undo
from ulak.core.draft import Draft, clean
from ulak.core.lifecycle import CANCELLED, EXPIRED, FAILED, HELD, UNDOING
from ulak.core.table import Place

INDIRECT: Final = frozenset({HELD, UNDOING, FAILED, EXPIRED, CANCELLED})
"""The roles into which `enter` does not lead straight."""

_END_CODES: Final = {EXPIRED: kinds.EXPIRED_CODE, CANCELLED: kinds.CANCELLED_CODE}


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
        undo.give_up(
            draft, end, kind=kind, code=code or _END_CODES.get(place.role, kinds.GAVE_UP),
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
        undo.hold_undo(draft, f"{code}: {message}" if message else code, details)
        return
    draft.arrive(draft.table.places[draft.flow.lifecycle.held])
    # A lapsed run may still be working somewhere: an undo that follows a hold must know it too.
    draft.row = draft.row._replace(code=clean(code), resume=row.state, lapsed=row.lapsed)
    draft.note(
        kind, from_state=row.state, code=code, message=message, details=details, emitted=emitted
    )
