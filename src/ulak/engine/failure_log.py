"""Failures in the log: one line for each run that failed, was put off, or stopped its job.

The trail answers what happened to a job; these lines tell the watcher of a process that
there is something to ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ulak.core import event as kinds
from ulak.core.change import Change, Committed, Receipt
from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import FAILED, HELD, Role
from ulak.core.run import run_facts
from ulak.ids import to_text
from ulak.store import codec

log = logging.getLogger("ulak.jobs")

_LOUD: Final = frozenset({kinds.RETRY, kinds.FAILED, kinds.HELD, kinds.OVERRAN})
_QUIET: Final = frozenset({kinds.MOVED, kinds.ENTERED})
_MEANT: Final = frozenset({kinds.CANCELLED_CODE, kinds.EXPIRED_CODE})
_BAD: Final[frozenset[Role]] = frozenset({FAILED, HELD})


def log_failures(changes: Sequence[Change], receipts: Sequence[Receipt]) -> None:
    """Write a line for each change that was committed and tells of a failure."""
    for change, receipt in zip(changes, receipts, strict=True):
        events = change.events
        # Most changes move a job on, and are done with here.
        if len(events) == 1 and events[0].kind in _QUIET and change.row.role not in _BAD:
            continue
        events = own_events(change)
        if not events or (
            events[0].kind not in _LOUD
            and change.row.role not in _BAD
            and events[-1].kind != kinds.ON_END_FAILED
        ):
            continue
        if not isinstance(receipt, Committed):
            continue
        if events[-1].kind == kinds.ON_END_FAILED:
            sentence = "the job that should follow an end is not submitted"
            _write(logging.ERROR, sentence, events[-1], change)
            events = events[:-1]
        if (found := _failure(change, events)) is not None:
            _write(*found, change)


def own_events(change: Change) -> tuple[Event, ...]:
    """Return the events of a change that are ulak's own, without the notes of services."""
    events = change.events
    if events and "." in events[0].kind:
        return tuple(event for event in events if "." not in event.kind)
    return events


def log_lapse(row: JobRow) -> None:
    """Write a line for a job that is run again because its last worker vanished."""
    facts = {**run_facts(row), "code": kinds.LAPSED, "lapses": row.lapses}
    log.warning("the worker of a run vanished; it is run again", extra=facts)


def _failure(change: Change, events: Sequence[Event]) -> tuple[int, str, Event] | None:
    """Return the level, the sentence and the event of a change that tells of a failure."""
    row, last = change.row, events[-1]
    said = next((e for e in reversed(events) if e.details), None)
    said = said or next((e for e in reversed(events) if e.code), last)
    if row.role == FAILED and change.role_from not in (None, FAILED):
        if said.code in _MEANT or last.kind not in (kinds.FAILED, kinds.ENDED):
            return logging.INFO, "a job has ended as failed", said
        return logging.ERROR, "a job has failed for good", said
    if row.role == HELD and row.code is not None and change.role_from not in (None, HELD):
        return logging.WARNING, "a job is held until a person has looked", said
    loud = next((e for e in events if e.kind in _LOUD), None)
    if loud is None:
        return None
    if loud.kind == kinds.OVERRAN:
        return logging.WARNING, "a run is past its time and does not stop", loud
    if not _is_retried(change):
        return logging.ERROR, "a run failed, and what was done is undone", said
    if loud.code is None:
        return logging.INFO, "a run asked to be run later", loud
    return logging.WARNING, "a run failed and will be tried again", loud


def _is_retried(change: Change) -> bool:
    return any(event.kind == kinds.RETRY for event in change.events)


def _write(level: int, sentence: str, event: Event, change: Change) -> None:
    if not log.isEnabledFor(level):
        return
    facts: dict[str, object] = {
        "job_id": to_text(event.job_id), "flow": change.row.flow, "state": event.from_state,
        "attempt": event.attempt, "code": event.code or event.kind, "worker": event.worker,
    }  # fmt: skip
    if event.message is not None:
        facts["reason"] = event.message
    record = log.makeRecord(log.name, level, __file__, 0, sentence, (), None, extra=facts)
    if event.details and not _is_retried(change):
        # The error itself is gone: a run that kept it would keep all its frames alive.
        record.exc_text = codec.decode(event.details.encode()).get("traceback", "").rstrip() or None
    log.handle(record)
