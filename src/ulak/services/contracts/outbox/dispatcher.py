"""Sends what is due: takes events, asks the remote, writes down what became of each.

Any number of dispatchers may run, in any number of processes. No transaction is open while the
remote is asked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ulak.errors import StoreError
from ulak.services.contracts.outbox.claims import Attempt, give_back, settle, take
from ulak.services.contracts.outbox.drift import drift_of
from ulak.services.contracts.outbox.events import Event
from ulak.services.contracts.outbox.outcomes import Outcome, Reply, Uniform, is_overdue, judge
from ulak.services.contracts.outbox.remote import TRANSITION, Remote, Session
from ulak.services.contracts.outbox.tables import Tables

log = logging.getLogger("ulak.contracts.outbox")

A_ROUND: Final = 50
# A guess: enough to hide a slow remote, few enough not to crowd it.
AT_ONCE: Final = 8
# Added to the longest a round may take by itself: a slow disk, a machine that pauses.
SLACK: Final = timedelta(seconds=30)
PAUSE_S: Final = 1.0
_DICE: Final = random.SystemRandom()


class Dispatcher:
    """Sends the events of one store to one remote.

    Args:
        tables: Where the events are.
        remote: Who is told.
        uniform: The dice of delays.
        slack: How much longer it keeps events than a round should take.
    """

    def __init__(
        self,
        tables: Tables,
        remote: Remote,
        *,
        uniform: Uniform = _DICE.uniform,
        slack: timedelta = SLACK,
    ) -> None:
        self._tables = tables
        self._remote = remote
        self._uniform = uniform
        self._slack = slack
        self._stopping = threading.Event()

    def send_once(self, limit: int = A_ROUND) -> list[Attempt]:
        """Send up to `limit` events that are due, one of a subject at most; answer how each fared.

        Not to be called on an event loop.

        Raises:
            StoreError: the store cannot be asked. What was sent and not written down is sent
                again after its lease, under the same key.
        """
        events = take(self._tables, limit, lease=self._lease(limit))
        return asyncio.run(self._send(events)) if events else []

    def run(self, pause_s: float = PAUSE_S) -> None:
        """Send until `stop` is called from another thread; looks again after each pause."""
        while not self._stopping.is_set():
            try:
                attempts = self.send_once()
            except StoreError as error:
                log.warning("the outbox cannot be read or written", extra={"error": str(error)})
                attempts = []
            except Exception:
                # A worker loop: nobody would notice its end before the events are hours old.
                log.exception("a round of the outbox failed")
                attempts = []
            if not attempts:
                self._stopping.wait(pause_s)

    def stop(self) -> None:
        """Have `run` end: what is being sent is awaited, what was only taken is given back."""
        self._stopping.set()

    def _lease(self, limit: int) -> timedelta:
        """Return for how long a round may keep its events: no neighbour may take them before."""
        settings = self._remote.settings
        turns = -(-limit // AT_ONCE)
        return turns * (settings.retries + 1) * settings.timeout + self._slack

    async def _send(self, events: Sequence[Event]) -> list[Attempt]:
        places = asyncio.Semaphore(AT_ONCE)
        settled: list[Attempt] = []
        async with self._remote.session() as session:
            running = {
                asyncio.create_task(self._attempt(session, places, event)) for event in events
            }
            while running:
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # Whatever has ended while the last ones were written is one transaction.
                settled += await asyncio.to_thread(self._settle, [task.result() for task in ended])
        return settled

    async def _attempt(
        self, session: Session, places: asyncio.Semaphore, event: Event
    ) -> Attempt | Event:
        """Ask about one event; answers the event itself when it was not its turn any more."""
        async with places:
            if self._stopping.is_set():
                return event
            now = self._tables.now
            if is_overdue(was_tried=event.was_tried, give_up_at=event.give_up_at, now=now):
                why = f"no dispatcher ran in time; before that: {event.last_error or 'no answer'}"
                return Attempt(event, Outcome("dead", why=why, is_counted=False))
            begun = time.monotonic()
            reply = await session.ask(
                TRANSITION, event.payload.encode(),
                headers={"Idempotency-Key": event.idempotency_key},
            )  # fmt: skip
            duration = timedelta(seconds=time.monotonic() - begun)
        outcome = judge(
            reply, attempts=event.attempts, give_up_at=event.give_up_at, now=self._tables.now,
            uniform=self._uniform,
        )  # fmt: skip
        if not isinstance(reply, Reply):
            return Attempt(event, outcome, duration=duration)
        drift = drift_of(event, outcome, reply)
        return Attempt(event, outcome, reply=reply, duration=duration, drift=drift)

    def _settle(self, ended: Sequence[Attempt | Event]) -> list[Attempt]:
        if unsent := [one for one in ended if isinstance(one, Event)]:
            give_back(self._tables, unsent)
        attempts = [one for one in ended if isinstance(one, Attempt)]
        settled = settle(self._tables, attempts) if attempts else []
        for attempt in attempts:
            if attempt in settled:
                _tell(attempt)
            else:
                log.warning("an event was taken over while it was sent", extra=_facts(attempt))
        return settled


def _tell(attempt: Attempt) -> None:
    """Log what a person may want to know; what went well is in the table."""
    if attempt.drift is not None:
        log.warning("drift: the remote judges otherwise", extra=_facts(attempt))
    if attempt.outcome.verdict == "dead":
        log.error("an event is dead and blocks its subject", extra=_facts(attempt))
    elif attempt.outcome.verdict == "retry":
        log.info("an event will be sent again", extra=_facts(attempt))


def _facts(attempt: Attempt) -> dict[str, object]:
    event = attempt.event
    return {
        "event_id": event.id, "tenant": event.tenant_id, "aggregate": event.aggregate,
        "key": event.idempotency_key, "attempts": event.attempts,
        "verdict": attempt.outcome.verdict, "why": attempt.outcome.why, "drift": attempt.drift,
    }  # fmt: skip
