"""One trace from a request through its submit to the stage, in whichever process that runs."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import ulak
import ulak.web
from ulak import wiring
from ulak.errors import BadInput
from ulak.testing import Harness
from ulak.tracing_otel import OtelTracing

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"

PROGRAM = """
import ulak

engine = ulak.connect("sqlite:///jobs.db")


@engine.job
def greet(name: str) -> str:
    return f"hello {name}"
"""
# Runs what can be run, and prints the spans of this process.
WORKER = """
import asyncio, json
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ulak.tracing_otel import OtelTracing
from program import engine

provider, kept = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(kept))
engine.kernel.tracing = OtelTracing(provider)
with engine:
    asyncio.run(engine.worker().run(until_idle=True))
print(json.dumps([json.loads(span.to_json()) for span in kept.get_finished_spans()]))
"""


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(kept: InMemorySpanExporter) -> Iterator[OtelTracing]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield OtelTracing(provider)
    provider.shutdown()


def named(kept: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in kept.get_finished_spans() if span.name == name]


def test_one_trace_leads_from_a_request_to_a_stage_in_another_process(
    tmp_path: Path, kept: InMemorySpanExporter, tracing: OtelTracing
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    engine = ulak.connect(f"sqlite:///{tmp_path}/jobs.db")
    engine.kernel.tracing = tracing

    @engine.job
    def greet(name: str) -> str:
        return f"hello {name}"

    async def submit() -> httpx.Response:
        transport = httpx.ASGITransport(ulak.web.app(engine, identity=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            body = {"flow": "greet", "payload": {"name": "ada"}}
            return await client.post("/jobs", json=body, headers={"traceparent": TRACEPARENT})

    with engine:
        answer = asyncio.run(submit())
        assert answer.status_code == 201, answer.text
        done = subprocess.run(
            [sys.executable, "-c", WORKER], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert engine.get(answer.json()["id"]).state == "done"
    [request], [submitted] = named(kept, "POST /jobs"), named(kept, "ulak.submit")
    assert format(request.context.trace_id, "032x") == TRACE
    assert format(request.parent.span_id, "016x") == CALLER
    assert request.kind is SpanKind.SERVER
    assert request.attributes["http.response.status_code"] == 201
    assert submitted.parent.span_id == request.context.span_id
    assert submitted.kind is SpanKind.PRODUCER
    [stage] = json.loads(done.stdout)
    assert stage["name"] == "ulak.stage"
    assert stage["kind"] == "SpanKind.CONSUMER"
    assert int(stage["context"]["trace_id"], 16) == int(TRACE, 16)
    assert int(stage["parent_id"], 16) == submitted.context.span_id
    assert stage["attributes"] == {
        "ulak.flow": "greet", "ulak.state": "queued", "ulak.job.id": answer.json()["id"],
        "ulak.attempt": 1, "ulak.outcome": "finished",
    }  # fmt: skip
    assert submitted.attributes == {"ulak.flow": "greet", "ulak.job.id": answer.json()["id"]}


@pytest.mark.parametrize("is_async", [True, False])
def test_what_a_stage_raises_is_recorded_and_each_attempt_has_its_span(
    is_async: bool, kept: InMemorySpanExporter, tracing: OtelTracing
) -> None:
    with Harness() as harness:
        harness.engine.kernel.tracing = tracing

        def fail() -> None:
            raise ValueError("no luck")

        async def fail_async() -> None:
            raise ValueError("no luck")

        job = harness.engine.job(fail_async if is_async else fail, name="bad", retry=1)
        harness.submit(job)
        harness.advance(minutes=5)
    stages = named(kept, "ulak.stage")
    assert [span.attributes["ulak.attempt"] for span in stages] == [1, 2]
    for span in stages:
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["ulak.outcome"] == "raised"
        assert span.events[0].attributes["exception.message"] == "no luck"
    [submitted] = named(kept, "ulak.submit")
    assert {span.parent.span_id for span in stages} == {submitted.context.span_id}


def test_what_a_stage_spawns_belongs_to_its_trace(
    kept: InMemorySpanExporter, tracing: OtelTracing
) -> None:
    child = ulak.Flow.steps("child", _nothing)

    def parent(run: ulak.Run[Any]) -> None:
        run.spawn(child, [{}])

    flow = ulak.Flow.steps("parent", parent)
    with Harness(flow, child) as harness:
        harness.engine.kernel.tracing = tracing
        harness.run(flow, {})
    first, second = named(kept, "ulak.stage")
    assert (first.attributes["ulak.flow"], second.attributes["ulak.flow"]) == ("parent", "child")
    assert second.parent.span_id == first.context.span_id


def _nothing(run: ulak.Run[Any]) -> None: ...


def test_a_traceparent_that_cannot_be_read_begins_a_trace_of_its_own(
    engine, ask, kept: InMemorySpanExporter, tracing: OtelTracing
) -> None:
    engine.kernel.tracing = tracing
    app = ulak.web.app(engine, identity=None)
    assert ask(app, "/health/live", headers={"traceparent": "rubbish"}).status_code == 200
    assert ask(app, "/nothing").status_code == 404
    live, other = kept.get_finished_spans()
    assert (live.name, live.parent) == ("GET /health/live", None)
    assert other.name == "other other", "a path that nobody declared names no span"


def test_without_tracing_nothing_is_stored_and_no_function_is_wrapped(tmp_path: Path) -> None:
    with Harness(path=tmp_path / "jobs.db") as harness:
        flow = harness.engine.add(ulak.Flow.steps("plain", _nothing))
        job = harness.run(flow, {})
        stored = harness.engine.store.find_payload(bytes.fromhex(job.id.replace("-", "")))
        assert stored.trace is None


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_a_process_is_not_traced_unless_it_is_told_where_spans_go(environ: dict[str, str]) -> None:
    engine = ulak.connect("memory://")
    wiring.trace(engine, environ)
    assert engine.kernel.tracing is None


def test_an_exporter_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match=r"zipkin.*otlp, console, or none"):
        wiring.trace(ulak.connect("memory://"), {"OTEL_TRACES_EXPORTER": "zipkin"})


SETS_A_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import ulak
assert ulak.connect("memory://").kernel.tracing is None
trace.set_tracer_provider(TracerProvider())
assert ulak.connect("memory://").kernel.tracing is not None
"""
EXPORTS = """
import ulak
from ulak import wiring
engine = ulak.connect("memory://")
wiring.trace(engine, {"OTEL_TRACES_EXPORTER": "console"})

@engine.job
def greet() -> None: ...

with engine:
    engine.submit(greet)
"""


def test_a_program_that_has_set_a_provider_is_traced_by_it() -> None:
    subprocess.run([sys.executable, "-c", SETS_A_PROVIDER], check=True, timeout=60)


def test_the_variables_of_opentelemetry_choose_where_spans_go() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXPORTS], check=True, capture_output=True, text=True, timeout=60
    )
    assert '"name": "ulak.submit"' in done.stdout


def test_importing_the_tests_has_set_no_provider_for_everybody() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
