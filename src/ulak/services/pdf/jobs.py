"""The job store of PDF rendering: the specification's words for what the engine keeps.

Nothing is stored here that the engine stores already: a job's status is its state, its times are
those of its trail, its key is its dedup key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn

from ulak import Engine, JobFilter, WorkerSettings
from ulak.core.job import JobRow
from ulak.engine.attempt import Attempt
from ulak.errors import BadInput, JobNotFound, KeyTaken, Overloaded, StaleJob
from ulak.errors import TransitionNotAllowed as InvalidTransition
from ulak.kit.clock import now
from ulak.kit.ids import from_text
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.flow import (
    FLOW,
    STATUSES,
    PdfPayload,
    compute_job_key,
    view_of,
    view_of_new,
    walk,
)
from ulak.services.pdf.model import PdfErrorCode, PdfJob, PdfJobStatus, pdf_error
from ulak.services.pdf.settings import USUAL_PRIORITY, PdfRenderConfig
from ulak.services.pdf.submission import (
    NewPdfJob,
    QuotaExceeded,
    Submitted,
    Submitting,
    Wanted,
    wake,
    want,
)

BY_HAND: Final = "pdf-job-store"
log = logging.getLogger("ulak.pdf")

__all__ = ["Created", "InvalidTransition", "PdfJobStore", "enqueue_pdf_job"]

CREATES_AT_MOST: Final = 10
"""How often a create begins anew because the holder of its key ended meanwhile; a guess."""
CLEAN_UP: Final = "pdf-cleanup"


@dataclass(frozen=True, slots=True)
class Created:
    """What a create answers."""

    job: PdfJob
    is_repeat: bool
    """The job was there already: nothing new was queued."""


NotCreated = Overloaded | QuotaExceeded | StaleJob


def enqueue_pdf_job(job_id: str) -> None:
    """Tell the workers of a new job; the one function to swap for another queue technology.

    This one has nothing to do: the commit that stores a job rings the engine's own workers, and
    those of RQ where its queue is theirs. A store is given another as `PdfJobStore(enqueue=...)`,
    `ulak.dispatch.rq.Dispatch.ring` for one. Twice is harmless.
    """


class PdfJobStore(Submitting):
    """Job records, idempotency, status transitions and expiry, as a view on the engine.

    Every verb is synchronous and may be called from any thread; on an event loop call it through
    `asyncio.to_thread`. Verbs raise `StoreError` when the store does not answer.

    `enqueue` takes the ids of new jobs to a queue of another make, whose consumers call
    `engine.worker().work_on`; by default the engine's own workers find them.
    """

    def __init__(
        self,
        engine: Engine,
        artifacts: PdfArtifactStore,
        config: PdfRenderConfig,
        *,
        enqueue: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(engine)
        self.artifacts = artifacts
        self.config = config
        self._enqueue = enqueue
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    compute_job_key = staticmethod(compute_job_key)

    def create_job(
        self,
        template_name: str,
        payload: Mapping[str, Any],
        *,
        tenant: str = "",
        actor: str = "",
        timeout_s: int | None = None,
        priority: int = USUAL_PRIORITY,
        correlation_id: str = "",
        callback_url: str = "",
        root: str = "",
    ) -> PdfJob:
        """Record and queue a job, or return the one that the same request has made already.

        The same key within a tenant returns the job that is queued, running, or succeeded with
        its artifact still there; `actor` is then one of its owners. Where the artifact is gone or
        damaged that job expires, and a new one is made. Of simultaneous creates one makes the
        job. The caller checks the allow-list and health before.

        Args:
            template_name: Of the allow-list.
            payload: What changes the printed bytes, and nothing else (`flow.payload_of`).
            tenant: Within whose jobs the key is looked up.
            actor: The first owner of a new job.
            timeout_s: The hard timeout of each attempt; None for the configured one.
            priority: 0 is the most urgent of 0 to 3; a job that is there keeps its own.
            correlation_id: Of the request, for logs and traces.
            callback_url: Is told of the job's end, as every other URL that was asked for.
            root: Where the application is mounted, for the links in the callback.

        Raises:
            BadInput: the payload is no JSON, or the timeout is out of bounds; nothing was queued.
            QuotaExceeded: the tenant has as many jobs waiting as it may; nothing was queued.
            Overloaded: load control refuses new jobs, or too much is waiting; nothing was queued.
            UnknownOutcome: no acknowledgement in time; repeating the create tells.
        """
        new = self.new_job(
            template_name, payload, tenant=tenant, timeout_s=timeout_s, priority=priority,
            correlation_id=correlation_id, callback_url=callback_url, root=root,
        )  # fmt: skip
        [created] = self.create_jobs([new], tenant=tenant, actor=actor)
        if not isinstance(created, Created):
            raise created
        return created.job

    def new_job(
        self,
        template_name: str,
        payload: Mapping[str, Any],
        *,
        tenant: str = "",
        timeout_s: int | None = None,
        priority: int = USUAL_PRIORITY,
        correlation_id: str = "",
        callback_url: str = "",
        root: str = "",
    ) -> NewPdfJob:
        """Return a job for `create_jobs`; nothing is stored. Raises BadInput: the payload is no
        JSON, or the timeout is out of bounds."""
        self.config.times_for(timeout_s)
        key = compute_job_key(template_name, payload)
        new = PdfPayload(
            template_name, dict(payload), job_key=key, timeout_s=timeout_s,
            correlation_id=correlation_id, tenant=tenant,
        )  # fmt: skip
        return NewPdfJob(new, priority=priority, callback_url=callback_url, root=root)

    def create_jobs(
        self, new: Sequence[NewPdfJob], *, tenant: str = "", actor: str = ""
    ) -> list[Created | NotCreated]:
        """Create many jobs of one tenant in few commits; return for each, in order, what
        `create_job` would return or raise.

        Each is stored whole or not at all, and one that is not made harms no other. After a crash
        half way the same again makes the rest.

        Raises:
            UnknownOutcome: no acknowledgement in time; repeating it tells.
        """
        answers: dict[int, Created | NotCreated] = {}
        for _ in range(CREATES_AT_MOST):
            left = [number for number in range(len(new)) if number not in answers]
            if not left:
                break
            jobs = [new[number] for number in left]
            submitted = self._submit(jobs, tenant=tenant, actor=actor)
            for number, one in zip(left, submitted, strict=True):
                created = self._created(new[number], one, actor)
                if created is not None:
                    answers[number] = created
        again = "the job with this key keeps ending while it is asked for; try again"
        return [answers.get(number, StaleJob(again, job_id="")) for number in range(len(new))]

    def find_repeat(self, new: NewPdfJob, *, actor: str = "") -> PdfJob | None:
        """Return the job that `create_jobs` would return without making one, or None.

        `actor` becomes one of its owners, and the callback's URL is told of its end.
        """
        found = self.engine.find(FLOW, new.payload.job_key, tenant=new.payload.tenant)
        job = None if found is None else self._join(found.id, new)
        if job is None or not actor or actor in job.owners:
            return job
        self.engine.owners.add(job.job_id, actor)
        return self.read_job(job.job_id)

    def enqueue_pdf_job(self, job_id: str) -> None:
        """Tell the queue of a job; the one place to change for another queue technology.

        Twice is harmless, and where it fails the engine's workers find the job by themselves.
        """
        try:
            (self._enqueue or enqueue_pdf_job)(job_id)
        except Exception as error:  # noqa: BLE001 - of a foreign queue, whatever it may raise
            facts = {"job_id": job_id, "error": type(error).__name__}
            log.warning("the queue was not told of a job; a worker finds it", extra=facts)

    def sweep_queue(self) -> int:
        """Tell the queue again of every job that has been due for longer than the sweep of the
        settings, and return their number.

        For a queue of another make, which may lose what it was told.
        """
        before = now(self.engine.open()) - self.config.sweep
        told = 0
        for job in walk(self.engine, JobFilter(flow=FLOW, state="queued")):
            if max(job.not_before, job.changed_at) <= before:
                self.enqueue_pdf_job(job.id)
                told += 1
        return told

    def get_job(self, job_id: str, *, tenant: str | None = None) -> PdfJob | None:
        """Return a job as it stands now; None when there is none, the text is no id, or it belongs
        to another tenant."""
        try:
            return self.read_job(job_id, tenant=tenant)
        except JobNotFound:
            return None

    def read_job(self, job_id: str, *, tenant: str | None = None) -> PdfJob:
        """Return a job as `get_job` does. Raises JobNotFound where that returns None."""
        row = self._row(job_id)
        if tenant is not None and row.tenant != tenant:
            raise JobNotFound(job_id)
        return view_of(self.engine, row)

    def find_by_key(self, key: str, *, tenant: str = "") -> PdfJob | None:
        """Return the job that holds a key now: the latest one, unless it failed or expired."""
        found = self.engine.find(FLOW, key, tenant=tenant)
        return None if found is None else view_of(self.engine, self._row(found.id))

    def find_report(self, job_id: str) -> dict[str, Any] | None:
        """Return what the attempt that succeeded found out, or None when none has.

        `artifact_key`, `sha256`, `size`, `pages`, `engine`, `retry_count`, `timings` (seconds of
        each step), `blocked` (refused requests by reason), `script_errors` and `warnings`; of a
        status that was set by hand, what was given there.
        """
        found: dict[str, Any] | None = self.engine.inspect.result(job_id)
        return found

    def update_status(
        self, job_id: str, status: PdfJobStatus | str, *, actor: str = BY_HAND, **fields: Any
    ) -> PdfJob:
        """Move a job by one of the seven pairs, compared and set in one step.

        `running` claims it for this store, which keeps its lease until the attempt has ended
        here. `succeeded` and `failed` end that attempt; a failure with a transient code goes on
        to `queued` in the same commit while retries are left.

        Args:
            job_id: The job.
            status: Where it is to go.
            actor: Who asks, for the trail.
            fields: With `succeeded` its report, `artifact_key` at least; with `failed` its
                `error_code`, and an `error_detail` if there is one.

        Raises:
            JobNotFound: there is none.
            InvalidTransition: no pair leads there from where it stands, or another worker runs
                it; the job is as it was.
            BadInput: a field is missing.
        """
        job, wanted = self.read_job(job_id), PdfJobStatus(status)
        pair = (job.status, wanted)
        if pair == (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING):
            self._claim(job)
        elif pair == (PdfJobStatus.RUNNING, PdfJobStatus.SUCCEEDED):
            if not fields.get("artifact_key"):
                raise BadInput("say artifact_key=: a job has succeeded once its artifact is stored")
            self._end(job, wanted, lambda attempt: attempt.finish(fields))
        elif pair == (PdfJobStatus.RUNNING, PdfJobStatus.FAILED):
            error = pdf_error(
                "set by hand", code=PdfErrorCode(fields.get("error_code", PdfErrorCode.UNKNOWN)),
                detail=str(fields.get("error_detail", "")),
            )  # fmt: skip
            self._end(job, wanted, lambda attempt: attempt.fail(error))
        elif pair == (PdfJobStatus.FAILED, PdfJobStatus.QUEUED):
            self._retry(job, actor)
        elif wanted is PdfJobStatus.EXPIRED and job.status in _MAY_EXPIRE:
            self.expire(job_id, job.status, actor=actor)
        else:
            _refuse(job, wanted)
        return self.read_job(job_id)

    def expire(
        self, job_id: str, status: PdfJobStatus, *, actor: str = CLEAN_UP, note: str = ""
    ) -> None:
        """Expire a job if it still stands where it was seen; its artifact is left alone.

        Raises:
            JobNotFound: there is none.
            InvalidTransition: it stands elsewhere by now, or nothing leads to `expired` from here.
        """
        row = self._row(job_id)
        if STATUSES[row.state] is not status or status not in _MAY_EXPIRE:
            _refuse(view_of(self.engine, row), PdfJobStatus.EXPIRED)
        try:
            self.engine.expire(job_id, actor=actor, note=note, state=row.state)
        except StaleJob as error:
            raise InvalidTransition(str(error), state=row.state) from error

    def cancel(self, job_id: str, *, actor: str) -> PdfJob:
        """End a job: a queued one expires at once, a running attempt is asked to stop, and its
        job fails and expires once it has.

        Raises:
            JobNotFound: there is none.
            InvalidTransition: it has ended.
        """
        self._row(job_id)
        self.engine.cancel(job_id, actor=actor, note="cancelled")
        return self.read_job(job_id)

    def cleanup_expired(self, ttl_seconds: float | None = None) -> int:
        """Delete artifacts past their time, by default as configured, expire their jobs, and
        return how many expired."""
        from ulak.services.pdf import cleanup

        ttl = self.config.artifact_ttl if ttl_seconds is None else timedelta(seconds=ttl_seconds)
        return cleanup.expire_due(self, ttl)

    def close(self) -> None:
        """Give back what was claimed here and not ended, so that other workers may have it."""
        with self._lock:
            attempts = list(self._attempts.values())
            self._attempts.clear()
        for attempt in attempts:
            _give_back(attempt)

    def _claim(self, job: PdfJob) -> None:
        by_hand = self.engine.worker(WorkerSettings(lease=self.config.lease))
        attempt = by_hand.take(job.job_id, name=BY_HAND)
        if attempt is None:
            _refuse(job, PdfJobStatus.RUNNING, "somebody else has it, or it is not due yet")
        with self._lock:
            lapsed = self._attempts.get(job.job_id)
            self._attempts[job.job_id] = attempt
        if lapsed is not None:
            _give_back(lapsed)

    def _end(self, job: PdfJob, wanted: PdfJobStatus, by: Callable[[Attempt], object]) -> None:
        with self._lock:
            attempt = self._attempts.pop(job.job_id, None)
        if attempt is None:
            _refuse(job, wanted, "another worker runs it")
        try:
            by(attempt)
        except StaleJob as error:
            raise InvalidTransition(str(error), state=job.status) from error

    def _retry(self, job: PdfJob, actor: str) -> None:
        """Queue a failed job again, whether it waits for a person or has given up."""
        try:
            if self._row(job.job_id).state == "held":
                self.engine.release(job.job_id, actor=actor)
            else:
                self.engine.retry(job.job_id, actor=actor)
        except (KeyTaken, StaleJob) as error:  # another job has its key by now, or it has moved
            raise InvalidTransition(str(error), state=job.status) from error

    def _row(self, job_id: str) -> JobRow:
        try:
            row = self.engine.open().store.find_job(from_text(job_id))
        except BadInput:
            raise JobNotFound(job_id) from None
        if row is None or row.flow != FLOW:
            raise JobNotFound(job_id)
        return row

    def _created(
        self, new: NewPdfJob, submitted: Submitted, actor: str
    ) -> Created | NotCreated | None:
        """Read what a submit has answered; None when its key is free by now, so submit again."""
        if isinstance(submitted, Overloaded | QuotaExceeded):
            # Somebody else may just have made the same, or the same request a moment before.
            known = self.find_repeat(new, actor=actor)
            return submitted if known is None else Created(known, is_repeat=True)
        if submitted.created:
            self.enqueue_pdf_job(submitted.id)
            return Created(view_of_new(new.payload, submitted), is_repeat=False)
        known = self._join(submitted.id, new)
        return None if known is None else Created(known, is_repeat=True)

    def _join(self, job_id: str, new: NewPdfJob) -> PdfJob | None:
        """Return the job that stands for a new one, with whoever is to be told of the end of both;
        None when a repeat may not have it, and its key is free by now."""
        job = self._usable(job_id)
        if job is not None and new.callback_url:
            want(self.engine, Wanted(job_id, new.callback_url, new.root), tenant=job.tenant_id)
            # It may have ended before; whoever ends it later finds who waits.
            if self.engine.get(job_id).is_final:
                wake(self.engine, job_id)
        return job

    def _usable(self, job_id: str) -> PdfJob | None:
        """Return the job that holds a key if a repeat may have it; else free the key."""
        try:
            job = view_of(self.engine, self._row(job_id))
        except JobNotFound:
            return None
        if job.status in (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING):
            return job
        if job.status is PdfJobStatus.SUCCEEDED:
            digest = (self.find_report(job_id) or {}).get("sha256")
            if job.artifact_key and self.artifacts.is_whole(job.artifact_key, digest):
                return job
            note = "its artifact is gone or damaged, and it is asked for again"
        elif job.status is PdfJobStatus.FAILED:
            note = "it is held, and asked for again"
        else:
            return None
        # Where somebody else was faster the next look sees what they did.
        with suppress(InvalidTransition):
            self.expire(job_id, job.status, actor=BY_HAND, note=note)
        return None


_MAY_EXPIRE: Final = (PdfJobStatus.QUEUED, PdfJobStatus.SUCCEEDED, PdfJobStatus.FAILED)


def _refuse(job: PdfJob, wanted: PdfJobStatus, why: str = "") -> NoReturn:
    told = f": {why}" if why else ""
    raise InvalidTransition(
        f'job {job.job_id} is "{job.status}" and cannot become "{wanted}"{told}', state=job.status
    )


def _give_back(attempt: Attempt) -> None:
    """Give an attempt back; where its lease has lapsed another worker has the job."""
    with suppress(StaleJob):
        attempt.give_back()
