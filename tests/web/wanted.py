"""For every route a request that a store of `seeds` can say yes to."""

import itertools
from typing import Any

import ulak
from tests.web.seeds import World
from ulak import wiring
from ulak.auth.identity import Identity
from ulak.auth.principal import ADMIN, VIEWER, Principal
from ulak.control import ControlDecisionEvent
from ulak.control.decision import Mode
from ulak.control.operations import Operations
from ulak.web.access import Access

PASSWORD = "nobody will ever guess this"  # noqa: S105 - of people who live for one test
NUMBERS = itertools.count(1)

JOBS = {
    ("GET", "/jobs/{id}/result"): "done",
    ("GET", "/jobs/{id}/events"): "done",
    ("POST", "/jobs/{id}/approve"): "gate",
    ("POST", "/jobs/{id}/decide"): "gate",
    ("POST", "/jobs/{id}/release"): "held",
    ("POST", "/jobs/{id}/retry"): "failed",
    ("POST", "/jobs/{id}/cancel"): "waiting",
    ("POST", "/jobs/{id}/signal"): "waiting",
    ("POST", "/dead-letters/{id}/redrive"): "failed",
}
"""How the job must stand for the answer to be yes; any job will do for the others."""
ACTS = {"approve", "decide", "release", "retry", "cancel", "signal", "redrive"}
"""What is done to a job once."""

NAMES = {
    "flow": "line", "state": "new", "tenant": "acme", "kind": "queue", "subsystem": "guard",
    "/admin/ops/kill-switches/{name}": "tenant:nobody",
    "/flows/{name}": "line", "/flows/{name}/diagram": "line",
    "/queues/{name}/pause": "line", "/queues/{name}/resume": "line",
    "/pauses/{kind}/{name}": "line",
    "/schedules/{name}/ticks": "yearly", "/schedules/{name}/pause": "yearly",
    "/schedules/{name}/resume": "yearly",
}  # fmt: skip
"""What a parameter of this name, or the one of this path, is called here."""


def path_of(line: Access, world: World, identity: Identity, *, is_taken: bool) -> str:
    """Fill in a path. What is to be done only once is made ready, if it `is_taken`."""
    if is_taken:
        _make_ready(line, world)
    path = plain(line)
    for name in _places(path):
        path = path.replace(f"{{{name}}}", _value(line, name, world, identity, is_taken))
    if path == "/auth/link":
        ada = Principal("ada", tenant=None, roles=frozenset({ADMIN}))
        path += f"?code={identity.make_link(ada)}"
    return path


def plain(line: Access) -> str:
    """The path of a line as the document writes it."""
    return line.path.replace(":path", "")


def body_of(line: Access, app: Any, world: World, identity: Identity) -> Any:
    """Return a body: the example of the document, or what this store knows."""
    if line.path == "/jobs" and line.method == "POST":
        return {"flow": "line", "payload": {"then": "done"}}
    if line.path == "/auth/login":
        return {"name": _user(identity), "password": PASSWORD}
    operation = app.openapi()["paths"][plain(line)][line.method.lower()]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    example = dict(content["example"])
    if "changes" in example:
        example["revision"] = _operations(world.engine).read_config().revision
    if "force" in example:
        example["force"] = True  # how slow requests are is not known here
    if line.path == "/users":
        example["name"] = f"person-{next(NUMBERS)}"
    if "password" in example:
        example["password"] = PASSWORD
    return example


def _operations(engine: ulak.Engine) -> Operations:
    loop = wiring.find_control_loop(engine)
    assert loop is not None
    return Operations(loop)


def _put_into_shadow(engine: ulak.Engine) -> None:
    """Have the guard stand as if the loop had put it into shadow long ago."""
    state = _operations(engine).state
    event = ControlDecisionEvent(
        f"event-{next(NUMBERS)}", "", "p95_latency_exceeded", "enforce", "shadow", "guard", 1,
        None, None, None, None, "adaptive_control",
    )  # fmt: skip
    with state.tables.writing() as connection:
        state.tables.execute(connection, "DELETE FROM {schema}.control_events")
        state.tables.execute(connection, "DELETE FROM {schema}.control_modes")
        state.write_change(connection, Mode("shadow", "adaptive_control", "", 1), event, {})


def _make_ready(line: Access, world: World) -> None:
    engine = world.engine
    if line.path.endswith("/guard/restore"):
        _put_into_shadow(engine)
    if line.path == "/queues/{name}/resume" or plain(line).startswith("/pauses/{kind}"):
        engine.flow_control.pause(queue="line", actor="olga")
    if line.path.startswith("/schedules/"):
        is_paused = (
            next(s for s in engine.schedules.all() if s.name == "yearly").paused_at is not None
        )
        if line.path.endswith("/resume") and not is_paused:
            engine.schedules.pause("yearly", actor="olga")
        elif line.path.endswith("/pause") and is_paused:
            engine.schedules.resume("yearly", actor="olga")


def _places(path: str) -> list[str]:
    return [part.split("}")[0] for part in path.split("{")[1:]]


def _value(line: Access, name: str, world: World, identity: Identity, is_taken: bool) -> str:
    if line.path.startswith("/keys/"):
        return identity.create_key("one", roles={VIEWER}, actor="ada").key.id
    if line.path.startswith("/users/"):
        return _user(identity) if is_taken else "vera"
    if line.path.startswith("/outbox/"):
        return world.dead_messages.pop() if is_taken else world.dead_messages[0]
    if name == "id":
        role = JOBS.get((line.method, line.path))
        if role is None:
            return world.all_jobs[0]
        is_spent = is_taken and line.path.rpartition("/")[2] in ACTS
        return world.take(role) if is_spent else world.jobs[role][0]
    return NAMES[name] if name in NAMES else NAMES[plain(line)]


def _user(identity: Identity) -> str:
    name = f"person-{next(NUMBERS)}"
    identity.create_user(name, PASSWORD, roles={VIEWER}, actor="ada")
    return name
