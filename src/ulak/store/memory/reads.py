"""The outbox and the reading verbs of the store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ulak.clock import Instant
from ulak.core.backlog import (
    DELAYED,
    DUE,
    LEASED,
    PARKED,
    Standing,
    bounded_counts,
    last_ends,
)
from ulak.core.change import Change
from ulak.core.delivery import DISCARDED, EVENT, GAVE_UP, KEPT_US, PENDING, SENT
from ulak.core.job import Event, JobRow, Message, Payload, Request, Result
from ulak.core.lifecycle import FINAL
from ulak.ids import to_text
from ulak.store.memory.tables import Delivery, MemoryTables
from ulak.store.protocol import (
    CountRow,
    DedupRow,
    DeliveryCount,
    DeliveryFilter,
    Followed,
    HandlerRow,
    JobFilter,
    OutboxRow,
    Progress,
    ProofRow,
    Settled,
    SlotRow,
    WorkerRow,
    outbox,
)
from ulak.store.protocol.filters import matcher
from ulak.store.protocol.outbox import (
    DISCARD,
    FORGET,
    REDRIVE,
    handler_details,
    handler_subject,
    message_details,
    message_subject,
)


class MemoryReads(MemoryTables):
    """What delivers messages, and what reads."""

    def keep_handlers(self, rows: Sequence[HandlerRow]) -> None:
        with self._transaction():
            self._handlers.update({row.name: row for row in rows})

    def handlers(self) -> list[HandlerRow]:
        with self._lock:
            return sorted(self._handlers.values())

    def forget_handler(self, name: str, *, actor: str, note: str) -> int | None:
        with self._transaction() as now:
            if self._handlers.pop(name, None) is None:
                return None
            own = [delivery for delivery in self._open if delivery[3] == name]
            for delivery in own:
                self._close(self._messages[delivery]._replace(state=DISCARDED))
            self._note(now, actor, FORGET, handler_subject(name), note, handler_details(len(own)))
            return len(own)

    def post_messages(self, messages: Sequence[Message]) -> None:
        with self._transaction():
            self._post(messages)

    def has_due(self, handler: str) -> bool:
        with self._lock:
            now = self.clock.now()
            return any(row.not_before <= now for row in self._heads(handler))

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        with self._transaction() as now:
            due = [row for row in self._heads(handler) if row.not_before <= now]
            heads = outbox.choose_heads(sorted(due, key=lambda row: row.not_before)[:limit])
            lines = [
                (row.message.key, row.position, self._trails[m[0]][m[1] - 1])
                for m in self._open
                if m[3] == handler and (row := self._messages[m]).message.key in heads
            ]
            taken = outbox.gather_events(sorted(lines), heads, self._jobs)
            for one in taken:
                self._write(one.head._replace(not_before=now + hold_us))
            return taken

    def finish_events(self, taken: Sequence[Followed]) -> None:
        with self._transaction():
            self._drop_messages(
                [
                    (event.job_id, event.seq, EVENT, one.head.handler)
                    for one in taken
                    for event in one.events
                ]
            )

    def settle_events(self, settled: Sequence[Settled]) -> None:
        self.settle_messages(settled)

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        with self._transaction() as now:
            due = [row for row in self._heads(handler) if row.not_before <= now]
            return [self._write(row._replace(not_before=now + hold_us)) for row in due[:limit]]

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        with self._transaction() as now:
            held = [row for row in rows if self._messages.get(_identity(row)) == row]
            return [
                self._write(row._replace(not_before=now + hold_us))
                for row in held
                if row.state == PENDING
            ]

    def settle_messages(self, settled: Sequence[Settled]) -> None:
        with self._transaction() as now:
            for end in settled:
                row = self._messages.get(_identity(end))
                if row is None or row.state == SENT:
                    continue
                if end.state == SENT:
                    self._close(row._replace(state=SENT, sent_at=now, answer=end.answer))
                elif row.state == PENDING:
                    failed = row._replace(
                        state=end.state, tries=row.tries + end.spends_try,
                        not_before=end.not_before, error=end.error,
                    )  # fmt: skip
                    is_open = end.state == PENDING or end.blocks
                    self._write(failed) if is_open else self._close(failed)

    def deliveries(
        self, where: DeliveryFilter, *, after: int = 0, limit: int = 100
    ) -> list[OutboxRow]:
        with self._lock:
            return [
                row
                for row in sorted(self._messages.values(), key=lambda row: row.position)
                if row.position > after
                and where.handler in (None, row.handler)
                and (not where.states or row.state in where.states)
                and where.key in (None, row.message.key)
            ][:limit]

    def count_deliveries(self) -> list[DeliveryCount]:
        with self._lock:
            found: dict[tuple[str, str], list[Instant]] = {}
            for row in self._messages.values():
                if row.state == PENDING or row.state in GAVE_UP:
                    found.setdefault((row.handler, row.state), []).append(row.message.at)
            return sorted(DeliveryCount(*kind, len(at), min(at)) for kind, at in found.items())

    def redrive_message(
        self, row: OutboxRow, *, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        with self._transaction() as now:
            found = self._messages.get(_identity(row))
            if found is None or found.state not in GAVE_UP:
                return False
            again = found._replace(state=PENDING, tries=0, not_before=now, give_up_at=give_up_at)
            self._open[_identity(self._write(again))] = None
            by_position = sorted(self._open, key=lambda found: self._messages[found].position)
            self._open = dict.fromkeys(by_position)
            self._made_due = True
            self._note(
                now, actor, REDRIVE, message_subject(row.message), note, message_details(row)
            )
            return True

    def discard_message(self, row: OutboxRow, *, actor: str, note: str) -> bool:
        with self._transaction() as now:
            found = self._messages.get(_identity(row))
            if found is None or found.state not in (PENDING, *GAVE_UP):
                return False
            self._close(found._replace(state=DISCARDED))
            self._made_due = True
            self._note(
                now, actor, DISCARD, message_subject(row.message), note, message_details(row)
            )
            return True

    def expire_messages(self, limit: int) -> int:
        with self._transaction() as now:
            old = [m for m, row in self._messages.items() if row.message.at < now - KEPT_US]
            over = (SENT, DISCARDED)
            lone = [m for m in old if m[1] == 0 and self._messages[m].state in over][:limit]
            unwanted = [m for m in old if m in self._open and m[3] not in self._handlers][:limit]
            self._drop_messages(lone)
            for delivery in unwanted:
                row = self._messages[delivery]
                message = row.message._replace(data=b"null")
                self._close(row._replace(message=message, state=DISCARDED))
            return len(unwanted) + len(lone)

    def _heads(self, handler: str) -> Iterator[OutboxRow]:
        """Return the oldest delivery of each key, unless it gave up and blocks."""
        keys: set[str] = set()
        for delivery in self._open:
            row = self._messages[delivery]
            if delivery[3] == handler and row.message.key not in keys:
                keys.add(row.message.key)
                if row.state == PENDING:
                    yield row

    def _write(self, row: OutboxRow) -> OutboxRow:
        self._messages[_identity(row)] = row
        return row

    def _close(self, row: OutboxRow) -> None:
        self._open.pop(_identity(self._write(row)), None)

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

    def add_owner(self, job_id: bytes, owner: str, *, since: Instant | None = None) -> None:
        with self._transaction() as now:
            if job_id in self._jobs:
                owners = self._owners.setdefault(job_id, {})
                owners[owner] = min(now if since is None else since, owners.get(owner, now))

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
        matches, owner = matcher(where), where.owner
        return lambda row: (owner is None or owner in self._owners.get(row.id, ())) and matches(row)

    def count_standing(self) -> Standing:
        with self._transaction() as now:
            counts: Counter[tuple[str, str]] = Counter()
            oldest: dict[str, dict[str, Instant]] = {DUE: {}, LEASED: {}}
            totals: Counter[tuple[str, str]] = Counter()
            ended: list[tuple[Instant, str, str]] = []
            for row in self._jobs.values():
                totals[row.flow, row.role] += 1
                if row.role in FINAL:
                    ended.append((row.changed_at, row.flow, row.role))
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
            return Standing(
                now, bounded_counts(counts), oldest[DUE], oldest[LEASED], last_ends(ended, now),
                totals,
            )  # fmt: skip

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

    def changed_elsewhere(self) -> bool:
        return False

    def on_commit(self, ring: Callable[[], None]) -> None:
        with self._lock:
            self._rings.append(ring)

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(ring)


def _identity(row: OutboxRow | Settled) -> Delivery:
    return row.message.job_id, row.message.seq, row.message.n, row.handler
