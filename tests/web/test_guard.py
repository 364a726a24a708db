"""The request guard around a real application: what it refuses, in which order, and how."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.web.discretion import must_be_discreet
from tests.web.people import Known, as_
from ulak.control.guard import GuardConfig
from ulak.control.guard_state import GuardState
from ulak.control.limiter import RateLimiter
from ulak.control.switches import KillSwitchManager
from ulak.errors import ServiceError
from ulak.web import guard

PUT = "/admin/ops/kill-switches/"


class Guarded:
    """An application on SQLite with a guard, and somebody who asks."""

    def __init__(self, url: str) -> None:
        self.engine = ulak.connect(url)

        @self.engine.job
        def greet(name: str) -> str:
            return f"hello {name}"

        self.app = ulak.web.app(self.engine, identity=Known())
        self.now_ms = 1_800_000_000_000
        self.state.clock_ms = lambda: self.now_ms
        self.state.started_ms = self.now_ms

    @property
    def state(self) -> GuardState:
        found = next(iter(self.engine.kernel.shared.values()))
        assert isinstance(found, GuardState)
        return found

    def ask(
        self, path: str, *, method: str = "GET", who: str = "operator", tenant: str = "",
        **options: Any,
    ) -> httpx.Response:  # fmt: skip
        headers = {**(as_(who) if who else {}), **({"X-Tenant-Id": tenant} if tenant else {})}

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.request(method, path, headers=headers, **options)

        answer = asyncio.run(one())
        must_be_discreet(
            method, path, sent=(headers, options.get("json")), status=answer.status_code,
            answer=(answer.headers.multi_items(), answer.content),
        )  # fmt: skip
        return answer

    def submit(self, **options: Any) -> httpx.Response:
        job = {"flow": "greet", "payload": {"name": "ada"}}
        return self.ask("/jobs", method="POST", json=job, **options)

    def switch(self, name: str, enabled: bool = True) -> dict[str, Any]:
        body = {"enabled": enabled, "reason": "a test"}
        answer = self.ask(PUT + name, method="PUT", who="admin", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def count(self, name: str, *labels: str) -> float:
        found = {family.name: family for family in self.app.state.metrics.read()}[name].series
        return found.get(labels, (0.0,))[0]


Open = Callable[..., Guarded]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    made: list[Guarded] = []

    def make(**variables: Any) -> Guarded:
        for name, value in variables.items():
            text = value if isinstance(value, str) else json.dumps(value)
            monkeypatch.setenv(f"OPS_GUARD_{name}", text)
        made.append(Guarded(f"sqlite:///{tmp_path / 'jobs.db'}"))
        return made[-1]

    yield make
    for guarded in made:
        guarded.engine.close()


def reason(answer: httpx.Response) -> str | None:
    document = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["status"] == answer.status_code
    found: str | None = document.get("reason")
    return found


def fail_always(monkeypatch: pytest.MonkeyPatch, engine: ulak.Engine) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(engine, "jobs", fail)


@pytest.mark.shows("A-1", "A-9")
def test_the_first_part_of_the_chain_that_refuses_wins(opened, monkeypatch):
    guarded = opened(
        RATE_LIMIT_HEAVY_READ_PER_MINUTE="11", DECISION_LAYER_ENABLED="true",
        DECISION_LAYER_ENDPOINT_RISK_MAP_JSON={"/jobs": "high"}, DEPENDENCY_MAP_JSON={},
        CB_MIN_EVENTS="10",
    )  # fmt: skip
    # Nothing is mapped, so the decision layer blocks; a breaker for it is made by hand.
    guarded.state.config.dependency_map["/jobs"] = ["store"]
    with monkeypatch.context() as broken:
        fail_always(broken, guarded.engine)
        assert [guarded.ask("/jobs").status_code for _ in range(10)] == [500] * 10
        open_now = guarded.ask("/jobs")
        assert (open_now.status_code, reason(open_now)) == (503, "CIRCUIT_OPEN")
        limited = guarded.ask("/jobs")
        assert (limited.status_code, reason(limited)) == (429, "RATE_LIMITED")
        assert 1 <= int(limited.headers["Retry-After"]) <= 60
        guarded.switch("global")
        closed = guarded.ask("/jobs")
        assert (closed.status_code, reason(closed)) == (503, "KILL_SWITCHED")
    guarded.switch("global", False)
    guarded.now_ms += 60_000
    assert guarded.ask("/jobs").status_code == 200
    guarded.state.config.dependency_map["/jobs"] = []
    blocked = guarded.ask("/jobs")
    assert (blocked.status_code, blocked.json()["errorCode"]) == (503, "OPS_GUARD_INSUFFICIENT")
    assert guarded.count("ulak_guard_denials", "KILL_SWITCHED") == 1
    assert guarded.count("ulak_guard_denials", "RATE_LIMITED") == 1
    assert guarded.count("ulak_guard_denials", "CIRCUIT_OPEN") == 1


@pytest.mark.shows("A-1")
def test_probes_scrapes_logins_and_operations_are_never_switched_off(opened):
    guarded = opened(RATE_LIMIT_OTHER_PER_MINUTE="1", RATE_LIMIT_HEAVY_READ_PER_MINUTE="1")
    guarded.switch("global")
    for path in ("/health", "/health/live", "/health/ready", "/metrics", "/admin/ops/status"):
        for _ in range(3):
            assert guarded.ask(path, who="admin").status_code == 200, path
    login = {"name": "ada", "password": "not the one that she has"}
    for _ in range(3):
        answer = guarded.ask("/auth/login", method="POST", json=login, who="")
        assert answer.status_code != 503
    assert reason(guarded.ask("/flows")) == "KILL_SWITCHED"
    assert guarded.ask("/no/such/place").status_code == 404
    assert guarded.ask("/flows", who="").status_code == 401


@pytest.mark.shows("A-1")
def test_a_limiter_that_fails_lets_nobody_through(opened, monkeypatch):
    guarded = opened(RATE_LIMIT_HEAVY_READ_PER_MINUTE="100")
    assert guarded.ask("/jobs").status_code == 200

    def fail(*_: Any) -> int:
        raise RuntimeError("broken")

    monkeypatch.setattr(RateLimiter, "take", fail)
    answer = guarded.ask("/jobs")
    assert (answer.status_code, reason(answer)) == (429, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == "1"
    assert guarded.count("ulak_guard_faults", "limiter") == 1


@pytest.mark.shows("A-7")
def test_a_fault_of_the_switches_closes_endpoints_of_high_risk_alone(opened, monkeypatch):
    guarded = opened(DECISION_LAYER_ENDPOINT_RISK_MAP_JSON={"/jobs": "high", "/flows": "medium"})
    assert guarded.ask("/jobs").status_code == 200

    def fail(_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(KillSwitchManager, "active", property(fail))
    answer = guarded.ask("/jobs")
    assert (answer.status_code, reason(answer)) == (503, "INTERNAL_ERROR")
    assert guarded.ask("/flows").status_code == 200
    assert guarded.ask("/workers").status_code == 200
    assert guarded.count("ulak_guard_faults", "kill-switch") == 3


@pytest.mark.shows("A-7")
def test_switches_that_could_never_be_read_are_a_fault(opened, monkeypatch):
    guarded = opened(DECISION_LAYER_ENDPOINT_RISK_MAP_JSON={"/jobs": "high"})

    def fail(_: Any) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(GuardState, "refresh", fail)
        assert reason(guarded.ask("/jobs")) == "INTERNAL_ERROR"
        assert guarded.ask("/flows").status_code == 200
        scrape = guarded.ask("/metrics")
        assert scrape.status_code == 200
        assert "ulak_kill_switch{" not in scrape.text
        assert 'ulak_guard_faults_total{part="kill-switch"} 2.0' in scrape.text
    guarded.state.refresh()
    assert guarded.ask("/jobs").status_code == 200


@pytest.mark.shows("A-7")
def test_what_was_known_last_holds_while_the_store_does_not_answer(opened, monkeypatch):
    guarded = opened()
    guarded.switch("pdf")
    guarded.switch("tenant:acme")

    def fail(_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(GuardState, "refresh", fail)
    monkeypatch.setattr(guarded.state.refresher, "_ended_s", float("-inf"))
    assert reason(guarded.ask("/jobs", tenant="acme")) == "KILL_SWITCHED"
    assert guarded.ask("/jobs", tenant="other").status_code == 200


def test_a_store_that_hangs_holds_up_one_request_and_no_loop(opened, monkeypatch):
    import threading

    guarded, hanging = opened(), threading.Event()
    guarded.state.refresh()
    monkeypatch.setattr(guard, "PATIENCE_S", 0.01)
    monkeypatch.setattr(GuardState, "refresh", lambda _: hanging.wait(60))
    assert guarded.ask("/flows").status_code == 200
    assert guarded.state.refresher._is_slow
    waits = []
    monkeypatch.setattr(asyncio, "timeout", lambda _: waits.append(1))
    assert guarded.ask("/flows").status_code == 200
    assert waits == []
    hanging.set()


@pytest.mark.shows("A-7")
def test_degrade_mode_closes_writes_and_leaves_reads_open(opened):
    guarded = opened()
    guarded.switch("degrade_mode")
    submitted = guarded.submit()
    assert (submitted.status_code, reason(submitted)) == (503, "KILL_SWITCHED")
    put = guarded.ask("/weights/acme", method="PUT", who="admin", json={"weight": 2})
    delete = guarded.ask("/weights/acme", method="DELETE", who="admin")
    assert [reason(put), reason(delete)] == ["KILL_SWITCHED"] * 2
    assert guarded.ask("/jobs").status_code == 200
    assert guarded.ask("/jobs").json()["items"] == []
    guarded.switch("degrade_mode", False)
    assert guarded.submit().status_code == 201


@pytest.mark.shows("A-7")
def test_the_switch_of_a_tenant_closes_that_tenant_alone(opened):
    guarded = opened()
    guarded.switch("tenant:acme")
    assert reason(guarded.ask("/jobs", who="acme-operator")) == "KILL_SWITCHED"
    assert reason(guarded.ask("/jobs", tenant="acme")) == "KILL_SWITCHED"
    assert guarded.ask("/jobs").status_code == 200


@pytest.mark.shows("A-5")
def test_only_who_sees_all_tenants_may_say_for_which_one_it_asks(opened):
    guarded = opened()
    guarded.switch("tenant:default")
    assert reason(guarded.ask("/jobs")) == "KILL_SWITCHED", "without a header"
    assert guarded.ask("/jobs", tenant="other").status_code == 200
    # Bound to acme, whatever it says.
    assert guarded.ask("/jobs", who="acme-operator", tenant="default").status_code == 200
    # A stranger is nobody's, whatever it says.
    assert reason(guarded.ask("/", who="", tenant="other")) == "KILL_SWITCHED"


@pytest.mark.shows("A-7", "A-56")
def test_the_environment_sets_switches_until_somebody_does(opened):
    guarded = opened(KILLSWITCH_DEGRADE_MODE="true", KILLSWITCH_TENANTS="acme")
    assert reason(guarded.submit()) == "KILL_SWITCHED"
    assert reason(guarded.ask("/jobs", tenant="acme")) == "KILL_SWITCHED"
    guarded.switch("degrade_mode", False)
    assert guarded.submit().status_code == 201


@pytest.mark.shows("A-9")
def test_without_a_setting_there_is_no_limit(opened):
    guarded = opened()
    answers = {guarded.ask("/flows").status_code for _ in range(130)}
    assert answers == {200}


@pytest.mark.shows("A-9")
def test_limits_are_for_each_principal_and_group_and_asked_after_authentication(opened):
    guarded = opened(
        RATE_LIMIT_HEAVY_WRITE_PER_MINUTE="1", RATE_LIMIT_HEAVY_READ_PER_MINUTE="2",
        RATE_LIMIT_OTHER_PER_MINUTE="1",
    )  # fmt: skip
    for _ in range(5):
        assert guarded.ask("/jobs", who="").status_code == 401
        assert guarded.ask("/jobs", who="nobody known").status_code == 401
    reads = [guarded.ask("/jobs").status_code for _ in range(3)]
    assert reads == [200, 200, 429]
    assert guarded.ask("/flows").status_code == 429, "of the same group"
    assert [guarded.submit().status_code for _ in range(2)] == [201, 429]
    assert [guarded.ask("/", who="").status_code for _ in range(2)] == [200, 429]
    assert guarded.ask("/jobs", who="viewer").status_code == 200
    guarded.now_ms += 60_000
    assert guarded.ask("/jobs").status_code == 200


class ComeBack(ServiceError):
    """A service refuses, and says when to come back."""

    code, status = "come-back", 503


@pytest.mark.shows("A-9")
@pytest.mark.parametrize(("after", "is_open"), [(timedelta(seconds=5), False), (None, True)])
def test_a_refusal_that_says_when_to_come_back_is_no_failure(opened, monkeypatch, after, is_open):
    def refuse(*_args: Any, **_options: Any) -> None:
        raise ComeBack("come back later", retry_after=after)

    guarded = opened()
    monkeypatch.setattr(guarded.engine, "jobs", refuse)
    answers = [guarded.ask("/jobs") for _ in range(12)]
    assert (reason(answers[-1]) == "CIRCUIT_OPEN") == is_open


@pytest.mark.shows("A-9")
def test_the_breaker_lets_probes_through_after_its_time(opened, monkeypatch):
    guarded = opened()
    with monkeypatch.context() as broken:
        fail_always(broken, guarded.engine)
        for _ in range(10):
            guarded.ask("/jobs")
        answer = guarded.ask("/jobs")
        assert reason(answer) == "CIRCUIT_OPEN"
        assert answer.headers["Retry-After"] == "30"
        assert guarded.ask("/flows").status_code == 200, "a route has a breaker of its own"
        shown = guarded.ask("/admin/ops/status", who="admin").json()["breakers"]
        assert {"dependency": "/jobs", "state": "open"} in shown
        guarded.now_ms += 30_000
        assert guarded.ask("/jobs").status_code == 500
        assert reason(guarded.ask("/jobs")) == "CIRCUIT_OPEN", "the probe has failed"
    guarded.now_ms += 30_000
    assert [guarded.ask("/jobs").status_code for _ in range(20)] == [200] * 20


@pytest.mark.shows("A-9")
def test_refusals_of_a_client_are_no_failures(opened):
    guarded = opened()
    for _ in range(20):
        assert guarded.ask("/jobs?limit=none").status_code == 422
    assert guarded.ask("/jobs").status_code == 200
    limited = opened(RATE_LIMIT_HEAVY_READ_PER_MINUTE="1")
    for _ in range(20):
        limited.ask("/jobs")
    limited.now_ms += 60_000
    assert limited.ask("/jobs").status_code == 200


HIGH = {"DECISION_LAYER_ENABLED": "true",
        "DECISION_LAYER_ENDPOINT_RISK_MAP_JSON": {"/jobs": "high"}}  # fmt: skip


@pytest.mark.shows("A-4")
def test_a_block_in_enforce_answers_503_with_its_codes(opened):
    guarded = opened(**HIGH, CONFIG_UPDATED_AT="2020-01-01T00:00:00Z")
    answer = guarded.ask("/jobs")
    document = answer.json()
    assert answer.status_code == 503
    assert document["errorCode"] == "OPS_GUARD_STALE"
    assert document["reasonCodes"] == ["CONFIG_TOO_OLD"]
    assert document["error"]
    assert document["message"]
    assert guarded.count("ulak_guard_evaluated") == 1
    assert guarded.count("ulak_guard_blocks") == 1
    assert guarded.count("ulak_guard_verdicts", "_other", "enforce", "BLOCK_STALE") == 1


@pytest.mark.shows("A-4")
def test_a_block_in_shadow_is_only_counted_and_logged(opened, caplog):
    guarded = opened(
        **HIGH, DEPENDENCY_MAP_JSON={}, DECISION_LAYER_TENANT_MODES_JSON={"acme": "shadow"},
        DECISION_LAYER_TENANT_ALLOWLIST_JSON=["acme"],
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "ulak.guard"):
        assert guarded.ask("/jobs", tenant="acme").status_code == 200
    logged = [record for record in caplog.records if hasattr(record, "verdict")]
    assert [(r.verdict, r.mode, r.reasons) for r in logged] == [
        ("BLOCK_INSUFFICIENT", "shadow", ["DEPENDENCY_UNMAPPED"])
    ]
    assert guarded.count("ulak_guard_blocks") == 0
    assert guarded.count("ulak_guard_verdicts", "acme", "shadow", "BLOCK_INSUFFICIENT") == 1
    assert guarded.ask("/jobs").status_code == 503
    assert guarded.ask("/flows").status_code == 200, "of low risk: enforce is shadow there"
    assert guarded.count("ulak_guard_verdicts", "_other", "shadow", "BLOCK_INSUFFICIENT") == 1


@pytest.mark.shows("A-4", "A-56")
@pytest.mark.parametrize("off", [{}, {**HIGH, "DECISION_LAYER_DEFAULT_MODE": "off"}])
def test_in_off_nothing_is_evaluated(opened, off, monkeypatch):
    guarded = opened(**off, DEPENDENCY_MAP_JSON={}, CONFIG_UPDATED_AT="never")
    monkeypatch.setattr(guard, "make_snapshot", None)
    assert guarded.ask("/jobs").status_code == 200
    assert (
        guarded.count("ulak_guard_evaluated") == guarded.count("ulak_guard_snapshot_failures") == 0
    )


@pytest.mark.shows("A-4")
def test_a_snapshot_that_cannot_be_made_is_counted_and_the_request_passes(opened, monkeypatch):
    guarded = opened(**HIGH)

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(guard, "make_snapshot", fail)
    assert guarded.ask("/jobs").status_code == 200
    assert guarded.count("ulak_guard_snapshot_failures") == 1


@pytest.mark.shows("A-2")
def test_one_snapshot_is_made_of_a_request_and_a_change_meanwhile_does_not_alter_it(
    opened, monkeypatch
):
    guarded, made, real = opened(**HIGH), [], guard.make_snapshot

    def make(config: GuardConfig, **facts: Any) -> Any:
        made.append(real(config, **facts))
        before = made[-1].risk_context_hash, made[-1].signals
        guarded.state.config_hash = "changed"
        assert (made[-1].risk_context_hash, made[-1].signals) == before
        return made[-1]

    monkeypatch.setattr(guard, "make_snapshot", make)
    assert guarded.submit().status_code == 201
    assert len(made) == 1
    assert (made[0].endpoint, made[0].method, made[0].tenant_id) == ("/jobs", "POST", "default")
    assert (made[0].risk_class, made[0].effective_mode) == ("high", "enforce")
    guarded.ask("/jobs")
    assert (made[0].config_hash, made[1].config_hash) == (guarded.state.config.hash, "changed")


@pytest.mark.shows("A-5", "A-8")
def test_what_the_loop_and_people_set_holds_for_requests(opened):
    guarded = opened(**HIGH, DEPENDENCY_MAP_JSON={})
    assert guarded.ask("/jobs", tenant="acme").status_code == 503
    row = "guard", "shadow", "adaptive_control", "p95", json.dumps([["acme", "high"]]), 1
    guarded.state.tables.write(
        "INSERT INTO {schema}.control_modes "
        "(subsystem_id, mode, set_by, reason, targets, since_ms) VALUES (?, ?, ?, ?, ?, ?)", *row
    )  # fmt: skip
    guarded.state.refresh()
    assert guarded.ask("/jobs", tenant="acme").status_code == 200
    assert guarded.ask("/jobs", tenant="other").status_code == 503, "others keep their mode"
    path, body = "/admin/ops/adaptive/overrides/guard", {"reason": "a test"}
    pinned = guarded.ask(path, method="PUT", who="admin", json={**body, "mode": "enforce"})
    assert pinned.status_code == 200
    assert guarded.ask("/jobs", tenant="acme").status_code == 503
    assert guarded.ask(path, method="DELETE", who="admin", json=body).status_code == 200
    assert guarded.ask("/jobs", tenant="acme").status_code == 200
    from ulak.control.guard_state import GuardMode

    GuardMode(guarded.state.tables).set_mode("enforce")
    guarded.state.refresh()
    assert guarded.ask("/jobs", tenant="acme").status_code == 503
    guarded.switch("guard")
    assert guarded.ask("/jobs", tenant="acme").status_code == 200, "the layer is switched off"


@pytest.mark.shows("A-5")
def test_the_status_tells_modes_and_why_they_differ(opened):
    guarded = opened(**HIGH, DECISION_LAYER_TENANT_MODES_JSON={"calm": "shadow"})
    told = guarded.ask("/admin/ops/status", who="admin").json()["guard"]
    assert (told["enabled"], told["config_hash"]) == (True, guarded.state.config_hash)
    modes = {(m["tenant"], m["risk_class"]): m for m in told["modes"]}
    assert modes["*", "high"] == {
        "subsystem": "guard", "tenant": "*", "risk_class": "high", "configured": "enforce",
        "controlled": "enforce", "effective": "enforce", "why": "",
    }  # fmt: skip
    assert (modes["*", "low"]["effective"], modes["*", "low"]["why"]) == ("shadow", "risk low")
    assert modes["calm", "high"]["configured"] == "shadow"
    guarded.switch("guard")
    told = guarded.ask("/admin/ops/status", who="admin").json()["guard"]["modes"]
    assert {mode["why"] for mode in told} == {"kill switch guard"}


def test_a_body_is_not_read_of_who_is_refused(opened):
    guarded = opened()
    guarded.switch("global")

    async def body() -> Any:
        raise AssertionError("the body was read")
        yield b""

    answer = guarded.ask("/jobs", method="POST", content=body())
    assert reason(answer) == "KILL_SWITCHED"


def test_an_engine_without_tables_has_no_guard_and_says_so():
    with ulak.connect("memory://") as engine:
        app = ulak.web.app(engine, identity=Known())

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.get("/admin/ops/kill-switches", headers=as_("admin"))

        answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["code"]) == (501, "not-supported")
