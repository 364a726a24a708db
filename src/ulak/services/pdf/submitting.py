"""How new jobs come into the store: few commits for many, and no more than a tenant may have
waiting."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final

from ulak import Engine, Job, JobFilter
from ulak.errors import BadInput, Overloaded, UlakError, UnknownName
from ulak.services.pdf.flow import FLOW, PdfPayload, flow_of
from ulak.services.pdf.model import Backpressure, PdfJobStatus
from ulak.services.pdf.older import LOAD_CONTROL, move_stop
from ulak.services.pdf.settings import USUAL_PRIORITY
from ulak.services.pdf.wanting import Wanted, want
from ulak.tables import database_of

PRESSED: Final = "backpressure-active"
"""The code of a refusal that is the flow's own; an intake that is full has another."""
EVERY_TENANT: Final = "*"
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


class Submitting:
    """The part of a job store where new jobs go in.

    Args:
        engine: With the flow `pdf`, which says how many jobs of a tenant may wait, and those of
            callbacks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._is_moved = False

    def set_backpressure(
        self, active: bool, retry_after_seconds: int = 1, *, correlation_id: str = ""
    ) -> None:
        """Have new jobs refused, or accepted again, by every process; a restart changes nothing.

        Raises:
            BadInput: `retry_after_seconds` is less than 1.
        """
        if retry_after_seconds < 1:
            raise BadInput("retry_after_seconds is 1 or more: callers are told to come back later")
        self._move()
        control = self.engine.flow_control
        if active:
            control.stop_accepting(
                FLOW, retry_after=retry_after_seconds, actor=LOAD_CONTROL, note=correlation_id
            )
            return
        with suppress(UnknownName):  # nothing was refused
            control.accept(FLOW, actor=LOAD_CONTROL, note=correlation_id)

    def backpressure(self, tenant: str = EVERY_TENANT) -> Backpressure:
        """Return what holds now for a tenant, by default for all of them, whichever process has
        set it."""
        self._move()
        for stop in self.engine.flow_control.stops():
            if stop.flow == FLOW and stop.tenant in (EVERY_TENANT, tenant):
                wait_s = max(1, math.ceil(stop.retry_after.total_seconds()))
                return Backpressure(True, wait_s, since=stop.at, correlation_id=stop.note or "")
        return Backpressure()

    def find_refusal(self, tenant: str) -> Overloaded | QuotaExceeded | None:
        """Return why a new job of a tenant would be refused now, or None.

        For whoever would not make it anyway; a submit is refused by itself.
        """
        pressure, most = self.backpressure(tenant), flow_of(self.engine).max_waiting
        if pressure.active:
            wait = timedelta(seconds=pressure.retry_after_seconds)
            return Overloaded("new jobs are refused", retry_after=wait, code=PRESSED)
        if most is not None and self._has_waiting(tenant, most):
            return QuotaExceeded(most)
        return None

    def _submit(self, jobs: Sequence[NewPdfJob], *, tenant: str, actor: str) -> list[Submitted]:
        """Make jobs of one tenant, and answer what became of each, in order.

        Each is stored whole, with whoever is to be told of its end, or not at all; one that is
        refused harms no other. Of several with one key the first is made. Where a tenant may
        have so many waiting, no more are, however many processes submit at once: what counts is
        whatever is queued, a retry that is delayed too. A retry is never refused, so that there
        may be more than that after all. A job that was there before counts for nothing.

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
        """Open a transaction, if there are any; the only one that makes jobs of the tenant
        `alone`, so that none exceeds the bound because it does not see another's jobs."""
        features = self.engine.store.features
        if not features.open_transactions:
            yield None
            return
        database = database_of(features, "PDF jobs", why="each is stored with its callback")
        with self.engine.transaction() as connection, database.translated():
            # On SQLite nobody else writes anyway.
            if alone is not None and database.name == "postgresql":
                database.execute(connection, _LOCK, _make_lock(alone))
            yield connection

    def _read(self, error: Overloaded, tenant: str) -> Overloaded | QuotaExceeded:
        """Tell the bound of a tenant from load control and from an intake that is full."""
        most = flow_of(self.engine).max_waiting
        if error.code != PRESSED or most is None or self.backpressure(tenant).active:
            return error
        return QuotaExceeded(most)

    def _move(self) -> None:
        """Have the release before obeyed, once."""
        if not self._is_moved:
            move_stop(self.engine)
            self._is_moved = True


def _make_lock(tenant: str) -> int:
    # Two tenants with one number would wait for each other, and be right all the same.
    digest = hashlib.sha256(f"ulak pdf quota/{tenant}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


_LOCK: Final = "SELECT pg_advisory_xact_lock(?)"
