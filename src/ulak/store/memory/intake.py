"""What comes into the store in memory: jobs, ticks of schedules, credentials, records."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.job import NewJob
from ulak.store.batches import key_of
from ulak.store.credentials import (
    changed_credential,
    credential_details,
    credential_subject,
    make_subject,
)
from ulak.store.memory.control import MemoryControl
from ulak.store.protocol import Added, CredentialRow, ScheduleRow, Tick, TickRow
from ulak.store.protocol.control import (
    SCHEDULE_PAUSED,
    SCHEDULE_RESUMED,
    must_be_ticks,
    schedule_details,
    schedule_subject,
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

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        with self._transaction():
            for row in rows:
                stored = self._schedules.get(row.name)
                if stored is None:
                    self._schedules[row.name] = row
                    continue
                is_same_rule = (row.rule, row.zone) == (stored.rule, stored.zone)
                self._schedules[row.name] = row._replace(
                    next_at=stored.next_at if is_same_rule else row.next_at,
                    paused_at=stored.paused_at, paused_by=stored.paused_by,
                    pause_note=stored.pause_note,
                )  # fmt: skip

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        with self._lock:
            running = [row for row in self._schedules.values() if row.paused_at is None]
            dated = sorted((row.next_at, row.name) for row in running if row.next_at <= by)
            return [self._schedules[name] for at, name in dated if (at, name) > after][:limit]

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

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        with self._transaction() as now:
            row = self._schedules.get(name)
            if row is None or row.paused_at is not None:
                return False
            self._schedules[name] = row._replace(paused_at=now, paused_by=actor, pause_note=note)
            details = schedule_details(row.next_at)
            self._note(now, actor, SCHEDULE_PAUSED, schedule_subject(name), note, details)
            return True

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        with self._transaction() as now:
            row = self._schedules.get(name)
            if row is None or row.paused_at is None:
                return False
            self._schedules[name] = row._replace(
                next_at=next_at, paused_at=None, paused_by=None, pause_note=None
            )
            self._note(
                now,
                actor,
                SCHEDULE_RESUMED,
                schedule_subject(name),
                note,
                schedule_details(next_at),
            )
            return True

    def schedules(self) -> list[ScheduleRow]:
        with self._lock:
            return [row for _, row in sorted(self._schedules.items())]

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        with self._lock:
            own = [tick for tick in self._ticks.values() if tick.schedule == schedule]
            wanted = [tick for tick in own if before is None or tick.due_at < before]
            return sorted(wanted, reverse=True)[:limit]

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        with self._transaction() as now:
            if (row.kind, row.id) in self._credentials:
                return False
            self._credentials[row.kind, row.id] = row
            self._note(
                now, actor, act, credential_subject(row), note, credential_details(row, None)
            )
            return True

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        with self._transaction() as now:
            stored = self._credentials.get((row.kind, row.id))
            new = changed_credential(row, stored)
            if new is None:
                return False
            self._credentials[row.kind, row.id] = new
            self._note(
                now, actor, act, credential_subject(row), note, credential_details(new, stored)
            )
            return True

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        with self._transaction():
            row = self._credentials.get((kind, id))
            if row is not None and (row.used_at is None or row.used_at < at):
                self._credentials[kind, id] = row._replace(used_at=at)

    def note_refusal(self, kind: str, id: str, *, act: str, actor: str, note: str) -> None:
        with self._transaction() as now:
            self._note(now, actor, act, make_subject(kind, id), note, "{}")

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        with self._lock:
            return self._credentials.get((kind, id))

    def credentials(self, kind: str) -> list[CredentialRow]:
        with self._lock:
            return [row for _, row in sorted(self._credentials.items()) if row.kind == kind]

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        with self._transaction():
            over = [
                key
                for key, row in self._credentials.items()
                if row.kind == kind and row.expires_at is not None and row.expires_at < before
            ]
            for key in over:
                del self._credentials[key]
            return len(over)

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
