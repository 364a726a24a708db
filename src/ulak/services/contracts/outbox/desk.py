"""Events: messages to a remote about changes. Each is written with its change; an operator lists
them, has one sent again, or gives one up."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ulak import Engine
from ulak.errors import NotFound, UlakError
from ulak.kit.clock import Instant, micros, rfc3339, to_datetime
from ulak.services.contracts.ledger import HANDLER, SCHEMA, STATUS_CHANGE, TOPIC, Proof
from ulak.services.contracts.outbox.settings import KEY_PREFIX, LONGEST_RETRY
from ulak.tables import Tables

log = logging.getLogger("ulak.contracts.outbox")

PENDING: Final = "pending"
REJECTED: Final = "rejected"
DEAD: Final = "dead"
STATUSES: Final = (PENDING, "processing", "sent", REJECTED, DEAD)
REDRIVEN: Final = "redriven"
DISCARDED: Final = "discarded"

# As long as a key of a message may be. Beyond it subjects share a line, which only slows them.
_LONGEST_LINE: Final = 500


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the view `hos_outbox_events`."""

    id: int
    tenant_id: str
    event_type: str
    aggregate: str
    payload: str
    """The body that is sent, to the byte, at every attempt."""
    idempotency_key: str
    status: str
    attempts: int
    """How many attempts count against the limit, one that is under way included."""
    last_error: str | None
    available_at: Instant
    lease_until: Instant | None
    give_up_at: Instant | None
    sent_at: Instant | None
    response_status: int | None
    response_json: str | None
    drift: str | None
    discarded_at: Instant | None
    acts: str
    created_at: Instant
    updated_at: Instant

    @property
    def body(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads(self.payload)
        return found


_COLUMNS: Final = ", ".join(Event.__dataclass_fields__)
_FIND: Final = f"SELECT {_COLUMNS} FROM {{schema}}.hos_outbox_events"  # noqa: S608 - columns of ours
_NOTE: Final = """
INSERT INTO {schema}.hos_outbox_attempts (
    tenant_id, idempotency_key, discarded_at, acts, updated_at
) VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant_id, idempotency_key) DO UPDATE
SET discarded_at = excluded.discarded_at, acts = excluded.acts, updated_at = excluded.updated_at
"""


def key_of(proof_id: int, prefix: str = KEY_PREFIX) -> str:
    """Return the key under which a change is sent, now and at every attempt."""
    return f"{prefix}:proof:{STATUS_CHANGE}:{proof_id}"


def emit(engine: Engine, connection: Any, proof: Proof, *, key_prefix: str = KEY_PREFIX) -> None:
    """Write the event of a change in the transaction of the change and its proof. No request is
    made.

    A change holds the row of its subject, so that the events are in the order of the changes.
    """
    tenant, aggregate = proof.tenant_id, f"{proof.subject_type}:{proof.subject_id}"
    key = key_of(proof.proof_id, key_prefix)
    data = {
        "tenant_id": tenant, "event_type": STATUS_CHANGE, "aggregate": aggregate,
        "idempotency_key": key, "payload": _payload(proof, key),
    }  # fmt: skip
    line = f"{len(tenant)}/{tenant}/{aggregate}"[:_LONGEST_LINE]
    engine.emit(TOPIC, data, key=line, connection=connection)


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
        """Return events in the order of their ids; those that were discarded are left out. No
        status, or None, means all; `aggregate` is a subject, as `order:42`."""
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
        """Have a dead or rejected event sent again, under its own key, with all its attempts;
        with `force` although the remote, which remembers a key for `ttl`, may have forgotten it.
        Raises `NotFound`, or `NotNow` when it is neither dead nor rejected, or too old."""
        refusal = "only what is dead or rejected is redriven"
        event, delivery = self._find(id, (DEAD, REJECTED), refusal)
        left = timedelta(microseconds=event.created_at + micros(ttl) - self._tables.now)
        if left <= timedelta() and not force:
            raise NotNow(
                f"event {id} is of {_date(event.created_at)} and the remote remembers keys for "
                f"{ttl.total_seconds():.0f} s: it may have made this change and forgotten the key "
                f"{event.idempotency_key}, and would be asked to make it a second time; look at "
                "the subject there, then discard the event, or redrive it with --force"
            )
        give_up = LONGEST_RETRY if force else min(LONGEST_RETRY, left)
        forced = {"forced": "yes"} if force else {}
        with self._acting(event, REDRIVEN, actor, note, **forced) as connection:
            self._engine.outbox.redrive(
                delivery, actor=actor, note=note, give_up=give_up, connection=connection
            )

    def discard(self, id: int, *, actor: str, note: str = "") -> None:
        """Give an event up: it is never sent, and what follows in its subject is. Raises
        `NotFound`, or `NotNow` when it is being sent, or was sent or discarded already."""
        statuses = (PENDING, DEAD, REJECTED)
        event, delivery = self._find(id, statuses, "it cannot be discarded")
        with self._acting(event, DISCARDED, actor, note) as connection:
            self._engine.outbox.discard(delivery, actor=actor, note=note, connection=connection)

    def _find(self, id: int, statuses: Sequence[str], refusal: str) -> tuple[Event, str]:
        """Return an event that has one of these statuses, and its id in the engine."""
        rows = self._tables.read(f"{_FIND} WHERE id = ?", id)
        if not rows:
            raise NotFound(f"there is no event {id} in the outbox")
        event = Event(*rows[0])
        if event.status not in statuses or event.discarded_at is not None:
            status = event.status if event.discarded_at is None else DISCARDED
            raise NotNow(f"event {id} is {status}; {refusal}")
        (found,) = self._engine.outbox.deliveries(handler=HANDLER, after=id - 1, limit=1)
        return event, found.id

    @contextmanager
    def _acting(self, event: Event, act: str, actor: str, note: str, **more: str) -> Iterator[Any]:
        """Open the transaction of an act; it is added to those of the event, and logged."""
        with self._tables.writing() as connection:
            yield connection
            now = self._tables.now
            line = {"act": act, "actor": actor, "note": note, "at": _date(now), "was": event.status}
            acts = json.dumps([*json.loads(event.acts), line | more], ensure_ascii=False)
            self._tables.execute(
                connection, _NOTE, event.tenant_id, event.idempotency_key,
                now if act == DISCARDED else None, acts, now,
            )  # fmt: skip
        message = f"an event is {act}"
        facts = {
            "event_id": event.id, "tenant": event.tenant_id, "aggregate": event.aggregate,
            "key": event.idempotency_key, "was": event.status, "actor": actor, "note": note,
        }  # fmt: skip
        log.info(message, extra=facts)


def _payload(proof: Proof, key: str) -> str:
    """Write the request: the remote judges by the version that is active there, and says so."""
    members = {
        "idempotency_key": key,
        "tenant_id": proof.tenant_id,
        "subject_ref": {"type": proof.subject_type, "id": proof.subject_id},
        "from": proof.from_status,
        "to": proof.to_status,
        "actor_id": proof.actor_id,
        "source": proof.source,
        "request_id": proof.request_id,
        "meta": {
            "local_proof_id": proof.proof_id,
            "local_contract_version": proof.contract_version,
        },
    }
    known = {name: value for name, value in members.items() if value}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":"))


def _date(instant: Instant) -> str:
    return rfc3339(to_datetime(instant), "seconds")
