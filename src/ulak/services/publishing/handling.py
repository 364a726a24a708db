"""How a task is tried: its retry options, and what becomes of it when a call fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ulak import Backoff, RetryLater, Run
from ulak.kit.clock import rfc3339
from ulak.kit.ids import from_text
from ulak.services.publishing.backend import Backend, BackendAway, KeyRefused, StepPassed
from ulak.services.publishing.events import Event, TaskRefused, read_payload, step
from ulak.services.publishing.settings import PublishingSettings

if TYPE_CHECKING:
    from ulak.services.publishing.dead_letters import DeadLetters
    from ulak.services.publishing.notifications import Notifications

log = logging.getLogger("ulak.publishing")

Handler = Callable[[Run[Any]], Awaitable[RetryLater | None]]
ModerationPolicy = Callable[[Mapping[str, Any]], bool]
"""Tells whether a post is approved, from what `GET /internal/articles/{id}` says of it."""

PATIENCE: Final = timedelta(minutes=15)
"""For so long a refused key spends no retry, from the first refusal in a round of the task."""
SHORTEST_WAIT_S, LONGEST_WAIT_S = 5.0, 30.0
PASSED: Final = "publishing.passed"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a worker needs for the tasks, opened once by each."""

    settings: PublishingSettings
    backend: Backend
    policy: ModerationPolicy
    dead_letters: DeadLetters
    notifications: Notifications

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: PublishingSettings, *others: Any, **options: Any
    ) -> AsyncIterator[Tools]:
        """Open the client of the backend for the length of a block; `options` as of `Backend`."""
        backend = Backend(settings, **options)
        async with backend.client:
            yield cls(settings, backend, *others)


def task(
    *, max_retries: int = 3, retry_backoff: bool = True, retry_jitter: bool = True,
    setting: str = "saga_max_retries",
) -> Callable[[Handler], Handler]:  # fmt: skip
    """Declare a handler: what its calls raise becomes an end, a wait or a retry. The options become
    attributes of the function; the settings of section 12 win over them.

    Args:
        max_retries: How often it is tried again.
        retry_backoff: Whether each delay is twice the one before it.
        retry_jitter: Whether each delay is drawn from nothing up to its whole length.
        setting: Which setting replaces `max_retries`; '' for none.
    """

    def declare(work: Handler) -> Handler:
        @wraps(work)
        async def handle(run: Run[Any]) -> RetryLater | None:
            try:
                return await work(run)
            except StepPassed as passed:
                log.info("a task has nothing left to do", extra={"code": passed.code})
                run.note(PASSED, str(passed))
                return None
            except KeyRefused as refusal:
                if run.now - await _find_first_refusal(run) >= PATIENCE:
                    raise
                wait = max(_draw_wait(run), refusal.retry_after or timedelta())
                return RetryLater(wait, why=str(refusal))
            except BackendAway as failure:
                backoff = make_backoff(handle, run.resource(Tools).settings)
                delay = backoff.delay_us(run.attempt, from_text(run.job_id))
                wait = failure.retry_after or timedelta()
                # The last failure of all keeps its class and its traceback.
                if delay is None or wait <= timedelta(microseconds=delay):
                    raise
                return RetryLater(wait, spend_attempt=True, why=str(failure))

        options = {"retry_backoff": retry_backoff, "retry_jitter": retry_jitter}
        vars(handle).update(max_retries=max_retries, setting=setting, **options)
        return handle

    return declare


def make_backoff(handler: Handler, settings: PublishingSettings) -> Backoff:
    """Return the delays of a handler: by its own options, where the settings say nothing else."""
    declared, jitter = vars(handler), settings.retry_jitter
    retries = getattr(settings, declared["setting"], None)
    jitter = declared["retry_jitter"] if jitter is None else jitter
    return Backoff(
        declared["max_retries"] if retries is None else retries, first=settings.retry_base,
        longest=settings.retry_max, factor=2.0 if declared["retry_backoff"] else 1.0,
        jitter="full" if jitter else 0.0,
    )  # fmt: skip


async def read_post(run: Run[Any], call: str, status: str) -> tuple[Event, Mapping[str, Any]]:
    """Return the event of a task and its post as the backend has it. Raises `StepPassed`: the post
    is gone, in another publication or in another status; `TaskRefused`: the payload is broken, or
    the sweep has given the task up, which then an operator's retry alone runs."""
    event = read_payload(run.payload)
    if event.is_stuck and run.round == 1:
        raise TaskRefused("stuck", "it was started again and again; see the logs of the workers")
    data = await run.resource(Tools).backend.call(call, event)
    post: Mapping[str, Any] = data["article"]
    if (post["publication_id"], post["status"]) != (event.publication_id, status):
        said = f"post {event.post_id} is {post['status']} by publication {post['publication_id']}"
        raise StepPassed(said, code="invalid_status")
    return event, post


async def _find_first_refusal(run: Run[Any]) -> datetime:
    """Return when the key of this round was first refused."""

    async def look(_: str) -> str:
        return rfc3339(run.now)

    with step("refusal.kept"):
        return datetime.fromisoformat(await run.once("first-refusal", look))


def _draw_wait(run: Run[Any]) -> timedelta:
    """Return a wait that is another for each task and claim: a crowd must not return at once."""
    drawn = crc32(f"{run.job_id}/{run.token}".encode()) / 0xFFFFFFFF
    return timedelta(seconds=SHORTEST_WAIT_S + drawn * (LONGEST_WAIT_S - SHORTEST_WAIT_S))
