"""GET /metrics: what it says, that it is bounded, and that nobody can make it grow."""

import asyncio
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ulak
import ulak.web
from tests.docs.pages import DOCS
from ulak.errors import StoreError
from ulak.store.protocol import CountRow
from ulak.testing import Harness
from ulak.web import metrics
from ulak.web.metrics import Metrics

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(text: str) -> Series:
    """Every line of a scrape: its value by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ulak_")
    }


def value(found: Series, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def scrape(metrics: Metrics) -> Series:
    return series(metrics.text().decode())


def test_a_scrape_says_what_an_engine_did_and_how_its_store_stands(engine, ask):
    app = ulak.web.app(engine, identity=None)
    engine.submit(engine.greet, "ada", dedup_key="k")
    engine.submit(engine.greet, "ada", dedup_key="k")
    with engine.working():
        engine.wait(engine.jobs()[0].id, timeout=timedelta(seconds=20))
        answer = ask(app, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    said = series(answer.text)
    assert value(said, "ulak_submits_total", flow="greet", answer="created") == 1
    assert value(said, "ulak_submits_total", flow="greet", answer="repeat") == 1
    assert value(said, "ulak_claimed_jobs_total", flow="greet") == 1
    assert value(said, "ulak_wait_seconds_count", flow="greet") == 1
    assert value(said, "ulak_runs_total", flow="greet", state="queued", outcome="moved") == 1
    assert value(said, "ulak_run_seconds_count", flow="greet", state="queued") == 1
    assert value(said, "ulak_moves_total", flow="greet", state="done", role="done") == 1
    assert value(said, "ulak_receipts_total", receipt="committed") == 1
    assert value(said, "ulak_commit_changes_bucket", le="1.0") == 1
    assert value(said, "ulak_jobs", flow="greet", state="done", role="done") == 1
    assert value(said, "ulak_workers") == 1
    assert value(said, "ulak_store_up") == 1
    assert value(said, "ulak_store_failures_total", verb="commit") == 0
    assert value(said, "ulak_queue_paused", queue="greet") == 0
    assert value(said, "ulak_info", version=ulak.__version__, store="memory") == 1


def test_retries_holds_lapses_slots_pauses_and_messages_are_counted(tmp_path: Path) -> None:
    with Harness(path=tmp_path / "jobs.db") as harness:
        metrics = Metrics(harness.engine)

        def fail(run: ulak.Run[Any]) -> None:
            raise ValueError("no")

        flow = ulak.Flow("order", ulak.Lifecycle("new", {"new": ["done"]}))
        flow.stage("new", limit=ulak.Limit(3))(fail)
        harness.engine.add(flow)
        harness.submit(flow, {})
        harness.run_until_idle()
        harness.engine.flow_control.pause(queue="order", actor="ada")
        said = scrape(metrics)
        assert value(said, "ulak_runs_total", flow="order", state="new", outcome="retry") == 1
        assert value(said, "ulak_slots", limit="order/new") == 3
        assert value(said, "ulak_slots_used", limit="order/new") == 0
        assert value(said, "ulak_queue_paused", queue="order") == 1
        assert value(said, "ulak_pauses", kind="queue") == 1
        assert value(said, "ulak_pauses", kind="key") == 0
        assert value(said, "ulak_dead_messages") == 0
        assert value(said, "ulak_schedules_late") == 0


@pytest.mark.shows("E-54")
def test_the_length_of_the_wal_is_a_metric(tmp_path: Path) -> None:
    engine = ulak.connect(f"sqlite:///{tmp_path}/jobs.db")

    @engine.job
    def greet() -> None: ...

    with engine:
        engine.submit(greet)
        said = scrape(Metrics(engine))
        assert value(said, "ulak_sqlite_wal_bytes") == engine.store.wal_size() > 0
        assert value(said, "ulak_ring_up") is None


@pytest.mark.shows("E-55")
def test_the_test_of_the_ring_is_a_metric(databases) -> None:
    from tests.conformance.stores import make_schema

    with databases.lend(make_schema) as url, ulak.connect(url) as engine:
        assert engine.store.about()["ring"] is True
        said = scrape(Metrics(engine))
        assert value(said, "ulak_ring_up") == 1
        assert value(said, "ulak_rings_heard_total") == engine.store.ring_heard()[1]
        assert value(said, "ulak_sqlite_wal_bytes") is None
        engine.store._listener.is_well = False
        assert value(scrape(Metrics(engine)), "ulak_ring_up") == 0


def test_what_nobody_declared_makes_no_series_of_its_own(engine, ask, monkeypatch):
    app = ulak.web.app(engine, identity=None)
    ask(app, "/jobs/x")
    ask(app, "/nothing")
    ask(app, "/jobs", method="BREW")
    ask(app, "/metrics")
    before = series(ask(app, "/metrics").text)
    strange = [CountRow(f"flow{n}", n, f"state{n}", "ready", 1) for n in range(100)]
    real = engine.store.counts
    monkeypatch.setattr(engine.store, "counts", lambda: real() + strange)
    foreign = ulak.Engine(engine.store)
    for n in range(20):
        ask(app, f"/nothing{n}/{n}")
        ask(app, f"/jobs/{n}?x={n}")
        ask(app, "/jobs", method=f"BREW{n}")
        # A job of a flow that this engine does not declare, told by whoever stores it.
        job = foreign.add(ulak.Flow.steps(f"foreign{n}", _nothing))
        added = foreign.submit(job, None)
        engine.kernel.telemetry.accepted([_added(foreign, added.id)], 0.1)
    after = series(ask(app, "/metrics").text)
    new = after.keys() - before.keys()
    assert {dict(labels).get("flow", "other") for _, labels in new} <= {"other", "greet"}
    assert len(new) <= 3, new
    assert value(after, "ulak_jobs", flow="other", state="other", role="ready") >= 100
    assert value(after, "ulak_submits_total", flow="other", answer="created") == 20
    assert value(after, "ulak_requests_total", method="other", route="other", status="4xx") >= 20


def _nothing(run: ulak.Run[Any]) -> None: ...


def _added(engine: ulak.Engine, job_id: str) -> Any:
    from ulak.ids import from_text
    from ulak.store.protocol import Added

    return Added(engine.store.find_job(from_text(job_id)), True)


def test_requests_are_counted_by_the_template_of_their_route(engine, ask, monkeypatch):
    app = ulak.web.app(engine, identity=None)
    ask(app, "/jobs?limit=3")
    ask(app, "/jobs?limit=none")
    ask(app, "/health/live", method="HEAD")

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(engine, "jobs", fail)
    assert ask(app, "/jobs").status_code == 500
    said = series(ask(app, "/metrics").text)
    counted = {s: value(said, "ulak_requests_total", method="GET", route="/jobs", status=s)
               for s in ("2xx", "4xx", "5xx", "0xx")}  # fmt: skip
    assert counted == {"2xx": 1, "4xx": 1, "5xx": None, "0xx": 1}
    assert value(said, "ulak_request_seconds_count", method="GET", route="/jobs") == 3
    assert (
        value(said, "ulak_requests_total", method="HEAD", route="/health/live", status="2xx") == 1
    )
    assert value(said, "ulak_requests_in_flight") == 1, "the scrape itself"


@pytest.mark.shows("A-12")
def test_what_a_caller_waits_for_of_its_own_will_is_not_latency(engine, ask):
    app = ulak.web.app(engine, identity=None)
    job = engine.submit(engine.greet, "ada").id
    assert ask(app, f"/jobs/{job}?wait=0.5").status_code == 200
    found = {family.name: family.series for family in app.state.metrics.read()}
    *_, latency_s = found["http_request_duration_seconds"]["GET", "/jobs/{id}", "2xx"]
    *_, whole_s = found["ulak_request_seconds"]["GET", "/jobs/{id}"]
    assert latency_s <= whole_s - 0.5


def test_a_store_that_fails_is_down_and_the_counters_are_answered(engine, monkeypatch):
    metrics = Metrics(engine)
    engine.submit(engine.greet, "ada")

    def fail() -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "counts", fail)
        said = scrape(metrics)
    assert value(said, "ulak_store_up") == 0
    assert value(said, "ulak_workers") is None
    assert value(said, "ulak_submits_total", flow="greet", answer="created") == 1
    assert value(scrape(metrics), "ulak_store_up") == 1


def test_a_store_that_hangs_holds_up_no_scrape_and_no_loop(engine, monkeypatch):
    asked, answer = [], threading.Event()

    def hang() -> list[Any]:
        asked.append(1)
        answer.wait(120)
        return []

    monkeypatch.setattr(metrics, "PATIENCE_S", 0.2)
    app = ulak.web.app(engine.open(), identity=None)
    monkeypatch.setattr(engine.store, "counts", hang)

    async def scrape_and_ask() -> tuple[list[httpx.Response], httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(50)]
            await asyncio.sleep(0)
            async with asyncio.timeout(0.15):
                alive = await client.get("/health/live")
            return await asyncio.gather(*scrapes), alive

    scrapes, alive = asyncio.run(scrape_and_ask())
    answer.set()
    assert alive.status_code == 200
    assert [value(series(scraped.text), "ulak_store_up") for scraped in scrapes] == [0] * 50
    assert len(asked) == 1


def test_two_applications_do_not_notice_each_other(engine, ask):
    one, other = (
        ulak.web.app(engine, identity=None),
        ulak.web.app(ulak.connect("memory://"), identity=None),
    )
    engine.submit(engine.greet, "ada")
    ask(one, "/jobs")
    said = series(ask(other, "/metrics").text)
    assert value(said, "ulak_requests_total", method="GET", route="/jobs", status="2xx") is None
    assert not any(dict(labels).get("flow") == "greet" for _, labels in said)


def test_every_metric_has_a_line_in_the_docs_and_a_name_of_the_house(tmp_path: Path) -> None:
    page = (DOCS / "operations" / "monitor.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `((?:ulak|http|adaptive)_\w+)` \| (.+?) \|", page, re.M))
    with ulak.connect(f"sqlite:///{tmp_path}/jobs.db") as engine:
        families = list(ulak.web.app(engine, identity=None).state.metrics.collect())
    names = {f.name + ("_total" if f.type == "counter" else ""): f for f in families}
    assert said.keys() == names.keys()
    for name, family in names.items():
        # Those that a specification names keep their names.
        assert name.startswith(("ulak_", "http_request_", "adaptive_"))
        assert family.documentation.endswith(".")
        labels = {label for s in family.samples for label in s.labels} - {"le"}
        assert labels <= set(re.findall(r"`(\w+)`", said[name])), name
        if family.type == "histogram":
            assert name.endswith(("_seconds", "_changes"))
