"""The store itself: each verb of the protocol, sent to the writer or to a reader."""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from ulak.clock import Clock, Instant, SystemClock
from ulak.core.admission import Ask
from ulak.core.backlog import Standing
from ulak.core.change import Change, Receipt
from ulak.core.job import Event, JobRow, Message, NewJob, Payload, Request, Result
from ulak.core.policy import LimitTerms, RateTerms
from ulak.errors import BadInput, StoreError
from ulak.store import forks
from ulak.store.caller import Driver, Execute, Rows, Steps, take
from ulak.store.flow_control import FIRST_PAGE
from ulak.store.protocol import (
    NO_RATES,
    Added,
    AuditRow,
    BucketRow,
    Claimed,
    ClaimRequest,
    CountRow,
    CredentialRow,
    DedupRow,
    DeliveryCount,
    DeliveryFilter,
    Features,
    HandlerRow,
    JobFilter,
    LimitRow,
    OutboxRow,
    PauseRow,
    Progress,
    ProofRow,
    RateRow,
    Renewal,
    ScheduleRow,
    Settled,
    SlotRow,
    Store,
    Tick,
    TickRow,
    WeightRow,
    WorkerRow,
)
from ulak.store.records import RecordClaim, RecordId, RecordRow
from ulak.store.sqlite import (
    audit,
    caller,
    claims,
    commits,
    control,
    credentials,
    intake,
    migrations,
    outbox,
    reads,
    records,
    schedules,
    standing,
    stops,
    upkeep,
)
from ulak.store.sqlite.transactions import PATIENCE_MS, LentTurns, SqliteTransaction
from ulak.store.sqlite.wakeup import IS_KNOWN, Wakeup
from ulak.store.sqlite.writer import Files, Readers, Transaction, Writer
from ulak.store.stops import StopVerbs
from ulak.store.transaction import refuse_while_holding
from ulak.store.watchers import Watchers

T = TypeVar("T")

# Large enough that a page written many times goes home once, small enough that a checkpoint does
# not hold up the writers for long.
CHECKPOINT_BYTES = 16 * 1024 * 1024

LOSSES: Mapping[str, str] = {
    "EXTRA": "nothing that was acknowledged is lost",
    "FULL": "nothing that was acknowledged is lost",
    "NORMAL": "a power cut may lose the last moments, never a part of a transaction",
    "OFF": "a power cut may destroy the file",
}


class SqliteStore(StopVerbs):
    """A `Store` in one file, shared by any number of threads and processes of one machine.

    Args:
        path: The database file; beside it stand its WAL and a lock file.
        clock: Tells the time that decides.
        synchronous: What SQLite flushes at a commit; `FULL` survives a power cut.
        checkpoint_bytes: The WAL is brought home when it is longer than this.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        synchronous: str = "FULL",
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        if synchronous not in LOSSES:
            raise ValueError(f"synchronous={synchronous!r} is not one of {', '.join(LOSSES)}")
        if str(path) in ("", ":memory:"):
            raise ValueError("a store needs a file that several connections see; use MemoryStore")
        self.path = Path(path)
        self.clock: Clock = clock or SystemClock()
        self.features = Features(
            name="sqlite",
            durable=True,
            shared=True,
            caller_transactions=True,
            open_transactions=True,
            one_writer=True,
            dialect="sqlite",
            flow_control=True,
            durability=LOSSES[synchronous],
        )
        self._synchronous = synchronous
        self._checkpoint_bytes = checkpoint_bytes
        self._open_writer: Writer | None = None
        self._open_readers: Readers | None = None
        self._parked = FIRST_PAGE
        """Where the next look at what jobs are parked on begins."""
        self._rings: list[Callable[[], None]] = []
        self._watchers = Watchers()
        self._wakeup: Wakeup | None = None
        self._callers = caller.Callers(self.path)
        self._lent = self._new_lent()
        self._paused: list[Callable[[], None]] | None = None
        """How each part goes on after a fork; None when one was in use for too long."""
        self._is_cut = False
        self._opening = threading.Lock()
        self._is_inherited = False
        """It was open when this process was forked: its first use opens it here."""
        forks.tell_of_forks(self)

    # --- life -------------------------------------------------------------------

    def open(self) -> None:
        with self._opening:
            if self._open_writer is None:
                self._open()

    def _open(self) -> None:
        if self._is_cut:
            raise StoreError(
                f"this process was forked in the middle of a transaction on {self.path}, and "
                "cannot use SQLite there any more: fork before or after it, or spawn the process"
            )
        writer = self._new_writer()
        try:
            writer.with_file_locked(lambda db: migrations.create_or_check(db, str(self.path)))
            writer.files = Files(self.path)
        except BaseException:
            writer.close()
            raise
        for ring in self._rings:
            writer.on_commit(ring)
        writer.on_move(self._tell_moved)
        self._open_readers = Readers(self.path, writer.files)
        self._open_writer = writer
        if IS_KNOWN:
            self._wakeup = Wakeup(self.path, self._heard, self._watchers)
            writer.on_commit(self._wakeup.ring)
            if self._rings or self._watchers:
                self._wakeup.listen()

    def close(self) -> None:
        refuse_while_holding(self)
        self._is_inherited = False
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.close()
        readers, self._open_readers = self._open_readers, None
        writer, self._open_writer = self._open_writer, None
        self._callers.close()
        lent, self._lent = self._lent, self._new_lent()
        lent.close()
        if readers is not None:
            readers.close()
        if writer is not None:
            writer.close()

    # SQLite keeps one record of a file's locks for all connections of a process. A child inherits
    # it with locks that only its parent has, and new connections would believe in them: so the
    # inherited ones must be closed there, which is harmless if nobody is in the middle of a write.

    def before_fork(self) -> None:
        self._paused = []
        deadline = time.monotonic() + forks.QUIET_WITHIN_S
        for part in (self._lent, self._open_writer, self._open_readers, self._callers):
            if part is None:
                continue
            if not part.pause(max(0.0, deadline - time.monotonic())):
                self.after_fork_in_parent()
                self._paused = None
                return
            self._paused.append(part.go_on)

    def after_fork_in_parent(self) -> None:
        paused, self._paused = self._paused, []
        for go_on in reversed(paused or []):
            go_on()

    def after_fork_in_child(self) -> None:
        self._opening = threading.Lock()
        self._is_inherited = self._is_inherited or self._open_writer is not None
        writer, self._open_writer = self._open_writer, None
        readers, self._open_readers = self._open_readers, None
        callers, self._callers = self._callers, caller.Callers(self.path)
        lent, self._lent = self._lent, self._new_lent()
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.forget()
        self._watchers.clear()
        if self._paused is not None:
            for part in (readers, callers, lent, writer):
                if part is not None:
                    part.forget()
            return
        # To close a connection in the middle of a write would take back its parent's write.
        self._is_cut = True
        for turn in (lent, writer):
            if turn is not None:
                turn.forget_turn()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((writer, readers, callers, lent)))

    def migrate(self) -> tuple[int, int]:
        if self._open_writer is not None:
            return self._open_writer.with_file_locked(self._upgrade)
        writer = self._new_writer()
        try:
            return writer.with_file_locked(self._upgrade)
        finally:
            writer.close()

    def _upgrade(self, db: sqlite3.Connection) -> tuple[int, int]:
        return migrations.upgrade(db, str(self.path))

    @property
    def newest_schema(self) -> int:
        """The number of the schema that this release knows."""
        return migrations.NEWEST

    def _new_writer(self) -> Writer:
        return Writer(
            self.path,
            clock=self.clock,
            synchronous=self._synchronous,
            checkpoint_bytes=self._checkpoint_bytes,
        )

    def _new_lent(self) -> LentTurns:
        return LentTurns(self.path, clock=self.clock, synchronous=self._synchronous)

    @property
    def _opened(self) -> Writer:
        if self._open_writer is None and self._is_inherited:
            self.open()
        if self._open_writer is None:
            raise StoreError(f"{self.path} is not open; call open() first")
        return self._open_writer

    @property
    def _readers(self) -> Readers:
        if self._open_readers is None and self._is_inherited:
            self.open()
        if self._open_readers is None:
            raise StoreError(f"{self.path} is not open; call open() first")
        return self._open_readers

    @property
    def _writer(self) -> Writer:
        refuse_while_holding(self)
        return self._opened

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return self._readers.run(read)

    def about(self) -> dict[str, object]:
        """Return what `doctor` shows of this store."""
        return {
            "path": str(self.path),
            "sqlite": sqlite3.sqlite_version,
            "wal_reset_bug": has_wal_reset_bug(sqlite3.sqlite_version_info),
            "synchronous": self._synchronous,
            "wal_bytes": self.wal_size(),
            "schema": self._read(migrations.version_of),
            "newest_schema": self.newest_schema,
            "oldest_schema": self._read(migrations.oldest_of),
        }

    def wal_size(self) -> int:
        """Return how many bytes of the WAL are in use."""
        return self._opened.wal.size()

    # --- writing ----------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return self._writer.run("add", lambda t: intake.add(t, jobs))

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self._writer.run("commit", lambda t: commits.commit(t, changes))

    def claim(self, request: ClaimRequest) -> Claimed:
        return self._writer.run("claim", lambda t: claims.claim(t, request))

    def register(self, worker: str, *, lease_us: int, lanes: Sequence[str], about: str) -> Instant:
        return self._writer.run(
            "register",
            lambda t: claims.register(t, worker, lease_us=lease_us, lanes=lanes, about=about),
        )

    def renew(self, worker: str, *, lease_us: int) -> Renewal:
        return self._writer.run(
            "renew", lambda t: claims.renew(t, worker, lease_us=lease_us), urgent=True
        )

    def unregister(self, worker: str) -> None:
        self._writer.run("unregister", lambda t: claims.unregister(t, worker))

    def leased(self, worker: str) -> list[JobRow]:
        return self._read(lambda db: claims.leased(db, worker))

    def request(self, request: Request) -> bool:
        return self._writer.run("request", lambda t: upkeep.request(t, request))

    def dismiss(self, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
        self._writer.run("dismiss", lambda t: upkeep.dismiss(t, job_id, answers))

    def report(self, progress: Sequence[Progress]) -> None:
        self._writer.run("report", lambda t: upkeep.report(t, progress))

    # --- flow control -----------------------------------------------------------

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        self._writer.run("declare", lambda t: control.declare(t, limits, rates))
        for name, terms in sorted(limits.items()):
            if terms.busy is not None:
                self._adopt(name, terms)

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        while found := self._read(lambda db: control.find_misplaced(db, name, terms)):
            adopt = partial(control.adopt, name=name, terms=terms, job_ids=found)
            self._writer.run("declare", adopt)

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        return self._writer.run(
            "limit", lambda t: control.change_limit(t, name, n, actor=actor, note=note, key=key)
        )

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        return self._writer.run(
            "rate", lambda t: control.change_rate(t, name, terms, actor=actor, note=note)
        )

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        return self._writer.run(
            "pause",
            lambda t: control.pause(t, PauseRow(kind, name, until, actor, note or None, t.now)),
        )

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        return self._writer.run(
            "resume", lambda t: control.resume(t, kind, name, actor=actor, note=note)
        )

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        return self._writer.run(
            "weigh", lambda t: control.weigh(t, tenant, weight, actor=actor, note=note)
        )

    stop_sql = stops.SQL

    def _write_steps(self, make: Callable[[], Steps[T]]) -> T:
        return self._writer.run("stop", lambda t: _take(t.db, make()))

    def _read_steps(self, make: Callable[[], Steps[T]]) -> T:
        return self._read(lambda db: _take(db, make()))

    def sweep(self, limit: int) -> int:
        return self._writer.run("sweep", lambda t: control.sweep(t, limit))

    def limits(self) -> list[LimitRow]:
        return self._read(control.limits)

    def rates(self) -> list[RateRow]:
        return self._read(control.rates)

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        return self._read(lambda db: control.buckets(db, name))

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        now = 0 if over else self.clock.now()
        return self._read(lambda db: control.pauses(db, now))

    def weights(self) -> list[WeightRow]:
        return self._read(control.weights)

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        return self._read(lambda db: audit.trail(db, subject, before, limit))

    # --- callers' transactions (`ulak.store.caller.Guest`) ---------------------------

    caller_kinds = caller.KINDS

    def find_driver(self, connection: object) -> Driver | None:
        if self._open_writer is None:
            # Opening writes, and would wait for the very transaction that waits for it.
            raise BadInput(
                "open the engine before a transaction of yours begins: call engine.open() when "
                "the program starts"
            )
        self._open_writer.check_files()
        return self._callers.find_driver(connection)

    def add_steps(self, job: NewJob, ask: Ask | None = None) -> Steps[Added]:
        return caller.add_steps(self._callers, job, self.clock.now(), ask)

    @contextmanager
    def inside(self, connection: Any, execute: Execute) -> Iterator[Store]:
        with caller.borrow(self._callers, connection, execute) as db:
            yield _InsideStore(self, db)

    # --- upkeep -----------------------------------------------------------------

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        return self._read(lambda db: upkeep.due(db, self.clock.now(), limit, after))

    def overdue_leased(self, limit: int) -> list[JobRow]:
        return self._read(lambda db: upkeep.overdue_leased(db, self.clock.now(), limit))

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        return self._read(lambda db: upkeep.asked(db, limit, after))

    def unpark(self, limit: int) -> int:
        unparked, self._parked = self._writer.run(
            "unpark", lambda t: upkeep.unpark(t, limit, self._parked)
        )
        return unparked

    def fold_counts(self) -> None:
        self._writer.run("fold", upkeep.fold_counts)

    def ended(
        self, flow: str, state: str, *, before: Instant, limit: int, after: bytes = b""
    ) -> list[JobRow]:
        return self._read(lambda db: upkeep.ended(db, flow, state, before, limit, after))

    def prune(
        self,
        *,
        before: Instant,
        limit: int,
        actor: str = "",
        note: str = "",
        of: tuple[str, str] | None = None,
    ) -> int:
        return self._writer.run("prune", lambda t: upkeep.prune(t, before, limit, actor, note, of))

    # --- schedules --------------------------------------------------------------

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        self._writer.run("schedules", lambda t: schedules.keep(t, rows))

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        return self._read(lambda db: schedules.due(db, by, limit, after))

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        return self._writer.run("tick", lambda t: schedules.tick(t, ticks))

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        return self._writer.run("schedule-pause", lambda t: schedules.pause(t, name, actor, note))

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        return self._writer.run(
            "schedule-pause", lambda t: schedules.resume(t, name, next_at, actor, note)
        )

    def schedules(self) -> list[ScheduleRow]:
        return self._read(schedules.every)

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        return self._read(lambda db: schedules.ticks(db, schedule, before, limit))

    # --- credentials ------------------------------------------------------------

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        return self._writer.run(
            "credential", lambda t: credentials.add(t, row, act=act, actor=actor, note=note)
        )

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        return self._writer.run(
            "credential", lambda t: credentials.change(t, row, act=act, actor=actor, note=note)
        )

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        self._writer.run("credential", lambda t: credentials.note_use(t, kind, id, at))

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        return self._read(lambda db: credentials.find(db, kind, id))

    def credentials(self, kind: str) -> list[CredentialRow]:
        return self._read(lambda db: credentials.of_kind(db, kind))

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        return self._writer.run("credential", lambda t: credentials.forget(t, kind, before))

    # --- idempotency records ----------------------------------------------------

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        return self._writer.run(
            "record", lambda t: records.claim(t.db, t.now, row, ttl_us, lease_us)
        )

    def renew_records(self, rows: Sequence[RecordRow], *, lease_us: Sequence[int]) -> list[bool]:
        return self._writer.run("record", lambda t: records.renew(t, rows, lease_us), urgent=True)

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._writer.run("record", lambda t: records.mark(t.db, t.now, row, lease_us))

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        return self._writer.run("record", lambda t: records.finish(t.db, t.now, row, ttl_us))

    def release_record(self, row: RecordRow) -> bool:
        return self._writer.run("record", lambda t: records.release(t, row))

    def find_records(self, ids: Sequence[RecordId]) -> list[RecordRow | None]:
        return self._read(lambda db: records.find(db, self.clock.now(), ids))

    def forget_record(self, id: RecordId, *, actor: str, note: str) -> bool:
        return self._writer.run("record", lambda t: records.forget(t, id, actor, note))

    def clean_records(self, limit: int) -> int:
        return self._writer.run("record", lambda t: records.clean(t, limit))

    # --- open transactions (`ulak.store.transaction.TransactionStore`) ---------------

    def begin(self, *, patience_ms: int | None = None, purpose: bytes = b"") -> SqliteTransaction:
        writer = self._writer
        patience = PATIENCE_MS if patience_ms is None else patience_ms
        return self._lent.begin(writer, self._ring, patience, purpose)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._readers.lend()

    def _ring(self) -> None:
        for ring in self._rings:
            ring()
        if self._wakeup is not None:
            self._wakeup.ring()
        self._watchers.ring()

    # --- outbox -----------------------------------------------------------------

    def keep_handlers(self, rows: Sequence[HandlerRow]) -> None:
        self._writer.run("handlers", lambda t: outbox.keep_handlers(t, rows))

    def handlers(self) -> list[HandlerRow]:
        return self._read(outbox.handlers)

    def forget_handler(self, name: str, *, actor: str, note: str) -> int | None:
        return self._writer.run("handlers", lambda t: outbox.forget_handler(t, name, actor, note))

    def post_messages(self, messages: Sequence[Message]) -> None:
        self._writer.run("post", lambda t: outbox.post(t, messages))

    def has_due(self, handler: str) -> bool:
        return self._read(lambda db: outbox.is_any_due(db, handler, self.clock.now()))

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        # Most looks are in vain: those do not write.
        if not self.has_due(handler):
            return []
        return self._writer.run("take", lambda t: outbox.take(t, handler, limit, hold_us))

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        return self._writer.run("take", lambda t: outbox.hold(t, rows, hold_us))

    def settle_messages(self, settled: Sequence[Settled]) -> None:
        self._writer.run("settle", lambda t: outbox.settle(t, settled))

    def deliveries(
        self, where: DeliveryFilter, *, after: int = 0, limit: int = 100
    ) -> list[OutboxRow]:
        return self._read(lambda db: outbox.listed(db, where, after, limit))

    def count_deliveries(self) -> list[DeliveryCount]:
        return self._read(outbox.counted)

    def redrive_message(
        self, row: OutboxRow, *, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        return self._writer.run(
            "redrive", lambda t: outbox.redrive(t, row, give_up_at, actor, note)
        )

    def discard_message(self, row: OutboxRow, *, actor: str, note: str) -> bool:
        return self._writer.run("redrive", lambda t: outbox.discard(t, row, actor, note))

    def expire_messages(self, limit: int) -> int:
        return self._writer.run("sweep", lambda t: outbox.expire(t, limit))

    # --- reading ----------------------------------------------------------------

    def find_job(self, job_id: bytes) -> JobRow | None:
        return self._read(lambda db: intake.find_job(db, job_id))

    def find_payload(self, job_id: bytes) -> Payload | None:
        return self._read(lambda db: reads.payload(db, job_id))

    def find_results(self, job_id: bytes) -> list[Result]:
        return self._read(lambda db: reads.results(db, job_id))

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        return self._read(lambda db: reads.key(db, (tenant, flow, key), self.clock.now()))

    def add_owner(self, job_id: bytes, owner: str) -> None:
        self._writer.run("add", lambda t: intake.own(t, [(job_id, owner)]))

    def find_owned(
        self, owner: str, *, before: tuple[Instant, bytes] | None = None, limit: int = 100
    ) -> list[tuple[Instant, bytes]]:
        return self._read(lambda db: reads.owned(db, owner, before, limit))

    def find_owners(self, job_id: bytes) -> list[str]:
        return self._read(lambda db: reads.owners(db, job_id))

    def find_commits(self, changes: Sequence[Change]) -> list[bool]:
        return self._read(lambda db: reads.commits(db, changes))

    def find_progress(self, job_id: bytes) -> Progress | None:
        return self._read(lambda db: reads.progress(db, job_id))

    def trail(self, job_id: bytes, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._read(lambda db: reads.trail(db, job_id, after, limit))

    def list_jobs(
        self, where: JobFilter, *, after: bytes | None = None, limit: int = 100
    ) -> list[JobRow]:
        return self._read(lambda db: reads.list_jobs(db, where, after, limit))

    def count_jobs(self, where: JobFilter, *, after: bytes | None = None) -> int:
        return self._read(lambda db: reads.count_jobs(db, where, after))

    def counts(self) -> list[CountRow]:
        return self._read(reads.counts)

    def count_standing(self) -> Standing:
        return self._read(lambda db: standing.count(db, self.clock.now()))

    def workers(self) -> list[WorkerRow]:
        return self._read(lambda db: reads.workers(db, self.clock))

    def pending_requests(self, job_id: bytes) -> list[Request]:
        return self._read(lambda db: reads.requests(db, job_id))

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        return self._read(lambda db: reads.slots(db, limit))

    # --- whole-store reads ------------------------------------------------------

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        return self._read(lambda db: reads.jobs_upward(db, after, limit))

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        return self._read(lambda db: reads.messages_of(db, job_id))

    def scan_keys(self) -> Iterator[DedupRow]:
        page = self._read(lambda db: reads.keys(db, None))
        while page:
            yield from page
            last = page[-1]
            page = self._read(partial(reads.keys, last=last))

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        return self._read(lambda db: reads.proofs(db, tenant, after, limit))

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        return self._read(reads.proof_heads)

    def scan_orphans(self) -> list[str]:
        return self._read(reads.orphans)

    # --- waking -----------------------------------------------------------------

    def changed_elsewhere(self) -> bool:
        return self._writer.changed_elsewhere()

    def on_commit(self, ring: Callable[[], None]) -> None:
        self._rings.append(ring)
        if self._open_writer is not None:
            self._open_writer.on_commit(ring)
        if self._wakeup is not None:
            self._wakeup.listen()

    def on_move(self, ring: Callable[[], None]) -> Callable[[], None]:
        stop = self._watchers.add(ring)
        if self._wakeup is not None:
            self._wakeup.listen()
        return stop

    def _tell_moved(self, made_due: bool) -> None:
        self._watchers.ring()
        if self._wakeup is not None and not made_due:
            self._wakeup.ring_watchers()

    def _heard(self) -> bool:
        try:
            has_changed = self._opened.changed_elsewhere(PATIENCE_MS / 1000)
        except StoreError:
            return False  # closed, or its file is lost: the next call raises
        if has_changed:
            for ring in self._rings:
                ring()
            self._watchers.ring()
        return has_changed


class _InsideStore(SqliteStore):
    """The verbs of a store inside a transaction of a caller's, who commits it."""

    def __init__(self, store: SqliteStore, db: caller.Borrowed) -> None:
        self.path, self.clock, self.features = store.path, store.clock, store.features
        self._borrowed = cast(sqlite3.Connection, db)

    @property
    def _writer(self) -> Writer:
        return cast(Writer, self)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return read(self._borrowed)

    def run(self, kind: str, work: Callable[[Transaction], T]) -> T:
        t = Transaction(self._borrowed, self.clock)
        answer = work(t)
        t.finish()
        return answer

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        return self.run("commit", lambda t: commits.commit_each(t, changes))


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Tell whether a checkpoint that overlaps a resetting write can lose pages in this SQLite."""
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 50, 7), (3, 44, 6))


def _take(db: sqlite3.Connection, steps: Steps[T]) -> T:
    """Take steps on a connection of ours."""
    return take(steps, lambda sql, values: Rows(db.execute(sql, values).fetchall()))
