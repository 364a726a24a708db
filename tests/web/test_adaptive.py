"""/admin/ops/adaptive and the metrics of the loop, through a real application."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ulak
import ulak.web
from tests.docs.pages import DOCS
from tests.web.people import Known, as_
from ulak import Engine
from ulak.clock import ManualClock, to_datetime
from ulak.control import AdaptiveControlConfig, Depth, Telemetry
from ulak.control.loop import ControlLoop, attach
from ulak.control.signals import GUARD, PDF
from ulak.control.subsystems import registered, subsystem
from ulak.control.tallies import LATENCY_SECONDS, Histogram
from ulak.wiring import find_guard_state, store_of

ROOT = "/admin/ops/adaptive"
WHY = {"reason": "a test"}
EVERYTHING = [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "*"}]


class Intake:
    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None:
        """Nothing is to be stopped here."""


class Controlled:
    """An application with a loop, whose ticks and latencies are a test's."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.engine = Engine(store_of(url, clock=self.clock)).open()
        self.depth = 0
        renders = Histogram("pdf_render_duration_seconds", "Long.", LATENCY_SECONDS)
        subsystem(
            self.engine, PDF, depth=lambda: Depth(self.depth), admission=Intake(),
            telemetry=lambda: Telemetry(0, 0, renders.read()),
        )  # fmt: skip
        config = AdaptiveControlConfig().changed({"targets": EVERYTHING, "dwell_time_seconds": 300})
        loop = attach(self.engine, config, find_guard_state(self.engine))
        assert isinstance(loop, ControlLoop)
        self.loop = loop
        self.app = ulak.web.app(self.engine, identity=Known())
        self.requests = self.app.state.metrics.requests

    def tick(self, times: int = 1, *, seconds: float = 0.01) -> None:
        from ulak.control.process_metrics import Publisher

        publisher = Publisher(self.engine, self.app.state.metrics.read, process="p1")
        for _ in range(times):
            self.clock.advance(self.loop.interval)
            for _ in range(20):
                self.requests.begun()
                self.requests.ended("GET", "/jobs", "2xx", seconds)
            publisher.publish()
            self.loop.tick(to_datetime(self.clock.now()), 1)

    def ask(
        self, path: str, *, method: str = "GET", who: str = "admin", **options: Any
    ) -> httpx.Response:
        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                headers = as_(who) if who else {}
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(one())

    def get(self, path: str) -> Any:
        answer = self.ask(ROOT + path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, method: str, path: str, body: Any, status: int) -> Mapping[str, Any]:
        answer = self.ask(ROOT + path, method=method, json=body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        document: Mapping[str, Any] = answer.json()
        return document


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Controlled]:
    made = Controlled(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL")
    yield made
    made.engine.close()


ROUTES = [
    ("GET", "/status", None), ("GET", "/config", None), ("GET", "/allowlist", None),
    ("GET", "/events", None), ("GET", "/audit", None),
    ("PATCH", "/config", {"revision": 1, "changes": {}, **WHY}),
    ("PUT", "/allowlist", {"entries": [], **WHY}), ("POST", "/guard/restore", WHY),
    ("POST", "/simulate", {"samples": []}),
]  # fmt: skip


@pytest.mark.shows("A-37")
def test_only_an_administrator_may(site: Controlled) -> None:
    for method, path, body in ROUTES:
        for who, status in (("", 401), ("nobody known", 401), ("viewer", 403), ("operator", 403)):
            answer = site.ask(ROOT + path, method=method, who=who, json=body)
            assert answer.status_code == status, (path, who)


@pytest.mark.shows("A-54")
def test_the_status_tells_how_it_stands(site: Controlled) -> None:
    assert site.get("/status")["state"] == "not-started"
    site.depth = 80
    site.tick(12)
    told = site.get("/status")
    assert (told["state"], told["enabled"], told["is_ticking"]) == ("running", True, True)
    assert told["last_tick"]["process"] == site.loop.process
    pdf = told["subsystems"][PDF]
    assert (pdf["mode"], pdf["set_by"]) == ("backpressure", "adaptive_control")
    assert 0 < pdf["dwell_left_ms"] < 300_000
    assert pdf["retry_after_seconds"] == math.ceil(pdf["dwell_left_ms"] / 1000)
    assert told["modes"][PDF]["trigger_metric"] == "queue_depth"
    assert told["readings"][PDF]["queue_depth"] == 80
    assert told["readings"][GUARD]["p95_seconds"] < 1
    assert told["thresholds"]["queue_depth_enter_threshold"] == 50
    assert told["failsafe"] == {"reason": "", "since_ms": None}
    summary = site.ask("/admin/ops/status").json()["adaptive"]
    assert (summary["state"], summary["modes"][PDF]) == ("running", "backpressure")
    site.clock.advance(timedelta(seconds=91))
    assert site.get("/status")["is_ticking"] is False


@pytest.mark.shows("A-55")
def test_the_configuration_is_changed_by_revision(site: Controlled) -> None:
    shown = site.get("/config")
    assert (shown["revision"], shown["config"]["dwell_time_seconds"]) == (1, 300)
    body = {"revision": 1, "changes": {"dwell_time_seconds": 60}, **WHY}
    answer = site.ask(f"{ROOT}/config", method="PATCH", json=body)
    assert (answer.status_code, answer.json()["revision"], answer.json()["actor"]) == (
        200,
        2,
        "ada",
    )
    stale = site.refused("PATCH", "/config", body, 409)
    assert (stale["error_code"], stale["revision"]) == ("STALE_REVISION", 2)
    changes = {"dwell_time_seconds": 0, "guard_slo_target": 2, "no_such_field": 1}
    wrong = site.refused("PATCH", "/config", {"revision": 2, "changes": changes, **WHY}, 422)
    assert wrong["error_code"] == "INVALID_CONFIG"
    assert [text.split()[0] for text in wrong["errors"]] == [
        "no_such_field", "guard_slo_target", "dwell_time_seconds",
    ]  # fmt: skip
    assert site.get("/config")["revision"] == 2
    for lacking in ({"revision": 2, "changes": {}}, {"revision": 2, "changes": {}, "reason": ""}):
        site.refused("PATCH", "/config", lacking, 422)
    (line,) = site.get("/audit?kind=config-refused")["items"]
    assert line["actor"] == "ada"


@pytest.mark.shows("A-51")
def test_the_list_is_replaced_and_audited(site: Controlled) -> None:
    assert site.get("/allowlist")["entries"] == EVERYTHING
    body = {"entries": [], **WHY}
    for _ in range(2):
        answer = site.ask(f"{ROOT}/allowlist", method="PUT", json=body)
        assert (answer.status_code, answer.json()) == (200, {"revision": 2, "entries": []})
    for bad in ({}, {**EVERYTHING[0], "tenant_id": ""}, {**EVERYTHING[0], "more": 1}, "x"):
        site.refused("PUT", "/allowlist", {"entries": [bad], **WHY}, 422)
    site.refused("PUT", "/allowlist", {"entries": []}, 422)
    newest, _ = site.get("/audit?kind=allow-list")["items"]
    assert (newest["old"], newest["new"], newest["actor"]) == (EVERYTHING, [], "ada")
    assert newest["reason"] == "a test"


@pytest.mark.shows("A-38", "A-37")
def test_a_restore_is_confirmed_when_it_may_be(site: Controlled) -> None:
    def code(**more: Any) -> str:
        found = site.refused("POST", "/guard/restore", {**WHY, **more}, 409)
        return str(found["error_code"])

    assert code() == "NOT_IN_SHADOW"
    site.tick(8, seconds=4.0)
    assert site.get("/status")["modes"][GUARD]["mode"] == "shadow"
    assert code(force=True) == "DWELL_ACTIVE"
    site.tick(11, seconds=4.0)
    assert code() == "NOT_RECOVERED"
    assert site.ask(f"{ROOT}/guard/restore", method="POST", json={}).status_code == 422
    switch = "/admin/ops/kill-switches/guard"
    assert site.ask(switch, method="PUT", json={"enabled": True, **WHY}).status_code == 200
    assert code(force=True) == "KILLSWITCH_ACTIVE"
    assert site.ask(switch, method="PUT", json={"enabled": False, **WHY}).status_code == 200
    answer = site.ask(f"{ROOT}/guard/restore", method="POST", json={**WHY, "force": True})
    assert (answer.status_code, answer.json()["actor"]) == (200, "manual_override")
    assert code() == "NOT_IN_SHADOW"
    newest, first = site.get("/events")["items"]
    assert {**newest, "id": None} == {**answer.json(), "id": None}
    assert (first["previous_mode"], first["new_mode"]) == ("enforce", "shadow")
    (line,) = site.get("/audit?kind=restore")["items"]
    assert (line["force"], line["actor"]) == (True, "ada")


@pytest.mark.shows("A-58", "A-57")
def test_events_and_audit_are_paged_newest_first(site: Controlled) -> None:
    site.depth = 80
    site.tick(12, seconds=4.0)
    (one,) = site.get("/events?subsystem=pdf")["items"]
    assert (one["subsystem_id"], one["reason"]) == (PDF, "queue_depth_exceeded")
    page = site.get("/events?limit=1")
    assert len(page["items"]) == 1
    rest = site.get(f"/events?limit=1&before={page['next']}")
    assert {page["items"][0]["subsystem_id"], rest["items"][0]["subsystem_id"]} == {GUARD, PDF}
    ticks = site.get("/audit?kind=tick&limit=500")
    assert len(ticks["items"]) == 12
    assert ticks["next"] is None
    numbers = [line["id"] for line in ticks["items"]]
    assert numbers == sorted(numbers, reverse=True)
    assert site.ask(f"{ROOT}/events?limit=0").status_code == 422


def test_what_would_be_decided_is_told_and_nothing_changes(site: Controlled) -> None:
    site.get("/config")
    before = site.get("/audit")
    samples = [{"queue_depth": 80, "p95_seconds": 0.4}] * 15
    answer = site.ask(f"{ROOT}/simulate", method="POST", json={"samples": samples})
    assert answer.status_code == 200
    assert "stop_accepting_jobs" in answer.text
    assert site.get("/audit") == before
    assert site.get("/events")["items"] == []
    site.refused("POST", "/simulate", {"samples": [{"queue_depth": "many"}]}, 422)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory://", (501, "not-supported", None)),
        ("sqlite:///jobs.db", (200, None, "not-started")),
    ],
)
def test_a_program_without_a_loop_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, expected: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ulak.connect(url) as engine:
        app = ulak.web.app(engine, identity=Known())

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.get(f"{ROOT}/status", headers=as_("admin"))

        answer = asyncio.run(one())
    document = answer.json()
    assert (answer.status_code, document.get("code"), document.get("state")) == expected


# --- metrics ----------------------------------------------------------------------------

PAGE = (DOCS / "spec" / "control.md").read_text()


def named() -> dict[str, tuple[str, set[str]]]:
    """Every metric of the table, its type and its labels."""
    table = PAGE.partition("## 12. Metrics")[2].partition("\nA-59")[0]
    found = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, kind, labels = (cell.strip() for cell in line.strip("|").split("|"))
            labels = re.sub(r" \(.*\)", "", labels)
            known = {each.split()[0] for each in labels.split(", ")} - {"–"}  # noqa: RUF001
            for name in names.replace("`", "").split(", "):
                found[name] = kind, known
    return found


Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(site: Controlled) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(site.ask("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


@pytest.mark.shows("A-59", "A-54")
def test_every_metric_of_the_table_is_shown_with_labels_of_closed_sets(site: Controlled) -> None:
    site.depth = 80
    site.tick(12, seconds=4.0)
    # Whoever stumbles counts too: an alert, a drift, a failsafe.
    metrics = registered(site.engine).metrics
    metrics.oscillations.add((PDF,))
    metrics.failsafe.add(("internal_error",))
    site.clock.advance(timedelta(seconds=30))
    said = scrape(site)
    wanted = named()
    assert len(wanted) == 20
    for name, (kind, labels) in wanted.items():
        shown = f"{name}_count" if kind == "histogram" else name
        assert said.get(shown), name
        for given, value in said[shown]:
            assert given.keys() == labels, name
            assert not math.isnan(value)
    closed = {
        "subsystem": {GUARD, PDF}, "state": {"running", "failsafe", "suspended"},
        "signal_type": {"switch_to_shadow", "restore_enforce", "stop_accepting_jobs",
                        "resume_accepting_jobs"},
        "from_mode": {"enforce", "shadow", "accepting", "backpressure"},
        "to_mode": {"enforce", "shadow", "accepting", "backpressure"},
        "metric": {"5xx_rate", "block_rate", "snapshot_failure_rate", "failed_jobs_rate",
                   "queue_unavailable_rate"},
        "window": {"5m", "30m", "1h", "2h", "6h", "1d", "3d"},
    }  # fmt: skip
    for name, samples in said.items():
        for given, _ in samples if name.startswith("adaptive_") else ():
            assert "tenant" not in given
            for label, text in given.items():
                assert text in closed.get(label, {text}), (name, label, text)
    assert said["adaptive_control_failsafe"] == said["adaptive_control_failsafe_total"]
    assert ({"reason": "internal_error"}, 1.0) in said["adaptive_control_failsafe"]
    assert said["adaptive_pdf_backpressure_active"] == [({}, 1.0)]
    # Stopped by the eighth tick: 4 intervals and the half minute since then.
    assert said["adaptive_pdf_backpressure_seconds"] == [({}, 150.0)]
    assert said["adaptive_guard_shadow_seconds"] == [({}, 150.0)]
    states = {given["state"]: v for given, v in said["adaptive_control_state"]
              if given["subsystem"] == PDF}  # fmt: skip
    assert states == {"running": 1.0, "failsafe": 0.0, "suspended": 0.0}
    assert json.loads(site.ask(f"{ROOT}/status").text)["state"] == "running"
