"""Callbacks: a URL is told of the end of a job, signed, and tried again when it does not answer.

The commit that ends a PDF job - rendered, failed, cancelled, or expired before its turn, by
whichever process - submits a job that wakes those who wait for the end (`wanting`). Each of them
submits one that sends, so that a try that fails is repeated, and what is given up stays to be seen.
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
from ulak.services.pdf import older, wanting
from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.flow import walk
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.wanting import Wanted, wake

if TYPE_CHECKING:
    from ulak.services.pdf.fetching import AllowedFetcher

log = logging.getLogger("ulak.pdf")

FLOW: Final = "pdf-callback"
QUEUE: Final = "pdf-callback"
DUE, SENT, GIVEN_UP = "due", "sent", "given_up"
STATES: Final = (DUE, SENT, GIVEN_UP)
ENDED: Final = "pdf-ended"
"""The flow of jobs that tell of an end."""
OVER: Final = (
    (FLOW, SENT), (FLOW, GIVEN_UP), (wanting.FLOW, "done"), (wanting.FLOW, "cancelled"),
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
    """The PDF job that has ended."""
    url: str = field(repr=False)
    body: str = field(repr=False)
    """Made once, when the end was found: every try says the same."""


class CallbackRefused(UlakError):
    """The receiver has answered with something else than a success."""

    code = "callback-refused"

    def __init__(self, status: int) -> None:
        super().__init__(f"the receiver has answered {status}")
        self.status = status


class CallbackSender:
    """Sends callbacks: signed, to addresses that were checked, and no further."""

    def __init__(self, fetcher: AllowedFetcher, secret: str, clock: Clock) -> None:
        self._fetcher = fetcher
        self._secret = secret
        self._clock = clock

    async def send(self, callback: Callback) -> None:
        """Send one, once.

        Raises:
            UrlBlocked: nothing may be sent there.
            FetchFailed: nobody answers there.
            CallbackRefused: the receiver answers with anything but 2xx; a redirect is none.
        """
        body = callback.body.encode()
        timestamp = str(self._clock.now() // 1_000_000)
        headers = {
            "Content-Type": "application/json",
            TIMESTAMP: timestamp,
            SIGNATURE: sign(self._secret, timestamp, body),
        }
        status = await self._fetcher.post(callback.url, body, headers=headers)
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
    """Have the workers of an engine send callbacks, in a queue that needs no browser.

    Returns what the flow `pdf` does at the end of a job; nothing where no URL may be told.
    """
    ends, on_end = _make_ends(engine, config), None
    if config.security.callback_allowlist:
        on_end = OnEnd(ends, payload=lambda job, _: Ended(job.id))

    @asynccontextmanager
    async def open_sender() -> AsyncIterator[CallbackSender]:
        # Here and not above: who only accepts jobs opens no connections.
        from ulak.services.pdf.configuration import callback_fetcher_of

        if on_end is not None:
            # Processes of the release before may have ended jobs, and told nobody here.
            await engine.aio.submit(ends, Ended(""), actor=ENDED, dedup_key="all")
        clock = engine.store.clock
        yield CallbackSender(callback_fetcher_of(config), config.callback_secret, clock)

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
                log.warning(
                    "a callback is given up",
                    extra={"job_id": run.payload.job_id, "error": type(error).__name__},
                )
            raise

    return flow


def _make_wanting(
    engine: Engine, config: PdfRenderConfig, callbacks: Flow[Callback]
) -> Flow[Wanted]:
    """Make the flow of those who wait for an end."""
    flow = Flow(
        wanting.FLOW,
        Lifecycle(wanting.WAITING, {wanting.WAITING: [wanting.ENDED], wanting.ENDED: ["done"]}),
        payload=Wanted,
        queue=QUEUE,
        retry=PATIENT,
        dedup=Dedup(),
        owners=True,
        secret=("url",),
    )
    flow.wait(wanting.WAITING, signal=wanting.ENDED, to=wanting.ENDED)

    @flow.stage(wanting.ENDED)
    def pass_on(run: Run[Wanted]) -> None:
        # Here and not above: the process that renders needs none of the API.
        from ulak.services.pdf.bodies import status_document

        wanted = run.payload
        try:
            job = _open_jobs(engine, config).get_job(wanted.job_id)
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
            catch_up(_open_jobs(engine, config))

    return flow


def catch_up(jobs: PdfJobStore) -> None:
    """Wake everybody whose job has ended and who was not told, because a process of the release
    before has ended it; where the job is gone, nobody waits any more.

    Raises:
        StoreError: the store does not answer.
    """
    engine = jobs.engine
    older.move_callbacks(engine)
    for waiting in walk(engine, JobFilter(flow=wanting.FLOW, state=wanting.WAITING)):
        job_id = engine.inspect.payload(waiting.id)["job_id"]
        try:
            if engine.get(job_id).is_final:
                # Not by its owner: in the release before it had none.
                engine.signal(waiting.id, wanting.ENDED, actor=FLOW)
        except JobNotFound:
            engine.cancel(waiting.id, actor=FLOW, note="its job is gone")


def _open_jobs(engine: Engine, config: PdfRenderConfig) -> PdfJobStore:
    from ulak.services.pdf.configuration import artifacts_of

    return PdfJobStore(engine, artifacts_of(config, engine.store.clock), config)
