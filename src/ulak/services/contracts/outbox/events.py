"""Events: what a remote is to be told, written with the change that it tells of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from ulak.kit.clock import Instant, micros
from ulak.services.contracts.outbox.outcomes import LONGEST_RETRY
from ulak.services.contracts.outbox.tables import Session
from ulak.services.contracts.proofs import STATUS_CHANGE
from ulak.tables import Row

KEY_PREFIX: Final = "pazar"
"""Whose proofs they are; two systems that tell the same remote need two."""

PENDING: Final = "pending"
PROCESSING: Final = "processing"
SENT: Final = "sent"
REJECTED: Final = "rejected"
DEAD: Final = "dead"
NO_ACTS: Final = "[]"
STATUSES: Final = (PENDING, PROCESSING, SENT, REJECTED, DEAD)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A change that was decided here, as its proof tells it."""

    proof_id: int
    _: KW_ONLY
    tenant_id: str
    subject_type: str
    subject_id: str
    from_status: str
    to_status: str
    contract_version: str
    actor_id: str = ""
    source: str = ""
    request_id: str = ""

    @property
    def aggregate(self) -> str:
        """The subject; events of one are sent in their order."""
        return f"{self.subject_type}:{self.subject_id}"


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `hos_outbox_events`, as far as anybody acts on it."""

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
    owner_token: str | None
    give_up_at: Instant
    sent_at: Instant | None
    response_status: int | None
    response_json: str | None
    drift: str | None
    discarded_at: Instant | None
    acts: str
    created_at: Instant
    updated_at: Instant

    @property
    def was_tried(self) -> bool:
        """Whether, before the attempt that is under way, the remote may have heard of it."""
        return self.attempts > 1 or self.acts != NO_ACTS

    @property
    def body(self) -> Mapping[str, Any]:
        """The payload as a document."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


COLUMNS: Final = (
    "id, tenant_id, event_type, aggregate, payload, idempotency_key, status, attempts, "
    "last_error, available_at, lease_until, owner_token, give_up_at, sent_at, response_status, "
    "response_json, drift, discarded_at, acts, created_at, updated_at"
)
"""In the order of `Event`."""

_WRITE: Final = """
INSERT INTO {schema}.hos_outbox_events (tenant_id, event_type, aggregate, payload,
    idempotency_key, status, available_at, give_up_at, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?)
"""


def event_of(row: Row) -> Event:
    """Read a row of `COLUMNS`."""
    return Event(*row)


def key_of(proof_id: int, prefix: str = KEY_PREFIX) -> str:
    """Return the key under which a change is sent, now and at every attempt."""
    return f"{prefix}:proof:{STATUS_CHANGE}:{proof_id}"


def write(
    session: Session, change: StatusChange, *, now: Instant, key_prefix: str = KEY_PREFIX
) -> None:
    """Write the event of a change in the transaction of the change and its proof.

    Whoever changes a subject holds its row, so that the ids of its events are in the order of its
    changes. Nothing is sent: what is not committed must not be told to anybody.
    """
    key = key_of(change.proof_id, key_prefix)
    give_up_at = now + micros(LONGEST_RETRY)
    session.execute(
        _WRITE, change.tenant_id, STATUS_CHANGE, change.aggregate, _payload(change, key), key,
        now, give_up_at, now, now,
    )  # fmt: skip


def _payload(change: StatusChange, key: str) -> str:
    """Write the request: the remote judges by the version that is active there, and says so."""
    members = {
        "idempotency_key": key,
        "tenant_id": change.tenant_id,
        "subject_ref": {"type": change.subject_type, "id": change.subject_id},
        "from": change.from_status,
        "to": change.to_status,
        "actor_id": change.actor_id,
        "source": change.source,
        "request_id": change.request_id,
        "meta": {
            "local_proof_id": change.proof_id,
            "local_contract_version": change.contract_version,
        },
    }
    said = {name: value for name, value in members.items() if value != ""}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))
