"""`ulak control`: how adaptive control stands, why, and what it would do."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import ulak as library
from ulak.control.config import AdaptiveControlConfig
from ulak.control.explanation import explain
from ulak.control.loop import ControlLoop
from ulak.control.signals import PDF
from ulak.control.state import LastTick
from ulak.control.subsystems import Depth, subsystem
from ulak.wiring import find_guard_state

EXAMPLES = Path(__file__).parents[2] / "examples" / "control"
EVERYTHING = [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "*"}]
PROGRAM = """
import ulak

engine = ulak.connect("sqlite:///controlled.db")
"""
SHORT = """\
load: step
seconds: 420
begins: 310
ends: 360
control: {control_loop_interval_seconds: 10, dwell_time_seconds: 10, cooldown_period_seconds: 10}
"""


@pytest.fixture
def ulak(tmp_path, run, monkeypatch):
    (tmp_path / "controlled.py").write_text(PROGRAM)
    sys.path.insert(0, str(tmp_path))
    monkeypatch.delitem(sys.modules, "controlled", raising=False)
    return lambda *arguments: run("control", *arguments, "-a", "controlled:engine")


class Intake:
    def set_backpressure(self, active, retry_after_seconds, *, connection=None):
        pass


def tick(folder: Path, times: int, **changes: Any) -> None:
    """Tick as a worker would, with a queue that is too deep."""
    from datetime import UTC, datetime, timedelta

    config = AdaptiveControlConfig().changed({"targets": EVERYTHING, **changes})
    with library.connect(f"sqlite:///{folder / 'controlled.db'}") as engine:
        subsystem(engine, PDF, depth=lambda: Depth(80, 4.0), admission=Intake())
        guard = find_guard_state(engine)
        assert guard is not None
        loop = ControlLoop(engine, config, guard)
        for n in range(times):
            loop.tick(datetime.now(UTC) + timedelta(seconds=n), 1)


@pytest.mark.shows("A-77")
def test_before_the_first_tick_there_is_nothing_to_explain(ulak):
    for command in ("status", "why"):
        said = ulak(command)
        assert said.code == 0
        assert "no tick has ended yet" in said.out
        assert ulak(command, "--json").document["subsystems"] == {}


@pytest.mark.shows("A-77")
def test_the_last_tick_is_explained(ulak, tmp_path):
    tick(tmp_path, 2)
    said = ulak("why")
    assert "the loop runs" in said.out
    assert "too little telemetry (min_samples, bucket_coverage)" in said.out
    assert "80 (enter above 50, exit below 20)" in said.out
    found = ulak("why", "--json").document
    pdf = found["subsystems"]["pdf"]
    assert (pdf["mode"], pdf["value"], pdf["enter"], pdf["exit"]) == ("accepting", 80, 50, 20)
    assert pdf["insufficient"] == "min_samples, bucket_coverage"
    assert {b["metric"] for b in pdf["budgets"]} == {"failed_jobs_rate", "queue_unavailable_rate"}
    assert "nothing is measured" in found["subsystems"]["guard"]["why"]
    status = ulak("status")
    assert "running" in status.out
    assert "accepting" in status.out


@pytest.mark.shows("A-77")
def test_a_store_without_tables_says_so(run, tmp_path, monkeypatch):
    (tmp_path / "forgetful.py").write_text('import ulak\nengine = ulak.connect("memory://")\n')
    sys.path.insert(0, str(tmp_path))
    monkeypatch.delitem(sys.modules, "forgetful", raising=False)
    said = run("control", "status", "-a", "forgetful:engine")
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith("error: ")


READING = {"p95_seconds": 0.1, "queue_depth": 80.0}


def explained(
    *, state: str = "running", seconds_ago: float = 1, reading: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None, report: dict[str, Any] | None = None, **stands: Any,
) -> tuple[str, str]:  # fmt: skip
    """The sentence on the loop, and the one on the intake."""
    usual = {
        "mode": "accepting", "set_by": "default", "dwell_left_ms": 0, "cooldown_left_ms": 0,
        "is_oscillating": False,
    }  # fmt: skip
    seen = {
        "subsystems": {"pdf": usual | stands},
        "readings": {"pdf": READING if reading is None else reading}, **(report or {}),
    }  # fmt: skip
    last = LastTick("p1", 10**12, state, {}, seen)
    made = AdaptiveControlConfig().changed({"targets": EVERYTHING, **(config or {})})
    found = explain(made, last, 10**12 + int(seconds_ago * 1000))
    return found["why"], found["subsystems"]["pdf"]["why"]


def signal(outcome: str, left_ms: int = 0) -> dict[str, Any]:
    return {"outcomes": [{
        "signal_type": "stop_accepting_jobs", "metric_name": "queue_depth", "outcome": outcome,
        "left_ms": left_ms, "subsystem_id": "pdf",
    }]}  # fmt: skip


@pytest.mark.shows("A-77")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"seconds_ago": 500}, "the loop does not tick: the last tick was 500 s ago"),
        (
            {"state": "failsafe", "report": {"failure": "OSError: no"}},
            "failsafe and changes",
        ),
        ({"state": "suspended"}, "every source is silent"),
        ({"report": {"drift": ["pdf_slo_query"]}}, "not the canonical one"),
        ({"config": {"enabled": False}}, "a dry run"),
        ({"config": {"targets": []}}, "the allow-list is empty"),
    ],
)
def test_why_the_loop_does_nothing(given: dict[str, Any], text: str) -> None:
    assert text in explained(**given)[0]


@pytest.mark.shows("A-77")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"report": {"holds": {"pdf": "kill switch pdf"}}}, "nothing is decided: kill switch pdf"),
        ({"reading": {}}, "its source was never heard"),
        ({"report": {"sufficiency": {"pdf": {"reason": "source_stale"}}}}, "(source_stale)"),
        ({"report": signal("applied")}, "stop_accepting_jobs was applied"),
        ({"report": signal("suppressed_dwell", 7000)}, "waits for the dwell time, 7 s left"),
        ({"report": signal("suppressed_cooldown", 9000)}, "waits for the cooldown, 9 s left"),
        ({"report": signal("suppressed_oscillation")}, "the mode changed too often"),
        ({"reading": {"queue_depth": None}}, "there is no queue_depth"),
        ({"reading": {"queue_depth": 50.0}}, "queue_depth 50 is not above 50"),
        ({"mode": "backpressure", "set_by": "ada"}, "set by ada: a person takes it back"),
        ({"mode": "backpressure", "set_by": "adaptive_control"}, "80 is not below 20"),
        (
            {"mode": "backpressure", "set_by": "adaptive_control", "reading": {"queue_depth": 3}},
            "an error budget still burns",
        ),
    ],
)
def test_why_a_subsystem_stays_as_it_is(given: dict[str, Any], text: str) -> None:
    assert text in explained(**given)[1]


@pytest.mark.shows("A-77")
def test_a_scenario_is_run_and_drawn(run, tmp_path):
    (tmp_path / "short.yaml").write_text(SHORT)
    said = run("control", "simulate", "short.yaml", "--svg", "short.svg")
    assert said.code == 0, said.err
    assert "TIME TO PROTECT" in said.out
    assert "within 30 s" in said.out
    assert (tmp_path / "short.svg").read_text().startswith("<svg")
    assert "changed" not in said.err
    found = run("control", "simulate", "short.yaml", "--json").document
    assert len(found["ticks"]) == 42
    assert found["subsystems"]["pdf"]["transitions"] >= 1
    assert not logging.getLogger("ulak.control").disabled
    (tmp_path / "same.json").write_text(json.dumps({"load": "noise", "seconds": 60}))
    assert run("control", "simulate", "same.json").code == 0


@pytest.mark.shows("A-77")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("load: [", "is no YAML"),
        ("load: storm", "load is one of step, ramp, noise, flapping, outage"),
        ("- 1", "this is no scenario"),
        ("", "this is no scenario"),
        ("load: step\ncontrol: {dwell_time_seconds: 0}", "dwell_time_seconds must be > 0"),
        ("load: !!python/object/apply:os.getcwd []", "is no YAML"),
    ],
)
def test_what_is_no_scenario_is_told_on_one_line(run, tmp_path, text, why):
    (tmp_path / "odd.yaml").write_text(text)
    said = run("control", "simulate", "odd.yaml")
    assert said.code == 1
    assert why in said.err
    assert len(said.err.splitlines()) == 1
    assert run("control", "simulate", "none.yaml").code == 1


def test_without_pyyaml_it_says_what_to_install(run, tmp_path, monkeypatch):
    (tmp_path / "short.yaml").write_text(SHORT)
    monkeypatch.setitem(sys.modules, "yaml", None)
    said = run("control", "simulate", "short.yaml")
    assert said.code == 1
    assert "ulak[control]" in said.err
