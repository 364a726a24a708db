"""What an operator does with events: list them, send one again, give one up."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from ulak import Engine
from ulak.errors import NotFound, UlakError
from ulak.kit.clock import Instant, micros, rfc3339, to_datetime
from ulak.services.contracts.outbox.events import COLUMNS, DEAD, PENDING, REJECTED, Event
from ulak.services.contracts.outbox.outcomes import LONGEST_RETRY
from ulak.services.contracts.schema import HANDLER, SCHEMA
from ulak.tables import Tables

log = logging.getLogger("ulak.contracts.outbox")

REDRIVEN: Final = "redriven"
DISCARDED: Final = "discarded"

_FIND: Final = f"SELECT {COLUMNS} FROM {{schema}}.hos_outbox_events"  # noqa: S608 - columns of ours
_NOTE: Final = """
INSERT INTO {schema}.hos_outbox_attempts (
    tenant_id, idempotency_key, discarded_at, acts, updated_at
) VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant_id, idempotency_key) DO UPDATE
SET discarded_at = excluded.discarded_at, acts = excluded.acts, updated_at = excluded.updated_at
"""


class NotNow(UlakError):
    """The event is not one that this can be done with; the message says why and what could."""

    code = "outbox_event_refused"


class Desk:
    """The events of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tables = Tables(engine, SCHEMA)

    def events(
        self,
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
            tenant_id: Of which tenant; None means all.
            aggregate: Of which subject, as `order:42`; None means all.
            after: Only events with a higher id.
            limit: How many at most.
        """
        terms = {"id > ?": after, "tenant_id = ?": tenant_id, "aggregate = ?": aggregate}
        given = {text: value for text, value in terms.items() if value is not None}
        marks = ", ".join("?" for _ in statuses)
        of_statuses = f" AND status IN ({marks})" if statuses else ""
        where = f" WHERE discarded_at IS NULL AND {' AND '.join(given)}{of_statuses}"
        rows = self._tables.read(
            f"{_FIND}{where} ORDER BY id LIMIT ?", *given.values(), *statuses, limit
        )
        return [Event(*row) for row in rows]

    def redrive(
        self, id: int, *, actor: str, note: str = "", ttl: timedelta, force: bool = False
    ) -> None:
        """Have a dead or rejected event sent again, under its own key, with all its attempts.

        Args:
            id: Which.
            actor: Who wants it.
            note: Why.
            ttl: For how long the remote remembers a key.
            force: Send it although the remote may have forgotten that it has executed it.

        Raises:
            NotFound: there is none.
            NotNow: it is neither dead nor rejected, or it is too old.
        """
        event, delivery, now = self._find(id), self._delivery(id), self._tables.now
        if event.status not in (DEAD, REJECTED) or event.discarded_at is not None:
            raise NotNow(
                f"event {id} is {_standing(event)}; only what is dead or rejected is redriven"
            )
        left = timedelta(microseconds=event.created_at + micros(ttl) - now)
        if left <= timedelta() and not force:
            raise NotNow(
                f"event {id} is of {_date(event.created_at)} and the remote remembers keys for "
                f"{ttl.total_seconds():.0f} s: it may have made this change and forgotten the key "
                f"{event.idempotency_key}, and would be asked to make it a second time; look at "
                "the subject there, then discard the event, or redrive it with --force"
            )
        give_up = LONGEST_RETRY if force else min(LONGEST_RETRY, left)
        with self._tables.writing() as connection:
            self._engine.outbox.redrive(
                delivery, actor=actor, note=note, give_up=give_up, connection=connection
            )
            forced = {"forced": "yes"} if force else {}
            self._note(connection, event, REDRIVEN, actor, note, **forced)
        log.info("an event is redriven", extra=_facts(event, actor, note))

    def discard(self, id: int, *, actor: str, note: str = "") -> None:
        """Give an event up: it is never sent, and what follows in its subject is.

        Raises:
            NotFound: there is none.
            NotNow: it is being sent, or was sent or discarded already.
        """
        event, delivery = self._find(id), self._delivery(id)
        if event.status not in (PENDING, DEAD, REJECTED) or event.discarded_at is not None:
            raise NotNow(f"event {id} is {_standing(event)}; it cannot be discarded")
        with self._tables.writing() as connection:
            self._engine.outbox.discard(delivery, actor=actor, note=note, connection=connection)
            self._note(connection, event, DISCARDED, actor, note)
        log.info("an event is discarded", extra=_facts(event, actor, note))

    def _find(self, id: int) -> Event:
        rows = self._tables.read(f"{_FIND} WHERE id = ?", id)
        if not rows:
            raise NotFound(f"there is no event {id} in the outbox")
        return Event(*rows[0])

    def _delivery(self, id: int) -> str:
        """Return the id by which the engine knows an event."""
        (found,) = self._engine.outbox.deliveries(handler=HANDLER, after=id - 1, limit=1)
        return found.id

    def _note(
        self, connection: Any, event: Event, act: str, actor: str, note: str, **more: str
    ) -> None:
        """Add an act to what was done with an event."""
        now = self._tables.now
        line = {"act": act, "actor": actor, "note": note, "at": _date(now), "was": event.status}
        acts = json.dumps([*json.loads(event.acts), line | more], ensure_ascii=False)
        self._tables.execute(
            connection, _NOTE, event.tenant_id, event.idempotency_key,
            now if act == DISCARDED else None, acts, now,
        )  # fmt: skip


def _standing(event: Event) -> str:
    return event.status if event.discarded_at is None else DISCARDED


def _date(instant: Instant) -> str:
    return rfc3339(to_datetime(instant), "seconds")


def _facts(event: Event, actor: str, note: str) -> dict[str, object]:
    return {
        "event_id": event.id, "tenant": event.tenant_id, "aggregate": event.aggregate,
        "key": event.idempotency_key, "was": event.status, "actor": actor, "note": note,
    }  # fmt: skip
