"""The render worker: one attempt, from the payload of a job to its artifact, and how it fails."""

import asyncio
import errno
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.services.pdf.desk import A_PDF, INVOICE, Desk, Pages, Printer, payload
from ulak import RetryLater
from ulak.artifacts.local import LocalStorage
from ulak.errors import ArtifactWriteFailed, BadInput, JobNotFound, NotSupported, StaleJob
from ulak.kit.clock import now
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.flow import PdfPayload
from ulak.services.pdf.model import (
    MachineFault,
    PdfError,
    PdfErrorCode,
    PdfJob,
    PdfJobStatus,
    pdf_error,
)
from ulak.services.pdf.readiness import Readiness
from ulak.services.pdf.settings import PdfRenderConfig, PdfSecurityConfig
from ulak.services.pdf.worker import MOST_GIVEN_BACK, PdfRenderWorker

QUEUED, RUNNING, SUCCEEDED, FAILED, EXPIRED = PdfJobStatus
TIMEOUT = pdf_error("too slow", code=PdfErrorCode.NAVIGATION_TIMEOUT)
NO_LAUNCH = pdf_error("no browser", code=PdfErrorCode.BROWSER_LAUNCH_FAILED)
PATIENCE = 120


def processed(desk: Desk, job: PdfJob, worker: PdfRenderWorker) -> PdfJob:
    worker.process_job(job.job_id)
    return desk.jobs.read_job(job.job_id)


class TestProcessing:
    """`process_job` claims, renders, stores and finishes."""

    @pytest.mark.shows("P-4", "P-5")
    def test_a_job_is_rendered_stored_and_finished(self, desk: Desk) -> None:
        job = desk.jobs.create_job(INVOICE, payload(name="Ada"), timeout_s=20)
        pages, printer = Pages(), Printer()
        done = processed(desk, job, desk.worker(printer, pages))
        assert done.status is SUCCEEDED
        assert desk.artifacts.get_pdf(done.artifact_key) == A_PDF
        assert pages.asked == [(INVOICE, {"name": "Ada"})]
        (times,) = printer.times
        assert timedelta(seconds=15) < times.hard <= timedelta(seconds=20)
        report = desk.jobs.find_report(job.job_id)
        assert report["sha256"] == sha256(A_PDF).hexdigest()
        assert (report["size"], report["pages"], report["engine"]) == (len(A_PDF), 1, "Printer/1")
        assert report["retry_count"] == 0
        assert {"load", "print", "total", "template", "store", "attempt"} <= set(report["timings"])
        assert (report["blocked"], report["script_errors"]) == ({}, [])

    @pytest.mark.shows("P-5", "P-8")
    def test_a_message_that_comes_twice_renders_once(self, desk: Desk) -> None:
        job, printer = desk.create(), Printer()
        worker = desk.worker(printer)

        async def both() -> list[Any]:
            return await asyncio.gather(*(worker._process(job.job_id) for _ in range(4)))

        answers = asyncio.run(both())
        assert [answer is not None for answer in answers].count(True) == 1
        assert len(printer.times) == 1
        assert len(desk.stored()) == 1
        assert worker.process_job(job.job_id) is None, "it has ended"

    @pytest.mark.shows("P-15", "P-4")
    def test_a_transient_fault_is_followed_by_success(self, desk: Desk) -> None:
        job, worker = desk.create(), desk.worker(Printer(NO_LAUNCH))
        assert processed(desk, job, worker).status is QUEUED
        done = processed(desk, job, worker)
        assert (done.status, done.retry_count, done.error_code) == (SUCCEEDED, 1, None)
        assert desk.jobs.find_report(job.job_id)["retry_count"] == 1

    @pytest.mark.shows("P-15", "P-13")
    def test_a_slow_page_is_tried_three_times_and_has_then_failed(self, desk: Desk) -> None:
        job, printer = desk.create(), Printer(*[TIMEOUT] * 9)
        worker = desk.worker(printer)
        seen = [processed(desk, job, worker).status for _ in range(4)]
        assert seen == [QUEUED, QUEUED, FAILED, FAILED]
        assert len(printer.times) == 3
        failed = desk.jobs.read_job(job.job_id)
        assert (failed.error_code, failed.retry_count) == (PdfErrorCode.NAVIGATION_TIMEOUT, 2)

    @pytest.mark.shows("P-15")
    @pytest.mark.parametrize("code", ["TEMPLATE_ERROR", "UNSUPPORTED_PLATFORM", "UNKNOWN"])
    def test_a_permanent_fault_is_not_tried_again(self, sqlite_desk: Desk, code: str) -> None:
        error = pdf_error("no", code=PdfErrorCode(code), detail="dom_too_large")
        job, printer = sqlite_desk.create(), Printer(error)
        failed = processed(sqlite_desk, job, sqlite_desk.worker(printer))
        assert (failed.status, failed.retry_count) == (FAILED, 0)
        assert failed.error_code == code
        assert failed.error_detail == "dom_too_large"
        assert sqlite_desk.stored() == []

    @pytest.mark.shows("P-15", "P-34")
    def test_what_nobody_expected_is_unknown_and_quotes_nothing(
        self, sqlite_desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = sqlite_desk.create(name="Grace Hopper")
        broken = Printer(RuntimeError("no page for Grace Hopper"))
        failed = processed(sqlite_desk, job, sqlite_desk.worker(broken))
        assert (failed.status, failed.error_code) == (FAILED, PdfErrorCode.UNKNOWN)
        trail = str(sqlite_desk.engine.inspect.trail(job.job_id))
        assert "RuntimeError" in trail
        assert "Hopper" not in trail + caplog.text

    @pytest.mark.shows("P-43")
    def test_the_log_tells_how_each_attempt_ended(
        self, sqlite_desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "ulak.pdf")
        job = sqlite_desk.jobs.create_job(INVOICE, payload(), correlation_id="c-7")
        worker = sqlite_desk.worker(Printer(TIMEOUT))
        processed(sqlite_desk, job, worker)
        processed(sqlite_desk, job, worker)
        ended = [r for r in caplog.records if r.getMessage() == "an attempt has ended"]
        told = [(r.attempt, r.status, r.error_code) for r in ended]
        assert told == [(1, "failed", "NAVIGATION_TIMEOUT"), (2, "succeeded", "")]
        for record in ended:
            assert (record.job_id, record.correlation_id) == (job.job_id, "c-7")
            assert record.duration_ms >= 0

    def test_a_job_that_is_not_there_is_said_to_be_so(self, sqlite_desk: Desk) -> None:
        with pytest.raises(JobNotFound):
            sqlite_desk.worker().process_job("019c0000-0000-7000-8000-000000000000")

    def test_a_worker_without_an_engine_takes_nothing(self, sqlite_desk: Desk) -> None:
        alone = PdfRenderWorker(sqlite_desk.config, Pages(), Printer(), sqlite_desk.artifacts)
        with pytest.raises(NotSupported):
            alone.process_job(sqlite_desk.create().job_id)


class TestTemplates:
    """What a worker looks at again before it renders."""

    @pytest.mark.shows("P-26")
    @pytest.mark.parametrize("allowed", [frozenset(), frozenset({"report"})])
    def test_a_template_that_is_not_allowed_here_is_refused_again(
        self, open_desk: Callable[..., Desk], allowed: frozenset[str]
    ) -> None:
        config = PdfRenderConfig(security=PdfSecurityConfig(template_allowlist=allowed))
        desk = open_desk(config=config)
        pages, printer = Pages(), Printer()
        failed = processed(desk, desk.create(), desk.worker(printer, pages))
        assert (failed.status, failed.error_code) == (FAILED, PdfErrorCode.TEMPLATE_ERROR)
        assert (pages.asked, printer.times) == ([], [])

    @pytest.mark.shows("P-12")
    def test_a_template_that_has_changed_since_is_not_printed_under_the_old_key(
        self, sqlite_desk: Desk
    ) -> None:
        job, printer = sqlite_desk.create(), Printer()
        failed = processed(sqlite_desk, job, sqlite_desk.worker(printer, Pages(version="2")))
        assert failed.error_code is PdfErrorCode.TEMPLATE_ERROR
        assert failed.error_detail == "template_changed"
        assert printer.times == []

    @pytest.mark.shows("P-31")
    def test_variables_of_a_payload_are_escaped_once(self, sqlite_desk: Desk) -> None:
        worker = sqlite_desk.worker()
        clean = worker.sanitize_payload(payload(name="<b>&"))
        assert str(clean["variables"]["name"]) == "&lt;b&gt;&amp;"
        assert str(worker.sanitize_payload(clean)["variables"]["name"]) == "&lt;b&gt;&amp;"
        assert clean["template_version"] == "1"

    @pytest.mark.shows("P-27")
    def test_urls_are_those_of_the_allow_list(self, open_desk: Callable[..., Desk]) -> None:
        security = PdfSecurityConfig(url_allowlist=(r"https://cdn\.example\.org/.*",))
        worker = open_desk(config=PdfRenderConfig(security=security)).worker()
        assert worker.validate_url("HTTPS://CDN.example.org/a.png") is True
        assert worker.validate_url("https://example.org/a.png") is False


class Waiting:
    """A renderer that says when it has begun, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def render(self, document: Document, times: Times) -> Rendered:
        self.begun.set()
        await self.go.wait()
        return Rendered(A_PDF, pages=1, engine="Waiting/1", timings={})


class Slow(LocalStorage):
    """A storage whose writes wait until they are let."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.begun, self.go = threading.Event(), threading.Event()

    def put_bytes(self, key: str, data: bytes, content_type: str, **more: Any) -> str:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return super().put_bytes(key, data, content_type, **more)


class TestInterruptions:
    """An attempt that does not come to its end leaves nothing behind."""

    @pytest.mark.shows("P-7")
    def test_a_cancelled_attempt_gives_the_job_back(self, desk: Desk) -> None:
        job = desk.create()

        async def cancel() -> None:
            waiting = Waiting()
            attempt = asyncio.create_task(desk.worker(waiting)._process(job.job_id))
            await waiting.begun.wait()
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt

        asyncio.run(cancel())
        assert desk.jobs.read_job(job.job_id).status is RUNNING
        assert desk.engine.get(job.job_id).leased_by is None
        done = processed(desk, job, desk.worker())
        assert (done.status, done.retry_count) == (SUCCEEDED, 0)
        assert desk.stored() == [done.artifact_key]

    @pytest.mark.shows("P-7")
    def test_a_write_that_was_under_way_is_taken_back(
        self, open_desk: Callable[..., Desk], tmp_path: Path
    ) -> None:
        slow = Slow(tmp_path / "slow")
        desk = open_desk(storage=slow)
        job = desk.create()

        async def cancel() -> None:
            attempt = asyncio.create_task(desk.worker()._process(job.job_id))
            assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
            attempt.cancel()
            slow.go.set()
            with pytest.raises(asyncio.CancelledError):
                await attempt

        asyncio.run(cancel())
        assert desk.stored() == []

    @pytest.mark.shows("P-7", "P-5")
    def test_a_late_writer_leaves_no_second_artifact(self, open_desk: Callable[..., Desk]) -> None:
        late = open_desk()
        other = open_desk(clock=late.clock)
        job = late.create()

        async def race() -> None:
            waiting = Waiting()
            attempt = asyncio.create_task(late.worker(waiting)._process(job.job_id))
            await waiting.begun.wait()
            # Its lease lapses; another worker has the job now, and finishes it.
            late.clock.advance(late.config.lease + timedelta(minutes=1))
            worker = other.worker()
            while (
                await asyncio.to_thread(other.jobs.read_job, job.job_id)
            ).status is not SUCCEEDED:
                await worker._process(job.job_id)
            waiting.go.set()
            with pytest.raises(StaleJob):
                await attempt

        asyncio.run(race())
        done = other.jobs.read_job(job.job_id)
        assert (done.status, done.retry_count) == (SUCCEEDED, 1)
        assert other.stored() == [done.artifact_key]

    @pytest.mark.shows("P-7")
    def test_what_a_dead_worker_had_stored_is_removed_by_the_next(self, desk: Desk) -> None:
        job = desk.create()
        desk.jobs.update_status(job.job_id, RUNNING)
        left = desk.artifacts.store_pdf(job.job_id, b"%PDF of the dead")
        desk.jobs.close()
        done = processed(desk, job, desk.worker())
        assert done.status is SUCCEEDED
        assert desk.stored() == [done.artifact_key]
        assert done.artifact_key != left


class Refusing(LocalStorage):
    """A storage that confirms nothing until the n-th write."""

    def __init__(self, base: Path, *, until: int) -> None:
        super().__init__(base)
        self.until = until
        self.tried = 0

    def put_bytes(self, key: str, data: bytes, content_type: str, **more: Any) -> str:
        self.tried += 1
        if self.tried < self.until:
            raise ArtifactWriteFailed("the disk is full", key=key)
        return super().put_bytes(key, data, content_type, **more)


class TestStoring:
    """Storage that does not answer."""

    def desk_on(self, open_desk: Callable[..., Desk], storage: Refusing) -> Desk:
        desk = open_desk(storage=storage)
        desk.artifacts = PdfArtifactStore(storage, desk.clock, wait=lambda seconds: None)
        return desk

    @pytest.mark.shows("P-16")
    def test_a_write_is_tried_again_within_the_attempt(
        self, open_desk: Callable[..., Desk], tmp_path: Path
    ) -> None:
        storage = Refusing(tmp_path / "refusing", until=3)
        desk = self.desk_on(open_desk, storage)
        done = processed(desk, desk.create(), desk.worker())
        assert (done.status, done.retry_count) == (SUCCEEDED, 0)
        assert storage.tried == 3

    @pytest.mark.shows("P-16")
    def test_where_writes_keep_failing_the_job_is_given_back_and_says_why(
        self, open_desk: Callable[..., Desk], tmp_path: Path
    ) -> None:
        storage = Refusing(tmp_path / "refusing", until=10)
        desk = self.desk_on(open_desk, storage)
        job = desk.create()
        waited = []
        for tries in (3, 6, 9):
            later = processed(desk, job, desk.worker())
            assert (later.status, later.retry_count) == (RUNNING, 0)
            assert storage.tried == tries
            assert "(artifact_write_failed)" in desk.engine.inspect.why(job.job_id).sentence
            wait = desk.engine.get(job.job_id).not_before - now(desk.engine)
            waited.append(wait.total_seconds())
            desk.clock.advance(wait)
        assert waited == [1, 2, 4]
        done = processed(desk, job, desk.worker())
        assert (done.status, done.retry_count) == (SUCCEEDED, 0)
        assert desk.engine.inspect.verify() == []

    @pytest.mark.shows("P-16")
    def test_where_writes_keep_failing_the_job_fails_and_says_so(
        self, open_desk: Callable[..., Desk], tmp_path: Path
    ) -> None:
        storage = Refusing(tmp_path / "refusing", until=10**9)
        desk = self.desk_on(open_desk, storage)
        job = desk.create()
        for _ in range(8):
            processed(desk, job, desk.worker())
            desk.clock.advance(timedelta(seconds=60))
        wait = desk.engine.get(job.job_id).not_before - now(desk.engine)
        assert wait <= timedelta(seconds=60), "it is tried once a minute at least"
        desk.clock.advance(desk.config.artifact_ttl)
        failed = processed(desk, job, desk.worker())
        assert (failed.status, failed.error_code) == (FAILED, PdfErrorCode.UNKNOWN)
        assert failed.error_detail == "artifact_write_failed"


LOST = MachineFault("lost", code=PdfErrorCode.BROWSER_LAUNCH_FAILED, detail="browser_lost")
HERE = pdf_error("no browser", code=PdfErrorCode.UNSUPPORTED_PLATFORM)


async def _never(*_: object) -> Any:
    raise HERE


class TestFaultsOfTheMachine:
    """What is no fault of the document's costs it no retry."""

    @pytest.mark.shows("P-15")
    def test_a_lost_browser_gives_the_job_back(self, desk: Desk) -> None:
        job, worker = desk.create(), desk.worker(Printer(LOST, OSError(errno.ENOSPC, "full")))
        for word in ("browser_lost", "machine_exhausted"):
            later = processed(desk, job, worker)
            assert (later.status, later.retry_count) == (RUNNING, 0)
            assert f"({word})" in desk.engine.inspect.why(job.job_id).sentence
            desk.clock.advance(timedelta(seconds=60))
        done = processed(desk, job, worker)
        assert (done.status, done.retry_count) == (SUCCEEDED, 0)
        assert not [e for e in desk.engine.inspect.trail(job.job_id) if e.to_state == FAILED]
        assert desk.engine.inspect.verify() == []

    @pytest.mark.shows("P-15")
    def test_a_document_that_loses_its_browser_again_and_again_spends_retries(
        self, desk: Desk
    ) -> None:
        job, worker = desk.create(), desk.worker(Printer(*[LOST] * 1000))
        times = 0
        while (last := processed(desk, job, worker)).status is not FAILED:
            times += 1
            desk.clock.advance(timedelta(seconds=60))
        assert (last.retry_count, last.error_detail) == (2, "browser_lost")
        assert times == 3 * (1 + MOST_GIVEN_BACK) - 1

    @pytest.mark.shows("P-32")
    @pytest.mark.parametrize("asks", [True, False])
    def test_a_worker_that_cannot_render_leaves_its_job_to_others_if_it_claims_by_itself(
        self, desk: Desk, asks: bool
    ) -> None:
        job_id = desk.create().job_id

        async def attempt() -> BaseException:
            readiness = Readiness(_never, _never)
            worker = replace(desk.worker(Printer(HERE)), readiness=readiness)
            if asks:
                assert worker.unready() == "nothing was rendered yet"
            with pytest.raises((PdfError, RetryLater)) as raised:
                await worker.perform(job_id, PdfPayload(INVOICE, payload(), job_key="k"))
            assert "UNSUPPORTED_PLATFORM" in str(worker.unready())
            return raised.value

        assert isinstance(asyncio.run(attempt()), RetryLater if asks else PdfError)


class TestReadiness:
    """Whether anything can be rendered here."""

    @pytest.mark.shows("P-53", "P-59")
    def test_it_is_tried_before_the_first_job_and_again_in_doubt(self) -> None:
        tries: list[dict[str, str] | PdfError] = [
            {"chromium": "Chrome/1"}, HERE, HERE, {"chromium": ""}
        ]  # fmt: skip
        told: list[tuple[dict[str, str], str]] = []

        async def probe() -> dict[str, str]:
            found = tries.pop(0)
            if isinstance(found, PdfError):
                raise found
            return found

        async def publish(engines: Mapping[str, str], complaint: str) -> None:
            told.append((dict(engines), complaint))

        async def story() -> None:
            readiness = Readiness(probe, publish)
            assert readiness.complaint() is not None
            await readiness.look()
            assert readiness.complaint() is None
            keeping = asyncio.create_task(readiness.keep())
            await asyncio.sleep(0)
            readiness.doubt(NO_LAUNCH)
            assert "BROWSER_LAUNCH_FAILED" in str(readiness.complaint())
            async with asyncio.timeout(60):
                while readiness.complaint() is not None:
                    await asyncio.sleep(0.01)
            keeping.cancel()

        asyncio.run(story())
        assert [bool(complaint) for _, complaint in told] == [False, True, True, False]
        assert told[-1][0] == {"chromium": "Chrome/1"}, "one that rests keeps its name"


class TestTime:
    """The hard limit is of the attempt."""

    @pytest.mark.shows("P-13")
    def test_html_is_printed_within_the_time_that_is_asked_for(self, sqlite_desk: Desk) -> None:
        printer = Printer()
        worker = sqlite_desk.worker(printer)
        assert worker.render_html_to_pdf("<p>", 30) == A_PDF
        assert worker.render_html_to_pdf("<p>", timedelta(seconds=40)) == A_PDF
        hard = [times.hard.total_seconds() for times in printer.times]
        assert hard == [30, 40]
        assert printer.times[0].navigation == timedelta(seconds=25)
        with pytest.raises(BadInput):
            worker.render_html_to_pdf("<p>", 5)

    @pytest.mark.shows("P-13")
    def test_what_filling_the_template_takes_is_gone_from_it(self, sqlite_desk: Desk) -> None:
        now = [0.0]

        class Endless(Pages):
            def render(self, name: str, variables: Any, page: Any = None) -> Document:
                now[0] += 56.0  # of 60, and the page is asked to close at 55
                return super().render(name, variables)

        printer = Printer()
        worker = PdfRenderWorker(
            sqlite_desk.config, Endless(), printer, sqlite_desk.artifacts,
            monotonic=lambda: now[0],
        )  # fmt: skip
        job_id = sqlite_desk.create().job_id
        with pytest.raises(PdfError) as refused:
            asyncio.run(worker.perform(job_id, PdfPayload(INVOICE, payload(), job_key="k")))
        assert refused.value.code == "NAVIGATION_TIMEOUT"
        assert printer.times == []

    def test_the_engine_lets_an_attempt_end_by_its_own_limits(self) -> None:
        config = replace(PdfRenderConfig(), max_timeout=timedelta(seconds=100))
        assert config.stage_timeout > config.max_timeout + timedelta(seconds=10)
