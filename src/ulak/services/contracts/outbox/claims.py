"""Taking events to send them, and writing down how that went: short transactions, each alone.

An event is open until it is sent or discarded. Only the first open one of a subject is ever
taken, so a subject's events go out in order, and one that is rejected or dead holds up the rest of
its subject and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final
from uuid import uuid4

from ulak.kit.clock import Instant, micros
from ulak.services.contracts.outbox.events import COLUMNS, Event, event_of
from ulak.services.contracts.outbox.outcomes import Outcome, Reply
from ulak.services.contracts.outbox.tables import Session, Tables

# What was open before stays so or is done for good, so what is seen to be done can be relied on.
_HEADS: Final = """
SELECT id FROM {schema}.hos_outbox_events AS event
WHERE status IN ('pending', 'processing') AND discarded_at IS NULL AND available_at <= ?
    AND NOT EXISTS (
        SELECT 1 FROM {schema}.hos_outbox_events AS earlier
        WHERE earlier.tenant_id = event.tenant_id AND earlier.aggregate = event.aggregate
            AND earlier.id < event.id AND earlier.status <> 'sent'
            AND earlier.discarded_at IS NULL
    )
ORDER BY available_at, id LIMIT ?
"""
_TAKE: Final = f"""
UPDATE {{schema}}.hos_outbox_events SET status = 'processing', attempts = attempts + 1,
    owner_token = ?, lease_until = ?, available_at = ?, updated_at = ?
WHERE id = ? RETURNING {COLUMNS}
"""  # noqa: S608 - column names that are ours
_SETTLE: Final = """
UPDATE {schema}.hos_outbox_events SET status = ?, attempts = ?, last_error = ?, available_at = ?,
    lease_until = NULL, owner_token = NULL, sent_at = ?, response_status = ?, response_json = ?,
    drift = ?, attempted_at = COALESCE(?, attempted_at), duration_us = COALESCE(?, duration_us),
    failed_at = COALESCE(?, failed_at), updated_at = ?
WHERE id = ? AND owner_token = ? AND status = 'processing' RETURNING id
"""
_RETURN: Final = """
UPDATE {schema}.hos_outbox_events SET status = 'pending', attempts = attempts - 1, available_at = ?,
    lease_until = NULL, owner_token = NULL, updated_at = ?
WHERE id = ? AND owner_token = ? AND status = 'processing'
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an event that was taken fared."""

    event: Event
    outcome: Outcome
    _: KW_ONLY
    reply: Reply | None = None
    duration: timedelta | None = None
    """How long the remote took; None when it was not asked."""
    drift: str | None = None


def take(tables: Tables, limit: int, *, lease: timedelta) -> list[Event]:
    """Take up to `limit` events that may be sent now, the longest due first.

    They are nobody else's until the lease ends; a dispatcher that dies gives them back by that.
    Each counts as attempted from now on, so that an event by which dispatchers die does not live
    for ever.
    """
    now, token = tables.now, uuid4().hex
    until = now + micros(lease)
    # Idle dispatchers look every second, and on SQLite whoever writes holds up everybody else.
    with tables.reading() as session:
        if not session.execute(_HEADS, now, 1):
            return []
    with tables.transaction() as session:
        found = session.execute(_HEADS + session.skip_locked, now, limit)
        return [_take(session, row[0], token, now, until) for row in found]


def settle(tables: Tables, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Write down how attempts ended; answer those that were still their taker's.

    The others were taken over after their lease, and whoever has them now says how it went.
    """
    now = tables.now
    with tables.transaction() as session:
        return [attempt for attempt in attempts if _settle(session, attempt, now)]


def give_back(tables: Tables, events: Iterable[Event]) -> None:
    """Return events that were taken and not sent: as if they had not been taken."""
    now = tables.now
    with tables.transaction() as session:
        for event in events:
            session.execute(_RETURN, now, now, event.id, event.owner_token)


def _settle(session: Session, attempt: Attempt, now: Instant) -> bool:
    event, outcome, reply = attempt.event, attempt.outcome, attempt.reply
    was_asked = attempt.duration is not None
    changed = session.execute(
        _SETTLE,
        "pending" if outcome.verdict == "retry" else outcome.verdict,
        event.attempts if outcome.is_counted else event.attempts - 1,
        outcome.why or None,
        now if outcome.retry_at is None else outcome.retry_at,
        now if outcome.verdict == "sent" else None,
        None if reply is None else reply.status,
        None if reply is None else _kept(reply.body),
        attempt.drift,
        now if was_asked else None,
        None if attempt.duration is None else micros(attempt.duration),
        now if outcome.is_failure else None,
        now,
        event.id,
        event.owner_token,
    )
    return bool(changed)


def _kept(body: bytes) -> str:
    """Write an answer as text that a database takes."""
    return body.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")


def _take(session: Session, id: int, token: str, now: Instant, until: Instant) -> Event:
    (row,) = session.execute(_TAKE, token, until, until, now, id)
    return event_of(row)
