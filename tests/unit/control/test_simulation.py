"""The shipped engine over simulated time: loads, samples by hand, recorded ticks."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ulak.control.config import AdaptiveControlConfig
from ulak.control.picture import Panel, draw, make_panels
from ulak.control.scenario import Simulated, read_scenario, simulate
from ulak.control.simulation import (
    MOST_SAMPLES,
    replay,
    simulate_samples,
)
from ulak.errors import BadInput

EXAMPLES = Path(__file__).parents[3] / "examples" / "control"
EVERYTHING = [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "*"}]
QUICK = {
    "control_loop_interval_seconds": 5, "dwell_time_seconds": 10, "cooldown_period_seconds": 10,
    "oscillation_max_transitions": 50, "targets": EVERYTHING,
}  # fmt: skip


def config(**changes: Any) -> AdaptiveControlConfig:
    return AdaptiveControlConfig().changed({**QUICK, **changes})


@pytest.fixture(scope="module")
def simulated() -> dict[str, Simulated]:
    """Each shipped scenario, run once."""
    return {
        path.stem: simulate(read_scenario(yaml.safe_load(path.read_text())))
        for path in EXAMPLES.glob("*.yaml")
    }


@pytest.mark.shows("A-77")
def test_there_is_a_shipped_scenario_of_each_load(simulated: dict[str, Simulated]) -> None:
    assert {name: run.scenario.load for name, run in simulated.items()} == {
        name: name for name in ("step", "ramp", "noise", "flapping", "outage")
    }


@pytest.mark.shows("A-77")
def test_an_overload_is_refused_soon_and_everybody_is_taken_soon_after(
    simulated: dict[str, Simulated],
) -> None:
    found = simulated["step"].summary()
    pdf = found["subsystems"]["pdf"]
    assert 0 < pdf["time_to_protect_seconds"] <= 15
    assert 0 < pdf["time_to_recover_seconds"] <= 15
    assert pdf["transitions"] >= 2
    last = simulated["step"].ticks[-1]
    assert last["modes"] == {"guard": "enforce", "pdf": "accepting"}
    assert found["jobs"]["within_slo"] > 0.8
    free = read_scenario(
        {**yaml.safe_load((EXAMPLES / "step.yaml").read_text()), "control": {"enabled": False}}
    )
    off = simulate(free).summary()
    assert off["subsystems"]["pdf"]["transitions"] == 0
    assert off["jobs"]["rejected"] == 0
    assert off["jobs"]["within_slo"] < found["jobs"]["within_slo"] / 2
    assert off["jobs"]["deepest_queue"] > 5 * found["jobs"]["deepest_queue"]


@pytest.mark.shows("A-77")
def test_a_slow_api_puts_the_guard_into_shadow_and_only_proposes_its_end(
    simulated: dict[str, Simulated],
) -> None:
    guard = simulated["ramp"].summary()["subsystems"]["guard"]
    assert guard["transitions"] == 1
    assert guard["time_to_recover_seconds"] is not None
    assert simulated["ramp"].ticks[-1]["modes"]["guard"] == "shadow"
    assert simulated["ramp"].ticks[-1]["proposals"] == ["guard"]


@pytest.mark.shows("A-77")
def test_noise_below_the_capacity_refuses_nobody(simulated: dict[str, Simulated]) -> None:
    found = simulated["noise"].summary()
    assert {each["transitions"] for each in found["subsystems"].values()} == {0}
    assert found["jobs"]["rejected"] == 0


@pytest.mark.shows("A-77", "A-42")
def test_each_burst_is_cut_unless_changes_are_too_many(simulated: dict[str, Simulated]) -> None:
    run = simulated["flapping"]
    assert run.summary()["subsystems"]["pdf"]["transitions"] >= 12
    data = yaml.safe_load((EXAMPLES / "flapping.yaml").read_text())
    few = {**data["control"], "oscillation_max_transitions": 1}
    held = simulate(read_scenario({**data, "control": few}))
    outcomes = {signal["outcome"] for tick in held.ticks for signal in tick["signals"]}
    assert "suppressed_oscillation" in outcomes


@pytest.mark.shows("A-77", "A-47")
def test_nothing_changes_while_telemetry_is_silent(simulated: dict[str, Simulated]) -> None:
    run = simulated["outage"]
    silent = [tick for tick in run.ticks if tick["state"] == "suspended"]
    assert len(silent) > 5
    assert all(tick["signals"] == [] for tick in silent)
    assert len({tuple(tick["modes"].items()) for tick in silent}) == 1
    assert run.ticks[-1]["state"] == "running"
    assert run.ticks[-1]["modes"]["pdf"] == "accepting"


def undrawn(run: Simulated) -> list[dict[str, Any]]:
    shown = ("second", "load", "true_depth", "api_wait_seconds")
    return [{k: v for k, v in tick.items() if k not in shown} for tick in run.ticks]


@pytest.mark.shows("A-77")
@pytest.mark.parametrize("name", ["step", "ramp", "outage"])
def test_recorded_ticks_are_decided_the_same_again(
    name: str, simulated: dict[str, Simulated]
) -> None:
    run = simulated[name]
    assert replay(run.scenario.configure(), run.recorded) == undrawn(run)
    other = run.scenario.configure().changed({"queue_depth_enter_threshold": 90})
    assert replay(other, run.recorded) != undrawn(run)


def test_the_same_seed_is_the_same_run_and_another_one_is_not() -> None:
    data = {"load": "step", "seconds": 400, "begins": 310, "ends": 380, "control": {
        "control_loop_interval_seconds": 5}}  # fmt: skip
    one, again, other = (simulate(read_scenario({**data, "seed": n})) for n in (7, 7, 8))
    assert one.ticks == again.ticks
    assert one.summary() != other.summary()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"load": "storm"}, "storm"),
        ({"sekonds": 3}, "sekonds"),
        ({"seconds": 1e9}, "seconds"),
        ({"seed": "x"}, "seed"),
        ({"control": {"dwell_time_seconds": 0}}, "dwell_time_seconds must be > 0"),
        ({"control": {"dwell": 1}}, "dwell is no field"),
    ],
)
def test_a_bad_scenario_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        read_scenario({"load": "step", **changes})
    with pytest.raises(BadInput, match="this is no scenario"):
        read_scenario([changes])


# --- samples by hand ------------------------------------------------------------------


@pytest.mark.shows("A-77")
def test_samples_are_decided_as_they_say() -> None:
    samples = [
        {"p95_seconds": 0.3, "queue_depth": 10},
        {"p95_seconds": 2.0, "queue_depth": 50},
        {"p95_seconds": 2.25, "queue_depth": 51},
        {"p95_seconds": 1.0, "queue_depth": 20},
        {"p95_seconds": 0.3, "queue_depth": 19},
        {"p95_seconds": 0.3, "queue_depth": 19},
    ]
    ticks = simulate_samples(config(), samples)["ticks"]
    assert [tick["p95_seconds"]["guard"] for tick in ticks] == [s["p95_seconds"] for s in samples]
    assert [tick["modes"] for tick in ticks[:3]] == [
        {"guard": "enforce", "pdf": "accepting"},
        {"guard": "enforce", "pdf": "accepting"},  # exactly at the threshold is not above it
        {"guard": "shadow", "pdf": "backpressure"},
    ]
    assert ticks[2]["retry_after_seconds"]["pdf"] >= 10
    assert {s["signal_type"] for s in ticks[2]["signals"]} == {
        "switch_to_shadow", "stop_accepting_jobs",
    }  # fmt: skip
    assert ticks[3]["signals"] == []
    assert ticks[4]["modes"] == {"guard": "shadow", "pdf": "accepting"}
    assert ticks[5]["proposals"] == ["guard"]
    json.dumps(ticks, allow_nan=False)


@pytest.mark.shows("A-77")
def test_what_a_sample_does_not_say_decides_nothing() -> None:
    ticks = simulate_samples(config(), [{}, {"requests": 5}, {"queue_depth": 500}, {}])["ticks"]
    assert [tick["modes"]["guard"] for tick in ticks] == ["enforce"] * 4
    assert [tick["modes"]["pdf"] for tick in ticks] == ["accepting"] * 2 + ["backpressure"] * 2
    assert simulate_samples(config(), []) == {"ticks": []}
    held = simulate_samples(config(targets=[]), [{"queue_depth": 500}])["ticks"]
    assert held[0]["holds"]["pdf"] == "not in the allow-list"
    assert held[0]["modes"]["pdf"] == "accepting"


@pytest.mark.shows("A-77")
def test_errors_of_samples_burn_a_budget_and_a_dry_run_changes_no_mode() -> None:
    errors = [{"p95_seconds": 0.1, "requests": 2000, "errors": 20}]
    (tick,) = simulate_samples(config(), errors)["ticks"]
    assert tick["modes"]["guard"] == "shadow"
    assert tick["signals"][0]["metric"] == "5xx_rate"
    assert tick["budget_remaining"]["guard"] == 0
    (dry,) = simulate_samples(config(enabled=False), errors)["ticks"]
    assert dry["modes"]["guard"] == "enforce"
    assert dry["signals"][0]["outcome"] == "proposed"


def test_a_gap_between_samples_is_too_little_telemetry() -> None:
    late = [{"queue_depth": 1, "at_ms": 10**12}, {"queue_depth": 99, "at_ms": 10**12 + 200_000}]
    ticks = simulate_samples(config(), late)["ticks"]
    assert ticks[1]["insufficient"]["pdf"] == "min_samples, bucket_coverage"
    assert ticks[1]["modes"]["pdf"] == "accepting"


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ({"p95_seconds": 1}, "must be a list"),
        ("abc", "must be a list"),
        ([{}] * (MOST_SAMPLES + 1), "at most 3000"),
        ([1], r"samples\[0\] must be an object of at_ms, p95_seconds"),
        ([{"p99": 1}], r"samples\[0\] must be an object"),
        ([{"p95_seconds": "1"}], r"samples\[0\].p95_seconds must be a number"),
        ([{"p95_seconds": float("nan")}], "must be a number"),
        ([{"p95_seconds": float("inf")}], "must be a number"),
        ([{"queue_depth": True}], "must be a number"),
        ([{"queue_depth": None}], "must be a number"),
        ([{}, {"requests": 1.5}], r"samples\[1\].requests must be a whole number"),
        ([{"requests": -1}], "must be a whole number"),
        ([{"requests": 1, "errors": 2}], "must not be more than its requests"),
        ([{"at_ms": 5_000_000}, {"at_ms": 5_000_000}], r"samples\[1\].at_ms must be later"),
        ([{"at_ms": 2**70}], "at_ms must be a whole number"),
    ],
)
def test_a_bad_sample_is_named(samples: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        simulate_samples(config(), samples)


# --- the picture ----------------------------------------------------------------------


@pytest.mark.shows("A-77")
def test_the_picture_has_load_p95_depth_budgets_and_modes(simulated: dict[str, Simulated]) -> None:
    run = simulated["outage"]
    panels = make_panels(run.ticks, run.scenario.configure().document())
    assert [panel.title.split(",")[0].split(":")[0] for panel in panels] == [
        "New jobs a second", "p95 of requests", "Queue depth", "Error budget left", "Modes",
    ]  # fmt: skip
    depth = panels[2]
    assert list(depth.thresholds) == [50, 20]
    assert len(depth.spans) >= 2
    text = draw(panels, "outage <&>")
    assert text.startswith("<svg")
    assert "outage &lt;&amp;&gt;" in text
    assert "nan" not in text
    # Silent telemetry is a gap in the line, not a zero.
    assert text.count("stroke: #0969da") > 2 * len(panels)


def test_a_picture_of_nothing_is_a_picture() -> None:
    assert "polyline" in draw([Panel("nothing", {"a": []})], "empty")
