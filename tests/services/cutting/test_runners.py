"""Runners that die, end and work beside each other: whole processes, as operators start them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from bench.cutting.workshop import LEASE_S, QUICK, Workshop, make_part
from bench.publishing.blog import is_alive, wait_until
from tests.services.cutting.conftest import make_cutting
from tests.services.cutting.test_single_flight import begin_optimising, put_plans
from ulak.services.cutting.flow import LIFECYCLE

BACK_S = LEASE_S + 5
AMPLE = {"optiXmlMinutes": 20, "osiAckMinutes": 5}
"""Nobody is late here: runners share a machine that may be busy otherwise."""
PARTS = (make_part("P1"), make_part("B1", part_type="ARKALIK", thickness_mm=3))
INSTANT = """#!/bin/sh
for file in "$@"; do
    name=${file##*/} name=${name%.xlsx}
    echo "$name" >> triggers.txt
    echo '<Plan><Sheet/></Plan>' > "EXPORTS/$name.xml"
done
"""


def is_done(shop: Workshop, job: str) -> bool:
    return shop.job(job).state == "DONE"


@pytest.fixture
def shop_url(store: str, tmp_path: Path, request: pytest.FixtureRequest):
    if store == "sqlite":
        yield f"sqlite:///{tmp_path / 'cutting.db'}"
        return
    with request.getfixturevalue("databases").lend(make_cutting) as url:
        yield url


STORES = pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.sampled)]
)


@STORES
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("point", "nth"), [("commit.after", 1), ("commit.before", 2)])
@pytest.mark.shows("C-69", "C-70")
def test_an_order_whose_runners_all_die_is_finished_as_if_none_had(shop_url, tmp_path, point, nth):
    """Each runner dies right after a commit, or with a stage done that it has not committed."""
    with Workshop(tmp_path, shop_url, rules={"timeouts": AMPLE}) as shop, shop.sawing():
        shop.start(1)
        calm = shop.order("calm", *PARTS)
        shop.wait(calm)
        shop.kill_all()
        job = shop.order("harmed", *PARTS)
        deaths, states = 0, []
        while not is_done(shop, job):
            before = shop.job(job)
            (runner,) = shop.start(1, kill_at=point, nth=nth)
            began = time.monotonic()
            wait_until(lambda r=runner: not r.is_alive or is_done(shop, job), "it stands still")
            if shop.job(job).state != before.state:
                states.append(before.state)
                assert time.monotonic() - began < BACK_S
            if not runner.is_alive:
                assert shop.forget(runner) == -9
                deaths += 1
        shop.kill_all()
        # The order went on after deaths in every state.
        path = list(LIFECYCLE.moves)
        assert [state for state in path if state in states] == (path if nth == 1 else states)
        assert deaths >= 4
        files = [
            sorted(p.name.replace(id, "") for p in folder.glob(f"*{id}*"))
            for id in (calm, job)
            for folder in (shop.imports, shop.exports, shop.drop / "processed")
        ]
        assert files[:3] == files[3:]
        cut = {id: [c for c in shop.cuts() if id in c.name] for id in (calm, job)}
        assert [len(cuts) for cuts in cut.values()] == [2, 2]
        assert {c.sha256 for c in cut[calm]} == {c.sha256 for c in cut[job]}
        rows = shop.deliveries(job)
        assert [(row.batch, row.n, row.state) for row in rows] == [(0, 1, "acked"), (1, 1, "acked")]
        assert shop.engine.inspect.verify() == []
        types = Counter(line["event_type"] for line in shop.cutting.jobs.audit(job))
        assert types["LEASE_EXPIRED"] >= 3
        assert all(types[name] == 1 for name in ("STATE_NEW", "STATE_DELIVERED", "STATE_DONE"))
        assert (types["DELIVERY_INTENT"], types["ACK"]) == (2, 2)


@pytest.mark.timeout(300)
@pytest.mark.shows("C-72")
def test_a_runner_that_is_told_to_end_gives_back_what_it_waits_for_within_ten_seconds(tmp_path):
    url = f"sqlite:///{tmp_path / 'cutting.db'}"
    rules = {"optimiserSlots": {"C": 1}, "timeouts": {"optiXmlMinutes": 5, "osiAckMinutes": 5}}
    with Workshop(tmp_path, url, rules=rules) as shop:
        (runner,) = shop.start(1)
        waits = shop.order("waits for the saw")
        shop.wait(waits, states=("XML_READY",))
        wait_until(lambda: list((shop.drop / "inbox").glob("*.xml")), "nothing was delivered")
        by_hand = begin_optimising(shop, "waits for a plan")
        shop.behave(takes_s=50.0)
        runs = shop.order("runs a program")
        wait_until(lambda: len(shop.runs()) == 2, "no program was started")
        (pid,) = [run["pid"] for run in shop.runs() if runs in run["files"][0]]
        jobs = [waits, by_hand, runs]
        before = [shop.job(job).state for job in jobs]
        assert before == ["XML_READY", "OPTI_RUNNING", "OPTI_RUNNING"]
        began = time.monotonic()
        assert shop.stop(runner) == 0
        assert time.monotonic() - began < 10
        late = shop.order("comes too late")
        assert not is_alive(pid)
        found = [shop.job(job) for job in jobs]
        assert [job.state for job in found] == before
        assert [job.leased_by for job in found] == [None] * 3
        assert [job.round for job in found] == [1] * 3
        shop.behave(takes_s=0.0)
        put_plans(shop, by_hand)
        began = time.monotonic()
        with shop.sawing():
            shop.start(1)
            shop.wait(*jobs, late)
        assert shop.say(*jobs, late) == {"DONE": 4}
        assert time.monotonic() - began < BACK_S
        assert len(shop.deliveries(waits)) == 1


@STORES
@pytest.mark.timeout(300)
@pytest.mark.shows("C-73")
def test_runners_beside_each_other_trigger_and_deliver_200_orders_once_each(shop_url, tmp_path):
    rules = {**QUICK, "stableSeconds": 0.02, "pollSeconds": 0.01, "timeouts": AMPLE}
    with Workshop(tmp_path, shop_url, rules=rules) as shop, shop.sawing():
        exe = shop.programs.parent / "OptiPlanning.exe"
        ledger = exe.with_name("triggers.txt")
        exe.write_text(
            INSTANT.replace("triggers.txt", str(ledger)).replace("EXPORTS", str(shop.exports))
        )
        jobs = [shop.order(f"order {n}", make_part("P1")) for n in range(200)]
        # Nobody dies here: a lease of a second may lapse on a machine that is busy otherwise.
        shop.start(3, command=["worker", "--queue", "cutting"])
        shop.wait(*jobs)
        workers = {line.worker for job in jobs for line in shop.engine.inspect.trail(job)}
        rows = [row for job in jobs for row in shop.deliveries(job)]
        assert shop.say(*jobs) == {"DONE": 200}
        twice = [job for job in jobs if ledger.read_text().count(job) > 1]
        assert not twice, [shop.engine.inspect.trail(job) for job in twice]
    assert len(workers - {None}) >= 2
    assert len(ledger.read_text().split()) == 200
    assert Counter(row.state for row in rows) == {"acked": 200}
    assert len(shop.cuts()) == len({cut.name for cut in shop.cuts()}) == 200
