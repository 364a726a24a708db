"""New jobs: few commits for many, a bound for each tenant, and callbacks stored with their jobs.

The last part moves what the release before kept in tables of this service to where it lies now:
its functions may be called at any time by any number of processes, and go with a later release.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from ulak import Engine, Job, JobFilter
from ulak.errors import (
    BadInput,
    JobNotFound,
    Overloaded,
    TransitionNotAllowed,
    UlakError,
    UnknownName,
)
from ulak.kit.clock import to_datetime
from ulak.services.pdf.flow import FLOW, PdfPayload, flow_of, walk
from ulak.services.pdf.model import Backpressure, PdfJobStatus
from ulak.services.pdf.settings import USUAL_PRIORITY
from ulak.services.pdf.totals import SCHEMA
from ulak.tables import Row, Tables, database_of

PRESSED: Final = "backpressure-active"
"""The code of a refusal that is the flow's own; an intake that is full has another."""
EVERY_TENANT: Final = "*"
WANTED: Final = "pdf-wanted"
WAITING: Final = "waiting"
JOB_ENDED: Final = "ended"
"""The signal that the PDF job has ended, and where it leads."""
A_BATCH: Final = 100
LOAD_CONTROL: Final = "pdf-load-control"
SUBMITTERS: Final = "owners"
"""Under this name: when submitters were made owners last."""
LATE: Final = timedelta(minutes=10)
"""So much later than its date a job may be committed, or more, where clocks differ."""
_QUEUED: Final = str(PdfJobStatus.QUEUED)


@dataclass(frozen=True, slots=True)
class NewPdfJob:
    """A job that is to be made, unless the one with its key is there."""

    payload: PdfPayload = field(repr=False)
    _: KW_ONLY
    priority: int = USUAL_PRIORITY
    callback_url: str = field(default="", repr=False)
    """Is told of its end; '' for nobody."""
    root: str = ""
    """Where the application is mounted, for the links of what it is told."""


class QuotaExceeded(UlakError):
    """A tenant has as many jobs waiting as it may have; this one was not made."""

    code = "quota-exceeded"

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} jobs of this tenant are waiting, and no more may")
        self.most = most


Submitted = Job | Overloaded | QuotaExceeded
"""What became of a new job; a `Job` may have been there before (`created`)."""


class Submitting:
    """The part of a job store that makes jobs and refuses them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._is_moved = False

    def set_backpressure(
        self, active: bool, retry_after_seconds: int = 1, *, correlation_id: str = "",
        connection: Any = None,
    ) -> None:  # fmt: skip
        """Refuse or accept new jobs in every process, also after a restart; in an open transaction
        if there is one. Raises BadInput: `retry_after_seconds` is less than 1."""
        if retry_after_seconds < 1:
            raise BadInput("retry_after_seconds is 1 or more: callers are told to come back later")
        if connection is None:
            self._move()  # in a transaction of its own, which an open one would keep waiting
        control = self.engine.flow_control
        if active:
            control.stop_accepting(
                FLOW, retry_after=retry_after_seconds, actor=LOAD_CONTROL, note=correlation_id,
                connection=connection,
            )  # fmt: skip
            return
        with suppress(UnknownName):  # nothing was refused
            control.accept(FLOW, actor=LOAD_CONTROL, note=correlation_id, connection=connection)

    def backpressure(self, tenant: str = EVERY_TENANT) -> Backpressure:
        """Return what holds now for a tenant, by default for all of them."""
        self._move()
        for stop in self.engine.flow_control.stops():
            if stop.flow == FLOW and stop.tenant in (EVERY_TENANT, tenant):
                wait_s = max(1, math.ceil(stop.retry_after.total_seconds()))
                return Backpressure(True, wait_s, since=stop.at, correlation_id=stop.note or "")
        return Backpressure()

    def find_refusal(self, tenant: str) -> Overloaded | QuotaExceeded | None:
        """Return why a new job of a tenant would be refused now, or None."""
        pressure, most = self.backpressure(tenant), flow_of(self.engine).max_waiting
        if pressure.active:
            wait = timedelta(seconds=pressure.retry_after_seconds)
            return Overloaded("new jobs are refused", retry_after=wait, code=PRESSED)
        if most is not None and self._has_waiting(tenant, most):
            return QuotaExceeded(most)
        return None

    def _submit(self, jobs: Sequence[NewPdfJob], *, tenant: str, actor: str) -> list[Submitted]:
        """Make jobs of one tenant, and return for each what became of it, in order.

        Each is stored whole, with its callback, or not at all; a refused one harms no other. Of
        several with one key the first is made. No more jobs of a bounded tenant wait than may,
        however many processes submit at once; only a retry, never refused, may exceed it.

        Raises:
            StoreError: nothing is known; the same again completes what is missing.
            UnknownOutcome: the same.
        """
        self._move()
        is_bounded = flow_of(self.engine).max_waiting is not None
        if is_bounded or any(job.callback_url for job in jobs):
            answers = self._submit_in_one(jobs, tenant, actor, is_bounded=is_bounded)
        else:
            answers = {}
            for priority in sorted({job.priority for job in jobs}):
                alike = {n: j.payload for n, j in enumerate(jobs) if j.priority == priority}
                answers |= self._submit_alike(alike, tenant, actor, priority)
        return [
            self._read(one, tenant) if isinstance(one, Overloaded) else one
            for _, one in sorted(answers.items())
        ]

    def _has_waiting(self, tenant: str, most: int) -> bool:
        counts = self.engine.inspect.counts()
        if sum(row.jobs for row in counts if (row.flow, row.state) == (FLOW, _QUEUED)) < most:
            return False  # not even of all tenants; to count those of one is dear
        where = JobFilter(flow=FLOW, state=_QUEUED, tenant=tenant)
        return len(self.engine.jobs(where, limit=most)) >= most

    def _submit_alike(
        self, payloads: Mapping[int, PdfPayload], tenant: str, actor: str, priority: int
    ) -> dict[int, Job | Overloaded]:
        flow, given = flow_of(self.engine), list(payloads.values())
        try:
            if len(given) == 1:
                made = [
                    self.engine.submit(
                        flow, given[0], tenant=tenant, actor=actor, priority=priority
                    )
                ]
            else:
                made = self.engine.submit_many(
                    flow, given, tenant=tenant, actor=actor, priority=priority
                )
        except Overloaded as error:
            return dict.fromkeys(payloads, error)
        return dict(zip(payloads, made, strict=True))

    def _submit_in_one(
        self, jobs: Sequence[NewPdfJob], tenant: str, actor: str, *, is_bounded: bool
    ) -> dict[int, Job | Overloaded]:
        """Submit jobs in one transaction, where the store has them."""
        flow, answers = flow_of(self.engine), dict[int, Job | Overloaded]()
        order = list(range(len(jobs)))
        if not is_bounded:
            # By their keys, so that no two transactions wait for each other's.
            order.sort(key=lambda n: (jobs[n].payload.job_key, n))
        with self._transaction(tenant if is_bounded else None) as connection:
            for n in order:
                job = jobs[n]
                try:
                    answers[n] = made = self.engine.submit(
                        flow, job.payload, tenant=tenant, actor=actor, priority=job.priority,
                        connection=connection,
                    )  # fmt: skip
                except Overloaded as error:
                    answers[n] = error
                    continue
                # Of a job that was there before nothing is remembered: it may have ended in a way
                # that the caller does not mean.
                if made.created and job.callback_url:
                    wanted = Wanted(made.id, job.callback_url, job.root)
                    want(self.engine, wanted, tenant=tenant, connection=connection)
        return answers

    @contextmanager
    def _transaction(self, alone: str | None) -> Iterator[Any]:
        """Open a transaction where the store has them; the only one that makes jobs of the tenant
        `alone`, so that its bound holds although none sees another's jobs."""
        features = self.engine.store.features
        if not features.open_transactions:
            yield None
            return
        database = database_of(features, "PDF jobs", why="each is stored with its callback")
        with self.engine.transaction() as connection, database.translated():
            # On SQLite nobody else writes anyway.
            if alone is not None and database.name == "postgresql":
                # Two tenants with one number would wait for each other, and be right all the same.
                digest = hashlib.sha256(f"ulak pdf quota/{alone}".encode()).digest()
                number = int.from_bytes(digest[:8], "big", signed=True)
                database.execute(connection, _LOCK, number)
            yield connection

    def _read(self, error: Overloaded, tenant: str) -> Overloaded | QuotaExceeded:
        """Tell the bound of a tenant from load control and from an intake that is full."""
        most = flow_of(self.engine).max_waiting
        if error.code != PRESSED or most is None or self.backpressure(tenant).active:
            return error
        return QuotaExceeded(most)

    def _move(self) -> None:
        if not self._is_moved:
            move_stop(self.engine)
            self._is_moved = True


@dataclass(frozen=True, slots=True)
class Wanted:
    """One URL that is to be told of the end of one job: a job that waits for it, and whose owner is
    the PDF job."""

    job_id: str
    url: str = field(repr=False)
    root: str = ""


def want(engine: Engine, wanted: Wanted, *, tenant: str, connection: Any = None) -> None:
    """Store one, in an open transaction if there is one; while it waits, twice is nothing."""
    digest = hashlib.sha256(wanted.url.encode()).hexdigest()
    engine.submit(
        flow_of(engine, WANTED), wanted, tenant=tenant, actor=wanted.job_id,
        dedup_key=f"{wanted.job_id}/{digest}", connection=connection,
    )  # fmt: skip


def wake(engine: Engine, job_id: str) -> None:
    """Tell everybody who waits for the end of a job that it has ended; twice is nothing."""
    for waiting in walk(engine, JobFilter(flow=WANTED, owner=job_id, state=WAITING)):
        tell_end(engine, waiting.id, actor=WANTED)


def tell_end(engine: Engine, waiting_id: str, *, actor: str) -> None:
    """Tell one that waits; it may have been told by another process, and have ended, meanwhile."""
    with suppress(TransitionNotAllowed):
        engine.signal(waiting_id, JOB_ENDED, actor=actor)


def move_stop(engine: Engine) -> None:
    """Have new jobs refused if load control has said so to the release before."""
    tables = _find_tables(engine)
    if tables is not None and tables.read(_STOPPED):
        with tables.writing() as connection:
            for retry_after_s, note in tables.execute(connection, _TAKE_STOP):
                engine.flow_control.stop_accepting(
                    FLOW, retry_after=retry_after_s, actor=LOAD_CONTROL, note=note,
                    connection=connection,
                )  # fmt: skip


def move_callbacks(engine: Engine) -> None:
    """Have every callback wait for the end of its job."""
    tables = _find_tables(engine)
    while tables is not None and (rows := tables.read(_WANTED, A_BATCH)):
        for stored_id, url, root in rows:
            job_id = str(stored_id if isinstance(stored_id, UUID) else UUID(bytes=stored_id))
            try:
                tenant = engine.get(job_id).tenant
            except JobNotFound:
                tenant = None
            with tables.writing() as connection:
                is_ours = tables.execute(connection, _TAKE_WANTED, stored_id, url)
                if is_ours and tenant is not None:
                    wanted = Wanted(job_id, url, root)
                    want(engine, wanted, tenant=tenant, connection=connection)


def move_owner(engine: Engine, job_id: str, owner: str) -> bool:
    """Make somebody an owner of a job if the table says so; tell whether it does."""
    tables = _find_tables(engine)
    return tables is not None and _move(engine, tables, tables.read(_OWNED_BY, job_id, owner))


def move_owners(engine: Engine) -> None:
    """Make owners of those in the table, and of submitters, which the release before did not."""
    tables = _find_tables(engine)
    if tables is None:
        return
    while _move(engine, tables, tables.read(_OWNED, A_BATCH)):
        pass
    began, known = tables.now, tables.read(_LOOKED_AT, SUBMITTERS)
    since = to_datetime(known[0][0]) - LATE if known else None
    made: defaultdict[str, list[Job]] = defaultdict(list)
    every = JobFilter(flow=FLOW, submitted_since=since)
    for job in walk(engine, every):
        if job.submitter:
            made[job.submitter].append(job)
    for submitter, jobs in made.items():
        # One that was submitted once more is owned since then; at first all are looked at.
        owned = {job.id for job in walk(engine, replace(every, owner=submitter)) if known}
        for job in jobs:
            if job.id not in owned:
                with suppress(JobNotFound):
                    engine.owners.add(job.id, submitter, since=job.created_at)
    with tables.writing() as connection:
        tables.execute(connection, _LOOK, SUBMITTERS, began)


def _move(engine: Engine, tables: Tables, rows: Sequence[Row]) -> bool:
    for job_id, owner, added_at in rows:
        since = to_datetime(added_at)
        with tables.writing() as connection:
            tables.execute(connection, _FORGET_OWNER, job_id, owner)
            with suppress(JobNotFound):
                engine.owners.add(job_id, owner, since=since, connection=connection)
    return bool(rows)


def _find_tables(engine: Engine) -> Tables | None:
    return Tables(engine, SCHEMA) if engine.store.features.open_transactions else None


_LOCK: Final = "SELECT pg_advisory_xact_lock(?)"
_OWNERS: Final = "SELECT job_id, owner, added_at FROM {schema}.pdf_owners"
_OWNED: Final = f"{_OWNERS} LIMIT ?"
_OWNED_BY: Final = f"{_OWNERS} WHERE job_id = ? AND owner = ?"
_LOOKED_AT: Final = "SELECT at FROM {schema}.pdf_told WHERE name = ?"
_LOOK: Final = (
    "INSERT INTO {schema}.pdf_told (name, text, at) VALUES (?, '', ?) "
    "ON CONFLICT (name) DO UPDATE SET at = excluded.at"
)
_FORGET_OWNER: Final = "DELETE FROM {schema}.pdf_owners WHERE job_id = ? AND owner = ?"
_STOPPED: Final = "SELECT 1 FROM {schema}.pdf_backpressure WHERE active = 1"
_TAKE_STOP: Final = (
    "DELETE FROM {schema}.pdf_backpressure WHERE active = 1 "
    "RETURNING retry_after_seconds, correlation_id"
)
_WANTED: Final = "SELECT job_id, url, root FROM {schema}.pdf_callbacks LIMIT ?"
_TAKE_WANTED: Final = (
    "DELETE FROM {schema}.pdf_callbacks WHERE job_id = ? AND url = ? RETURNING url"
)
