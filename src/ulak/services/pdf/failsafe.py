"""Whether jobs that are accepted now would be worked on and how fast, and what is answered when
not."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING, Final

from ulak import Engine, JobFilter
from ulak.core.job import queue_of
from ulak.errors import UlakError
from ulak.kit.clock import micros, now
from ulak.services.pdf.flow import FLOW, QUEUE
from ulak.services.pdf.model import PdfError, PdfErrorCode, PdfJob, PdfJobStatus
from ulak.services.pdf.settings import PdfRenderConfig, Policy

if TYPE_CHECKING:
    from fastapi import Response

HEARTBEAT: Final = PdfRenderConfig().heartbeat_limit
INERT: Final = {
    # Nothing of it runs or leaves the page, whatever a template or a variable says.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
FALLBACK_HEADERS: Final = {"X-Pdf-Fallback": "html", **INERT}
LONGEST_KEPT: Final = timedelta(seconds=2)
"""So old may an answer about health be (P-37)."""
# As long as the probes of readiness wait; a store that takes longer is as good as none.
PATIENCE_S: Final = 2.0
RETRY_AFTER_S: Final = 5
"""When to ask again what is unavailable now. A guess: twice what an answer is kept, and a bit."""
UNFINISHED: Final = (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING)
SOONEST_S: Final = 1
LATEST_S: Final = 60
WINDOW: Final = timedelta(minutes=5)
"""Renders that are older say nothing about now."""
MOST_LOOKED_AT: Final = 50
# Where nothing was rendered lately; a guess: a cold browser and a page take about so long.
USUAL_S: Final = 2.0
KEPT_S: Final = 2.0
"""So long is kept what was found out, as health is."""


class FailSafePolicy(StrEnum):
    """What a caller gets while nobody can render."""

    STRICT = "strict"
    """An error that says when to try again."""
    DEGRADE = "degrade"
    """The HTML itself; no job is made."""


class Unavailable(PdfError):
    """Nobody can render now, or nobody can tell; nothing was accepted."""

    def __init__(self, message: str, *, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message, code=PdfErrorCode.PDF_RENDER_UNAVAILABLE)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Health:
    """How the store and the workers were found."""

    _: KW_ONLY
    store_answers: bool
    workers: int
    """How many serve the queue and were heard of in time."""

    @property
    def complaint(self) -> str:
        """What is wrong, in a sentence; '' when nothing is."""
        if not self.store_answers:
            return "the store of jobs does not answer"
        return "" if self.workers else "no worker that renders was heard of lately"

    @property
    def is_well(self) -> bool:
        """Whether a job can be rendered."""
        return not self.complaint


NO_STORE: Final = Health(store_answers=False, workers=0)


def check_worker_health(engine: Engine, *, heartbeat: timedelta = HEARTBEAT) -> bool:
    """Tell whether the store answers and a worker of the queue was heard of within `heartbeat`."""
    return read_health(engine, heartbeat=heartbeat).is_well


def read_health(engine: Engine, *, heartbeat: timedelta) -> Health:
    """Ask the store which workers of the queue were heard of within `heartbeat`.

    A store that does not answer is told, not raised; one that hangs is waited for, so ask a
    `HealthCheck`.
    """
    try:
        return Health(store_answers=True, workers=count_workers(engine, heartbeat=heartbeat))
    except (UlakError, OSError):
        return NO_STORE


def count_workers(engine: Engine, *, heartbeat: timedelta) -> int:
    """Count the workers of the queue that hold a lease and were heard of within `heartbeat`. Raises
    StoreError: the store does not answer."""
    store = engine.open().store
    now = store.clock.now()
    heard_since = now - micros(heartbeat)
    return sum(
        row.expires_at > now
        and row.renewed_at >= heard_since
        and any(queue_of(lane) == QUEUE for lane in row.lanes.split())
        for row in store.workers()
    )


@dataclass(eq=False, repr=False)
class HealthCheck:
    """Health for every request of one process: asked once for all, and kept for a moment.

    A store that hangs is waited for `PATIENCE_S`, by one thread however many ask.
    """

    engine: Engine
    _: KW_ONLY
    heartbeat: timedelta
    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _kept: tuple[float, Health] | None = field(default=None, init=False)
    _asking: Future[Health] | None = field(default=None, init=False)

    def look(self) -> Health:
        """Return how it stands, or stood a moment ago; waits, so it is called in a thread."""
        with self._lock:
            if self._kept is not None:
                at, health = self._kept
                if self.monotonic() - at < LONGEST_KEPT.total_seconds():
                    return health
            if self._asking is None or self._asking.done():
                self._asking = Future()
                threading.Thread(
                    target=self._answer, args=(self._asking,), name="ulak-pdf-health", daemon=True
                ).start()
            asking = self._asking
        try:
            health = asking.result(PATIENCE_S)
        except TimeoutError:
            health = NO_STORE
        with self._lock:
            self._kept = (self.monotonic(), health)
        return health

    def must_answer(self) -> None:
        """Raise Unavailable where the store does not answer: one that hangs would take its time."""
        if not self.look().store_answers:
            raise Unavailable(NO_STORE.complaint)

    def _answer(self, answer: Future[Health]) -> None:
        answer.set_result(read_health(self.engine, heartbeat=self.heartbeat))


def handle_unavailable(
    policy: FailSafePolicy | Policy,
    html: str | Callable[[], str],
    *,
    why: str = "nothing can be rendered now",
) -> Response:
    """Return what a caller gets while nobody can render: 503 and when to try again, or, where the
    policy is `degrade`, 200 and the HTML. Where no HTML can be made it is 503 as well."""
    from fastapi.responses import JSONResponse

    from ulak.web import problem_document

    try:
        return stand_in(policy, html, why=why)
    except Unavailable as error:
        code = error.code.lower().replace("_", "-")
        detail, wait_s = str(error), error.retry_after_s
        members = {"error_code": error.code, "message": detail, "retry_after_seconds": wait_s}
        document = problem_document(503, code, detail=detail, members=members)
        headers = {"Retry-After": str(wait_s)}
        return JSONResponse(document, 503, headers, media_type="application/problem+json")


def stand_in(
    policy: FailSafePolicy | Policy, html: str | Callable[[], str], *, why: str
) -> Response:
    """Return the HTML that stands in for a PDF, where the policy wants one.

    `html` is that, or makes it by the same allow-list, escaping and template as a render; `why`
    says what is unavailable.

    Raises:
        Unavailable: the policy is `strict`, or no HTML could be made.
    """
    from fastapi.responses import HTMLResponse

    if policy != FailSafePolicy.DEGRADE:
        raise Unavailable(why)
    try:
        made = html if isinstance(html, str) else html()
    except (UlakError, OSError) as error:
        raise Unavailable(f"{why}, and its HTML cannot be made either") from error
    return HTMLResponse(made, headers=FALLBACK_HEADERS)


@dataclass(frozen=True, slots=True)
class Pace:
    """How it goes now."""

    _: KW_ONLY
    queued: int = 0
    running: int = 0
    places: int = 1
    """Pages at once, of all workers together."""
    render_s: float = USUAL_S
    """How long an attempt takes, by the mean of the latest that succeeded."""

    def retry_after_s(self, status: PdfJobStatus, *, ahead: int | None = None) -> int:
        """Return in how many whole seconds to ask again for a job, from 1 to 60: after its own
        render, and of a queued one after those of the jobs before it, by default of all."""
        rounds = 1
        if status is PdfJobStatus.QUEUED:
            rounds += ((self.queued if ahead is None else ahead) + self.running) // self.places
        return max(SOONEST_S, min(LATEST_S, math.ceil(self.render_s * rounds)))

    @property
    def most_ahead(self) -> int:
        """So many jobs ahead of one are as good as any more: it is asked for in a minute."""
        return min(1000, math.ceil(LATEST_S / max(self.render_s, 0.06)) * self.places)


@dataclass(eq=False, repr=False)
class Pacing:
    """Looks at the pace for every request of one process: once for all, and kept for a moment.

    A hint for callers and nothing more: whatever cannot be found out is guessed.
    """

    engine: Engine
    config: PdfRenderConfig
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _kept: tuple[float, Pace] | None = field(default=None, init=False)

    def look(self) -> Pace:
        """Return the pace, or what it was a moment ago; the usual one where the store does not
        answer. Waits, so it is called in a thread."""
        # One asks, and whoever comes meanwhile waits for that answer and not for the store.
        with self._lock:
            now = self.monotonic()
            if self._kept is None or now - self._kept[0] >= KEPT_S:
                self._kept = (now, self._measure())
            return self._kept[1]

    def hint(self, job: PdfJob) -> dict[str, str]:
        """Return the header that says when to ask again, of a job that has not ended."""
        if job.status not in UNFINISHED:
            return {}
        pace = self.look()
        seconds = pace.retry_after_s(job.status, ahead=self._count_ahead(job, pace.most_ahead))
        return {"Retry-After": str(seconds)}

    def _count_ahead(self, job: PdfJob, most: int) -> int:
        """Count the queued jobs that were made before one, `most` at most."""
        if job.status is not PdfJobStatus.QUEUED:
            return 0
        queued = str(PdfJobStatus.QUEUED)
        before = JobFilter(flow=FLOW, state=queued, submitted_before=job.created_at)
        try:
            return len(self.engine.jobs(before, limit=most))
        except UlakError:
            return 0

    def _measure(self) -> Pace:
        try:
            workers = count_workers(self.engine, heartbeat=self.config.heartbeat_limit)
            took = _find_lately(self.engine)
            return Pace(
                queued=count_queued(self.engine),
                running=count_in(self.engine, PdfJobStatus.RUNNING),
                places=max(1, workers) * self.config.concurrency,
                render_s=fmean(took) if took else USUAL_S,
            )
        except UlakError:  # the store does not answer, or a job was pruned meanwhile
            return Pace()


def count_queued(engine: Engine) -> int:
    """Count the jobs that are queued and due; a delayed retry counts when it is due."""
    standing = count_in(engine, PdfJobStatus.QUEUED)
    return max(0, standing - sum(b.delayed for b in engine.inspect.backlog() if b.flow == FLOW))


def count_in(engine: Engine, status: PdfJobStatus) -> int:
    """Count the jobs that stand in a status."""
    counts = engine.inspect.counts()
    return sum(row.jobs for row in counts if (row.flow, row.state) == (FLOW, status))


def _find_lately(engine: Engine) -> list[float]:
    """Return how many seconds each of the latest renders took."""
    where = JobFilter(
        flow=FLOW, state=PdfJobStatus.SUCCEEDED, role="done",
        changed_since=now(engine.open()) - WINDOW,
    )  # fmt: skip
    jobs = engine.jobs(where, limit=1000)
    latest = sorted(jobs, key=lambda job: job.changed_at, reverse=True)[:MOST_LOOKED_AT]
    ends = [engine.inspect.trail(job.id)[-1] for job in latest]
    return [
        max(0.0, (end.at - end.started_at).total_seconds())
        for end in ends
        if end.started_at is not None
    ]
