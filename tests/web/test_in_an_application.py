"""ulak inside somebody's own FastAPI application."""

import asyncio
import logging
import subprocess
import sys
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI

import ulak
import ulak.web


@pytest.mark.shows("E-16")
def test_an_engine_lives_and_works_inside_another_application(engine):
    app = FastAPI(lifespan=engine.lifespan(workers=True))
    app.mount("/ulak", ulak.web.app(engine, identity=None))

    @app.post("/greetings")
    async def greet(name: str) -> dict[str, str]:
        return {"job": (await engine.aio.submit(engine.greet, name)).id}

    async def use() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://own") as client,
        ):
            job = (await client.post("/greetings", params={"name": "ada"})).json()["job"]
            await engine.aio.wait(job, timeout=timedelta(seconds=20))
            listed = (await client.get("/ulak/jobs", params={"role": "done"})).json()["items"]
            assert [found["id"] for found in listed] == [job]
            assert (await client.get("/ulak/health/ready")).status_code == 200
            assert (await client.get("/ulak/nothing")).json()["code"] == "not-found"

    asyncio.run(use())
    assert engine.store.workers() == []


def test_without_workers_nothing_is_run(engine):
    app = FastAPI(lifespan=engine.lifespan())

    async def use() -> None:
        async with app.router.lifespan_context(app):
            await engine.aio.submit(engine.greet, "ada")
            assert engine.store.workers() == []

    asyncio.run(use())


def test_a_worker_that_ends_early_is_heard_of(engine, caplog, monkeypatch):
    def refuse(*_args, **_options):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(engine.store, "register", refuse)

    async def use() -> None:
        async with engine.lifespan(workers=True)(None):
            while not caplog.records:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError):
        asyncio.run(use())
    assert "the worker has ended" in caplog.text


def test_unless_told_otherwise_it_asks_who_calls_and_opens_nothing_before(
    engine, ask, monkeypatch, tmp_path
):
    key = "a key of an administrator's own making"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ULAK_SECRET", "s" * 40)
    monkeypatch.setenv("ULAK_ADMIN_KEY", key.replace(" ", "-"))
    app = ulak.web.app(engine)
    assert not engine.kernel.is_open
    assert ask(app, "/jobs").status_code == 401
    known = {"Authorization": f"Token {key.replace(' ', '-')}"}
    assert ask(app, "/jobs", headers=known).status_code == 200
    assert ask(app, "/auth/me", headers=known).json()["name"] == "key:admin"
    monkeypatch.setenv("ULAK_SECRET", "short")
    with pytest.raises(ulak.BadInput, match="ULAK_SECRET"):
        ulak.web.app(engine)


def test_without_the_extra_it_is_said_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; import ulak.web"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = child.stderr.strip().splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: ulak.web needs fastapi")
    assert "pip install 'ulak[web]'" in said
