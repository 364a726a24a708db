"""Callbacks: a URL is told of the end of a job, signed, and tried again when it does not answer.

The commit that ends a PDF job, in whichever process and state, submits a job that wakes the jobs
that wait for the end (`submission.want`). Each of these submits one that sends, so that a failed
try is repeated, and a callback that is given up can be seen.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from ulak import Backoff, Dedup, Engine, Flow, JobFilter, Lifecycle, OnEnd, Run
from ulak.errors import JobNotFound, UlakError
from ulak.kit.clock import Clock
from ulak.services.pdf import configuration
from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.flow import walk
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.submission import (
    JOB_ENDED,
    WAITING,
    WANTED,
    Wanted,
    move_callbacks,
    tell_end,
    wake,
)

if TYPE_CHECKING:
    from ulak.services.pdf.fetching import AllowedFetcher

log = logging.getLogger("ulak.pdf")

FLOW: Final = "pdf-callback"
QUEUE: Final = "pdf-callback"
DUE, SENT, GIVEN_UP = "due", "sent", "given_up"
STATES: Final = (DUE, SENT, GIVEN_UP)
ENDED: Final = "pdf-ended"
OVER: Final = (
    (FLOW, SENT), (FLOW, GIVEN_UP), (WANTED, "done"), (WANTED, "cancelled"),
    (ENDED, "done"),
)  # fmt: skip
"""Flows, and where their jobs have ended and may be forgotten."""

TRIES: Final = 4
# About 1, 5 and 25 seconds: within the 1 to 30 of the specification, whatever the jitter adds.
RETRY: Final = Backoff(TRIES - 1, first=timedelta(seconds=1), factor=5.0, jitter=0.1)
# A receiver that takes longer is as good as none: it should note what came, and work on it later.
PATIENCE_S: Final = 10.0
# What only waits for the store: it is worth many tries.
PATIENT: Final = Backoff(50, longest=timedelta(minutes=1))

TIMESTAMP: Final = "X-Ulak-Timestamp"
SIGNATURE: Final = "X-Ulak-Signature"


@dataclass(frozen=True, slots=True)
class Callback:
    """What one callback says, and where."""

    job_id: str
    url: str = field(repr=False)
    body: str = field(repr=False)
    """Made once, when the end was found: every try says the same."""


class CallbackRefused(UlakError):
    """The receiver has answered with something else than a success."""

    code = "callback-refused"

    def __init__(self, status: int) -> None:
        super().__init__(f"the receiver has answered {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class CallbackSender:
    """Sends callbacks: signed, to addresses that were checked, and no further."""

    fetcher: AllowedFetcher
    secret: str = field(repr=False)
    clock: Clock

    async def send(self, callback: Callback) -> None:
        """Send one, once.

        Raises:
            UrlBlocked: nothing may be sent there.
            FetchFailed: nobody answers there.
            CallbackRefused: the answer is not 2xx; redirects are not followed.
        """
        body = callback.body.encode()
        timestamp = str(self.clock.now() // 1_000_000)
        headers = {
            "Content-Type": "application/json",
            TIMESTAMP: timestamp,
            SIGNATURE: sign(self.secret, timestamp, body),
        }
        status = await self.fetcher.post(callback.url, body, headers=headers)
        if not 200 <= status < 300:
            raise CallbackRefused(status)


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a body that is sent at a time."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What tells of an end."""

    job_id: str
    """The PDF job that has ended; '' looks for every end that nobody was told of."""


def attach(engine: Engine, config: PdfRenderConfig) -> OnEnd | None:
    """Have the workers of an engine send callbacks, in a queue that needs no browser; return what
    the flow `pdf` does at the end of a job, None where no URL may be told."""
    ends, on_end = _make_ends(engine, config), None
    if config.security.callback_allowlist:
        on_end = OnEnd(ends, payload=lambda job, _: Ended(job.id))

    @asynccontextmanager
    async def open_sender() -> AsyncIterator[CallbackSender]:
        if on_end is not None:
            # Processes of the release before may have ended jobs, and told nobody here.
            await engine.aio.submit(ends, Ended(""), actor=ENDED, dedup_key="all")
        clock = engine.store.clock
        yield CallbackSender(
            configuration.callback_fetcher_of(config), config.callback_secret, clock
        )

    engine.resource(CallbackSender, queue=QUEUE)(open_sender)
    engine.add(_make_wanting(engine, config, engine.add(make_flow())))
    engine.add(ends)
    return on_end


def make_flow() -> Flow[Callback]:
    """Make the flow of callbacks: tried four times, then given up."""
    flow = Flow(
        FLOW,
        Lifecycle(DUE, {DUE: [SENT]}, done=SENT, failed=GIVEN_UP),
        payload=Callback,
        queue=QUEUE,
        retry=RETRY,
        permanent=(UrlBlocked,),
        secret=("url", "body"),
        retries_permanent=True,
    )

    @flow.stage(DUE, timeout=timedelta(seconds=3 * PATIENCE_S))
    async def send(run: Run[Callback]) -> None:
        try:
            await run.resource(CallbackSender).send(run.payload)
        except (UrlBlocked, OSError, UlakError) as error:
            if run.attempt >= TRIES or isinstance(error, UrlBlocked):
                facts = {"job_id": run.payload.job_id, "error": type(error).__name__}
                log.warning("a callback is given up", extra=facts)
            raise

    return flow


def _make_wanting(
    engine: Engine, config: PdfRenderConfig, callbacks: Flow[Callback]
) -> Flow[Wanted]:
    """Make the flow of those who wait for an end."""
    flow = Flow(
        WANTED,
        Lifecycle(WAITING, {WAITING: [JOB_ENDED], JOB_ENDED: ["done"]}),
        payload=Wanted,
        queue=QUEUE,
        retry=PATIENT,
        dedup=Dedup(),
        owners=True,
        secret=("url",),
    )
    flow.wait(WAITING, signal=JOB_ENDED, to=JOB_ENDED)

    @flow.stage(JOB_ENDED)
    def pass_on(run: Run[Wanted]) -> None:
        # Here and not above: the process that renders needs none of the API.
        from ulak.services.pdf.bodies import status_document

        wanted = run.payload
        try:
            job = configuration.open_jobs(engine, config).read_job(wanted.job_id)
        except JobNotFound:
            return  # pruned since
        body = msgspec.json.encode(status_document(job, wanted.root)).decode()
        callback = Callback(wanted.job_id, wanted.url, body)
        run.spawn(callbacks, [callback], tenant=run.tenant, actor=FLOW)

    return flow


def _make_ends(engine: Engine, config: PdfRenderConfig) -> Flow[Ended]:
    """Make the flow of what follows the end of a PDF job."""
    flow = Flow(
        ENDED, Lifecycle("due", {"due": ["done"]}), payload=Ended, queue=QUEUE, retry=PATIENT
    )

    @flow.stage("due")
    def tell(run: Run[Ended]) -> None:
        if run.payload.job_id:
            wake(engine, run.payload.job_id)
        else:
            catch_up(configuration.open_jobs(engine, config))

    return flow


def catch_up(jobs: PdfJobStore) -> None:
    """Wake each callback whose job was ended by a process of the release before, which told nobody;
    cancel those whose job is gone."""
    engine = jobs.engine
    move_callbacks(engine)
    for waiting in walk(engine, JobFilter(flow=WANTED, state=WAITING)):
        job_id = engine.inspect.payload(waiting.id)["job_id"]
        try:
            if engine.get(job_id).is_final:
                # Not by its owner: in the release before it had none.
                tell_end(engine, waiting.id, actor=FLOW)
        except JobNotFound:
            engine.cancel(waiting.id, actor=FLOW, note="its job is gone")
