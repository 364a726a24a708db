"""Whether a process lives, and whether it can work."""

import threading

import pytest

import ulak
import ulak.web
from tests.scenario.doubles import Double, engine_on, eventually, settings, store_of
from ulak.errors import StoreError
from ulak.store.sqlite.files import LockFile
from ulak.web.routes import health

LONG_S = 120.0


def test_a_process_that_answers_is_live(engine, ask):
    app = ulak.web.app(engine, identity=None)
    assert ask(app, "/health/live").json() == {"status": "live"}
    assert ask(app, "/health/live", method="HEAD").status_code == 200


def test_health_alone_says_that_it_lives_and_names_the_two_probes(engine, ask):
    from fastapi import FastAPI

    app = ulak.web.app(engine, identity=None)
    named = {"status": "live", "live": "/health/live", "ready": "/health/ready"}
    assert ask(app, "/health").json() == named
    assert ask(app, "/health", method="HEAD").status_code == 200
    outer = FastAPI()
    outer.mount("/ulak", app)
    below = ask(outer, "/ulak/health").json()
    assert (below["live"], below["ready"]) == ("/ulak/health/live", "/ulak/health/ready")
    for path in (below["live"], below["ready"]):
        assert ask(outer, path).status_code == 200


def test_live_does_not_ask_the_store(engine, ask, monkeypatch):
    monkeypatch.setattr(engine.store, "open", lambda: pytest.fail("the store was opened"))
    assert ask(ulak.web.app(engine, identity=None), "/health/live").status_code == 200


def is_unready(answer, about: str) -> bool:
    document = answer.json()
    return (
        answer.status_code == 503
        and answer.headers["content-type"] == "application/problem+json"
        and document["code"] == "not-ready"
        and document["retryable"] is True
        and about in document["detail"]
    )


@pytest.mark.shows("E-58")
def test_ready_follows_the_store_down_and_up_again(engine, ask, monkeypatch):
    app = ulak.web.app(engine, identity=None)
    assert ask(app, "/health/ready").json() == {"status": "ready"}

    def fail() -> None:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "workers", fail)
        assert is_unready(ask(app, "/health/ready"), "the disk is gone")
    assert ask(app, "/health/ready").status_code == 200


def test_a_store_that_hangs_is_not_ready_and_is_asked_once(engine, ask, monkeypatch):
    asked, answer = [], threading.Event()

    def hang() -> None:
        asked.append(1)
        answer.wait(120)

    monkeypatch.setattr(engine.store, "workers", hang)
    monkeypatch.setattr(health, "PATIENCE_S", 0.05)
    app = ulak.web.app(engine, identity=None)

    import asyncio

    import httpx

    async def probe_thrice() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            answers = [await client.get("/health/ready") for _ in range(3)]
        answer.set()
        return answers

    for response in asyncio.run(probe_thrice()):
        assert is_unready(response, "has not answered")
    assert len(asked) == 1


@pytest.mark.shows("E-83", "E-58")
def test_a_process_that_only_submits_is_not_ready_while_another_keeps_its_file_locked(
    tmp_path, ask, monkeypatch
):
    monkeypatch.setattr(health, "PATIENCE_S", 0.2)
    path = tmp_path / "jobs.db"
    with engine_on(store_of(f"sqlite:///{path}")) as engine:
        app = ulak.web.app(engine, identity=None)
        assert ask(app, "/health/ready").status_code == 200
        other = LockFile(path.with_name("jobs.db.lock"))
        assert other.try_acquire()
        assert is_unready(ask(app, "/health/ready"), "has not answered within")
        other.release()
        eventually(lambda: ask(app, "/health/ready").status_code == 200)


def test_ready_waits_for_what_the_process_still_lacks(engine, ask):
    lacking = ["the worker is not registered"]
    app = ulak.web.app(engine, identity=None, unready=lambda: lacking[0] if lacking else None)
    assert is_unready(ask(app, "/health/ready"), "not registered")
    lacking.clear()
    assert ask(app, "/health/ready").status_code == 200


@pytest.mark.shows("E-83", "E-58")
def test_ready_looks_at_the_age_of_the_lease_of_this_process(ask):
    """Renewals may wait for an answer while the store answers everybody else, the probe too."""
    flow = ulak.Flow("any", ulak.Lifecycle("go", {"go": ["done"]}))

    @flow.stage("go")
    def go(run):
        pass

    store, may_renew = Double(store_of("memory://")), threading.Event()
    engine = engine_on(store, flow)
    app = ulak.web.app(engine, identity=None)
    with engine, engine.working(settings(lease=1.5)):
        eventually(lambda: ask(app, "/health/ready").status_code == 200)
        store.before["renew"] = lambda *_, **__: may_renew.wait(LONG_S)
        eventually(lambda: is_unready(ask(app, "/health/ready"), "the worker's lease of 1.5 s was"))
        assert is_unready(ask(app, "/health/ready"), "others may take its jobs")
        may_renew.set()
        eventually(lambda: ask(app, "/health/ready").status_code == 200)
    assert ask(app, "/health/ready").status_code == 200, "nobody works here any more"


def test_a_worker_that_has_not_registered_is_not_ready(ask):
    store, may_register = Double(store_of("memory://")), threading.Event()
    store.before["register"] = lambda *_, **__: may_register.wait(LONG_S)
    engine = engine_on(store)
    app = ulak.web.app(engine, identity=None)
    with engine, engine.working(settings()):
        eventually(lambda: is_unready(ask(app, "/health/ready"), "the worker is not registered"))
        may_register.set()
        eventually(lambda: ask(app, "/health/ready").status_code == 200)
