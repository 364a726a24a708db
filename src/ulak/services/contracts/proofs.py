"""Proofs: what is known of one, and the hash that chains it to the one before."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from ulak.kit.clock import Instant, rfc3339, to_datetime

STATUS_CHANGE: Final = "status_change"
"""The kind of proof that a transition leaves; nobody else writes one."""
FIRST_HASH: Final = "0" * 64
"""What the first proof of a tenant has as the hash of the one before."""


class Draft(NamedTuple):
    """What is to be proved; the ledger gives it its number, its time and its hashes."""

    tenant_id: str
    actor_id: str | None
    """Who acted, as the caller said; None for an event of the system."""
    source: str
    """Where it was reported from: what the caller said, or the caller."""
    kind: str
    subject_type: str | None
    subject_id: str | None
    from_status: str | None
    to_status: str | None
    payload: str
    """JSON, as it was written."""
    request_id: str | None
    idempotency_key: str | None
    request_hash: str
    """What was asked, so that the same key for something else is told from a repetition."""
    contract_version: str | None


class Proof(NamedTuple):
    """One row of `hos_proofs`, in the order of its columns."""

    proof_id: int
    occurred_at: Instant
    tenant_id: str
    actor_id: str | None
    source: str
    kind: str
    subject_type: str | None
    subject_id: str | None
    from_status: str | None
    to_status: str | None
    payload: str
    request_id: str | None
    idempotency_key: str | None
    request_hash: str
    contract_version: str | None
    prev_hash: str
    hash: str

    @property
    def version(self) -> int:
        """Of a status change, the version that the subject got by it."""
        return int(json.loads(self.payload)["version"])


def proved(draft: Draft, *, proof_id: int, at: Instant, prev_hash: str) -> Proof:
    """Make the next proof of a tenant's chain."""
    proof = Proof(proof_id, at, *draft, prev_hash, "")
    return proof._replace(hash=hash_of(proof))


def hash_of(proof: Proof) -> str:
    """Return the hash that a proof must have: of everything in it, the hash before included."""
    covered = json.dumps(proof[:-1], ensure_ascii=True, separators=(",", ":"))
    return sha256(covered.encode()).hexdigest()


def document_of(proof: Proof) -> dict[str, Any]:
    """Show a proof, its payload as it was written: for `msgspec.json.encode`."""
    return {
        "proof_id": proof.proof_id,
        "occurred_at": rfc3339(to_datetime(proof.occurred_at)),
        "tenant_id": proof.tenant_id,
        "actor_id": proof.actor_id,
        "source": proof.source,
        "kind": proof.kind,
        "subject_type": proof.subject_type,
        "subject_id": proof.subject_id,
        "from": proof.from_status,
        "to": proof.to_status,
        "payload": msgspec.Raw(proof.payload.encode()),
        "request_id": proof.request_id,
        "idempotency_key": proof.idempotency_key,
        "contract_version": proof.contract_version,
        "prev_hash": proof.prev_hash,
        "hash": proof.hash,
    }
