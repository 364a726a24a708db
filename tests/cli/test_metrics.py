"""Metrics of processes: `ulak up` shows its API's, its worker's and its children's, a worker its
own, and whether it can work."""

import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Shop
from tests.cli.test_postgres import shop_at
from tests.cli.test_up import PATIENCE_S, address, greeting, running, until
from tests.conformance.stores import make_schema
from tests.web.test_metrics import Series, series, value

DONE = 'ulak_moves_total{flow="greet",role="done",state="done"} 1.0'


def test_up_shows_what_its_worker_does(shop):
    shop.submit("greet", "ada")
    with running(shop, "up", "shop:engine", "--port", "0") as process:
        base = address(greeting(process))
        key = shop.ulak("keys", "create", "prometheus", "--role", "viewer").out.strip()
        headers = {"Authorization": f"Bearer {key}"}
        until(lambda: DONE in httpx.get(f"{base}/metrics", headers=headers).text)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_worker_shows_its_metrics_when_it_is_told_to(shop):
    shop.submit("greet", "ada")
    with running(shop, "worker", "shop:engine", "--metrics-port", "0") as process:
        said = greeting(process)
        at = next(line.split()[1] for line in said.splitlines() if "metrics" in line)
        assert at.startswith("http://127.0.0.1:")
        until(lambda: DONE in httpx.get(at).text)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err


def test_a_taken_port_for_metrics_is_one_line(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = shop.run("worker", "shop:engine", "--metrics-port", port)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: cannot show metrics on 127.0.0.1 port {port}")
    assert answer.err.count("\n") == 1


@pytest.fixture(params=["sqlite", "postgres"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """The program, on either database."""
    if request.param == "sqlite":
        yield request.getfixturevalue("shop")
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield shop_at(url, tmp_path, run, monkeypatch)


class Scrapes:
    """What a scraper sees, and that no counter of children falls under its eyes."""

    def __init__(self, base: str, key: str) -> None:
        self._ask = lambda: httpx.get(
            f"{base}/metrics", headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S
        )
        self._last: Series = {}

    def find(self, name: str, **labels: str) -> float | None:
        found = series(self._ask().text)
        for one, before in self._last.items():
            if one[0].startswith(("ulak_moves", "ulak_wait", "ulak_lapses")):
                assert found.get(one, 0.0) >= before, one
        self._last = found
        return value(found, name, **labels)


def test_up_adds_up_what_its_children_count_and_loses_nothing_with_one_of_them(anywhere):
    options = ("--port", "0", "--workers", "2", "--lease", "1")
    with running(anywhere, "up", "shop:engine", *options) as process:
        base = address(greeting(process))
        key = anywhere.ulak("keys", "create", "prometheus", "--role", "viewer").out.strip()
        scrapes = Scrapes(base, key)

        def have_greeted() -> float | None:
            return scrapes.find("ulak_moves_total", flow="greet", state="done", role="done")

        for _ in range(5):
            anywhere.submit("greet", "ada")
        anywhere.submit("stumble", 1)
        until(lambda: have_greeted() == 5)
        assert scrapes.find("ulak_wait_seconds_count", flow="greet") == 5
        failed = {"flow": "stumble", "state": "failed", "role": "failed"}
        until(lambda: scrapes.find("ulak_moves_total", **failed) == 1)
        nap = anywhere.submit("nap", 600)

        def worker() -> str:
            return anywhere.ulak("jobs", "show", nap, "--json").document["leased_by"] or ""

        until(worker)
        until(lambda: scrapes.find("ulak_stages_running") == 1)
        os.kill(int(worker().rsplit("-", 2)[1]), signal.SIGKILL)
        until(lambda: scrapes.find("ulak_lapses_total", flow="nap") == 1)
        until(lambda: httpx.get(f"{base}/health/ready").status_code == 200)
        anywhere.submit("greet", "ada")
        until(lambda: have_greeted() == 6)
        assert scrapes.find("ulak_wait_seconds_count", flow="greet") == 6


def test_on_redis_children_work_and_up_says_that_it_does_not_count_them(
    redis_url: str, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
):
    shop = shop_at(redis_url, tmp_path, run, monkeypatch)
    with running(shop, "up", "shop:engine", "--port", "0", "--workers", "2") as process:
        greeting(process)
        id = shop.submit("greet", "ada")
        until(lambda: shop.ulak("jobs", "show", id, "--json").document["state"] == "done")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "note: /metrics leaves out what children count" in err


def test_a_worker_tells_whether_it_can_work(shop):
    options = ("--metrics-port", "0", "--lease", "1")
    with running(shop, "worker", "shop:engine", *options) as process:
        said = greeting(process)
        ready = next(line.split()[1] for line in said.splitlines() if "  ready " in line)

        def lacks() -> str | None:
            answer = httpx.get(ready, timeout=PATIENCE_S)
            assert answer.headers["content-type"] == (
                "application/json" if answer.status_code == 200 else "application/problem+json"
            )
            return None if answer.status_code == 200 else answer.json()["detail"]

        until(lambda: lacks() is None)
        live = ready.replace("/ready", "/live")
        assert httpx.get(live).json() == {"status": "live"}
        with closing(sqlite3.connect(shop.folder / "shop.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            until(lambda: "the worker's lease of 1 s was renewed" in (lacks() or ""))
            assert httpx.head(ready).status_code == 503
            assert httpx.get(live).status_code == 200
            db.execute("ROLLBACK")
        until(lambda: lacks() is None)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
