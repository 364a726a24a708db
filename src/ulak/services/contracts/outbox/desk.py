"""What an operator does with events: list them, send one again, give one up."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ulak.errors import NotFound, UlakError
from ulak.kit.clock import Instant, micros, rfc3339, to_datetime
from ulak.services.contracts.outbox.events import (
    COLUMNS,
    DEAD,
    PENDING,
    REJECTED,
    Event,
    event_of,
)
from ulak.services.contracts.outbox.outcomes import LONGEST_RETRY
from ulak.services.contracts.outbox.tables import Session, Tables

log = logging.getLogger("ulak.contracts.outbox")

REDRIVEN: Final = "redriven"
DISCARDED: Final = "discarded"

_FIND: Final = f"SELECT {COLUMNS} FROM {{schema}}.hos_outbox_events"  # noqa: S608 - columns of ours
_LOCK: Final = _FIND + " WHERE id = ?{for_update}"
_REDRIVE: Final = """
UPDATE {schema}.hos_outbox_events SET status = 'pending', attempts = 0, available_at = ?,
    give_up_at = ?, acts = ?, updated_at = ?
WHERE id = ?
"""
_DISCARD: Final = """
UPDATE {schema}.hos_outbox_events SET discarded_at = ?, acts = ?, updated_at = ? WHERE id = ?
"""


class NotNow(UlakError):
    """The event is not one that this can be done with; the message says why and what could."""

    code = "outbox_event_refused"


def list_events(
    tables: Tables,
    *,
    statuses: Sequence[str] = (),
    tenant_id: str | None = None,
    aggregate: str | None = None,
    after: int = 0,
    limit: int = 50,
) -> list[Event]:
    """Return events in the order of their ids; those that were discarded are left out.

    Args:
        statuses: Which ones; none means all.
        tenant_id: Whose; None means everybody's.
        aggregate: Of which subject, as `order:42`; None means all.
        after: Only events with a higher id.
        limit: How many at most.
    """
    asked = {"id > ?": after, "tenant_id = ?": tenant_id, "aggregate = ?": aggregate}
    given = {text: value for text, value in asked.items() if value is not None}
    marks = ", ".join("?" for _ in statuses)
    of_statuses = f" AND status IN ({marks})" if statuses else ""
    where = f" WHERE discarded_at IS NULL AND {' AND '.join(given)}{of_statuses}"
    with tables.reading() as session:
        rows = session.execute(
            f"{_FIND}{where} ORDER BY id LIMIT ?", *given.values(), *statuses, limit
        )
    return [event_of(row) for row in rows]


def redrive(
    tables: Tables, id: int, *, actor: str, note: str = "", ttl: timedelta, force: bool = False
) -> Event:
    """Have a dead or rejected event sent again, under its own key, with all its attempts.

    Args:
        tables: Where it is.
        id: Which.
        actor: Who wants it.
        note: Why, for whoever reads it later.
        ttl: For how long the remote remembers a key.
        force: Send it although the remote may have forgotten that it has executed it.

    Raises:
        NotFound: there is none.
        NotNow: it is neither dead nor rejected, or it is too old.
    """
    now = tables.now
    with tables.transaction() as session:
        event = _locked(session, id)
        if event.status not in (DEAD, REJECTED) or event.discarded_at is not None:
            raise NotNow(
                f"event {id} is {_standing(event)}; only what is dead or rejected is redriven"
            )
        forgotten_at = event.created_at + micros(ttl)
        if now >= forgotten_at and not force:
            raise NotNow(
                f"event {id} is of {_date(event.created_at)} and the remote remembers keys for "
                f"{ttl.total_seconds():.0f} s: it may have made this change and forgotten the key "
                f"{event.idempotency_key}, and would be asked to make it a second time; look at "
                "the subject there, then discard the event, or redrive it with --force"
            )
        window = now + micros(LONGEST_RETRY)
        give_up_at = window if force else min(window, forgotten_at)
        acts = _with(event, REDRIVEN, actor, note, now, forced=force)
        session.execute(_REDRIVE, now, give_up_at, acts, now, id)
    log.info("an event is redriven", extra=_facts(event, actor, note))
    return event


def discard(tables: Tables, id: int, *, actor: str, note: str = "") -> Event:
    """Give an event up: it is never sent, and what follows in its subject is.

    Raises:
        NotFound: there is none.
        NotNow: it is being sent, or was sent or discarded already.
    """
    now = tables.now
    with tables.transaction() as session:
        event = _locked(session, id)
        if event.status not in (PENDING, DEAD, REJECTED) or event.discarded_at is not None:
            raise NotNow(f"event {id} is {_standing(event)}; it cannot be discarded")
        session.execute(_DISCARD, now, _with(event, DISCARDED, actor, note, now), now, id)
    log.info("an event is discarded", extra=_facts(event, actor, note))
    return event


def _locked(session: Session, id: int) -> Event:
    rows = session.execute(_LOCK, id)
    if not rows:
        raise NotFound(f"there is no event {id} in the outbox")
    return event_of(rows[0])


def _standing(event: Event) -> str:
    return event.status if event.discarded_at is None else DISCARDED


def _with(
    event: Event, act: str, actor: str, note: str, now: Instant, *, forced: bool = False
) -> str:
    """Add an act to what was done with an event."""
    line = {"act": act, "actor": actor, "note": note, "at": _date(now), "was": event.status}
    if forced:
        line["forced"] = "yes"
    return json.dumps([*json.loads(event.acts), line], ensure_ascii=False)


def _date(instant: Instant) -> str:
    return rfc3339(to_datetime(instant), "seconds")


def _facts(event: Event, actor: str, note: str) -> dict[str, object]:
    return {
        "event_id": event.id, "tenant": event.tenant_id, "aggregate": event.aggregate,
        "key": event.idempotency_key, "was": event.status, "actor": actor, "note": note,
    }  # fmt: skip
