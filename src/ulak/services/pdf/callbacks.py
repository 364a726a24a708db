"""Callbacks: a URL is told of the end of a job, signed, and tried again when it does not answer.

Of every job that ends - rendered, failed, cancelled, or expired before its turn - the callbacks
are found and become jobs of a flow of their own, so that a try that fails is repeated, and what
is given up stays to be seen. They are found and not sent along: a job may end without any stage
of it running, as when its last worker has died.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ulak import Backoff, Engine, Flow, Lifecycle, Run
from ulak.errors import JobNotFound, UlakError
from ulak.kit.clock import Clock
from ulak.services.pdf.callback_table import CallbackTable, Wanted
from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.settings import PdfRenderConfig

if TYPE_CHECKING:
    from ulak.services.pdf.fetching import AllowedFetcher

log = logging.getLogger("ulak.pdf")

FLOW: Final = "pdf-callback"
QUEUE: Final = "pdf-callback"
DUE, SENT, GIVEN_UP = "due", "sent", "given_up"
STATES: Final = (DUE, SENT, GIVEN_UP)

TRIES: Final = 4
# About 1, 5 and 25 seconds: within the 1 to 30 of the specification, whatever the jitter adds.
RETRY: Final = Backoff(TRIES - 1, first=timedelta(seconds=1), factor=5.0, jitter=0.1)
# A receiver that takes longer is as good as none: it should note what came, and work on it later.
PATIENCE_S: Final = 10.0
# How long an end may go unnoticed that another process has written.
LOOK_EVERY_S: Final = 1.0
A_BATCH: Final = 100

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


def attach(engine: Engine, config: PdfRenderConfig) -> Flow[Callback]:
    """Have the workers of an engine find and send callbacks, in a queue that needs no browser."""
    flow = make_flow()

    @asynccontextmanager
    async def open_sender() -> AsyncIterator[CallbackSender]:
        # Here and not above: who only accepts jobs opens no connections.
        from ulak.services.pdf.configuration import artifacts_of, callback_fetcher_of

        clock = engine.store.clock
        jobs = PdfJobStore(engine, artifacts_of(config, clock), config)
        finding = asyncio.create_task(find_ends(jobs, flow), name="ulak-pdf-callbacks")
        try:
            yield CallbackSender(callback_fetcher_of(config), config.callback_secret, clock)
        finally:
            finding.cancel()
            with suppress(asyncio.CancelledError):
                await finding

    engine.resource(CallbackSender, queue=QUEUE)(open_sender)
    return engine.add(flow)


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


async def find_ends(jobs: PdfJobStore, flow: Flow[Callback]) -> None:
    """Find callbacks whose job has ended, for as long as this is not cancelled."""
    loop, moved = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(moved.set)

    stop = jobs.engine.store.on_move(ring)
    try:
        while True:
            moved.clear()
            try:
                found = await asyncio.to_thread(pass_on_due, jobs, flow)
            except Exception as error:  # noqa: BLE001 - a loop of the worker: it looks again
                log.warning("callbacks cannot be found", extra={"error": type(error).__name__})
                found = 0
            if found < A_BATCH:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await moved.wait()
    finally:
        stop()


def pass_on_due(jobs: PdfJobStore, flow: Flow[Callback]) -> int:
    """Make a job of every callback that is due, and answer how many were; each becomes one,
    however many processes look at once.

    Raises:
        StoreError: the store does not answer.
    """
    due = jobs.callbacks.due(A_BATCH)
    for wanted in due:
        _pass_on(jobs, jobs.callbacks, flow, wanted)
    return len(due)


def _pass_on(jobs: PdfJobStore, table: CallbackTable, flow: Flow[Callback], wanted: Wanted) -> None:
    # Here and not above: the process that renders needs none of the API.
    from ulak.services.pdf.bodies import status_document

    try:
        job = jobs.get_job(wanted.job_id)
    except JobNotFound:
        return  # pruned since; clean-up forgets the rest
    document = status_document(job, wanted.root)
    callback = Callback(job.job_id, wanted.url, msgspec.json.encode(document).decode())

    def submit(connection: Any) -> None:
        jobs.engine.submit(
            flow, callback, tenant=job.tenant_id, actor=FLOW, connection=connection
        )  # fmt: skip

    table.pass_on(wanted, submit)
