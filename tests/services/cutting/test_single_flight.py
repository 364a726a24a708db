"""One order at a time has the optimiser, whoever dies; everything else goes on meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.cutting import program
from bench.cutting.workshop import Workshop
from bench.publishing.blog import is_alive, wait_until

POLL_S = 0.01
RUNNING = "SELECT opti_mode FROM {schema}.cutting_jobs WHERE state = 'OPTI_RUNNING'"


class Watch:
    """What was seen in the table of jobs, every ten milliseconds."""

    def __init__(self) -> None:
        self.looks = 0
        self.seen: Counter[tuple[str, ...]] = Counter()
        """How often which modes stood in OPTI_RUNNING at once."""

    @property
    def most(self) -> int:
        return max((len(modes) for modes in self.seen), default=0)


@contextmanager
def watching(shop: Workshop) -> Iterator[Watch]:
    """Poll the table for the length of a block."""
    watch, over, errors = Watch(), threading.Event(), list[Exception]()

    def look() -> None:
        try:
            while not over.wait(POLL_S):
                rows = shop.cutting.tables.read(RUNNING)
                watch.seen[tuple(sorted(mode for (mode,) in rows))] += 1
                watch.looks += 1
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
    assert errors == []


def put_plans(shop: Workshop, job: str) -> None:
    """Plan a job of mode C, as an operator does."""
    for path in shop.imports.glob(f"{job}_*.xlsx"):
        shop.exports.joinpath(f"{path.stem}.xml").write_bytes(program.make_plan(path))


def begin_optimising(shop: Workshop, name: str) -> str:
    """Have a job of mode C stand in OPTI_RUNNING until its plans come."""
    job = shop.order(name, mode="C")
    shop.wait(job, states=("HOLD",))
    shop.cutting.jobs.approve(job, actor="ada")
    shop.wait(job, states=("OPTI_RUNNING",))
    return job


@pytest.mark.timeout(300)
@pytest.mark.shows("C-42", "C-43")
def test_one_job_is_optimised_at_a_time_though_runners_are_killed_inside(url, tmp_path):
    with (
        Workshop(tmp_path, url, program={"takes_s": 0.4}) as shop,
        shop.sawing(),
        watching(shop) as watch,
    ):
        shop.start(2)
        jobs = [shop.order(f"order {n}") for n in range(3)]
        for kills in range(1, 4):
            wait_until(lambda n=kills: len(shop.runs()) >= n, "no program was started")
            killed = shop.runs()[-1]["pid"]
            for runner in list(shop.runners):
                shop.stop(runner, signal.SIGKILL)
            began = time.monotonic()
            wait_until(lambda pid=killed: not is_alive(pid), "a program outlives its runner")
            assert time.monotonic() - began < 1
            shop.start(2)
        shop.wait(*jobs)
        assert shop.say(*jobs) == {"DONE": 3}
    assert watch.most == 1
    assert watch.looks > 200
    assert shop.runs("overlap") == []
    # Three runs were killed; each job has ended one of its own.
    assert (len(shop.runs()), len(shop.runs("end"))) == (6, 3)
    assert Counter(row.state for job in jobs for row in shop.deliveries(job)) == {"acked": 3}
    for job in jobs:
        trail = shop.engine.inspect.trail(job)
        assert {line.round for line in trail} == {1}
        assert not {line.kind for line in trail} & {"failed", "held", "retried"}
        entered = next(line.at for line in trail if line.to_state == "OPTI_RUNNING")
        starts = [run["at"] for run in shop.runs() if job in run["files"][0]]
        assert entered.timestamp() <= min(starts), "a program was started before its slot was taken"


@pytest.mark.shows("C-43")
def test_modes_share_one_slot_unless_the_rules_give_one_its_own(tmp_path):
    url = f"sqlite:///{tmp_path / 'cutting.db'}"
    with Workshop(tmp_path, url, program={"takes_s": 0.2}) as shop, shop.sawing():
        shop.start(1)
        with watching(shop) as shared:
            holder = begin_optimising(shop, "by hand")
            jobs = [shop.order(f"{mode}{n}", mode=mode) for mode in "AE" for n in range(2)]
            shop.wait(*jobs, states=("OPTI_IMPORTED",))
            time.sleep(0.2)
            assert shop.say(*jobs) == {"OPTI_IMPORTED": 4}
        assert shared.most == 1
        rules = shop.cutting.config.rules().document() | {"optimiserSlots": {"A": 2}}
        shop.cutting.jobs.configure("rules", rules, actor="admin")
        with watching(shop) as apart:
            more = [shop.order(f"more{n}", mode="A") for n in range(4)]
            shop.wait(*more)
            assert shop.job(holder).state == "OPTI_RUNNING"
        assert ("A", "A", "C") in apart.seen
        assert max(apart.seen, key=len) == ("A", "A", "C")
        put_plans(shop, holder)
        shop.wait(holder, *jobs, *more)
        assert shop.say(holder, *jobs, *more) == {"DONE": 9}


@pytest.mark.shows("C-44")
def test_others_are_prepared_imported_and_delivered_while_one_is_optimised(tmp_path):
    url = f"sqlite:///{tmp_path / 'cutting.db'}"
    with Workshop(tmp_path, url) as shop:
        shop.start(1)
        ready = shop.order("ready", mode="A")
        shop.wait(ready, states=("XML_READY",))
        holder = begin_optimising(shop, "holder")
        behind = shop.order("behind", mode="A")
        shop.wait(behind, states=("OPTI_IMPORTED",))
        assert list(shop.imports.glob(f"{behind}_*.xlsx"))
        with shop.sawing():
            shop.wait(ready)
            assert shop.job(ready).state == "DONE"
            assert shop.job(holder).state == "OPTI_RUNNING"
            assert shop.job(behind).state == "OPTI_IMPORTED"
            put_plans(shop, holder)
            shop.wait(holder, behind)
        assert shop.say(holder, behind) == {"DONE": 2}
