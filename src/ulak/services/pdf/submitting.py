"""How new jobs come into the store: few commits for many, and no more than a tenant may have
waiting."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from ulak import Engine, Job, JobFilter
from ulak.core.intake import NORMAL
from ulak.core.job import lane_for
from ulak.errors import Overloaded, UlakError
from ulak.services.pdf.callback_table import CallbackTable, Wanted
from ulak.services.pdf.flow import FLOW, PdfPayload, flow_of, tenant_key
from ulak.services.pdf.model import PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables

_QUEUED: Final = str(PdfJobStatus.QUEUED)


@dataclass(frozen=True, slots=True)
class NewPdfJob:
    """A job that is to be made, unless the one with its key is there."""

    payload: PdfPayload = field(repr=False)
    _: KW_ONLY
    priority: int = NORMAL
    callback_url: str = field(default="", repr=False)
    """Is told of its end; '' for nobody."""
    root: str = ""
    """Where the application is mounted, for the links of what it is told."""


class QuotaExceeded(UlakError):
    """A tenant has as many jobs waiting as it may have; this one was not made.

    Args:
        most: How many that are.
    """

    code = "quota-exceeded"

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} jobs of this tenant are waiting, and no more may")
        self.most = most


Submitted = Job | Overloaded | QuotaExceeded
"""What became of a new job; a `Job` may have been there before (`created`)."""


class Submitting(Protocol):
    """Where new jobs go in."""

    def submit(self, jobs: Sequence[NewPdfJob], *, tenant: str, actor: str) -> list[Submitted]:
        """Make jobs of one tenant, and answer what became of each, in order.

        Each is stored whole, with whoever is to be told of its end, or not at all; one that is
        refused harms no other. Of several with one key the first is made. Where a tenant may
        have so many waiting, no more are, however many processes submit at once: what counts is
        whatever is queued, a retry that is delayed too. A retry is never refused, so that there
        may be more than that after all. A job that was there before is answered and counts for
        nothing, unless the tenant has no room left: then whoever asks looks for it.

        Raises:
            StoreError: nothing is known; the same again completes what is missing.
            UnknownOutcome: the same.
        """

    def waiting(self, tenant: str) -> int:
        """Count the jobs of a tenant that are queued; a store may stop at what the tenant may
        have."""


def submitting_of(engine: Engine, callbacks: CallbackTable, *, most: int) -> Submitting:
    """Return how jobs go into an engine's store.

    Args:
        engine: With the flow `pdf`.
        callbacks: Where those are kept who are told of a job's end.
        most: How many jobs of a tenant may wait; 0 is no bound.
    """
    if engine.store.features.open_transactions:
        return SqlSubmitting(engine, Tables(engine, SCHEMA), callbacks, most)
    return MemorySubmitting(engine, callbacks, most)


class SqlSubmitting:
    """Into a database: in the commits that everybody shares, or in one transaction with whatever
    must be true along with the jobs."""

    def __init__(self, engine: Engine, tables: Tables, callbacks: CallbackTable, most: int) -> None:
        self._engine = engine
        self._tables = tables
        self._callbacks = callbacks
        self._most = most

    def submit(self, jobs: Sequence[NewPdfJob], *, tenant: str, actor: str) -> list[Submitted]:
        """Make jobs of one tenant; see `Submitting`."""
        if self._most or any(job.callback_url for job in jobs):
            return self._submit_in_one(jobs, tenant, actor)
        answers: dict[int, Submitted] = {}
        for priority in sorted({job.priority for job in jobs}):
            places = [n for n, job in enumerate(jobs) if job.priority == priority]
            payloads = [jobs[n].payload for n in places]
            answers |= zip(
                places, self._submit_alike(payloads, tenant, actor, priority), strict=True
            )
        return _in_order(answers)

    def waiting(self, tenant: str) -> int:
        """Count the jobs of a tenant that are queued."""
        with self._tables.reading() as connection:
            return self._waiting(connection, tenant)

    def _submit_alike(
        self, payloads: Sequence[PdfPayload], tenant: str, actor: str, priority: int
    ) -> Sequence[Submitted]:
        flow = flow_of(self._engine)
        try:
            if len(payloads) == 1:
                return [
                    self._engine.submit(
                        flow, payloads[0], tenant=tenant, actor=actor, priority=priority
                    )
                ]
            return self._engine.submit_many(
                flow, payloads, tenant=tenant, actor=actor, priority=priority
            )
        except Overloaded as error:
            return [error] * len(payloads)

    def _submit_in_one(self, jobs: Sequence[NewPdfJob], tenant: str, actor: str) -> list[Submitted]:
        flow, answers = flow_of(self._engine), dict[int, Submitted]()
        with self._tables.writing() as connection, self._tables.database.translated():
            room = self._room(connection, tenant) if self._most else len(jobs)
            for number, job in self._without_circles(jobs):
                if room <= 0:
                    answers[number] = QuotaExceeded(self._most)
                    continue
                made = self._engine.submit(
                    flow, job.payload, tenant=tenant, actor=actor, priority=job.priority,
                    connection=connection,
                )  # fmt: skip
                answers[number] = made
                # Of a job that was there before nothing is remembered: it may have ended in a way
                # that the caller does not mean.
                if made.created:
                    room -= 1
                    if job.callback_url:
                        wanted = Wanted(made.id, job.callback_url, job.root)
                        self._callbacks.add(wanted, connection=connection)
        return _in_order(answers)

    def _without_circles(self, jobs: Sequence[NewPdfJob]) -> Iterator[tuple[int, NewPdfJob]]:
        """Order jobs so that no two transactions wait for each other's keys: where a tenant has a
        quota one goes at a time, in the order of the request, and else everybody by the keys."""
        order = list(range(len(jobs)))
        if not self._most:
            order.sort(key=lambda n: (jobs[n].payload.job_key, n))
        return ((n, jobs[n]) for n in order)

    def _room(self, connection: Any, tenant: str) -> int:
        # From here to the end of the transaction nobody else makes jobs of this tenant. On SQLite
        # nobody else writes anyway.
        if self._tables.database.name == "postgresql":
            self._tables.execute(connection, _LOCK, _lock_of(tenant))
        return self._most - self._waiting(connection, tenant)

    def _waiting(self, connection: Any, tenant: str) -> int:
        lane = lane_for(flow_of(self._engine).table.places[_QUEUED].lane, tenant)
        key = tenant_key(PdfPayload("", {}, job_key="", tenant=tenant))
        parked = (f"{FLOW}/{_QUEUED}/{key}", f"/key/{key}")
        [(count,)] = self._tables.execute(
            connection, _WAITING, lane, _QUEUED, *parked, FLOW, tenant, _QUEUED
        )
        return int(count)


class MemorySubmitting:
    """Into the memory of this process, where a commit costs nothing."""

    def __init__(self, engine: Engine, callbacks: CallbackTable, most: int) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._most = most
        self._one = threading.Lock()

    def submit(self, jobs: Sequence[NewPdfJob], *, tenant: str, actor: str) -> list[Submitted]:
        """Make jobs of one tenant; see `Submitting`."""
        answers: list[Submitted] = []
        with self._one:
            for job in jobs:
                if self._most and self.waiting(tenant) >= self._most:
                    answers.append(QuotaExceeded(self._most))
                else:
                    answers.append(self._submit_one(job, tenant, actor))
        return answers

    def waiting(self, tenant: str) -> int:
        """Count the jobs of a tenant that are queued, up to what it may have."""
        where = JobFilter(flow=FLOW, state=_QUEUED, tenant=tenant)
        return len(self._engine.jobs(where, limit=max(1, self._most)))

    def _submit_one(self, job: NewPdfJob, tenant: str, actor: str) -> Submitted:
        flow = flow_of(self._engine)
        try:
            made = self._engine.submit(
                flow, job.payload, tenant=tenant, actor=actor, priority=job.priority
            )
        except Overloaded as error:
            return error
        if made.created and job.callback_url:
            self._callbacks.add(Wanted(made.id, job.callback_url, job.root))
        return made


def _in_order(answers: dict[int, Submitted]) -> list[Submitted]:
    return [answers[n] for n in sorted(answers)]


def _lock_of(tenant: str) -> int:
    # Two tenants with one number would wait for each other, and be right all the same.
    digest = hashlib.sha256(f"ulak pdf quota/{tenant}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


_LOCK: Final = "SELECT pg_advisory_xact_lock(?)"
# Each by an index of the engine's own, whose conditions are repeated word by word. Parked are those
# that wait for one of the tenant's attempts to end, or for the end of a pause of its key.
_WAITING: Final = """
SELECT (
    SELECT count(*) FROM {schema}.jobs
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '' AND lane = ? AND state = ?
) + (
    SELECT count(*) FROM {schema}.jobs
    WHERE parked_on IS NOT NULL AND parked_on IN (?, ?) AND flow = ? AND tenant = ? AND state = ?
)
"""
