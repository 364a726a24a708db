"""The interface of `ulak.control` is the one of the specification, word for word."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

import pytest

from tests.docs.pages import DOCS
from ulak import control
from ulak.control import AdaptiveControlConfig, AllowlistEntry
from ulak.control.config import GUARD_QUERY, PDF_QUERY, PREFIX, VARIABLES, read_environment
from ulak.errors import BadInput

PAGE = (DOCS / "spec" / "control.md").read_text()
BLOCK = PAGE.partition("```python\n")[2].partition("```")[0]


def complete(block: str) -> str:
    """Give every function a body, so that Python reads the block."""
    made, pending = [], ""
    for line in block.splitlines():
        pending = f"{pending} {line.strip()}" if pending else line
        if pending.count("(") > pending.count(")"):
            continue
        is_function = pending.lstrip().startswith("def ")
        made.append(f"{pending.partition('  #')[0].rstrip()}: ..." if is_function else pending)
        pending = ""
    return "\n".join(made)


CLASSES = {node.name: node for node in ast.parse(complete(BLOCK)).body
           if isinstance(node, ast.ClassDef)}  # fmt: skip


def is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


RECORDS = [name for name, node in CLASSES.items() if is_record(node)]
ENUMS = [name for name, node in CLASSES.items() if node.bases]
PARTS = [name for name in CLASSES if name not in RECORDS and name not in ENUMS]


def methods() -> Iterator[tuple[str, ast.FunctionDef]]:
    for name in PARTS:
        for node in CLASSES[name].body:
            assert isinstance(node, ast.FunctionDef)
            yield name, node


def words(annotation: Any) -> str:
    """An annotation as Python writes it, whatever quotes and spaces it was written with."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else annotation.__name__
    return ast.unparse(ast.parse(text))


def test_the_block_was_read() -> None:
    assert RECORDS == ["SourceHealth", "ErrorBudgetConfig", "SufficiencyConfig", "HysteresisState"]
    assert ENUMS == ["SignalType", "PriorityLevel", "AdaptiveControllerState"]
    assert len(PARTS) == 8
    assert len(list(methods())) == 25


@pytest.mark.shows("A-60")
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_fields_of_the_block(name: str) -> None:
    node, found = CLASSES[name], getattr(control, name)
    wanted = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    assert [f.name for f in fields(found)] == [ast.unparse(each.target) for each in wanted]
    assert [words(f.type) for f in fields(found)] == [ast.unparse(e.annotation) for e in wanted]
    for field, each in zip(fields(found), wanted, strict=True):
        default = "" if each.value is None else ast.unparse(each.value)
        if default == "field(default_factory=list)":
            assert field.default_factory is list
        elif default:
            assert field.default == ast.literal_eval(default)
        else:
            assert (field.default, field.default_factory) == (MISSING, MISSING)
    is_frozen = any("frozen=True" in ast.unparse(each) for each in node.decorator_list)
    assert found.__dataclass_params__.frozen == is_frozen


@pytest.mark.shows("A-60")
@pytest.mark.parametrize("name", ENUMS)
def test_a_choice_has_the_names_of_the_block(name: str) -> None:
    node, found = CLASSES[name], getattr(control, name)
    mixed = {"str": str, "int": int}[ast.unparse(node.bases[0])]
    assert found.__bases__ == (mixed, Enum)
    values = {
        "SWITCH_TO_SHADOW": "switch_to_shadow", "RESTORE_ENFORCE": "restore_enforce",
        "STOP_ACCEPTING_JOBS": "stop_accepting_jobs",
        "RESUME_ACCEPTING_JOBS": "resume_accepting_jobs",
    }  # fmt: skip
    wanted = {}
    for each in node.body:
        if isinstance(each, ast.Assign):
            wanted[ast.unparse(each.targets[0])] = ast.literal_eval(each.value)
        else:
            assert isinstance(each, ast.Expr)
            wanted[ast.unparse(each)] = values[ast.unparse(each)]
    assert {each.name: each.value for each in found} == wanted


@pytest.mark.shows("A-60")
@pytest.mark.parametrize(("name", "node"), list(methods()), ids=lambda v: getattr(v, "name", v))
def test_a_method_is_called_as_the_block_says(name: str, node: ast.FunctionDef) -> None:
    found = inspect.getattr_static(getattr(control, name), node.name)
    is_property = bool(node.decorator_list)
    assert isinstance(found, property) == is_property
    signature = inspect.signature(found.fget if is_property else found)
    known = list(signature.parameters.values())
    wanted = node.args.args
    assert [p.name for p in known[: len(wanted)]] == [each.arg for each in wanted]
    for parameter, each in zip(known, wanted, strict=False):
        assert parameter.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert parameter.default is inspect.Parameter.empty
        if each.annotation is not None:
            assert words(parameter.annotation) == ast.unparse(each.annotation)
    for further in known[len(wanted) :]:
        assert further.kind == inspect.Parameter.KEYWORD_ONLY
        assert further.default is not inspect.Parameter.empty
    if node.returns is not None:
        assert words(signature.return_annotation) == ast.unparse(node.returns)


@pytest.mark.shows("A-60")
def test_a_tick_is_a_function_too_and_the_protocols_are_as_written() -> None:
    assert str(inspect.signature(control.control_loop_tick)).startswith("(now_ms: 'int') -> ")
    for protocol, method, positional in (
        (control.GuardDecision, "set_mode", ["self", "mode"]),
        (control.PdfJobStore, "set_backpressure", ["self", "active", "retry_after_seconds"]),
    ):
        known = inspect.signature(getattr(protocol, method)).parameters
        assert list(known) == [*positional, "connection"]
        assert known["connection"].kind == inspect.Parameter.KEYWORD_ONLY
        assert known["connection"].default is None


@pytest.mark.shows("A-60")
def test_every_name_can_be_imported() -> None:
    parts = PAGE.partition("Named parts of the loop")[2].partition("\n- A-60")[0]
    named = set(re.findall(r"`([A-Z]\w+)[`.]", parts)) | set(CLASSES) | {
        "AdaptiveControlConfig", "GuardDecision", "PdfJobStore", "KillSwitchManager",
        "GuardConfig", "MetricsMiddleware", "SloEvalResult", "SloTarget", "control_loop_tick",
    }  # fmt: skip
    assert len(named) > 25
    assert named <= set(control.__all__)
    for name in control.__all__:
        assert getattr(control, name) is not None


@pytest.mark.shows("A-60")
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ControlSignal", ("signal_type subsystem_id metric_name tenant_id trigger_value threshold "
         "priority correlation_id timestamp_ms")),
        ("BudgetStatus", ("subsystem_id metric budget_total budget_consumed budget_remaining_pct "
         "burn_rate is_exhausted is_burn_rate_exceeded")),
        ("SufficiencyResult", ("is_sufficient sample_count required_samples bucket_coverage_pct "
         "stale_sources reason")),
        ("AllowlistEntry", "tenant_id endpoint_class subsystem_id"),
        ("ControlDecisionEvent", ("event_id correlation_id reason previous_mode new_mode "
         "subsystem_id transition_timestamp_ms trigger_metric trigger_value threshold burn_rate "
         "actor")),
    ],
)  # fmt: skip
def test_a_further_record_is_frozen_with_its_fields_in_order(name: str, wanted: str) -> None:
    found = getattr(control, name)
    assert is_dataclass(found)
    assert found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert [field.name for field in fields(found)] == wanted.split()
    # Each is named in its requirement, in this order.
    line = next(line for line in PAGE.splitlines() if _is_about(line, name))
    places = [line.index(word, line.index(wanted.split()[0])) for word in wanted.split()]
    assert places == sorted(places)


def _is_about(line: str, name: str) -> bool:
    about = {
        "ControlSignal": "- A-32", "BudgetStatus": "- A-27", "SufficiencyResult": "- A-17",
        "AllowlistEntry": "- A-50", "ControlDecisionEvent": "- A-57",
    }  # fmt: skip
    return line.startswith(about[name])


# --- configuration ----------------------------------------------------------------------

TABLE = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## 10. Configuration")[2].partition("- A-61")[0].splitlines()
    if line.startswith("|") and not line.startswith(("| Field", "|---"))
]


@pytest.mark.shows("A-60")
def test_the_configuration_has_the_fields_and_defaults_of_the_table() -> None:
    rows: list[tuple[str, Any]] = []
    for name, _, default, _ in TABLE:
        name = name.partition(" (")[0]
        if name.startswith("guard_slo_query"):
            rows += [("guard_slo_query", GUARD_QUERY), ("pdf_slo_query", PDF_QUERY)]
        else:
            plain = {"true": True, "[]": []}
            rows.append((name, plain[default] if default in plain else ast.literal_eval(default)))
    (enabled,) = (row for row in rows if row[0] == "enabled")
    wanted = [row for row in rows if row != enabled] + [enabled]
    usual = AdaptiveControlConfig()
    assert [(f.name, getattr(usual, f.name)) for f in fields(usual)] == wanted
    assert usual.validate() == []
    for query in (GUARD_QUERY, PDF_QUERY):
        assert f"`{query}`" in PAGE


@pytest.mark.shows("A-55")
def test_every_field_is_set_by_the_variable_of_the_table() -> None:
    told = {PREFIX + variable: name.partition(" (")[0] for name, variable, _, _ in TABLE
            if variable.isupper() or "95" in variable}  # fmt: skip
    assert told == VARIABLES
    entry = '{"tenant_id": "acme", "endpoint_class": "high", "subsystem_id": "pdf"}'
    values = {"ENABLED": "false", "TARGETS_JSON": f"[{entry}]", "GUARD_SLO_TARGET": "0.9",
              "PDF_SLO_TARGET": "0.8", "MIN_SAMPLE_RATIO": "0.5", "MIN_BUCKET_COVERAGE": "0.6",
              "P95_LATENCY_ENTER": "2.5", "P95_LATENCY_EXIT": "0.25"}  # fmt: skip
    numbers = (name.removeprefix(PREFIX) for name in VARIABLES)
    values |= {name: str(70 + n) for n, name in enumerate(numbers) if name not in values}
    values["QUEUE_DEPTH_EXIT"] = "7"
    config = read_environment({PREFIX + name: text for name, text in values.items()})
    for variable, name in VARIABLES.items():
        text, value = values[variable.removeprefix(PREFIX)], getattr(config, name)
        if name == "targets":
            assert value == [AllowlistEntry("acme", "high", "pdf")]
        elif name == "enabled":
            assert value is False
        else:
            assert value == float(text)
    assert read_environment({PREFIX + "DWELL_TIME": " "}) == AdaptiveControlConfig()


@pytest.mark.shows("A-55")
def test_bad_variables_are_all_listed() -> None:
    with pytest.raises(BadInput) as refused:
        read_environment({
            PREFIX + "DWELL_TIME": "soon", PREFIX + "COOLDOWN_PERIOD": "0",
            PREFIX + "ENABLED": "perhaps", PREFIX + "TARGETS_JSON": "[",
            PREFIX + "PDF_SLO_TARGET": "nan", PREFIX + "QUEUE_DEPTH_ENTER": "1.5",
            PREFIX + "BURN_RATE_THRESHOLD": "inf",
        })  # fmt: skip
    said = str(refused.value)
    for named in ("DWELL_TIME", "cooldown_period_seconds", "ENABLED", "TARGETS_JSON",
                  "pdf_slo_target", "QUEUE_DEPTH_ENTER", "burn_rate_threshold"):  # fmt: skip
        assert named in said


ERRORS = re.findall(r"`([^`]+)`", PAGE.partition("- A-61 `validate() -> list[str]`")[2]
                    .partition("\n")[0])  # fmt: skip


@pytest.mark.shows("A-61", "A-40")
def test_what_is_wrong_is_told_in_these_words_and_this_order() -> None:
    assert len(ERRORS) == 8
    broken = AdaptiveControlConfig(
        p95_latency_enter_threshold=1.0, p95_latency_exit_threshold=1.0,
        queue_depth_enter_threshold=20, queue_depth_exit_threshold=20, guard_slo_target=0.0,
        pdf_slo_target=1.5, dwell_time_seconds=0, cooldown_period_seconds=-1,
        control_loop_interval_seconds=0, burn_rate_threshold=0.0, min_sample_ratio=0.0,
    )  # fmt: skip
    found = broken.validate()
    assert found[:8] == ERRORS
    assert found[8:] == ["min_sample_ratio must be in (0, 1]"]


@pytest.mark.shows("A-61", "A-55")
@pytest.mark.parametrize(
    ("text", "changes"),
    list(zip(ERRORS, [
        {"p95_latency_exit_threshold": 2.0}, {"queue_depth_exit_threshold": 50},
        {"guard_slo_target": 1.01}, {"pdf_slo_target": 0}, {"dwell_time_seconds": 0},
        {"cooldown_period_seconds": 0}, {"control_loop_interval_seconds": 0},
        {"burn_rate_threshold": 0},
    ], strict=True)),
)  # fmt: skip
def test_each_mistake_alone_is_told_alone(text: str, changes: dict[str, Any]) -> None:
    assert AdaptiveControlConfig(**changes).validate() == [text]
    name, _ = next(iter(changes.items()))
    for odd in (math.nan, math.inf, -math.inf):
        assert AdaptiveControlConfig(**{name: odd}).validate()
