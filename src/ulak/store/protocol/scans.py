"""Reads over the whole store, for `verify`, by id upward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.job import JobRow
from ulak.store.protocol.outbox import OutboxRow


class DedupRow(NamedTuple):
    """Which job holds a dedup key, and until when at most."""

    tenant: str
    flow: str
    key: str
    job_id: bytes
    expires_at: Instant | None


class ProofRow(NamedTuple):
    """One link of a tenant's chain: `hash` covers `body` and the hash before it."""

    tenant: str
    proof_id: int
    job_id: bytes
    seq: int
    body: bytes
    hash: bytes


class ScanStore(Protocol):
    """Everything that is stored, a page at a time."""

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        """Return jobs by id, upward."""

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        """Return every delivery of the messages of a job, sent ones too."""

    def scan_keys(self) -> Iterator[DedupRow]:
        """Return every dedup key."""

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        """Return a tenant's proofs in order."""

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        """Return each tenant's last proof id and hash."""

    def scan_orphans(self) -> list[str]:
        """Name rows of other tables that belong to no job, one sentence each."""
