"""The verbs of a store that both databases say in the same words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ulak.clock import Clock
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store.protocol import NO_RATES, DedupRow
from ulak.store.sql import control, outbox, reads
from ulak.store.sql.control import Control
from ulak.store.sql.session import Session, Transaction
from ulak.store.verbs import read, read_now, written

T = TypeVar("T")


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
