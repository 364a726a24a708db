"""Whether the remote keeps up, and how anybody can know."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.services.contracts.outbox.conftest import Outbox, accept, away, refuse
from tests.services.contracts.outbox.pair import Home, towards
from ulak import Engine
from ulak.services.contracts.outbox import figures
from ulak.services.contracts.outbox.desk import key_of
from ulak.services.contracts.outbox.figures import Figures, Limits

MS = timedelta(milliseconds=1)
WELL = Figures(
    backlog=99, oldest=timedelta(seconds=299), dead=0, attempted=2000, failed=1,
    p95=299 * MS, p99=799 * MS,
)  # fmt: skip


@pytest.mark.shows("I-56")
def test_just_below_every_limit_all_is_well() -> None:
    assert Limits().exceeded(WELL) == []
    assert Limits().exceeded(Figures()) == []


@pytest.mark.shows("I-56")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backlog", 100), ("oldest", timedelta(minutes=5)), ("dead", 1), ("p95", 300 * MS),
        ("p99", 800 * MS), ("failed", 2),
    ],
)  # fmt: skip
def test_each_limit_is_named_when_it_is_reached(name: str, value: Any) -> None:
    (sentence,) = Limits().exceeded(replace(WELL, **{name: value}))
    assert sentence.startswith({"failed": "errors"}.get(name, name) + ": ")


@pytest.mark.shows("I-56")
def test_the_figures_are_those_of_the_table_in_every_process(
    outbox: Outbox, make_engine: Callable[[], Engine]
) -> None:
    other = Outbox(make_engine())
    assert figures.read(outbox.engine) == Figures()
    for proof in range(4):
        outbox.write(proof, subject=str(proof))
    answers = {"0": accept, "1": refuse, "2": lambda request: httpx.Response(400), "3": away}

    def answer(request: httpx.Request) -> httpx.Response:
        return answers[json.loads(request.content)["subject_ref"]["id"]](request)

    outbox.remote.answer = answer
    outbox.send()
    outbox.clock.advance(timedelta(seconds=90))
    other.clock.advance(timedelta(seconds=90))
    found = figures.read(other.engine)
    assert (found.backlog, found.oldest) == (1, timedelta(seconds=90))
    assert (found.dead, found.rejected, found.drift) == (1, 1, 1)
    assert (found.attempted, found.failed, found.error_rate) == (4, 2, 0.5)
    assert found.p95 is not None
    assert found.p99 is not None
    assert timedelta() <= found.p95 <= found.p99 < timedelta(seconds=10)
    # What failed and then went well has failed all the same, until the window has passed.
    outbox.remote.answer = accept
    outbox.clock.advance(timedelta(seconds=60))
    outbox.send()
    assert figures.read(outbox.engine).failed == 2
    outbox.clock.advance(figures.WINDOW)
    later = figures.read(outbox.engine)
    assert (later.attempted, later.failed, later.p95) == (0, 0, None)


@pytest.mark.shows("I-56")
def test_percentiles_are_nearest_ranks(outbox: Outbox) -> None:
    now = outbox.tables.now
    for proof in range(1, 101):
        outbox.write(proof, subject=str(proof))
    assert outbox.send(limit=100) == {"sent": 100}
    with outbox.tables.writing() as connection:
        for proof in range(1, 101):
            outbox.tables.execute(
                connection,
                "UPDATE {schema}.hos_outbox_attempts SET attempted_at = ?, duration_us = ? "
                "WHERE idempotency_key = ?",
                now, proof * 1000, key_of(proof),
            )  # fmt: skip
    found = figures.read(outbox.engine)
    assert (found.p95, found.p99) == (95 * MS, 99 * MS)


@pytest.mark.shows("I-56")
def test_readiness_names_what_is_exceeded_and_metrics_show_it(url: str) -> None:
    home = Home(url, towards("http://127.0.0.1:1"))
    try:
        well = home.get("/v1/outbox/ready", who="operator")
        assert (well.status_code, well.json()["ok"], well.json()["backlog"]) == (200, True, 0)
        home.move("k1", from_="pending", to="paid")
        home.send()
        ill = home.get("/v1/outbox/ready", who="operator")
        assert ill.status_code == 503
        assert ill.headers["content-type"] == "application/problem+json"
        # A busy machine may be too slow for the limits of latency, which this is not about.
        exceeded = [each for each in ill.json()["exceeded"] if not each.startswith(("p95", "p99"))]
        assert exceeded == ["errors: 1 of 1 events failed, less than 0.1% may"]
        assert ill.json()["backlog"] == 1
        # The remote's troubles are not ours: this service can do its work.
        assert home.get("/v1/ready").status_code == 200
        text = home.get("/metrics", who="operator").text
        shown = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
        assert shown["hos_outbox_backlog"] == "1.0"
        assert shown["hos_outbox_dead"] == "0.0"
        assert shown["hos_outbox_error_ratio"] == "1.0"
        assert float(shown["hos_outbox_oldest_pending_seconds"]) >= 0
        assert float(shown['hos_outbox_latency_seconds{quantile="0.99"}']) >= 0
        assert shown["hos_outbox_drift"] == shown["hos_outbox_rejected"] == "0.0"
        assert home.get("/v1/outbox/ready", who=None).status_code == 401
    finally:
        home.close()
