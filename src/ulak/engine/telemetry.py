"""What an engine tells of itself, to whoever listens: once per batch, never once per job.

The records that were written anyway are handed over as they are. Whoever listens counts them; with
nobody listening a batch costs one call that does nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from ulak.core import event as kinds
from ulak.core.change import Change, Receipt
from ulak.core.job import NewJob
from ulak.engine.failure_log import log_failures, own_events
from ulak.store.protocol import Added, Claimed, JobStore, Tick

log = logging.getLogger("ulak.telemetry")

Verb = Literal["submit", "commit", "claim", "renew", "upkeep", "outbox"]
"""What was asked of a store that did not answer."""


class Telemetry(Protocol):
    """Whom an engine tells. Called from any thread, and waited for: it must be quick."""

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        """New jobs were stored with one commit, or their keys were held by others.

        Without `seconds` they were written in a caller's own transaction, which may still be
        taken back.
        """

    def refused(self, jobs: Sequence[NewJob]) -> None:
        """These were not accepted, because too much is waiting."""

    def claimed(self, claimed: Claimed, seconds: float) -> None:
        """A worker has looked for jobs; it may have found none."""

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        """A batch was answered, one receipt for each change: of a worker, an operator or upkeep.

        Without `seconds` the answer was lost, and its changes were found in the trail.
        """

    def published(self, sent: int, failed: int, dead: int) -> None:
        """Deliveries of messages and events were made, failed and will be tried again, or gave
        up."""

    def ticked(self, ticks: Sequence[Tick], written: Sequence[bool]) -> None:
        """Schedules were due; what was not written, another process has written."""

    def failed(self, verb: Verb) -> None:
        """The store did not answer; what was asked is asked again."""


class Listeners:
    """Tells everybody who listens to one engine; a `Telemetry` itself.

    A listener that raises harms nobody: the engine goes on, and the log has its first failure.
    """

    def __init__(self) -> None:
        self._all: tuple[Telemetry, ...] = ()
        self._complained: set[str] = set()

    def add(self, listener: Telemetry) -> Callable[[], None]:
        """Tell this one too from now on; answers the undo."""
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
"""Where nobody listens, and nobody is ever added: for parts that are used without an engine."""


def commit_one(store: JobStore, change: Change, telemetry: Telemetry) -> Receipt:
    """Commit a change by itself, and tell of it."""
    began = time.monotonic()
    receipts = store.commit([change])
    telemetry.committed((change,), receipts, time.monotonic() - began)
    return receipts[0]


class Ran(NamedTuple):
    """A run that has ended."""

    state: str
    """The state that it ran in."""
    outcome: str
    """How it ended: the kind of the event that says so."""
    seconds: float


_GOES_ON = frozenset({kinds.NOTED, kinds.OVERRAN})


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
