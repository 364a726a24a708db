"""Whether jobs that are accepted now would be worked on, and what is answered when not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from ulak import Engine
from ulak.core.job import queue_of
from ulak.errors import UlakError
from ulak.kit.clock import micros
from ulak.services.pdf.flow import QUEUE
from ulak.services.pdf.model import PdfError, PdfErrorCode

LONGEST_KEPT: Final = timedelta(seconds=2)
"""So old may an answer about health be (P-37)."""
# As long as the probes of readiness wait; a store that takes longer is as good as none.
PATIENCE_S: Final = 2.0
RETRY_AFTER_S: Final = 5
"""When to ask again what is unavailable now. A guess: twice what an answer is kept, and a bit."""


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
    def is_well(self) -> bool:
        """Whether a job that is accepted now will be worked on."""
        return self.store_answers and self.workers > 0

    @property
    def complaint(self) -> str:
        """What is wrong, in a sentence; '' when nothing is."""
        if not self.store_answers:
            return "the store of jobs does not answer"
        return "" if self.workers else "no worker that renders was heard of lately"


NO_STORE: Final = Health(store_answers=False, workers=0)


def check_worker_health(engine: Engine, *, heartbeat: timedelta) -> Health:
    """Ask the store which workers of the queue were heard of within `heartbeat`.

    A worker whose lease has run out does not count, however lately it was heard of. A store that
    does not answer is told, not raised; one that hangs is waited for, so ask a `HealthCheck`.
    """
    try:
        return Health(store_answers=True, workers=count_workers(engine, heartbeat=heartbeat))
    except (UlakError, OSError):
        return NO_STORE


def count_workers(engine: Engine, *, heartbeat: timedelta) -> int:
    """Count the workers of the queue that were heard of within `heartbeat`.

    Raises:
        StoreError: the store does not answer.
    """
    store = engine.open().store
    now = store.clock.now()
    heard_since = now - micros(heartbeat)
    return sum(
        row.expires_at > now and row.renewed_at >= heard_since and _serves(row.lanes)
        for row in store.workers()
    )


class HealthCheck:
    """Health for every request of one process: asked once for all, and kept for a moment.

    An answer is kept for `LONGEST_KEPT` at most, so that the first look after a recovery finds it.
    A store that hangs is waited for `PATIENCE_S`, by one thread however many ask.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        heartbeat: timedelta,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._heartbeat = heartbeat
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: tuple[float, Health] | None = None
        self._asking: Future[Health] | None = None

    def look(self) -> Health:
        """Return how it stands, or stood a moment ago; waits, so it is called in a thread."""
        with self._lock:
            if self._kept is not None:
                at, health = self._kept
                if self._monotonic() - at < LONGEST_KEPT.total_seconds():
                    return health
            asking = self._ask()
        try:
            health = asking.result(PATIENCE_S)
        except TimeoutError:
            health = NO_STORE
        with self._lock:
            self._kept = (self._monotonic(), health)
        return health

    def _ask(self) -> Future[Health]:
        if self._asking is None or self._asking.done():
            self._asking = Future()
            threading.Thread(
                target=self._answer, args=(self._asking,), name="ulak-pdf-health", daemon=True
            ).start()
        return self._asking

    def _answer(self, answer: Future[Health]) -> None:
        answer.set_result(check_worker_health(self._engine, heartbeat=self._heartbeat))


def handle_unavailable(
    policy: FailSafePolicy, html: Callable[[], str], *, why: str = "nothing can be rendered now"
) -> str:
    """Return the HTML that stands in for a PDF, where the policy wants one.

    Args:
        policy: `strict` answers nothing.
        html: Makes the HTML: by the same allow-list, escaping and template as a render.
        why: What is unavailable, for people.

    Raises:
        Unavailable: the policy is `strict`, or no HTML could be made.
    """
    if policy is not FailSafePolicy.DEGRADE:
        raise Unavailable(why)
    try:
        return html()
    except (UlakError, OSError) as error:
        raise Unavailable(f"{why}, and its HTML cannot be made either") from error


def _serves(lanes: str) -> bool:
    return any(queue_of(lane) == QUEUE for lane in lanes.split())
