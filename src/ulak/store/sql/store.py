"""The verbs of both stores that are one function each, and those that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ulak.clock import Clock, Instant
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store.protocol import NO_RATES, DedupRow
from ulak.store.sql import control, outbox, reads
from ulak.store.sql.control import Control
from ulak.store.sql.session import Session, Transaction

P = ParamSpec("P")
T = TypeVar("T")
Db = TypeVar("Db")
Tx = TypeVar("Tx")
Db_co = TypeVar("Db_co", covariant=True)
Tx_co = TypeVar("Tx_co", covariant=True)


class Writing(Protocol[Tx_co]):
    """A store that runs work in a transaction of its own and commits it."""

    def _write(self, kind: str, work: Callable[[Tx_co], T], *, urgent: bool = False) -> T: ...


class Reading(Protocol[Db_co]):
    """A store that runs work on a connection that only reads."""

    clock: Clock

    def _read(self, read: Callable[[Db_co], T]) -> T: ...


def written(
    kind: str, work: Callable[Concatenate[Tx, P], T], *, urgent: bool = False
) -> Callable[Concatenate[Writing[Tx], P], T]:
    """Make the verb that runs `work` in a transaction; `kind` names it in `ulak.store.faults`."""

    def verb(self: Writing[Tx], /, *args: P.args, **options: P.kwargs) -> T:
        return self._write(kind, lambda t: work(t, *args, **options), urgent=urgent)

    return verb


def read(work: Callable[Concatenate[Db, P], T]) -> Callable[Concatenate[Reading[Db], P], T]:
    """Make the verb that runs `work` on a connection that only reads."""

    def verb(self: Reading[Db], /, *args: P.args, **options: P.kwargs) -> T:
        return self._read(lambda db: work(db, *args, **options))

    return verb


def read_now(
    work: Callable[Concatenate[Db, Instant, P], T],
) -> Callable[Concatenate[Reading[Db], P], T]:
    def verb(self: Reading[Db], /, *args: P.args, **options: P.kwargs) -> T:
        return self._read(lambda db: work(db, self.clock.now(), *args, **options))

    return verb


class SqlStore(ABC):
    """What a store in a database is made of: a way to write, and a way to read."""

    clock: Clock
    _control: Control[Any]

    @abstractmethod
    def _write(self, kind: str, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run work in a transaction and commit it; `kind` names it in `ulak.store.faults`."""

    @abstractmethod
    def _read(self, read: Callable[[Session], T]) -> T:
        """Run work on a connection that only reads."""

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        self._write("declare", lambda t: self._control.declare(t, limits, rates))
        for name, terms in sorted(limits.items()):
            if terms.busy is not None:
                self._adopt(name, terms)

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        while found := self._read(lambda db: self._control.find_misplaced(db, name, terms)):
            adopt = partial(self._control.adopt, name=name, terms=terms, job_ids=found)
            self._write("declare", adopt)

    change_rate = written("rate", control.change_rate)
    pause = written("pause", control.pause)
    weigh = written("weigh", control.weigh)
    limits = read(control.find_limits)
    rates = read(control.find_rates)
    buckets = read(control.find_buckets)
    pauses = read_now(control.find_pauses)
    weights = read(control.find_weights)
    audit_trail = read(control.find_audit)
    stop_accepting = written("stop", control.stop_accepting)
    accept = written("stop", control.accept)
    stops = read(control.find_stops)

    request = written("request", reads.request)
    report = written("report", reads.report)
    due = read_now(reads.due)
    find_claimable = read_now(reads.find_claimable)
    overdue_leased = read_now(reads.overdue_leased)
    ended = read(reads.ended)

    keep_schedules = written("schedules", control.keep_schedules)
    due_schedules = read(control.find_due_schedules)
    pause_schedule = written("schedule-pause", control.pause_schedule)
    resume_schedule = written("schedule-pause", control.resume_schedule)
    ticks = read(control.find_ticks)
    schedules = read(control.find_schedules)

    add_credential = written("credential", control.add_credential)
    change_credential = written("credential", control.change_credential)
    note_use = written("credential", control.note_use)
    note_refusal = written("credential", control.note_refusal)
    find_credential = read(control.find_credential)
    forget_credentials = written("credential", control.forget_credentials)
    credentials = read(control.find_credentials)

    keep_handlers = written("handlers", outbox.keep_handlers)
    handlers = read(outbox.handlers)
    forget_handler = written("handlers", outbox.forget_handler)
    deliveries = read(outbox.listed)
    count_deliveries = read(outbox.counted)

    find_payload = read(reads.payload)
    find_results = read(reads.results)
    find_key = read_now(reads.key)
    find_owned = read(reads.owned)
    find_owners = read(reads.owners)
    find_progress = read(reads.progress)
    trail = read(reads.trail)
    count_jobs = read(reads.count_jobs)
    counts = read(reads.counts)
    pending_requests = read(reads.requests)
    slots = read(reads.slots)

    scan_jobs = read(reads.jobs_upward)
    scan_messages = read(reads.messages_of)
    scan_proofs = read(reads.proofs)
    proof_heads = read(reads.proof_heads)

    def scan_keys(self) -> Iterator[DedupRow]:
        page = self._read(lambda db: reads.keys(db, None))
        while page:
            yield from page
            page = self._read(partial(reads.keys, last=page[-1]))
