"""The idempotency records of the store in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.store.memory_control import MemoryControl
from ulak.store.records import (
    FORGOTTEN,
    PROCESSING,
    RecordClaim,
    RecordId,
    RecordRow,
    details_of,
    subject_of,
)


class MemoryRecords(MemoryControl):
    """Keys that were claimed, and what was answered under them."""

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        with self._transaction() as now:
            new = row._replace(
                status=PROCESSING, lease_until=None if lease_us is None else now + lease_us,
                attempt=1, created_at=now, updated_at=now, expires_at=now + ttl_us,
            )  # fmt: skip
            stored = self._records.get(row.id)
            if stored is not None and not _is_absent(stored, now):
                if not _may_be_taken_over(stored, row, now):
                    return RecordClaim(stored, False, now)
                new = new._replace(
                    attempt=stored.attempt + 1, created_at=stored.created_at,
                    recovery_point=stored.recovery_point, recovery_data=stored.recovery_data,
                )  # fmt: skip
            self._records[row.id] = new
            return RecordClaim(new, True, now)

    def renew_records(self, rows: Sequence[RecordRow], *, lease_us: Sequence[int]) -> list[bool]:
        with self._transaction() as now:
            return [
                self._change(row, lease_until=now + span, updated_at=now)
                for row, span in zip(rows, lease_us, strict=True)
            ]

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        with self._transaction() as now:
            return self._change(
                row, recovery_point=row.recovery_point, recovery_data=row.recovery_data,
                lease_until=now + lease_us, updated_at=now,
            )  # fmt: skip

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        with self._transaction() as now:
            return self._change(
                row, status=row.status, response_status=row.response_status,
                response_headers=row.response_headers, response_json=row.response_json,
                response_bytes=row.response_bytes, response_digest=row.response_digest,
                lease_until=None, updated_at=now, expires_at=now + ttl_us,
            )  # fmt: skip

    def release_record(self, row: RecordRow) -> bool:
        with self._transaction() as now:
            stored = self._records.get(row.id)
            if stored is not None and stored.recovery_point is not None:
                return self._change(row, lease_until=now, updated_at=now)
            if not self._change(row, updated_at=now):
                return False
            del self._records[row.id]
            return True

    def find_records(self, ids: Sequence[RecordId]) -> list[RecordRow | None]:
        now = self.clock.now()
        with self._lock:
            found = [self._records.get(id) for id in ids]
        return [None if row is None or _is_absent(row, now) else row for row in found]

    def forget_record(self, id: RecordId, *, actor: str, note: str) -> bool:
        with self._transaction() as now:
            row = self._records.get(id)
            if row is None or _is_absent(row, now):
                return False
            del self._records[id]
            self._note(now, actor, FORGOTTEN, subject_of(id), note, json.dumps(details_of(row)))
            return True

    def clean_records(self, limit: int) -> int:
        with self._transaction() as now:
            over = [id for id, row in self._records.items() if _is_absent(row, now)][:limit]
            for id in over:
                del self._records[id]
            return len(over)

    def _change(self, row: RecordRow, **facts: object) -> bool:
        """Change a record while the token of the row is the stored one."""
        stored = self._records.get(row.id)
        is_owned = (
            stored is not None
            and stored.status == PROCESSING
            and stored.owner_token == row.owner_token
        )
        if stored is not None and is_owned:
            self._records[row.id] = stored._replace(**facts)  # type: ignore[arg-type]
        return is_owned


def _is_absent(row: RecordRow, now: Instant) -> bool:
    return row.expires_at <= now and not _is_leased(row, now)


def _is_leased(row: RecordRow, now: Instant) -> bool:
    return row.status == PROCESSING and row.lease_until is not None and row.lease_until > now


def _may_be_taken_over(stored: RecordRow, row: RecordRow, now: Instant) -> bool:
    return (
        stored.status == PROCESSING
        and not _is_leased(stored, now)
        and stored.request_hash == row.request_hash
    )
