"""The render worker: from a job's payload to a stored artifact, and the times around it.

It knows no browser: what renders is handed to it, so that this module may be imported anywhere.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ulak import Engine, Job, RetryLater, WorkerSettings
from ulak.errors import BadInput, JobNotFound, NotSupported, StaleJob, StoreError
from ulak.kit.clock import now
from ulak.services.pdf.artifacts import WRITE_FAILED, PdfArtifactStore
from ulak.services.pdf.document import (
    QUEUE,
    STORE,
    TEMPLATE,
    Document,
    Rendered,
    Renderer,
    Steps,
    Times,
)
from ulak.services.pdf.finishing.composing import compose
from ulak.services.pdf.flow import BLOCKED, PdfPayload
from ulak.services.pdf.model import (
    BadOptions,
    MachineFault,
    PdfError,
    PdfErrorCode,
    PdfJobStatus,
    pdf_error,
)
from ulak.services.pdf.output import NOTHING_MORE, OutputOptions, Sealing, read_stored
from ulak.services.pdf.page import read_page
from ulak.services.pdf.readiness import Readiness
from ulak.services.pdf.security.template_input import must_be_listed, validate_template
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.totals import BROWSER, NOT_READY, WEASYPRINT, Totals, is_given_back

if TYPE_CHECKING:
    from ulak.services.pdf.templates import Templates

log = logging.getLogger("ulak.pdf")

T = TypeVar("T")

FIRST_REPRIEVE: Final = timedelta(seconds=1)
"""How long a job waits that was given back for the first time; then twice as long."""
LONGEST_REPRIEVE: Final = timedelta(seconds=60)
MOST_GIVEN_BACK: Final = 20
"""How often in a row a document's pages or browsers may be lost before it is held to be its own
doing: a quarter of an hour by these delays. A guess."""
_UNABLE: Final = frozenset({PdfErrorCode.BROWSER_LAUNCH_FAILED, PdfErrorCode.UNSUPPORTED_PLATFORM})
"""The codes by which an attempt says that no document can be rendered here."""
_EXHAUSTED: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
"""What the machine has no more of: room, files, memory, processes."""


@dataclass(eq=False, repr=False)
class PdfRenderWorker:
    """Renders jobs, one call each, as many at once as the renderer has places.

    `open_render_worker` makes one. Its verbs are plain calls from any thread, which raise BadInput
    on an event loop that they would stop: there, `asyncio.to_thread` calls them.
    """

    config: PdfRenderConfig
    templates: Templates
    renderer: Renderer
    artifacts: PdfArtifactStore
    _: KW_ONLY
    engine: Engine | None = None
    """Whose jobs `process_job` takes; None for a worker that is only handed payloads."""
    monotonic: Callable[[], float] = time.monotonic
    readiness: Readiness | None = None
    """What tells whether something can be rendered here; None where nobody asks."""
    sealing: Callable[[], Sealing] | None = None
    """Makes what opens the passwords of jobs; None fails the jobs that have one."""
    loop: asyncio.AbstractEventLoop | None = None
    """That of the renderer; None for one that works on any, so that each call has its own."""

    def unready(self) -> str | None:
        """Say why nothing can be rendered here now; None when something can."""
        return None if self.readiness is None else self.readiness.complaint()

    def process_job(self, job_id: str) -> Job | None:
        """Claim one job, render it, store the artifact and finish.

        None when another worker has it, it is not due or has ended: then nothing was done.

        Raises:
            JobNotFound: there is none.
            StaleJob: its lease was lost; no artifact is left.
        """
        return self._call(self._process(job_id))

    async def _process(self, job_id: str) -> Job | None:
        if self.engine is None:
            raise NotSupported("this worker has no engine whose jobs it could take")
        by_hand = self.engine.worker(WorkerSettings(lease=self.config.lease))
        attempt = await asyncio.to_thread(by_hand.take, job_id, name="pdf")
        if attempt is None:
            return None
        retry_count = attempt.job.attempt
        try:
            report = await self.perform(
                job_id, attempt.payload, retry_count=retry_count, is_first=attempt.token <= 1
            )
        except (PdfError, RetryLater) as error:
            failed = await asyncio.to_thread(attempt.fail, error)
            if isinstance(error, PdfError) and error.blocked:
                await asyncio.to_thread(
                    self.engine.note, job_id, BLOCKED, actor="pdf", **error.blocked
                )
            return failed
        except asyncio.CancelledError:
            await asyncio.to_thread(attempt.give_back)
            raise
        try:
            return await asyncio.to_thread(attempt.finish, report)
        except StaleJob:
            # Whoever has it now stores an artifact of its own.
            await asyncio.to_thread(
                self._remove, job_id, self.artifacts.delete_pdf, report["artifact_key"]
            )
            raise

    def render_html_to_pdf(self, html: str, timeout: timedelta | float) -> bytes:
        """Print one HTML text within a time, with the fixed settings and without JavaScript.

        Raises:
            BadInput: the timeout is out of bounds.
            PdfError: with the code that a job would fail with.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        times = self.config.times_for(int(seconds))
        return self._call(self.renderer.render(Document(html), times)).pdf

    def validate_template(self, name: str) -> bool:
        """Tell whether a template is in the allow-list."""
        return validate_template(name, self.config.security.template_allowlist)

    def validate_url(self, url: str) -> bool:
        """Tell whether the allow-list of URLs lets one through."""
        from ulak.services.pdf.security import validate_url

        return validate_url(url, self.config.security.url_allowlist)

    def sanitize_payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payload with its variables escaped, each exactly once."""
        from ulak.services.pdf.security import sanitize_html_variables

        return {**payload, "variables": sanitize_html_variables(payload.get("variables", {}))}

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of work for the renderer; whoever is interrupted here cancels it."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            work.close()
            raise BadInput(
                "this call waits, and would stop the event loop of this thread; call it by "
                "asyncio.to_thread"
            )
        if self.loop is None:
            return asyncio.run(work)
        doing = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return doing.result()
        finally:
            doing.cancel()

    async def perform(
        self, job_id: str, given: PdfPayload, *, retry_count: int = 0, is_first: bool = True
    ) -> dict[str, Any]:
        """Do the work of one attempt and return its report, as `PdfJobStore.find_report` shows it.

        Cancelled, it leaves no artifact. What an earlier attempt has left behind - its worker may
        have died between storing and finishing - is removed once this one's artifact is stored.

        Args:
            job_id: Whose artifact it is.
            given: The payload of the job.
            retry_count: How many attempts have failed before.
            is_first: Whether no worker has ever had the job before.

        Raises:
            PdfError: with the code that the attempt fails with; it quotes nothing of the payload.
            RetryLater: it was no fault of the document's, and no retry is spent.
        """
        began = self.monotonic()
        # Whoever stops a worker has decided nothing about the job.
        status, code = "stopped", ""
        try:
            queued = await asyncio.to_thread(self._queued, job_id)
            tracing = None if self.engine is None else self.engine.kernel.tracing
            with Steps(tracing, monotonic=self.monotonic) as steps:
                rendered = await self._render(given, steps)
                steps.begin(STORE)
                key = await self._store(job_id, rendered.pdf)
            if not is_first:
                await asyncio.to_thread(
                    self._remove, job_id, self.artifacts.delete_others, job_id, key
                )
            total = self.monotonic() - began
            status = "succeeded"
            return {
                "artifact_key": key,
                "sha256": hashlib.sha256(rendered.pdf).hexdigest(),
                "size": len(rendered.pdf),
                "pages": rendered.pages,
                "engine": rendered.engine,
                "retry_count": retry_count,
                "timings": {**queued, **rendered.timings, **steps.took, "attempt": total},
                "blocked": dict(rendered.blocked),
                "script_errors": list(rendered.script_errors),
                "warnings": [warning.as_document() for warning in rendered.warnings],
            }
        except Exception as error:
            fault = error if isinstance(error, PdfError) else _fault_by(error)
            later = await asyncio.to_thread(self._find_reprieve, job_id, fault)
            status, code = "failed" if later is None else "given-back", fault.code
            if fault is error and later is None:
                raise
            raise (later or fault) from None
        finally:
            facts = {
                "job_id": job_id, "attempt": retry_count + 1, "status": status, "error_code": code,
                "duration_ms": round((self.monotonic() - began) * 1000),
                "correlation_id": given.correlation_id,
            }  # fmt: skip
            log.info("an attempt has ended", extra=facts)

    def _find_reprieve(self, job_id: str, error: PdfError) -> RetryLater | None:
        """Return how a job is given back whose attempt has failed by no fault of its own; None when
        the fault is its own, or has lasted for too long."""
        is_lost = isinstance(error, MachineFault)
        waits_for_others = error.detail == WRITE_FAILED
        if error.code in _UNABLE and not is_lost and self.readiness is not None:
            self.readiness.doubt(error)
            waits_for_others = self.readiness.is_asked
        if self.engine is None or not (is_lost or waits_for_others):
            return None
        before = 0
        try:
            job = self.engine.get(job_id)
            for event in self.engine.inspect.trail(job_id):
                before = 0 if event.to_state == PdfJobStatus.QUEUED else before
                before += is_given_back(event)
        except (BadInput, JobNotFound):
            return None
        except StoreError:
            pass  # known at the next time
        else:
            is_old = now(self.engine) - job.created_at >= self.config.artifact_ttl
            if is_old if waits_for_others else before >= MOST_GIVEN_BACK:
                return None
        after = min(LONGEST_REPRIEVE, FIRST_REPRIEVE * 2 ** min(before, 16))
        return RetryLater(after, why=f"{error.code}: {error}")

    def _queued(self, job_id: str) -> dict[str, float]:
        """Tell how long the job was due before it was claimed, if that can be known."""
        if self.engine is None:
            return {}
        try:
            job = self.engine.get(job_id)
        except (BadInput, JobNotFound, StoreError):
            return {}  # not worth a job: whether the store answers is seen at its end
        # A claim is the last change of a job that runs.
        return {QUEUE: max(0.0, (job.changed_at - job.not_before).total_seconds())}

    async def _render(self, given: PdfPayload, steps: Steps) -> Rendered:
        began = self.monotonic()
        steps.begin(TEMPLATE)
        self._must_be_listed(given.template_name)
        times = self.config.times_for(given.timeout_s)
        document = await asyncio.to_thread(self._fill, given)
        output, following = NOTHING_MORE, tuple[Document, ...]()
        if given.payload.get("options", {}).get("output"):
            output, following = await asyncio.to_thread(self._fill_following, given)
        steps.end()

        def left() -> Times:
            # The hard limit is of the attempt: what went before is gone from it.
            rest = times.hard - timedelta(seconds=self.monotonic() - began)
            if rest <= times.graceful_offset:
                why = "what went before took all of the time"
                raise pdf_error(why, code=PdfErrorCode.NAVIGATION_TIMEOUT)
            return Times(rest, times.graceful_offset)

        if output == NOTHING_MORE:
            return await self.renderer.render(document, left())
        return await compose(
            (document, *following), output, renderer=self.renderer,
            limits=self.config.limits, left=left,
        )  # fmt: skip

    def _fill(self, given: PdfPayload) -> Document:
        name, asked = given.template_name, given.payload
        self._must_be_unchanged(name, asked.get("template_version"))
        variables = asked.get("variables", {})
        if not isinstance(variables, Mapping):
            raise pdf_error("the variables are no object", code=PdfErrorCode.TEMPLATE_ERROR)
        with _options_read():
            page = read_page(asked.get("options", {}).get("page", {}))
            return self.templates.render(name, variables, page)

    def _fill_following(self, given: PdfPayload) -> tuple[OutputOptions, tuple[Document, ...]]:
        """Read what is to be done to the document, and fill the templates that follow it."""
        with _options_read():
            output = read_stored(given.template_name, given.payload, self.sealing)
            self.templates.judge_output(given.template_name, output)
        following: list[Document] = []
        for one in output.append:
            self._must_be_listed(one.template_name)
            self._must_be_unchanged(one.template_name, one.template_version)
            following.append(self.templates.render(one.template_name, one.variables))
        return output, tuple(following)

    def _must_be_listed(self, name: str) -> None:
        must_be_listed(name, self.config.security.template_allowlist)

    def _must_be_unchanged(self, name: str, wanted: str | None) -> None:
        if wanted and wanted != self.templates.version(name):
            # The key was made of the other content: what is printed now would answer for it.
            why = f'the template "{name}" has changed since the job was created; create it again'
            raise pdf_error(why, code=PdfErrorCode.TEMPLATE_ERROR, detail="template_changed")

    async def _store(self, job_id: str, pdf: bytes) -> str:
        storing = asyncio.ensure_future(asyncio.to_thread(self.artifacts.store_pdf, job_id, pdf))
        try:
            return await asyncio.shield(storing)
        except asyncio.CancelledError:
            # A thread cannot be stopped: let it come to its end, and take back what it wrote.
            await asyncio.wait([storing])
            if storing.exception() is None:
                await asyncio.to_thread(
                    self._remove, job_id, self.artifacts.delete_pdf, storing.result()
                )
            raise

    def _remove(self, job_id: str, remove: Callable[..., object], *arguments: str) -> None:
        """Remove artifacts that nobody needs, if that can be done now."""
        try:
            remove(*arguments)
        except Exception as error:  # noqa: BLE001 - the runner: the sweep finds what is left
            facts = {"job_id": job_id, "error": type(error).__name__}
            log.warning(
                "an artifact of an attempt that came to nothing could not be removed", extra=facts
            )


def _fault_by(error: Exception) -> PdfError:
    """Make the error of an attempt that has failed by something unexpected."""
    # Not what it says, nor where it came from: that may quote the payload.
    why = f"the attempt failed unexpectedly by a {type(error).__name__}"
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        code = PdfErrorCode.BROWSER_LAUNCH_FAILED
        return MachineFault(why, code=code, detail="machine_exhausted")
    log.error("an attempt failed unexpectedly", extra={"error": type(error).__name__})
    return pdf_error(why, code=PdfErrorCode.UNKNOWN)


@contextmanager
def _options_read() -> Iterator[None]:
    try:
        yield
    except BadOptions as error:
        detail = f"{error.part}_options"
        raise pdf_error(str(error), code=PdfErrorCode.TEMPLATE_ERROR, detail=detail) from None


@asynccontextmanager
async def open_worker(
    engine: Engine, config: PdfRenderConfig, sealing: Callable[[], Sealing] | None = None
) -> AsyncIterator[PdfRenderWorker]:
    """Open the worker of a process that renders, with every engine that it needs started; `sealing`
    opens the passwords of jobs. Raises BadInput: an expression of the URL allow-list cannot be
    used."""
    from ulak.services.pdf.configuration import artifacts_of, open_renderer, templates_of

    async with open_renderer(config, engine.kernel.tracing) as renderer:
        readiness = Readiness(renderer.probe, partial(_publish, Totals(engine)))
        await readiness.look()
        keeping = asyncio.create_task(readiness.keep(), name="ulak-pdf-readiness")
        try:
            yield PdfRenderWorker(
                config, templates_of(config), renderer, artifacts_of(config, engine.store.clock),
                engine=engine, readiness=readiness, sealing=sealing,
                loop=asyncio.get_running_loop(),
            )  # fmt: skip
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


@contextmanager
def open_render_worker(
    engine: Engine, config: PdfRenderConfig, sealing: Callable[[], Sealing] | None = None
) -> Iterator[PdfRenderWorker]:
    """Open a worker for a program without an event loop: what renders lives on a thread of its
    own, and nothing of it is left when the block has ended. Raises as `open_worker`."""
    opened: Future[tuple[PdfRenderWorker, Callable[[], object]]] = Future()

    async def live() -> None:
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        async with open_worker(engine, config, sealing) as worker:
            opened.set_result((worker, lambda: loop.call_soon_threadsafe(is_over.set)))
            await is_over.wait()

    def run() -> None:
        try:
            asyncio.run(live())
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=run, name="ulak-pdf-worker")
    thread.start()
    try:
        worker, end = opened.result()
        try:
            yield worker
        finally:
            end()
    finally:
        thread.join()


async def _publish(totals: Totals, engines: Mapping[str, str], complaint: str) -> None:
    """Have the API tell what this worker has found out: no browser is in its process."""
    if complaint:
        await asyncio.to_thread(totals.report, {NOT_READY: complaint})
    else:
        names = {"chromium": BROWSER, "weasyprint": WEASYPRINT}
        versions = {names[engine]: version for engine, version in engines.items()}
        await asyncio.to_thread(totals.report, versions)
