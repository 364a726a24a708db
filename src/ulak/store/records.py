"""Idempotency records: what was asked under a key, who executes it, and how it was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ulak.clock import Instant

PROCESSING: Final = "processing"
COMPLETED: Final = "completed"
FAILED: Final = "failed"

FORGOTTEN: Final = "forgotten"
"""What the audit calls it when an operator removes a record."""


class RecordId(NamedTuple):
    """Whose key, of which operation: the same text elsewhere is another record."""

    tenant_id: str
    scope: str
    key: str


class RecordRow(NamedTuple):
    """One row of `idempotency_records`."""

    tenant_id: str
    scope: str
    key: str
    status: str
    request_hash: str
    actor_id: str
    owner_token: str | None
    """Which execution it is: one that was taken over no longer has it and cannot write."""
    lease_until: Instant | None
    """Until when nobody else executes; only while `processing`."""
    attempt: int
    recovery_point: str | None
    """The last phase that has ended."""
    recovery_data: str | None
    """What each phase that has ended has answered, by its name, as JSON."""
    response_status: int | None
    response_headers: str | None
    response_json: str | None
    """The body as it was sent, if it is text."""
    response_bytes: bytes | None
    """The body as it was sent, if it is not."""
    response_digest: str | None
    """The SHA-256 of a body that was too large to be kept; then there is no other trace of it."""
    created_at: Instant
    updated_at: Instant
    expires_at: Instant
    """From then on it counts as absent."""

    @property
    def id(self) -> RecordId:
        return RecordId(self.tenant_id, self.scope, self.key)


class RecordClaim(NamedTuple):
    """The answer to a claim."""

    row: RecordRow
    """As it is stored now."""
    is_mine: bool
    """Whether whoever asked is the one that executes."""
    now: Instant


class RecordTransaction(Protocol):
    """Verbs on records inside an open transaction; each as that of `RecordStore`."""

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        """Claim; whoever else wants the same key waits for the end of this transaction.

        Raises:
            Contended: another transaction has claimed it and has not ended, for longer than this
                one may wait.
        """

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        """Keep the recovery point and data of `row`, and extend its lease."""

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        """Store how it ended; the record is no longer leased, and expires `ttl_us` from now."""


class RecordStore(Protocol):
    """What a store does with records. A token guards every change: of a record that was taken
    over, claimed anew, cleaned up or forgotten, the former owner changes nothing and is answered
    False. Whoever is late and was not missed may go on."""

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        """Become the one that executes, in one atomic step; or learn who did.

        A key that has no record, or one that has expired, is claimed as `row` says, with
        `attempt` 1, for as long as `lease_us`; it expires `ttl_us` from now. So is one that is
        `processing` without a living lease, if `request_hash` is the same: a takeover, by which
        the token is replaced, `attempt` rises, and the recovery point and `created_at` stay. Any
        other record is answered as it is. What is `processing` on a living lease never counts as
        expired.

        Raises:
            WriteRefused: the data cannot be stored.
            Contended: an open transaction has claimed it.
            StoreError: nothing was written, or it is not known.
        """

    def renew_records(self, rows: Sequence[RecordRow], *, lease_us: Sequence[int]) -> list[bool]:
        """Extend the leases of these from now; answer for each whether it is still its owner's."""

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        """Keep the recovery point and data of `row`, and extend its lease."""

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        """Store how it ended: status, response and headers as in `row`."""

    def release_record(self, row: RecordRow) -> bool:
        """Give a claim back: the record is removed, or, when it has a recovery point, its lease
        has ended now."""

    def find_records(self, ids: Sequence[RecordId]) -> list[RecordRow | None]:
        """Return each, in order; None when there is none, or it has expired."""

    def forget_record(self, id: RecordId, *, actor: str, note: str) -> bool:
        """Remove a record, whatever it says; audited, of the subject `idempotency/SCOPE`.

        Returns False, and writes nothing, when there is none, or it has expired.
        """

    def clean_records(self, limit: int) -> int:
        """Remove up to `limit` records that have expired; answer how many. Safe beside others
        that do the same; what is `processing` on a living lease stays."""


def record_subject(id: RecordId) -> str:
    """Return what the audit calls a record; two that differ in tenant or key share it."""
    return f"idempotency/{id.scope}"


def record_details(row: RecordRow) -> dict[str, Any]:
    """Return what the audit keeps of a record that was forgotten: never what was answered."""
    return {
        "tenant": row.tenant_id, "key": row.key, "status": row.status,
        "response_status": row.response_status, "attempt": row.attempt,
        "created_at": row.created_at,
    }  # fmt: skip
