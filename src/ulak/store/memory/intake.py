"""What comes into the store in memory: jobs, ticks of schedules, credentials, records."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.job import NewJob
from ulak.store.batches import key_of
from ulak.store.memory.control import MemoryControl
from ulak.store.protocol import Added, CredentialRow, Tick, TickRow
from ulak.store.protocol.control import (
    must_be_ticks,
)
from ulak.store.records import (
    FORGOTTEN,
    PROCESSING,
    RecordClaim,
    RecordId,
    RecordRow,
    record_details,
    record_subject,
)


class MemoryIntake(MemoryControl):
    """New jobs, schedules with a tick for each date that was seen to, credentials and records."""

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        with self._transaction() as now:
            return [self._add(job, now, self._stop_for(job)) for job in jobs]

    def _add(self, job: NewJob, now: Instant, stop: StopRow | None = None) -> Added:
        added = self._find_or_put(job, now, stop)
        if job.owner and added.stop is None:
            self._owners.setdefault(added.row.id, {}).setdefault(job.owner, now)
        return added

    def _find_or_put(self, job: NewJob, now: Instant, stop: StopRow | None) -> Added:
        if job.row.id in self._jobs:
            return Added(self._jobs[job.row.id], True)
        holder = self._holder(key_of(job.row), now)
        if holder is not None:
            return Added(self._jobs[holder], False)
        if stop is not None:
            return Added(job.row, False, stop)
        self._put(job.row)
        self._payloads[job.row.id] = job.payload
        self._take_key(key_of(job.row), job.row.id, job.key_expires_at)
        self._append(job.row.tenant, [job.event], [] if job.proof is None else [job.proof])
        return Added(job.row, True)

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        with self._transaction() as now:
            must_be_ticks(ticks)
            ordered = sorted(ticks, key=lambda tick: tick.row.name)
            written = {tick.row.name: self._tick(tick, now) for tick in ordered}
            return [written[tick.row.name] for tick in ticks]

    def _tick(self, tick: Tick, now: Instant) -> bool:
        row = self._schedules.get(tick.row.name)
        if row is None or row != tick.row or row.paused_at is not None or row.next_at > now:
            return False
        for job in tick.jobs:
            due_at = job.row.scheduled_for or 0
            if (row.name, due_at) not in self._ticks:
                added = self._add(job, now)
                self._ticks[row.name, due_at] = TickRow(row.name, due_at, added.row.id)
        self._schedules[row.name] = row._replace(next_at=tick.next_at)
        return True

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        with self._lock:
            own = [tick for tick in self._ticks.values() if tick.schedule == schedule]
            wanted = [tick for tick in own if before is None or tick.due_at < before]
            return sorted(wanted, reverse=True)[:limit]

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        with self._lock:
            return self._credentials.get((kind, id))

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
            self._note(
                now, actor, FORGOTTEN, record_subject(id), note, json.dumps(record_details(row))
            )
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
