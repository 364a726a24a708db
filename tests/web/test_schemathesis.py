"""Whoever asks, whatever they ask: the answer is one that the OpenAPI document describes."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, CheckFunction, GenerationMode, checks

import ulak.web
from tests.web.people import Known, as_
from tests.web.seeds import Seeds, World

CALLERS = ("nobody", "viewer", "service", "operator", "admin")
# They answer for as long as somebody listens, and have tests of their own.
ENDLESS = {"/events", "/jobs/{id}/events"}

CHECKS: list[CheckFunction] = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TRIES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}

JOBS = {
    ("GET", "/jobs/{id}/result"): "done",
    ("POST", "/jobs/{id}/approve"): "gate",
    ("POST", "/jobs/{id}/decide"): "gate",
    ("POST", "/jobs/{id}/release"): "held",
    ("POST", "/jobs/{id}/retry"): "failed",
    ("POST", "/jobs/{id}/cancel"): "waiting",
    ("POST", "/jobs/{id}/signal"): "waiting",
    ("POST", "/dead-letters/{id}/redrive"): "failed",
}
"""How the job must stand for the answer to be yes; any job will do for the others."""

BODIES = {
    ("POST", "/jobs"): {"flow": "line", "payload": {"then": "done"}},
    ("POST", "/jobs/bulk"): {"action": "retry", "where": {"flow": "line"}},
}
"""Where the example of the document cannot be known to this store."""

NAMES = {
    "flow": "line", "state": "new", "tenant": "acme", "kind": "queue",
    "/flows/{name}": "line", "/flows/{name}/diagram": "line",
    "/queues/{name}/pause": "line", "/queues/{name}/resume": "line",
    "/pauses/{kind}/{name}": "line",
    "/schedules/{name}/ticks": "yearly", "/schedules/{name}/pause": "yearly",
    "/schedules/{name}/resume": "yearly",
}  # fmt: skip
"""What a parameter of this name, or the one of this path, is called here."""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return Seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def seeded(seeds: Seeds, tmp_path: Path) -> Iterator[World]:
    with seeds.planted(tmp_path) as world:
        yield world


@pytest.fixture
def operations(seeded: World) -> list[Any]:
    app = ulak.web.app(seeded.engine, identity=Known())
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    # Who asks is what the test says.
    schema.config.generation.update(with_security_parameters=False)
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if operation.path not in ENDLESS]


def headers_of(who: str) -> dict[str, str]:
    return {} if who == "nobody" else as_(who)


def real(case: Case, jobs: list[str]) -> Case:
    """Ask about jobs that exist, three times of four, and wait for none of them."""
    if "id" in case.path_parameters and "outbox" not in case.path:
        number = sum(map(ord, str(case.path_parameters["id"])))
        if number % 4:
            case.path_parameters["id"] = jobs[number % len(jobs)]
    if "wait" in (case.query or {}):
        case.query["wait"] = 0
    return case


@pytest.mark.parametrize("who", CALLERS)
def test_every_answer_is_as_the_document_describes_it(
    seeded: World, operations: list[Any], who: str
) -> None:
    jobs = seeded.all_jobs
    asked: dict[int, int] = defaultdict(int)

    def explore(operation: Any, mode: GenerationMode) -> None:
        @settings(
            max_examples=TRIES[mode], derandomize=True, deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            case = real(case, jobs)
            response = case.call(headers=headers_of(who))
            asked[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        ask()

    for operation in operations:
        explore(operation, GenerationMode.POSITIVE)
        if operation.definition.raw.get("parameters") or operation.body:
            explore(operation, GenerationMode.NEGATIVE)
    assert max(asked) < 500
    if who == "nobody":
        assert asked.keys() <= {200, 400, 401, 422}
    else:
        assert 401 not in asked


def test_every_operation_can_be_done_by_somebody(seeded: World, operations: list[Any]) -> None:
    refused = {}
    for operation in operations:
        for who in reversed(CALLERS):
            case = wanted(operation, seeded)
            response = case.call(headers=headers_of(who))
            case.validate_response(response, checks=CHECKS)
            if response.status_code < 300:
                break
        else:
            refused[operation.label] = (response.status_code, response.text[:200])
    assert refused == {}


def wanted(operation: Any, seeded: World) -> Case:
    """What this store can say yes to."""
    method, path = operation.method.upper(), operation.path
    raw = operation.definition.raw
    parameters = {
        p["name"]: value_of(method, path, p["name"], seeded)
        for p in raw.get("parameters", [])
        if p["in"] == "path"
    }
    options: dict[str, Any] = {"path_parameters": parameters}
    for media_type, content in raw.get("requestBody", {}).get("content", {}).items():
        body = BODIES.get((method, path), content["example"])
        options |= {"body": body, "media_type": media_type}
    return operation.Case(**options)


def value_of(method: str, path: str, name: str, seeded: World) -> str:
    if path == "/outbox/dead/{id}/revive":
        return seeded.dead_messages[0]
    if name == "id":
        role = JOBS.get((method, path))
        return seeded.all_jobs[0] if role is None else seeded.take(role)
    return NAMES.get(name) or NAMES[path]
