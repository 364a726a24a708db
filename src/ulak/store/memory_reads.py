"""The reading verbs of the store in memory."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from ulak.clock import Instant
from ulak.core.backlog import (
    DELAYED,
    DUE,
    LEASED,
    MOST_COUNTED,
    MOST_ENDS,
    PARKED,
    RATE_OVER_US,
    EndCount,
    LaneCount,
    Standing,
)
from ulak.core.change import Change
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.core.lifecycle import FINAL
from ulak.ids import to_text
from ulak.store.memory_outbox import MemoryOutbox
from ulak.store.protocol import (
    CountRow,
    DedupRow,
    JobFilter,
    OutboxRow,
    Progress,
    ProofRow,
    SlotRow,
    WorkerRow,
)
from ulak.store.protocol.filters import Term, find_terms


class MemoryReads(MemoryOutbox):
    """What reads jobs."""

    # --- reading ----------------------------------------------------------------

    def find_job(self, job_id: bytes) -> JobRow | None:
        with self._lock:
            return self._jobs.get(job_id)

    def find_payload(self, job_id: bytes) -> Payload | None:
        with self._lock:
            return self._payloads.get(job_id)

    def find_results(self, job_id: bytes) -> list[Result]:
        with self._lock:
            return sorted(self._results.get(job_id, {}).values(), key=lambda result: result.round)

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        with self._transaction() as now:
            return self._holder((tenant, flow, key), now)

    def add_owner(self, job_id: bytes, owner: str) -> None:
        with self._transaction() as now:
            if job_id in self._jobs:
                self._owners.setdefault(job_id, {}).setdefault(owner, now)

    def find_owners(self, job_id: bytes) -> list[str]:
        with self._lock:
            since = self._owners.get(job_id, {})
            return sorted(since, key=lambda owner: (since[owner], owner))

    def find_owned(
        self, owner: str, *, before: tuple[Instant, bytes] | None = None, limit: int = 100
    ) -> list[tuple[Instant, bytes]]:
        with self._lock:
            theirs = [(who[owner], i) for i, who in self._owners.items() if owner in who]
            return sorted((p for p in theirs if before is None or p < before), reverse=True)[:limit]

    def find_commits(self, changes: Sequence[Change]) -> list[bool]:
        with self._lock:
            return [self._is_in_trail(change) for change in changes]

    def find_progress(self, job_id: bytes) -> Progress | None:
        with self._lock:
            return self._progress.get(job_id)

    def trail(self, job_id: bytes, *, after: int = 0, limit: int = 1000) -> list[Event]:
        with self._lock:
            return [e for e in self._trails.get(job_id, ()) if e.seq > after][:limit]

    def list_jobs(
        self, where: JobFilter, *, after: bytes | None = None, limit: int = 100
    ) -> list[JobRow]:
        with self._lock:
            below = sorted((i for i in self._jobs if after is None or i < after), reverse=True)
            rows = (self._jobs[job_id] for job_id in below)
            matches = self._matching(where)
            return [row for row in rows if matches(row)][:limit]

    def count_jobs(self, where: JobFilter, *, after: bytes | None = None) -> int:
        with self._lock:
            below = (row for i, row in self._jobs.items() if after is None or i < after)
            return sum(map(self._matching(where), below))

    def _matching(self, where: JobFilter) -> Callable[[JobRow], bool]:
        terms, owner = find_terms(where), where.owner

        def matches(row: JobRow) -> bool:
            is_theirs = owner is None or owner in self._owners.get(row.id, ())
            return is_theirs and all(_is_true(row, term) for term in terms)

        return matches

    def count_standing(self) -> Standing:
        with self._transaction() as now:
            counts: Counter[tuple[str, str]] = Counter()
            oldest: dict[str, dict[str, Instant]] = {DUE: {}, LEASED: {}}
            totals: Counter[tuple[str, str]] = Counter()
            ended: list[JobRow] = []
            for row in self._jobs.values():
                totals[row.flow, row.role] += 1
                if row.role in FINAL and row.changed_at > now - RATE_OVER_US:
                    ended.append(row)
                if not row.lane:
                    continue
                kind, since = DUE if row.not_before <= now else DELAYED, row.not_before
                if row.leased_by is not None:
                    kind, since = LEASED, row.leased_at or now
                elif row.parked_on is not None:
                    kind = PARKED
                counts[row.lane, kind] += 1
                if kind in oldest:
                    oldest[kind][row.lane] = min(since, oldest[kind].get(row.lane, since))
            ends: defaultdict[tuple[str, str], list[Instant]] = defaultdict(list)
            for row in heapq.nlargest(MOST_ENDS, ended, key=lambda row: row.changed_at):
                ends[row.flow, row.role].append(row.changed_at)
            return Standing(
                now,
                [
                    LaneCount(*key, min(jobs, MOST_COUNTED), jobs <= MOST_COUNTED)
                    for key, jobs in counts.items()
                ],
                oldest[DUE],
                oldest[LEASED],
                [EndCount(*key, len(dates), min(dates)) for key, dates in ends.items()],
                totals,
            )

    def counts(self) -> list[CountRow]:
        with self._lock:
            return [CountRow(*key, jobs) for key, jobs in sorted(self._counts.items()) if jobs]

    def workers(self) -> list[WorkerRow]:
        with self._lock:
            # As the time of day is now: it may have been set since the lease was renewed.
            ahead_us = self.clock.now() - self.clock.uptime().us
            return sorted(
                row._replace(expires_at=self._lease_ends[id] + ahead_us)
                for id, row in self._workers.items()
            )

    def pending_requests(self, job_id: bytes) -> list[Request]:
        with self._lock:
            return self._asked_of(job_id)

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        with self._lock:
            named = sorted((n, slots) for n, slots in self._slots.items() if limit in (None, n))
            return [slot for _, slots in named for slot in slots.values()]

    # --- whole-store reads ------------------------------------------------------

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        with self._lock:
            return [self._jobs[job_id] for job_id in sorted(self._jobs) if job_id > after][:limit]

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        with self._lock:
            own = sorted(key for key in self._messages if key[0] == job_id)
            return [self._messages[key] for key in own]

    def scan_keys(self) -> Iterator[DedupRow]:
        with self._lock:
            return iter(sorted(self._keys.values()))

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        with self._lock:
            return [p for p in self._proofs.get(tenant, ()) if p.proof_id > after][:limit]

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        with self._lock:
            return {
                tenant: (chain[-1].proof_id, chain[-1].hash)
                for tenant, chain in self._proofs.items()
                if chain
            }

    def scan_orphans(self) -> list[str]:
        with self._lock:
            tables: dict[str, set[bytes]] = {
                "events": set(self._trails),
                "payload": set(self._payloads),
                "results": {i for i, results in self._results.items() if results},
                "requests": {i for i, requests in self._requests.items() if requests},
                "progress": set(self._progress),
                # A message that no stage has sent is of no event, and of no job.
                "messages": {m[0] for m in self._messages if m[1]},
                "dedup key": {key.job_id for key in self._keys.values()},
                "slot": {slot.job_id for slot in self.slots() if slot.job_id is not None},
                "tick": {tick.job_id for tick in self._ticks.values()},
                "owner": set(self._owners),
            }
            return [
                f"{table} of job {to_text(job_id)}: there is no such job"
                for table, owners in tables.items()
                for job_id in sorted(owners - self._jobs.keys())
            ]

    # --- waking -----------------------------------------------------------------

    def changed_elsewhere(self) -> bool:
        return False

    def on_commit(self, ring: Callable[[], None]) -> None:
        with self._lock:
            self._rings.append(ring)

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(ring)


def _is_true(row: JobRow, term: Term) -> bool:
    value = getattr(row, term.column)
    match term.operator:
        case "begins":
            return bool(value.startswith(term.value))
        case ">=":
            return bool(value >= term.value)
        case "<":
            return bool(value < term.value)
        case "<=":
            return bool(value <= term.value)
        case _:
            return bool(value == term.value)
