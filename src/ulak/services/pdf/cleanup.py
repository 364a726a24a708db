"""The clean-up: a scheduled job that ends what is past its time and removes what nobody needs.

An artifact is deleted before its job expires, so that a job which says it has an artifact may be
wrong for a moment, and bytes that no record knows of never stay for long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from ulak import Engine, Flow, Job, JobFilter, Lifecycle, Limit, Run
from ulak.errors import ArtifactError, BadInput, JobNotFound
from ulak.kit.clock import now
from ulak.services.pdf import callbacks
from ulak.services.pdf.configuration import open_jobs
from ulak.services.pdf.flow import A_PAGE, FLOW, STATUSES, walk
from ulak.services.pdf.jobs import CLEAN_UP, InvalidTransition, PdfJobStore
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.submission import move_owners
from ulak.services.pdf.totals import Totals

log = logging.getLogger("ulak.pdf")

NAME: Final = CLEAN_UP
LOST: Final = "artifact-missing"
STRAY: Final = "artifact-without-job"
A_BATCH: Final = 1000
_INCLUDED: Final = timedelta(microseconds=1)
"""The engine says "before"; what is exactly as old as it may be is due as well."""

_ENDED: Final = ("succeeded", "failed")
# `held` is a failure that a person was to look at; nobody did for as long as a job may live.
_UNFINISHED: Final = ("queued", "held")
_MAY_HAVE_ARTIFACTS: Final = ("queued", "running", "succeeded")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The numbers of one clean-up."""

    expired: int
    pruned: int
    swept: int


def attach(engine: Engine, config: PdfRenderConfig) -> None:
    """Have the workers of an engine clean up at the interval of the settings, one at a time.

    Its queue is of its own: it needs no browser, and must not wait behind jobs that do.
    """
    flow: Flow[None] = Flow(NAME, Lifecycle("due", {"due": ["done"]}))

    @flow.stage("due", limit=Limit(1))
    def clean(run: Run[None]) -> dict[str, int]:
        return asdict(clean_up(open_jobs(engine, config)))

    engine.schedules.add(NAME, engine.add(flow), None, every=config.cleanup_interval)


def clean_up(jobs: PdfJobStore) -> Cleaned:
    """Expire what is due, forget what expired long ago, and sweep artifacts that nobody owns."""
    return Cleaned(expire_due(jobs, jobs.config.artifact_ttl), prune(jobs), sweep(jobs))


def expire_due(jobs: PdfJobStore, ttl: timedelta) -> int:
    """Delete the artifacts of jobs that ended longer ago than `ttl`, then expire the jobs.

    So are queued ones that were created longer ago. A job whose artifact cannot be deleted stays
    as it was, and is tried again the next time. Returns how many have expired.
    """
    before = now(jobs.engine) - ttl
    due = [job for state in _ENDED for job in _ended(jobs, state, before)]
    for state in _UNFINISHED:
        due += [
            job
            for job in walk(jobs.engine, JobFilter(flow=FLOW, state=state))
            if job.created_at <= before
        ]
    return sum(_expire(jobs, job) for job in due)


def prune(jobs: PdfJobStore) -> int:
    """Remove expired records after their time of grace, and callbacks that are as old."""
    totals, before = Totals(jobs.engine), now(jobs.engine) - jobs.config.grace
    due = list(_ended(jobs, "expired", before))
    # While they are still there: metrics are made of trails, and these go with their jobs.
    totals.count_all(due)
    removed = _prune(jobs, before, (FLOW, "expired"))
    totals.forget(due)
    callbacks.catch_up(jobs)
    for over in callbacks.OVER:
        _prune(jobs, before, over)
    move_owners(jobs.engine)
    return removed


def _prune(jobs: PdfJobStore, before: datetime, of: tuple[str, str]) -> int:
    removed = 0
    while n := jobs.engine.retention.prune(ended_before=before, of=of, limit=A_BATCH):
        removed += n
        if n < A_BATCH:
            break
    return removed


def sweep(jobs: PdfJobStore) -> int:
    """Delete artifacts that no record names: their job is gone, has failed or expired, or has
    succeeded with another one. Those of attempts that may still be under way are too young."""
    try:
        return jobs.artifacts.sweep(
            lambda job_ids: _find_needed(jobs, job_ids), _attempt_is_over(jobs)
        )
    except ArtifactError as error:
        log.warning("orphaned artifacts were not swept", extra={"error": type(error).__name__})
        return 0


def find_strays(jobs: PdfJobStore) -> Iterator[tuple[str, str, str]]:
    """Find jobs without their artifact and artifacts without a job, as (kind, job id, sentence).
    Raises ArtifactError: the storage does not answer."""
    for job in walk(jobs.engine, JobFilter(flow=FLOW, state="succeeded")):
        key = _find_needed(jobs, [job.id]).get(job.id)
        # The clean-up deletes an artifact before its job expires: such a job is read again.
        if key and not jobs.artifacts.exists(key) and _find_needed(jobs, [job.id]):
            why = (
                f"it has succeeded, and its artifact {key} is not stored: restore artifacts of a "
                "later moment, or submit it again"
            )
            yield LOST, job.id, why
    orphans = jobs.artifacts.find_unneeded(
        lambda job_ids: dict.fromkeys(_find_needed(jobs, job_ids), ""), _attempt_is_over(jobs)
    )
    for key, job_id in orphans:
        why = (
            f"no job needs the artifact {key}: the clean-up deletes it; if the jobs were restored "
            "to an earlier moment, copy it first"
        )
        yield STRAY, job_id, why


def _attempt_is_over(jobs: PdfJobStore) -> timedelta:
    """Return the age at which an artifact is of no attempt that is still under way."""
    return 2 * jobs.config.stage_timeout + jobs.config.lease


def _expire(jobs: PdfJobStore, job: Job) -> bool:
    try:
        report = jobs.find_report(job.id)
        if report is not None and report.get("artifact_key"):
            jobs.artifacts.delete_pdf(report["artifact_key"])
        jobs.expire(job.id, STATUSES[job.state])
    except ArtifactError as error:
        facts = {"job_id": job.id, "error": type(error).__name__}
        log.warning("an artifact could not be deleted; its job stays as it was", extra=facts)
        return False
    except (InvalidTransition, JobNotFound):
        return False  # a worker has it now, or somebody else was faster
    return True


def _ended(jobs: PdfJobStore, state: str, before: datetime) -> Iterator[Job]:
    after: str | None = None
    while page := jobs.engine.retention.ended(
        FLOW, state, before=before + _INCLUDED, after=after, limit=A_PAGE
    ):  # fmt: skip
        yield from page
        after = page[-1].id


def _find_needed(jobs: PdfJobStore, job_ids: Sequence[str]) -> dict[str, str]:
    """Return which artifact each of these jobs needs, if it may have any: that with which it has
    succeeded, any ('') while it has not ended."""
    found: dict[str, str] = {}
    for job_id in job_ids:
        try:
            state = jobs.engine.get(job_id).state
        except (JobNotFound, BadInput):
            continue  # there is no record, nor could there be one of this name
        if state in _MAY_HAVE_ARTIFACTS:
            report = jobs.find_report(job_id) if state == "succeeded" else None
            found[job_id] = (report or {}).get("artifact_key", "")
    return found
