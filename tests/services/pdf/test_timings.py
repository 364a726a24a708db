"""What an attempt took, step by step, and the trace that it belongs to."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.scenario.doubles import settings as worker_settings
from tests.services.pdf.browser.yard import a_pool
from tests.services.pdf.desk import INVOICE, Desk, Pages, Printer, payload
from tests.services.pdf.plant import PATIENCE_S, Plant, eventually, plant
from ulak.errors import StoreError
from ulak.services.pdf.document import BREAKDOWN, FINISH
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus, pdf_error
from ulak.services.pdf.worker import PdfRenderWorker
from ulak.tracing_otel import OtelTracing

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
OF_A_BROWSER = ["pdf.template", "pdf.launch", "pdf.load", "pdf.print", "pdf.store"]
TIMEOUT = pdf_error("too slow", code=PdfErrorCode.NAVIGATION_TIMEOUT)


@pytest.mark.shows("P-60")
def test_queue_is_from_when_a_job_was_due_to_its_claim(desk: Desk) -> None:
    job = desk.create()
    desk.clock.advance(timedelta(seconds=7))
    desk.worker().process_job(job.job_id)
    report = desk.jobs.find_report(job.job_id)
    assert report is not None
    assert report["timings"]["queue"] == 7.0
    assert report["warnings"] == []


@pytest.mark.shows("P-60")
def test_queue_of_a_retry_begins_when_the_retry_is_due(desk: Desk) -> None:
    job, worker = desk.create(), desk.worker(Printer(TIMEOUT))
    desk.clock.advance(timedelta(seconds=5))
    worker.process_job(job.job_id)
    desk.clock.advance(timedelta(seconds=3))
    worker.process_job(job.job_id)
    report = desk.jobs.find_report(job.job_id)
    assert report is not None
    assert (report["retry_count"], report["timings"]["queue"]) == (1, 3.0)


def test_a_store_that_does_not_tell_how_long_a_job_was_queued_fails_no_attempt(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sqlite_desk.create()

    def refuse(job_id: str) -> Any:
        raise StoreError("it does not answer")

    monkeypatch.setattr(sqlite_desk.engine, "get", refuse)
    sqlite_desk.worker().process_job(job.job_id)
    report = sqlite_desk.jobs.find_report(job.job_id)
    assert report is not None
    assert "queue" not in report["timings"]


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowPages(Pages):
    """Templates that take three seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, *asked: Any) -> Any:
        self._clock.now += 3
        return super().render(*asked)


@pytest.mark.shows("P-60")
def test_filling_and_storing_are_told_apart_from_printing(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    store = sqlite_desk.artifacts.store_pdf

    def store_slowly(job_id: str, pdf: bytes) -> str:
        clock.now += 4
        return store(job_id, pdf)

    monkeypatch.setattr(sqlite_desk.artifacts, "store_pdf", store_slowly)
    worker = PdfRenderWorker(
        sqlite_desk.config, SlowPages(clock), Printer(), sqlite_desk.artifacts,
        engine=sqlite_desk.engine, monotonic=clock,
    )  # fmt: skip
    job = sqlite_desk.create()
    worker.process_job(job.job_id)
    report = sqlite_desk.jobs.find_report(job.job_id)
    assert report is not None
    took = report["timings"]
    assert (took["template"], took["store"], took["attempt"]) == (3, 4, 7)
    assert (took["load"], took["print"]) == (0.01, 0.02)


# --- traces ---------------------------------------------------------------------


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(sqlite_desk: Desk, kept: InMemorySpanExporter) -> Iterator[Desk]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    sqlite_desk.engine.kernel.tracing = OtelTracing(provider)
    yield sqlite_desk
    provider.shutdown()


def worked(desk: Desk, renderer: Any, *, templates: Any = None, browser: bool = False) -> str:
    """Have a job worked on by the engine's own worker, and answer its id."""

    @desk.engine.resource(PdfRenderWorker, queue="pdf", places=1)
    @asynccontextmanager
    async def open_it() -> AsyncIterator[PdfRenderWorker]:
        if not browser:
            yield desk.worker(renderer, templates)
            return
        async with a_pool(tracing=desk.engine.kernel.tracing) as pool:
            yield desk.worker(pool, templates)

    job_id: str = desk.jobs.create_job(INVOICE, payload(name="Grace Hopper")).job_id
    with desk.engine.working(worker_settings(queues=frozenset({"pdf"}))):
        desk.engine.wait(job_id, timeout=timedelta(seconds=PATIENCE_S))
    return job_id


def of_steps(kept: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in kept.get_finished_spans() if span.name.startswith("pdf.")]


@pytest.mark.shows("P-60")
def test_every_step_of_an_attempt_is_a_child_of_its_stage(
    traced: Desk, kept: InMemorySpanExporter
) -> None:
    job_id = worked(traced, None, browser=True)
    report = traced.jobs.find_report(job_id)
    assert report is not None
    assert {*BREAKDOWN, "total", "attempt"} - {FINISH} == set(report["timings"])
    [stage] = [span for span in kept.get_finished_spans() if span.name == "ulak.stage"]
    assert stage.context is not None
    spans = of_steps(kept)
    assert [span.name for span in spans] == OF_A_BROWSER
    for span in spans:
        assert span.context is not None
        assert span.parent is not None
        assert span.context.trace_id == stage.context.trace_id
        assert span.parent.span_id == stage.context.span_id
        assert span.status.status_code is StatusCode.UNSET


class Broken(Pages):
    """Templates that fail and quote what they were to be filled with."""

    def render(self, name: str, variables: Any, *more: Any) -> Any:
        raise RuntimeError(f"no page for {variables['name']}")


@pytest.mark.shows("P-34")
def test_the_span_of_a_step_that_fails_says_so_and_quotes_nothing(
    traced: Desk, kept: InMemorySpanExporter
) -> None:
    job_id = worked(traced, Printer(), templates=Broken())
    assert traced.jobs.read_job(job_id).status is PdfJobStatus.FAILED
    [span] = of_steps(kept)
    assert (span.name, span.status.status_code) == ("pdf.template", StatusCode.ERROR)
    assert span.status.description == "RuntimeError"
    assert "Hopper" not in "".join(each.to_json() for each in kept.get_finished_spans())


@pytest.fixture
def key() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def works(sqlite_url: str, tmp_path: Path, key: str) -> Iterator[Plant]:
    with plant(
        sqlite_url, tmp_path, ULAK_ADMIN_KEY=key, OTEL_TRACES_EXPORTER="console"
    ) as made:  # fmt: skip
        yield made


@pytest.mark.shows("P-60")
def test_one_trace_leads_from_a_request_over_the_queue_to_the_steps_in_another_process(
    works: Plant, key: str
) -> None:
    up = works.start("up", "--port", "0")
    assert up.stdout is not None
    lines: list[str] = []
    address = ""
    for line in up.stdout:
        lines.append(line)
        found = [word for word in line.split() if word.startswith("http://")]
        if " serves " in line and found:
            address = found[0]
            break
    assert address, "".join(lines)
    reading = threading.Thread(target=lines.extend, args=(up.stdout,), daemon=True)
    reading.start()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        eventually(lambda: client.get("/pdf/ready").status_code == 200)
        created = client.post(
            "/pdf/jobs", headers={"traceparent": TRACEPARENT},
            json={"template_name": "plain", "variables": {"n": 1}},
        )  # fmt: skip
        assert created.status_code == 202, created.text
        where = created.headers["Location"]
        eventually(lambda: client.get(f"{where}/report").status_code == 200)
        told = client.get(f"{where}/report").json()
    up.terminate()
    assert up.wait(PATIENCE_S) == 0, "".join(lines)
    reading.join(PATIENCE_S)
    assert set(BREAKDOWN) - {FINISH} < set(told["timings"])

    spans = [span for span in spans_in("".join(lines)) if span["context"]["trace_id"][2:] == TRACE]
    by_id = {span["context"]["span_id"]: span for span in spans}
    [stage] = [span for span in spans if span["name"] == "ulak.stage"]
    assert stage["attributes"]["ulak.job.id"] == told["job_id"]
    # The web framework may have spans of its own in between.
    above = [stage]
    while above[-1]["parent_id"] in by_id:
        above.append(by_id[above[-1]["parent_id"]])
    assert (above[1]["name"], above[-1]["name"]) == ("ulak.submit", "POST /pdf/jobs")
    assert above[-1]["parent_id"][2:] == CALLER
    steps = [span for span in spans if span["name"].startswith("pdf.")]
    assert [span["name"] for span in steps] == OF_A_BROWSER
    assert {span["parent_id"] for span in steps} == {stage["context"]["span_id"]}


def spans_in(text: str) -> Iterator[dict[str, Any]]:
    """Read the spans that processes have printed among other lines."""
    decoder = json.JSONDecoder()
    at = text.find("{\n")
    while at >= 0:
        try:
            span, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            end = at + 1
        else:
            if isinstance(span, dict) and "context" in span:
                yield span
        at = text.find("{\n", end)
