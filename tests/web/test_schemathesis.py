"""Whoever asks, whatever they ask: the answer is one that the OpenAPI document describes."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, CheckFunction, GenerationMode, checks
from schemathesis.core.failures import FailureGroup

import ulak.web
from tests.secrets_watch import SHORTEST
from tests.web.seeds import Seeds, World
from tests.web.wanted import body_of, path_of, plain
from ulak.auth.identity import Identity
from ulak.web.access import ACCESS

SECRET = "of a test, and long enough for one"  # noqa: S105 - signs nothing that anybody keeps
# Nobody may do anything, and an admin everything; the roles between them repeat what these show.
BETWEEN = ("viewer", "service", "operator")
CALLERS = ("nobody", *BETWEEN, "admin")
# They answer for as long as somebody listens, so they come last and are ended.
ENDLESS = {"/events", "/jobs/{id}/events"}

CHECKS: list[CheckFunction] = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TRIES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}


class House:
    """An application on a store of its own, a key for everybody, and what there is to ask."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.identity = Identity(world.engine.store, secret=SECRET)
        self.app = ulak.web.app(world.engine, identity=self.identity)
        self._keys = {
            who: self.identity.create_key(who, roles={who}, actor="ada").text
            for who in CALLERS
            if who != "nobody"
        }
        schema = schemathesis.openapi.from_dict(self.app.openapi())
        schema.app = self.app
        # Who asks is what the test says.
        schema.config.generation.update(with_security_parameters=False)
        found = [result.ok() for result in schema.get_all_operations()]
        self.operations = sorted(found, key=lambda o: (o.path in ENDLESS, o.path == "/events"))

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[who]}"} if who in self._keys else {}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return Seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def house(seeds: Seeds, tmp_path: Path) -> Iterator[House]:
    with seeds.planted(tmp_path) as world:
        yield House(world)


def real(case: Case, jobs: list[str]) -> Case:
    """Ask about jobs that exist, three times of four, and wait for none of them."""
    if "id" in case.path_parameters and "outbox" not in case.path:
        number = sum(map(ord, str(case.path_parameters["id"])))
        if number % 4:
            case.path_parameters["id"] = jobs[number % len(jobs)]
    if "wait" in (case.query or {}):
        case.query["wait"] = 0
    password = case.body.get("password") if isinstance(case.body, dict) else None
    if isinstance(password, str) and len(password) >= SHORTEST:
        # Hypothesis draws words of our source, and would name a user by its password.
        case.body["password"] = f"{password} that is nobody's name"
    return case


@pytest.mark.parametrize(
    "who",
    [pytest.param(who, marks=pytest.mark.sampled if who in BETWEEN else ()) for who in CALLERS],
)
def test_every_answer_is_as_the_document_describes_it(house: House, who: str) -> None:
    jobs = house.world.all_jobs
    asked: dict[int, int] = defaultdict(int)

    def explore(operation: Any, mode: GenerationMode) -> None:
        @settings(
            max_examples=TRIES[mode], derandomize=True, deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            case = real(case, jobs)
            response = case.call(headers=house.headers(who))
            if case.operation.definition.raw["security"]:
                asked[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        ask()

    wrong = []
    for operation in house.operations:
        if operation.path in ENDLESS:
            house.app.state.hub.close()
        modes = [GenerationMode.POSITIVE]
        if operation.definition.raw.get("parameters") or operation.body:
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:
            try:
                explore(operation, mode)
            except FailureGroup as failures:
                wrong.append(f"{operation.label}: {failures}")
    assert wrong == []
    if who == "nobody":
        assert min(asked) >= 400
    else:
        assert 401 not in asked


@pytest.mark.shows("E-86")
def test_every_operation_can_be_done_by_somebody(house: House, ask: Any) -> None:
    lines = {(line.method, plain(line)): line for line in ACCESS.values()}
    refused = {}
    for operation in house.operations:
        line = lines[operation.method.upper(), operation.path]
        path = path_of(line, house.world, house.identity, is_taken=True)
        body = body_of(line, house.app, house.world, house.identity)
        if operation.path == "/events":
            threading.Timer(1.0, house.app.state.hub.close).start()
        for who in reversed(CALLERS):
            response = ask(
                house.app, path, method=line.method, json=body, headers=house.headers(who)
            )
            parameters = {p["name"]: "-" for p in operation.definition.raw.get("parameters", [])}
            case = operation.Case(path_parameters=parameters)
            case.validate_response(response, checks=CHECKS)
            if response.status_code < 300:
                break
        else:
            refused[operation.label] = (response.status_code, response.text[:200])
    assert refused == {}
