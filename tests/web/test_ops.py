"""/admin/ops: kill switches, overrides and the status, for every process of a store."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.conformance.stores import make_schema
from tests.web.people import Known, as_
from ulak.control.guard_state import GuardState
from ulak.control.state import SCHEMA
from ulak.control.switches import KillSwitchManager
from ulak.tables import Tables
from ulak.testing import faults

SWITCHES = "/admin/ops/kill-switches"
GUARD = "/admin/ops/adaptive/overrides/guard"


def ask(
    app: Any, path: str, *, method: str = "GET", who: str = "admin", headers: Any = None,
    **options: Any,
) -> httpx.Response:  # fmt: skip
    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            sent = as_(who) if headers is None else headers
            return await client.request(method, path, headers=sent, **options)

    return asyncio.run(one())


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as lent:
        yield lent


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ulak.Engine]:
    with ulak.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as made:
        yield made


@pytest.fixture
def app(engine: ulak.Engine) -> Any:
    return ulak.web.app(engine, identity=Known())


def audit(engine: ulak.Engine, kind: str) -> list[tuple[str, str, dict[str, Any]]]:
    rows = Tables(engine, SCHEMA).read(
        "SELECT subject, actor, data FROM {schema}.control_audit WHERE kind = ? ORDER BY id", kind
    )
    return [(subject, actor, json.loads(data)) for subject, actor, data in rows]


def events(engine: ulak.Engine) -> list[dict[str, Any]]:
    rows = Tables(engine, SCHEMA).read("SELECT data FROM {schema}.control_events ORDER BY id")
    return [json.loads(row[0]) for row in rows]


def flip(url: str, name: str, enabled: str) -> None:
    """Be another process that sets a switch."""
    with ulak.connect(url) as engine:
        switches = KillSwitchManager(Tables(engine, SCHEMA))
        switches.set(name, enabled == "on", actor="olga", reason="elsewhere", now_ms=7)


@pytest.mark.shows("A-7")
def test_a_switch_of_another_process_holds_here_and_survives_a_restart(url):
    with ulak.connect(url) as engine:
        app = ulak.web.app(engine, identity=Known())
        assert ask(app, "/jobs").status_code == 200
        assert faults.run(flip, url, "global", "on").code == 0
        until = time.monotonic() + 30
        while ask(app, "/jobs").status_code != 503:
            assert time.monotonic() < until, "the switch is not seen"
            time.sleep(0.05)
    with ulak.connect(url) as engine:
        app = ulak.web.app(engine, identity=Known())
        assert ask(app, "/jobs").json()["reason"] == "KILL_SWITCHED", "the first request sees it"
        assert faults.run(flip, url, "global", "off").code == 0
        until = time.monotonic() + 30
        while ask(app, "/jobs").status_code != 200:
            assert time.monotonic() < until, "the release is not seen"
            time.sleep(0.05)
        listed = {s["name"]: s for s in ask(app, SWITCHES).json()["items"]}
        assert listed["global"] == {
            "name": "global", "enabled": False, "updated_at": 7, "updated_by": "olga",
            "reason": "elsewhere",
        }  # fmt: skip


@pytest.mark.shows("A-7")
def test_two_who_set_one_switch_at_once_leave_one_row_and_two_lines(url):
    from concurrent.futures import ThreadPoolExecutor

    with ulak.connect(url) as engine:
        tables = Tables(engine, SCHEMA)
        managers = [KillSwitchManager(tables) for _ in range(2)]

        def put(number: int) -> Any:
            who = f"p{number}"
            return managers[number].set("pdf", True, actor=who, reason="both", now_ms=number + 1)

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(put, range(2)))
        assert sorted(old.enabled for _, old in answers) == [False, True]
        assert len({new for new, _ in answers}) == 1
        lines = audit(engine, "kill-switch")
        assert sorted((who, data["old"]) for _, who, data in lines) in (
            [("p0", False), ("p1", True)], [("p0", True), ("p1", False)],
        )  # fmt: skip


@pytest.mark.shows("A-7")
def test_a_switch_is_set_by_name_with_a_reason_and_audited(app, engine):
    body = {"enabled": True, "reason": "the printer burns"}
    first = ask(app, f"{SWITCHES}/pdf", method="PUT", json=body)
    told = first.json()
    assert (told["enabled"], told["updated_by"], told["reason"]) == (True, "ada", body["reason"])
    assert told["previous"] == {
        "name": "pdf", "enabled": False, "updated_at": None, "updated_by": "", "reason": ""
    }  # fmt: skip
    again = ask(app, f"{SWITCHES}/pdf", method="PUT", json=body).json()
    assert {**again, "previous": None} == {**told, "previous": None}
    assert again["previous"]["enabled"] is True
    assert audit(engine, "kill-switch") == [
        ("pdf", "ada", {"old": False, "new": True, "reason": body["reason"]}),
        ("pdf", "ada", {"old": True, "new": True, "reason": body["reason"]}),
    ]
    tenant = ask(app, f"{SWITCHES}/tenant:acme/west", method="PUT", json=body)
    assert tenant.json()["name"] == "tenant:acme/west"
    gauge = 'ulak_kill_switch{switch="%s"} %s'
    text = ask(app, "/metrics").text
    for name, value in {"pdf": "1.0", "tenant": "1.0", "global": "0.0"}.items():
        assert gauge % (name, value) in text
    assert "acme" not in text


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("printer", {"enabled": True, "reason": "r"}, 404),
        ("pdf", {"enabled": True}, 422),
        ("pdf", {"enabled": True, "reason": ""}, 422),
        ("pdf", {"enabled": True, "reason": "  "}, 422),
        ("pdf", {"enabled": "yes", "reason": "r"}, 422),
        ("pdf", {"enabled": True, "reason": "r", "until": 3}, 422),
    ],
)
def test_a_switch_is_not_set_by_what_is_wrong(app, engine, name, body, status):
    answer = ask(app, f"{SWITCHES}/{name}", method="PUT", json=body)
    assert answer.status_code == status, answer.text
    assert audit(engine, "kill-switch") == []


def test_operations_are_for_admins_by_either_header(app):
    assert ask(app, SWITCHES, headers={}).status_code == 401
    assert ask(app, SWITCHES, headers={"Authorization": "Bearer"}).status_code == 401
    assert ask(app, SWITCHES, who="nobody known").status_code == 401
    assert ask(app, SWITCHES, who="operator").status_code == 403
    assert ask(app, SWITCHES, headers={"X-Admin-Key": "admin"}).status_code == 200


@pytest.mark.shows("A-8", "A-40")
def test_an_override_pins_a_mode_at_once_with_an_event(app, engine):
    body = {"mode": "shadow", "reason": "a release is under way", "expires_in_seconds": 900}
    told = ask(app, GUARD, method="PUT", json=body).json()
    assert (told["subsystem"], told["previous"]) == ("guard", None)
    override = told["override"]
    assert (override["mode"], override["actor"], override["reason"]) == (
        "shadow", "ada", body["reason"],
    )  # fmt: skip
    assert override["expires_at"] - override["set_at"] == 900_000
    assert ask(app, GUARD).json()["override"] == override
    assert ask(app, "/admin/ops/status").json()["overrides"] == [override]
    released = ask(app, f"{GUARD}?reason=done", method="DELETE").json()
    assert (released["override"], released["previous"]) == (None, override)
    assert ask(app, GUARD).json()["override"] is None
    (began, ended) = events(engine)
    assert (began["previous_mode"], began["new_mode"]) == ("enforce", "shadow")
    assert (ended["previous_mode"], ended["new_mode"]) == ("shadow", "enforce")
    assert {e["actor"] for e in (began, ended)} == {"manual_override"}
    assert {e["reason"] for e in (began, ended)} == {"manual_override"}
    assert began["burn_rate"] is began["trigger_metric"] is None
    lines = audit(engine, "override")
    assert [(subject, who, data["reason"]) for subject, who, data in lines] == [
        ("guard", "ada", body["reason"]), ("guard", "ada", "done"),
    ]  # fmt: skip
    assert (lines[0][2]["old"], lines[1][2]["new"]) == (None, None)


@pytest.mark.shows("A-8")
def test_an_override_ends_when_it_expires_and_its_end_is_on_record(engine):
    app = ulak.web.app(engine, identity=Known())
    state: GuardState = next(iter(engine.kernel.shared.values()))
    overrides, now = state.overrides, 1_000_000
    overrides.set("guard", "shadow", actor="ada", reason="r", now_ms=now, expires_in_ms=5000)
    assert overrides.find("guard", now + 4999).mode == "shadow"
    assert overrides.modes(now + 4999) == {"guard": "shadow"}
    assert overrides.find("guard", now + 5000) is None
    assert overrides.modes(now + 5000) == {}
    assert overrides.release_expired(now + 4999) == []
    assert [each.mode for each in overrides.release_expired(now + 5000)] == ["shadow"]
    assert overrides.release_expired(now + 5000) == []
    assert [(e["new_mode"], e["transition_timestamp_ms"]) for e in events(engine)] == [
        ("shadow", now), ("enforce", now + 5000),
    ]  # fmt: skip
    assert ask(app, GUARD).json()["override"] is None


def test_a_repeated_override_is_no_second_change(app, engine):
    body = {"mode": "shadow", "reason": "r"}
    first = ask(app, GUARD, method="PUT", json=body).json()["override"]
    assert ask(app, GUARD, method="PUT", json=body).json()["override"] == first
    assert len(events(engine)) == 1
    assert ask(app, GUARD, method="DELETE", json={"reason": "r"}).status_code == 200
    assert ask(app, GUARD, method="DELETE", json={"reason": "r"}).json()["previous"] is None
    assert len(events(engine)) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "printer", None, 404),
        ("PUT", "printer", {"mode": "shadow", "reason": "r"}, 404),
        ("DELETE", "printer", {"reason": "r"}, 404),
        ("PUT", "guard", {"mode": "off", "reason": "r"}, 422),
        ("PUT", "guard", {"mode": "shadow"}, 422),
        ("PUT", "guard", {"mode": "shadow", "reason": " "}, 422),
        ("PUT", "guard", {"mode": "shadow", "reason": "r", "expires_in_seconds": 0}, 422),
        ("PUT", "guard", {"mode": "shadow", "reason": "r", "forever": True}, 422),
        ("DELETE", "guard", None, 422),
        ("DELETE", "guard", {"reason": " "}, 422),
    ],
)
def test_an_override_is_not_changed_by_what_is_wrong(app, engine, method, path, body, status):
    answer = ask(app, f"/admin/ops/adaptive/overrides/{path}", method=method, json=body)
    assert answer.status_code == status, answer.text
    assert audit(engine, "override") == events(engine) == []


@pytest.mark.shows("A-8", "A-33")
@pytest.mark.parametrize("name", ["global", "guard"])
def test_a_kill_switch_is_above_an_override(app, engine, name):
    ask(app, f"{SWITCHES}/{name}", method="PUT", json={"enabled": True, "reason": "r"})
    answer = ask(app, GUARD, method="PUT", json={"mode": "shadow", "reason": "r"})
    assert (answer.status_code, answer.json()["error_code"]) == (409, "KILLSWITCH_ACTIVE")
    assert audit(engine, "override") == []


@pytest.mark.shows("A-8")
def test_an_override_of_a_service_takes_effect_in_its_transaction(engine):
    from ulak.control.overrides import INTAKE_MODES, Pinnable
    from ulak.errors import StoreError

    ulak.web.app(engine, identity=Known())
    state: GuardState = next(iter(engine.kernel.shared.values()))
    seen: list[tuple[str, bool]] = []

    def effect(mode: str, connection: Any) -> None:
        seen.append((mode, connection is not None))
        if len(seen) == 2:
            raise StoreError("the intake cannot be stopped")

    state.overrides.subsystems["pdf"] = Pinnable(INTAKE_MODES, effect)
    put = {"actor": "ada", "reason": "r", "now_ms": 5}
    state.overrides.set("pdf", "backpressure", **put)
    assert seen == [("backpressure", True)]
    with pytest.raises(StoreError):
        state.overrides.release("pdf", **put)
    state.overrides.refresh()
    assert state.overrides.modes(5) == {"pdf": "backpressure"}, "everything was taken back"
    assert len(events(engine)) == 1
