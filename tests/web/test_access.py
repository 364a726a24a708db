"""Every route, asked by everybody: what each gets follows from the one table of routes."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak.web
from tests.web.asgi import Answer, call
from tests.web.seeds import Seeds, World
from tests.web.wanted import body_of, path_of, plain
from ulak.auth.identity import Identity
from ulak.auth.principal import ADMIN, OPERATOR, SERVICE, VIEWER
from ulak.control.state import SCHEMA
from ulak.tables import Tables
from ulak.web.access import ACCESS, KNOWN, Access
from ulak.web.callers import routes_of

SECRET = "of a test, and long enough for one"  # noqa: S105 - signs nothing that anybody keeps
WHO = ("nobody", "expired", "revoked", "viewer", "operator", "admin", "service", "foreign")
ROLE = {"viewer": VIEWER, "operator": OPERATOR, "admin": ADMIN, "service": SERVICE}
A_MOMENT = timedelta(seconds=1)
# Of these the first request only counts; what the second does has tests of its own.
COUNTED_FIRST = {"/jobs/bulk", "/dead-letters/redrive"}
NO_ACTS = {"/admin/ops/adaptive/simulate"}
"""Posted, and changes nothing."""
ACTS = [
    line
    for line in ACCESS.values()
    if line.method != "GET" and not line.is_public and line.path not in COUNTED_FIRST | NO_ACTS
]
STRICT = [line for line in ACCESS.values() if not (line.is_public or line.path == "/metrics")]


@dataclass
class House:
    """An application with a store of its own, and a key for everybody."""

    app: Any
    world: World
    identity: Identity
    keys: dict[str, str]

    def ask(self, line: Access, who: str, *, is_allowed: bool, query: str = "") -> Answer:
        path = path_of(line, self.world, self.identity, is_taken=is_allowed) + query
        headers = {"Authorization": f"Bearer {self.keys[who]}"} if who in self.keys else {}
        body = body_of(line, self.app, self.world, self.identity)
        return asyncio.run(call(self.app, line.method, path, headers=headers, json=body))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return Seeds(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(scope="module")
def house(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with built(seeds, tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture(scope="module")
def quiet_house(seeds: Seeds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Another one, where nobody has acted yet."""
    with built(seeds, tmp_path_factory.mktemp("quiet")) as house:
        yield house


@contextmanager
def built(seeds: Seeds, folder: Path) -> Iterator[House]:
    with seeds.planted(folder) as world:
        identity = Identity(world.engine.store, secret=SECRET)
        keys = {
            who: identity.create_key(who, roles={role}, actor="ada").text
            for who, role in ROLE.items()
        }
        foreign = identity.create_key("foreign", roles={OPERATOR}, tenant="foreign", actor="ada")
        expired = identity.create_key("expired", roles={ADMIN}, life=A_MOMENT, actor="ada")
        revoked = identity.create_key("revoked", roles={ADMIN}, actor="ada")
        identity.revoke_key(revoked.key.id, actor="ada")
        world.clock.advance(2 * A_MOMENT)
        keys |= {"foreign": foreign.text, "expired": expired.text, "revoked": revoked.text}
        yield House(ulak.web.app(world.engine, identity=identity), world, identity, keys)


def expected(line: Access, who: str, success: int) -> int:
    """What a caller gets, by the table alone."""
    if line.is_public:
        return success
    if who in ("nobody", "expired", "revoked"):
        return 401
    if line.scope == KNOWN:
        return success
    assert line.needed is not None
    if who == "foreign":
        if not line.needed.of_a_tenant:
            return 403
        return 404 if line.about == "job" else success
    return success if ROLE[who] in line.needed.roles else 403


def success_of(app: Any, line: Access) -> int:
    """The status that the document promises to whoever may."""
    operation = app.openapi()["paths"][plain(line)][line.method.lower()]
    return min(int(status) for status in operation["responses"] if int(status) < 400)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("line", ACCESS.values(), ids=lambda line: f"{line.method} {line.path}")
def test_everybody_gets_what_the_table_says(house: House, line: Access, who: str) -> None:
    success = success_of(house.app, line)
    wanted = expected(line, who, success)
    answer = house.ask(line, who, is_allowed=wanted == success)
    # A bulk act answers 200 and a submit 201 or 200: whoever may, is told yes.
    got = success if answer.status < 400 and wanted == success else answer.status
    assert got == wanted, answer.body[:300]
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
    if answer.status == 401:
        assert "Bearer" in answer.headers["www-authenticate"]


def test_the_table_lists_every_route_that_is_served(house: House) -> None:
    assert routes_of(house.app) == set(ACCESS)


@pytest.mark.parametrize("line", ACTS, ids=lambda line: f"{line.method} {line.path}")
def test_whoever_acts_is_in_the_trail_or_the_audit(quiet_house: House, line: Access) -> None:
    before = acts_of("key:admin", quiet_house.world.engine)
    answer = quiet_house.ask(line, "admin", is_allowed=True)
    assert answer.status < 400, answer.body[:300]
    assert acts_of("key:admin", quiet_house.world.engine) > before


@pytest.mark.parametrize("line", STRICT, ids=lambda line: f"{line.method} {line.path}")
def test_a_parameter_that_does_not_exist_is_refused(quiet_house: House, line: Access) -> None:
    before = acts_of("key:admin", quiet_house.world.engine)
    answer = quiet_house.ask(line, "admin", is_allowed=True, query="?lim=1")
    assert answer.status == 422, answer.body[:300]
    operation = quiet_house.app.openapi()["paths"][plain(line)][line.method.lower()]
    known = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
    cure = f"write {', '.join(sorted(known))}" if known else "this route takes none"
    detail = f"lim: there is no such parameter; {cure}"
    problem = json.loads(answer.body)
    assert (problem["code"], problem["detail"]) == ("bad-input", detail)
    assert acts_of("key:admin", quiet_house.world.engine) == before
    assert quiet_house.ask(line, "nobody", is_allowed=False, query="?lim=1").status == 401


@pytest.mark.parametrize("path", ["/", "/health/live", "/health/ready", "/metrics"])
def test_a_probe_may_carry_any_parameter(house: House, path: str) -> None:
    line = ACCESS["GET", path]
    assert house.ask(line, "admin", is_allowed=True, query="?cache=no").status == 200


def acts_of(actor: str, engine: ulak.Engine) -> int:
    """How many lines of all trails, of the audit and of that of adaptive control have this name."""
    trails = (engine.inspect.trail(job.id) for job in engine.jobs(limit=1000))
    written = [event.actor for trail in trails for event in trail]
    written += [line.actor for line in engine.inspect.audit(limit=1000)]
    steered = Tables(engine, SCHEMA).read("SELECT actor FROM {schema}.control_audit")
    return [*written, *(row[0] for row in steered)].count(actor)
