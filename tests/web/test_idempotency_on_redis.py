"""`IDEMPOTENCY_BACKEND=redis`: what starts, what is refused, and what readiness says."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.web.idempotent import same
from tests.web.people import Known, as_
from ulak.errors import BadInput, StoreError
from ulak.idempotency.settings import IdempotencySettings
from ulak.testing.servers import EVICTING, NOT_KEPT, Redis
from ulak.wiring import guard_and_scope, guard_of, idempotency_settings

BODY = {"flow": "greet", "payload": ["ada"]}
Ask = Callable[..., httpx.Response]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ulak.Engine]:
    made = ulak.connect(f"sqlite:///{tmp_path}/jobs.db")

    @made.job
    def greet(name: str) -> str:
        return f"hello {name}"

    with made:
        yield made


@pytest.fixture
def on(engine: ulak.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Make the application of a process whose settings say where its records are."""
    monkeypatch.chdir(tmp_path)

    def make(url: str, **more: str) -> Any:
        named = {"BACKEND": "redis", "REDIS_URL": url, **more}
        for name, value in named.items():
            monkeypatch.setenv(f"IDEMPOTENCY_{name}", value)
        return ulak.web.app(engine, identity=Known())

    return make


def submit(ask: Ask, app: Any, key: str) -> httpx.Response:
    headers = as_("service") | {"Idempotency-Key": key}
    return ask(app, "/jobs", method="POST", json=BODY, headers=headers)


@pytest.mark.shows("I-58", "I-2", "I-3")
def test_a_submission_that_is_repeated_makes_no_second_job(
    on: Any, ask: Ask, engine: ulak.Engine, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_ENV", "production")
    app = on(redis_url)
    first = submit(ask, app, "order-1")
    assert first.status_code == 201
    assert same(first, submit(ask, app, "order-1"))
    assert same(first, submit(ask, on(redis_url), "order-1")), "another process"
    assert len(engine.jobs()) == 1
    assert engine.store.clean_records(10) == 0, "nothing is kept in the engine's store"
    assert ask(app, "/health/ready").json() == {"status": "ready"}


@pytest.mark.shows("I-59")
@pytest.mark.parametrize(
    ("settings", "why"),
    [(NOT_KEPT, "set appendonly yes"), (EVICTING, "set maxmemory-policy noeviction")],
    ids=["not kept", "evicting"],
)
def test_what_may_forget_is_refused_at_start_or_said_by_readiness(
    on: Any, ask: Ask, settings: dict[str, str], why: str
) -> None:
    with Redis(settings=settings) as server:
        with pytest.raises(BadInput, match=why):
            on(server.url())
        app = on(server.url(), REDIS_ALLOW_VOLATILE="1")
        assert submit(ask, app, "order-1").status_code == 201
        ready = ask(app, "/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "durable": False})


@pytest.mark.shows("I-9")
def test_while_redis_is_away_nothing_is_submitted_and_the_process_is_not_ready(
    on: Any, ask: Ask, engine: ulak.Engine
) -> None:
    with Redis() as server:
        app = on(server.url())
        first = submit(ask, app, "order-1")
        server.kill()
        for key in ("order-1", "order-2"):
            refused = submit(ask, app, key)
            assert (refused.status_code, refused.json()["code"]) == (
                503, "idempotency_store_unavailable",
            )  # fmt: skip
            assert int(refused.headers["retry-after"]) >= 1
        ready = ask(app, "/health/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "not-ready")
        assert "does not answer" in ready.json()["detail"]
        assert ask(app, "/health/live").status_code == 200
        assert len(engine.jobs()) == 1
        server.start()
        assert same(first, submit(ask, app, "order-1"))
        assert ask(app, "/health/ready").status_code == 200
        server.kill()
        with pytest.raises(StoreError, match="does not answer"):
            on(server.url())


def test_the_address_is_needed_and_must_be_one(
    engine: ulak.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="IDEMPOTENCY_REDIS_URL is not set"):
        idempotency_settings({"IDEMPOTENCY_BACKEND": "redis"})
    wrong = IdempotencySettings(backend="redis", redis_url="redis://:hunter2@host/first")
    with pytest.raises(BadInput, match="no number of a database") as refused:
        guard_of(engine, "dev", wrong)
    assert "hunter2" not in f"{refused.value}{wrong!r}"
    monkeypatch.setenv("IDEMPOTENCY_BACKEND", "redis")
    monkeypatch.setenv("IDEMPOTENCY_REDIS_URL", "redis://host")
    guard, scope = guard_and_scope(engine, "orders")
    assert (guard.features.name, scope.name, scope.mode) == ("redis", "orders", "lease")
