"""The shipped rules and dashboard of adaptive control speak of metrics that exist, and every alert
has its entry in the runbook."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_readme import anchors
from ulak.control.budget import BURN_WINDOWS, PAIRS
from ulak.control.config import AdaptiveControlConfig

ROOT = Path(__file__).parents[3]
SHIPPED = files("ulak.control") / "monitoring"
RUNBOOK = "docs/operations/adaptive-control.md"
SPECIFIED = ROOT / "docs" / "spec" / "control.md"

RULES = yaml.safe_load((SHIPPED / "rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PANELS = json.loads((SHIPPED / "dashboard.json").read_text(encoding="utf-8"))["panels"]
EXPRESSIONS = [
    *[(rule["alert"], rule["expr"]) for rule in RULES],
    *[(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]],
]
ADDED = {
    "adaptive_p95_seconds": {"subsystem"}, "adaptive_queue_depth": {"subsystem"},
    "adaptive_control_last_tick_seconds": set(), "adaptive_control_proposals": {"subsystem"},
}  # fmt: skip
"""What is shown besides the metrics that the specification names."""

METRIC = re.compile(r"\b(adaptive_[a-z0-9_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)="([^"]*)"')
BY = re.compile(r"by \(([a-z_, ]+)\)")


def specified() -> dict[str, set[str]]:
    """The metrics of section 12 as they are scraped, with their labels."""
    found = {}
    section = SPECIFIED.read_text(encoding="utf-8").partition("## 12. ")[2].partition("\n## ")[0]
    for names, kind, labels in re.findall(r"^\| (`.+?`) \| (\w+) \| (.+) \|$", section, re.M):
        for name in re.findall(r"`(\w+)`", names):
            suffix = {"histogram": "_bucket", "counter": "_total"}.get(kind, "")
            text = re.sub(r"\(.*\)", "", labels)
            known = {label.strip() for label in text.split(",")} - {"\N{EN DASH}"}
            shown = name if name.endswith(suffix) else name + suffix
            found[shown] = known | ({"le"} if kind == "histogram" else set())
    return found | ADDED


@pytest.mark.shows("A-79")
@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_metric_that_is_spoken_of_exists(where: str, expression: str) -> None:
    known = specified()
    spoken = METRIC.findall(expression)
    assert spoken, f"{where} speaks of no metric"
    labels: set[str] = set()
    for name, matchers in spoken:
        assert name in known, f"{where} speaks of {name}"
        labels |= known[name]
        for label, value in MATCHER.findall(matchers):
            assert label in known[name], f"{where} asks for {label} of {name}"
            if label == "window":
                assert value in BURN_WINDOWS
            if label == "state":
                assert value in ("running", "failsafe", "suspended")
    assert {label.strip() for by in BY.findall(expression) for label in by.split(",")} <= labels


@pytest.mark.shows("A-79")
def test_nothing_of_the_specification_is_left_out_of_the_dashboard() -> None:
    shown = {name for panel in PANELS for t in panel["targets"] for name in names_in(t["expr"])}
    assert set(specified()) <= shown


def names_in(expression: str) -> Iterator[str]:
    for name, _ in METRIC.findall(expression):
        yield name


@pytest.mark.shows("A-79")
def test_every_alert_and_panel_leads_to_an_entry_of_the_runbook() -> None:
    text = (ROOT / RUNBOOK).read_text(encoding="utf-8")
    known = anchors(ROOT / RUNBOOK)
    sections = dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.M)[1:])
    assert len(RULES) == len(sections)
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor in known) == (RUNBOOK, True)
        section = sections[anchor.replace("-", " ").capitalize()]
        assert section.startswith(f"\n`{rule['alert']}`: ")
        assert "**Causes" in section
        assert "**Actions.**" in section
        checks = section.partition("**First three checks.**")[2].partition("**Actions.**")[0]
        assert re.findall(r"^(\d)\. ", checks, re.M) == ["1", "2", "3"]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info", "page", "ticket")
    titles = {panel["title"] for panel in PANELS}
    for panel in PANELS:
        assert panel["description"], panel["title"]
        for link in panel["links"]:
            page, _, anchor = link["url"].partition("#")
            assert (page, anchor in known) == (RUNBOOK, True)
    for named in re.findall(r'panels? ((?:"[^"]+"(?: and )?)+)', text):
        assert set(re.findall(r'"([^"]+)"', named)) <= titles


@pytest.mark.shows("A-31", "A-79")
def test_burn_alerts_are_the_pairs_of_the_specification() -> None:
    wanted = {
        (pair.severity, window, round(pair.factor(30 * 86_400), 6))
        for pair in PAIRS
        for window in (pair.long, pair.short)
    }
    found = {
        (rule["labels"]["severity"], window, float(factor))
        for rule in RULES
        for window, factor in re.findall(r'window="(\w+)"\}\) > ([\d.]+)', rule["expr"])
    }
    assert found == wanted


@pytest.mark.shows("A-79")
def test_the_thresholds_of_the_dashboard_are_the_defaults() -> None:
    panels: dict[str, Any] = {panel["title"]: panel for panel in PANELS}
    config = AdaptiveControlConfig()

    def steps(title: str) -> list[float]:
        found = panels[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return [step["value"] for step in found[1:]]

    assert steps("p95 of requests and renders") == [
        config.p95_latency_exit_threshold, config.p95_latency_enter_threshold,
    ]  # fmt: skip
    assert steps("Queue depth") == [
        config.queue_depth_exit_threshold, config.queue_depth_enter_threshold,
    ]  # fmt: skip
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in PANELS]
    assert len(set(places)) == len(PANELS)


TESTS = """\
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'adaptive_control_last_tick_seconds', values: '5x10 600x10'}
      - {series: 'adaptive_control_state{subsystem="pdf",state="failsafe"}', values: '0x4 1x16'}
      - {series: 'adaptive_control_state{subsystem="pdf",state="suspended"}', values: '0x20'}
      - {series: 'adaptive_control_proposals{subsystem="guard"}', values: '1x20'}
      - {series: 'adaptive_config_drift_total', values: '0x20'}
      - {series: 'adaptive_oscillation_detected_total{subsystem="pdf"}', values: '0x5 1+1x15'}
      - {series: 'adaptive_telemetry_insufficient_total{subsystem="pdf",reason="min_samples"}',
         values: '0+2x20'}
      - {series: 'adaptive_burn_rate{subsystem="guard",metric="5xx_rate",window="1h"}',
         values: '20x20'}
      - {series: 'adaptive_burn_rate{subsystem="guard",metric="5xx_rate",window="5m"}',
         values: '20x10 0x10'}
    alert_rule_test: []
    promql_expr_test:
      - {expr: 'count by (alertname) (ALERTS{alertstate="firing"})', eval_time: 8m, exp_samples: [
          {labels: '{alertname="AdaptiveFailsafe"}', value: 1},
          {labels: '{alertname="AdaptiveOscillation"}', value: 1},
          {labels: '{alertname="AdaptiveBudgetBurnPage"}', value: 1}]}
      - {expr: 'count by (alertname) (ALERTS{alertstate="firing"})', eval_time: 19m, exp_samples: [
          {labels: '{alertname="AdaptiveFailsafe"}', value: 1},
          {labels: '{alertname="AdaptiveOscillation"}', value: 1},
          {labels: '{alertname="AdaptiveProposalWaiting"}', value: 1},
          {labels: '{alertname="AdaptiveTelemetryInsufficient"}', value: 1},
          {labels: '{alertname="AdaptiveLoopNotTicking"}', value: 1}]}
"""


@pytest.mark.shows("A-79")
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    """Where Prometheus is not installed the rules are only read, by the tests above."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return
    (tmp_path / "rules.yml").write_text((SHIPPED / "rules.yml").read_text(encoding="utf-8"))
    (tmp_path / "tests.yml").write_text(TESTS)
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        said = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert said.returncode == 0, said.stdout + said.stderr
