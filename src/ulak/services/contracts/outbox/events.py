"""Events: messages to a remote about changes, each sent with its change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ulak import Engine
from ulak.kit.clock import Instant
from ulak.services.contracts.proofs import STATUS_CHANGE, Proof
from ulak.services.contracts.schema import TOPIC

KEY_PREFIX: Final = "pazar"
"""Whose proofs they are; two systems that tell the same remote need two."""

PENDING: Final = "pending"
PROCESSING: Final = "processing"
SENT: Final = "sent"
REJECTED: Final = "rejected"
DEAD: Final = "dead"
STATUSES: Final = (PENDING, PROCESSING, SENT, REJECTED, DEAD)

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
        """The payload as a document."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


COLUMNS: Final = ", ".join(Event.__dataclass_fields__)


def key_of(proof_id: int, prefix: str = KEY_PREFIX) -> str:
    """Return the key under which a change is sent, now and at every attempt."""
    return f"{prefix}:proof:{STATUS_CHANGE}:{proof_id}"


def emit(engine: Engine, connection: Any, proof: Proof, *, key_prefix: str = KEY_PREFIX) -> None:
    """Write the event of a change in the transaction of the change and its proof.

    A change holds the row of its subject, so that the events are in the order of the changes. No
    request is made here.
    """
    tenant, aggregate = proof.tenant_id, f"{proof.subject_type}:{proof.subject_id}"
    key = key_of(proof.proof_id, key_prefix)
    data = {
        "tenant_id": tenant, "event_type": STATUS_CHANGE, "aggregate": aggregate,
        "idempotency_key": key, "payload": _payload(proof, key),
    }  # fmt: skip
    line = f"{len(tenant)}/{tenant}/{aggregate}"[:_LONGEST_LINE]
    engine.emit(TOPIC, data, key=line, connection=connection)


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
    said = {name: value for name, value in members.items() if value}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))
