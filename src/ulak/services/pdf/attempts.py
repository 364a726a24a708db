"""The attempts that a job store has taken itself: claimed by hand, and ended by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, NoReturn

from ulak import Engine, WorkerSettings
from ulak.engine.attempt import Attempt
from ulak.errors import StaleJob
from ulak.errors import TransitionNotAllowed as InvalidTransition
from ulak.services.pdf.model import PdfJob, PdfJobStatus

BY_HAND: Final = "pdf-job-store"
"""Who moves jobs by hand, as the trail says it."""


class OwnAttempts:
    """What one job store has claimed and not ended; it may be used from any thread.

    Args:
        engine: Whose jobs they are.
        lease: How long each stays taken; it is renewed until the attempt has ended here.
    """

    def __init__(self, engine: Engine, *, lease: timedelta) -> None:
        self._engine = engine
        self._lease = lease
        self._taken: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def claim(self, job: PdfJob) -> None:
        """Take a queued job and keep its lease.

        Raises:
            InvalidTransition: somebody else has it, or it is not due yet.
        """
        by_hand = self._engine.worker(WorkerSettings(lease=self._lease))
        attempt = by_hand.take(job.job_id, name=BY_HAND)
        if attempt is None:
            refuse(job, PdfJobStatus.RUNNING, "somebody else has it, or it is not due yet")
        with self._lock:
            lapsed = self._taken.get(job.job_id)
            self._taken[job.job_id] = attempt
        _give_back(lapsed)

    def end(self, job: PdfJob, wanted: PdfJobStatus, by: Callable[[Attempt], object]) -> None:
        """End the attempt at a job; of one that failed the flow says whether there is another.

        Raises:
            InvalidTransition: it was not taken here, or its lease was lost.
        """
        with self._lock:
            attempt = self._taken.pop(job.job_id, None)
        if attempt is None:
            refuse(job, wanted, "another worker runs it")
        try:
            by(attempt)
        except StaleJob as error:
            raise InvalidTransition(str(error), state=job.status) from error

    def close(self) -> None:
        """Give back what was claimed and not ended, so that somebody else may have it."""
        with self._lock:
            attempts = list(self._taken.values())
            self._taken.clear()
        for attempt in attempts:
            _give_back(attempt)


def refuse(job: PdfJob, wanted: PdfJobStatus, why: str = "") -> NoReturn:
    """Refuse to move a job.

    Raises:
        InvalidTransition: always.
    """
    said = f": {why}" if why else ""
    raise InvalidTransition(
        f'job {job.job_id} is "{job.status}" and cannot become "{wanted}"{said}', state=job.status
    )


def _give_back(attempt: Attempt | None) -> None:
    """End an attempt that came to nothing; where its lease has lapsed somebody else has the job."""
    if attempt is not None:
        with suppress(StaleJob):
            attempt.give_back()
