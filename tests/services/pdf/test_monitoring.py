"""The shipped alerts and dashboard speak of metrics that exist, and lead to what to do.

promtool is not asked for: what is checked is that the rules are well formed, that every metric,
label and label value of theirs is one that the service shows, and that the thresholds are those
of the specification.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.test_readme import anchors
from tests.services.pdf.site import Site

ROOT = Path(__file__).parents[3]
SHIPPED = files("ulak.services.pdf") / "monitoring"
RUNBOOK = "docs/operations/pdf-runbook.md"

RULES = yaml.safe_load((SHIPPED / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
DASHBOARD = json.loads((SHIPPED / "dashboard.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [
    *[(rule["alert"], rule["expr"]) for rule in RULES],
    *[(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]],
]

METRIC = re.compile(r"\b((?:ptf_admin_)?pdf_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')
BY = re.compile(r"by \(([a-z_, ]+)\)")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample that the service shows, by the name of the sample."""
    with Site("memory://", tmp_path_factory.mktemp("site")) as site:
        site.heartbeat()
        site.finish(site.new("a"))
        found: dict[str, list[dict[str, str]]] = {}
        for family in text_string_to_metric_families(site.metrics()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


def metrics_in(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    for name, matchers in METRIC.findall(expression):
        yield name, MATCHER.findall(matchers)


@pytest.mark.shows("P-42")
@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_metric_that_is_spoken_of_is_shown(
    where: str, expression: str, shown: dict[str, list[dict[str, str]]]
) -> None:
    spoken = list(metrics_in(expression))
    assert spoken, f"{where} speaks of no metric of the service"
    for name, matchers in spoken:
        assert name in shown, f"{where} speaks of {name}"
        for label, kind, value in matchers:
            values = {labels.get(label) for labels in shown[name]}
            wanted = value.split("|") if kind == "=~" else [value]
            assert set(wanted) <= values, f"{where} asks for {label}={value}"
    labels = {label.strip() for by in BY.findall(expression) for label in by.split(",")}
    assert labels <= {label for name, _ in spoken for each in shown[name] for label in each}
    assert _is_balanced(expression)


def _is_balanced(expression: str) -> bool:
    open_ones: list[str] = []
    for character in re.sub(r'"[^"]*"', "", expression):
        if character in "([{":
            open_ones.append(")]}"["([{".index(character)])
        elif character in ")]}" and (not open_ones or open_ones.pop() != character):
            return False
    return not open_ones


@pytest.mark.shows("P-42")
def test_the_alerts_are_those_of_the_specification() -> None:
    rules = {rule["alert"]: rule for rule in RULES}
    assert {
        name: (rule.get("for"), re.findall(r"[<>] [\d.]+|\[\w+\]", rule["expr"]))
        for name, rule in rules.items()
    } == {
        "PdfQueueUnavailable": (None, ["[15m]", "> 0"]),
        "PdfFailureSpike": ("5m", ["[15m]", "> 3", "[15m]", "[15m]", "> 0.2"]),
        "PdfBacklog": ("10m", ["> 50"]),
        "PdfStuckJob": (None, ["> 300"]),
        "PdfNoWorkers": ("1m", ["< 1"]),
    }
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


@pytest.mark.shows("P-42")
def test_every_alert_and_every_panel_leads_to_the_runbook() -> None:
    known = anchors(ROOT / RUNBOOK)
    links = [rule["annotations"]["runbook_url"] for rule in RULES]
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert panel["links"], panel["title"]
        links += [link["url"] for link in panel["links"]]
    for link in links:
        page, _, anchor = link.partition("#")
        assert page == RUNBOOK
        assert anchor in known, f"{link} leads nowhere"


@pytest.mark.shows("P-42")
def test_the_runbook_says_causes_three_checks_and_actions_for_each_alert() -> None:
    text = (ROOT / RUNBOOK).read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])
    for rule in RULES:
        title = rule["annotations"]["runbook_url"].partition("#")[2].replace("-", " ").capitalize()
        section = sections[title]
        assert f"`{rule['alert']}`" in section
        assert "**Causes" in section
        assert "**Actions.**" in section
        checks = section.partition("**First three checks.**")[2].partition("**Actions.**")[0]
        assert re.findall(r"^(\d)\. ", checks, re.MULTILINE) == ["1", "2", "3"]


def commands_in(page: str) -> set[str]:
    """The commands of ulak that a page tells to type."""
    found = re.findall(r"`(?:[A-Z_]+=\S+ )*ulak ([a-z]+(?: [a-z]+)?)", page)
    return {" ".join(found_.split()) for found_ in found}


@pytest.mark.shows("P-42")
def test_the_dashboard_has_the_panels_of_the_specification() -> None:
    panels: dict[str, Any] = {panel["title"]: panel for panel in PANELS}
    stacked = panels["Jobs by status"]["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"]
    assert stacked == "normal"
    assert "Failures by code" in panels
    assert "Queue depth" in panels
    times = [t["expr"] for t in panels["Render time, p50 and p95"]["targets"]]
    assert any("quantile(0.5," in expr and "pdf_render_duration" in expr for expr in times)
    assert any("quantile(0.95," in expr and "pdf_render_duration" in expr for expr in times)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    # Nothing lies over anything else.
    places = {
        (x, y)
        for grid in (panel["gridPos"] for panel in PANELS)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    }
    assert len(places) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in PANELS)


def test_the_commands_of_the_runbook_exist() -> None:
    from typer.main import get_command

    from ulak.cli.program import program as whole
    from ulak.services.pdf.commands import pdf

    program: Any = get_command(whole)
    own: Any = get_command(pdf)
    for command in commands_in((ROOT / RUNBOOK).read_text(encoding="utf-8")):
        first, _, second = command.partition(" ")
        if first == "pdf":
            assert second in own.commands, command
            continue
        assert first in program.commands, command
        group = getattr(program.commands[first], "commands", None)
        assert group is None or second in group, command
