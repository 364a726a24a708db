"""What a person asks of a job, written as the core takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.acts import approval
from ulak.core.flow import Flow
from ulak.core.job import JobRow, Request
from ulak.core.outcome import AddNote, Asked, Decide, Release
from ulak.core.undo import REASONS
from ulak.engine.results import write_decision
from ulak.store import codec
from ulak.store.protocol import JobStore

LOOK_BACK = 1000


def decision(
    flow: Flow[Any],
    row: JobRow,
    choice: str,
    *,
    actor: str,
    note: str,
    now: Instant,
    data: object = None,
) -> Decide:
    """Answer a choice at the gate of a job, its data as the gate declares.

    Raises:
        BadInput: the data is not what the gate declares.
    """
    place = flow.table.places.get(row.state)
    kind = None if place is None or place.gate is None else place.gate.data
    if kind is not None and data is not None and not codec.is_instance(data, kind):
        data = codec.convert(data, kind)
    return Decide(actor, note, choice, write_decision(choice, actor, note, now, data))


def approving(
    flow: Flow[Any], row: JobRow, *, actor: str, note: str, now: Instant, data: object = None
) -> Decide | Release:
    """Return the decision or the release that a job is waiting for.

    Raises:
        TransitionNotAllowed: nobody is asked here, or nobody can tell which choice approves.
        BadInput: the data is not what the gate declares.
    """
    choice = approval(flow, row)
    if choice is None:
        return Release(actor, note)
    return decision(flow, row, choice, actor=actor, note=note, now=now, data=data)


def with_reason(store: JobStore, row: JobRow, asked: Asked) -> Asked:
    """Return the act; the release of a job whose undos go on also says why the job gave up."""
    if not isinstance(asked, Release) or row.undo_to is None:
        return asked
    recent = store.trail(row.id, after=max(0, row.seq - LOOK_BACK), limit=LOOK_BACK)
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
