"""What an engine tells its listeners and the log: once per batch, never once per job.

Listeners get the records that were written anyway, and count them. The log gets a line for each
run that failed, was put off, or stopped its job: the trail tells the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from ulak.core import event as kinds
from ulak.core.change import Change, Committed, Receipt
from ulak.core.job import Event, JobRow, NewJob
from ulak.core.lifecycle import FAILED, HELD, Role
from ulak.core.run import run_facts
from ulak.ids import to_text
from ulak.store import codec
from ulak.store.protocol import Added, Claimed, JobStore, Tick

log = logging.getLogger("ulak.telemetry")
jobs_log = logging.getLogger("ulak.jobs")

_LOUD: Final = frozenset({kinds.RETRY, kinds.FAILED, kinds.HELD, kinds.OVERRAN})
_QUIET: Final = frozenset({kinds.MOVED, kinds.ENTERED})
_MEANT: Final = frozenset({kinds.CANCELLED_CODE, kinds.EXPIRED_CODE})
_BAD: Final[frozenset[Role]] = frozenset({FAILED, HELD})
_GOES_ON: Final = frozenset({kinds.NOTED, kinds.OVERRAN})

Verb = Literal["submit", "commit", "claim", "renew", "upkeep", "outbox"]
"""What was asked of a store that did not answer."""


class Telemetry(Protocol):
    """A listener. Called from any thread, and waited for: it must be quick."""

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        """New jobs were stored with one commit, or their keys were held by others. Without
        `seconds` they are in a caller's own transaction, which may still be taken back."""

    def refused(self, jobs: Sequence[NewJob]) -> None:
        """These were not accepted, because too much is waiting."""

    def claimed(self, claimed: Claimed, seconds: float) -> None:
        """A worker has looked for jobs; it may have found none."""

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        """A batch was answered, one receipt for each change. Without `seconds` the answer was
        lost, and its changes were found in the trail."""

    def published(self, sent: int, failed: int, dead: int) -> None:
        """Deliveries were made, failed and will be tried again, or gave up."""

    def ticked(self, ticks: Sequence[Tick], written: Sequence[bool]) -> None:
        """Schedules were due; what was not written, another process has written."""

    def failed(self, verb: Verb) -> None:
        """The store did not answer; what was asked is asked again."""


class Listeners:
    """The listeners of one engine, and its log. Of a listener that raises the log tells once."""

    def __init__(self) -> None:
        self._all: tuple[Telemetry, ...] = ()
        self._complained: set[str] = set()

    def add(self, listener: Telemetry) -> Callable[[], None]:
        """Tell this one too from now on; return the undo."""
        self._all = (*self._all, listener)

        def remove() -> None:
            self._all = tuple(other for other in self._all if other is not listener)

        return remove

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        if self._all:
            self._tell("accepted", added, seconds)

    def refused(self, jobs: Sequence[NewJob]) -> None:
        if self._all:
            self._tell("refused", jobs)

    def claimed(self, claimed: Claimed, seconds: float) -> None:
        if self._all:
            self._tell("claimed", claimed, seconds)

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        try:
            log_failures(changes, receipts)
        except Exception:  # a worker loop: the changes are written, whatever the log makes of them
            log.exception("failures could not be logged")
        if self._all:
            self._tell("committed", changes, receipts, seconds)

    def published(self, sent: int, failed: int, dead: int) -> None:
        if self._all:
            self._tell("published", sent, failed, dead)

    def ticked(self, ticks: Sequence[Tick], written: Sequence[bool]) -> None:
        if self._all:
            self._tell("ticked", ticks, written)

    def failed(self, verb: Verb) -> None:
        if self._all:
            self._tell("failed", verb)

    def _tell(self, hook: str, *facts: Any) -> None:
        for listener in self._all:
            try:
                getattr(listener, hook)(*facts)
            except Exception:  # a worker loop: whoever watches must not stop what is watched
                if hook not in self._complained:
                    self._complained.add(hook)
                    log.exception("a listener failed; further failures are not told")


NOBODY: Final[Telemetry] = Listeners()
"""For parts that are used without an engine: nobody is ever added."""


def commit_one(store: JobStore, change: Change, telemetry: Telemetry) -> Receipt:
    began = time.monotonic()
    receipts = store.commit([change])
    telemetry.committed((change,), receipts, time.monotonic() - began)
    return receipts[0]


class Ran(NamedTuple):
    """A run that has ended."""

    state: str
    outcome: str
    """How it ended: the kind of the event that says so."""
    seconds: float


def run_of(change: Change) -> Ran | None:
    """Return the run that a worker's change ends; None when no run ends by it."""
    events = own_events(change)
    if change.token is None or not events:
        return None
    event = events[0]
    if event.started_at is None or event.kind in _GOES_ON:
        return None
    outcome = event.kind
    if len(events) > 1 and events[1].kind == kinds.RETRY:
        outcome = kinds.RETRY  # by way of a state that says it failed
    return Ran(event.from_state or "", outcome, max(0, event.at - event.started_at) / 1e6)


def log_failures(changes: Sequence[Change], receipts: Sequence[Receipt]) -> None:
    """Write a line for each change that was committed and tells of a failure."""
    for change, receipt in zip(changes, receipts, strict=True):
        events = change.events
        # Most changes move a job on, and are done with here.
        if len(events) == 1 and events[0].kind in _QUIET and change.row.role not in _BAD:
            continue
        events = own_events(change)
        if not events or not isinstance(receipt, Committed):
            continue
        if events[-1].kind == kinds.ON_END_FAILED:
            sentence = "the job that should follow an end is not submitted"
            _write(logging.ERROR, sentence, events[-1], change)
            events = events[:-1]
        elif events[0].kind not in _LOUD and change.row.role not in _BAD:
            continue
        if (found := _failure(change, events)) is not None:
            _write(*found, change)


def own_events(change: Change) -> tuple[Event, ...]:
    """Return the events of a change that are ulak's own, without the notes of services."""
    events = change.events
    if events and "." in events[0].kind:
        return tuple(event for event in events if "." not in event.kind)
    return events


def log_lapse(row: JobRow) -> None:
    facts = {**run_facts(row), "code": kinds.LAPSED, "lapses": row.lapses}
    jobs_log.warning("the worker of a run vanished; it is run again", extra=facts)


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
    if not jobs_log.isEnabledFor(level):
        return
    facts: dict[str, object] = {
        "job_id": to_text(event.job_id), "flow": change.row.flow, "state": event.from_state,
        "attempt": event.attempt, "code": event.code or event.kind, "worker": event.worker,
    }  # fmt: skip
    if event.message is not None:
        facts["reason"] = event.message
    record = jobs_log.makeRecord(jobs_log.name, level, __file__, 0, sentence, (), None, extra=facts)
    if event.details and not _is_retried(change):
        # The error itself is gone: a run that kept it would keep all its frames alive.
        record.exc_text = codec.decode(event.details.encode()).get("traceback", "").rstrip() or None
    jobs_log.handle(record)
