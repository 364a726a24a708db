"""RQ as the muscle: its workers run ulak's jobs, and what RQ loses, doubles or leaves is mended."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
import rq

import ulak
from tests.scenario.doubles import eventually, settings
from tests.scenario.rq_program import STUCK, letters
from ulak import Engine, Flow, Lifecycle, Limit
from ulak.dispatch import find_dispatch
from ulak.dispatch.rq import Dispatch, connect, rings
from ulak.errors import BadInput, NotSupported
from ulak.settings import Settings
from ulak.testing.servers import Redis

ROOT = Path(__file__).parents[2]
PLAIN, STAYING = "rq.Worker", "ulak.dispatch.rq.Worker"
QUEUES = ("press", "post")


@pytest.fixture
def flow() -> Flow[str]:
    return letters()


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'letters.db'}?synchronous=NORMAL"


@pytest.fixture
def engine(store_url: str, flow: Flow[str]) -> Iterator[Engine]:
    with ulak.connect(store_url, flows=[flow]) as made:
        yield made


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with connect(redis_url) as made:
        yield made


@pytest.fixture
def dispatch(engine: Engine, client: redis.Redis) -> Iterator[Dispatch]:
    with Dispatch(engine, QUEUES, connection=client) as made:
        yield made


class Press:
    """RQ workers of a class, on one store and one Redis."""

    def __init__(self, url: str, store_url: str, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self._log = folder / "log"
        self._environment = {
            **os.environ, "RQ_REDIS_URL": url, "LETTERS": store_url, "LEDGER": str(self.ledger),
            "ULAK_APP": "tests.scenario.rq_program:engine",
        }  # fmt: skip
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str) -> None:
        command = [sys.executable, "-m", "rq.cli", "worker", "-w", kind, *QUEUES]
        with self._log.open("a") as log:
            self._started.append(
                subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)
            )

    def runs(self) -> list[tuple[str, int]]:
        """Who was printed, and by which process."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [(name, int(pid)) for name, pid in lines]

    def read_log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        for process in self._started:
            process.terminate()
        ends = [process.wait(60) for process in self._started]
        self._started.clear()
        assert set(ends) <= {0}, self.read_log()


@pytest.fixture
def press(redis_url: str, store_url: str, tmp_path: Path) -> Iterator[Press]:
    made = Press(redis_url, store_url, tmp_path)
    yield made
    made.close()


@pytest.mark.shows("P-8", "P-5")
@pytest.mark.parametrize("kind", [PLAIN, STAYING])
def test_rq_workers_run_jobs_by_their_ids_through_every_stage(
    engine: Engine,
    flow: Flow[str],
    dispatch: Dispatch,
    client: redis.Redis,
    press: Press,
    kind: str,
) -> None:
    press.start(kind)
    eventually(lambda: any(row.id.startswith("rq:worker:") for row in engine.store.workers()))
    [worker] = [row for row in engine.store.workers() if row.id.startswith("rq:worker:")]
    assert {lane.partition("/")[0] for lane in worker.lanes.split()} == set(QUEUES)
    jobs = [engine.submit(flow, name) for name in ("ada", "bob")]
    for job in jobs:
        assert engine.wait(job.id, timeout=timedelta(seconds=60)).state == "sent", press.read_log()
    assert sorted(name for name, _ in press.runs()) == ["ada", "bob"]
    pids = {pid for _, pid in press.runs()}
    assert len(pids) == (2 if kind == PLAIN else 1), "a work-horse for each message, or one for all"
    keys = [key for job in jobs for key in client.keys(f"*{job.id}*")]
    eventually(lambda: all(client.ttl(key) != -1 for key in keys))  # nothing stays in Redis
    assert engine.inspect.verify() == []
    press.close()
    eventually(lambda: not any(row.id.startswith("rq:") for row in engine.store.workers()))


@pytest.mark.shows("P-8", "P-39")
def test_a_lost_message_is_found_and_a_doubled_one_is_harmless(
    engine: Engine, flow: Flow[str], dispatch: Dispatch, client: redis.Redis, press: Press
) -> None:
    queue = rq.Queue("press", connection=client)
    lost, doubled, delayed = (
        engine.submit(flow, name, after=after)
        for name, after in (("lost", None), ("doubled", None), ("delayed", 2))
    )
    eventually(lambda: {lost.id, doubled.id} <= set(queue.job_ids))
    assert delayed.id not in queue.job_ids, "it is not due"
    queue.remove(lost.id)
    client.delete(f"rq:job:{lost.id}")
    eventually(lambda: {lost.id, delayed.id} <= set(queue.job_ids))
    for _ in range(3):
        dispatch.ring(doubled.id)
    eventually(lambda: queue.job_ids.count(doubled.id) >= 4)
    assert queue.job_ids.count(lost.id) == 1, "what has a message is not rung for again"
    press.start(STAYING)
    for job in (lost, doubled, delayed):
        assert engine.wait(job.id, timeout=timedelta(seconds=60)).state == "sent", press.read_log()
    eventually(lambda: not queue.job_ids)
    assert sorted(name for name, _ in press.runs()) == ["delayed", "doubled", "lost"]


def test_a_message_that_rq_has_dropped_half_way_is_sent_again(
    engine: Engine, flow: Flow[str], dispatch: Dispatch, client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rings, "GRACE_S", 0.5)
    queue = rq.Queue("press", connection=client)
    job = engine.submit(flow, "ada")
    eventually(lambda: job.id in queue.job_ids)
    queue.remove(job.id)  # a worker that died after it had taken the message
    assert rq.job.Job.fetch(job.id, connection=client).is_queued
    eventually(lambda: job.id in queue.job_ids)


def test_a_paused_job_is_not_rung_for_until_it_is_resumed(
    engine: Engine, flow: Flow[str], dispatch: Dispatch, client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rings, "GRACE_S", 0.5)
    cards: Flow[None] = Flow("cards", Lifecycle("new", {"new": ["sent"]}, done="sent"))
    cards.stage("new", queue="post")(lambda run: None)
    engine.add(cards)
    press, post = (rq.Queue(queue, connection=client) for queue in QUEUES)
    job, card = engine.submit(flow, "ada"), engine.submit(cards, None)
    eventually(lambda: press.job_ids == [job.id] and post.job_ids == [card.id])
    engine.flow_control.pause(queue="press", actor="olga")
    for _ in range(2):
        press.empty()
        post.empty()
        eventually(lambda: post.job_ids)  # a sweep looks at this queue after the other
    assert press.job_ids == []
    engine.flow_control.resume(queue="press", actor="olga")
    eventually(lambda: press.job_ids == [job.id])


def test_a_job_that_waits_for_a_slot_is_rung_for_when_it_has_one(
    engine: Engine, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rings, "SWEEP_EVERY_S", 1000)  # but for the first one
    monkeypatch.setattr(rings, "UNDER_WAY_US", 0)
    narrow: Flow[None] = Flow("narrow", Lifecycle("new", {"new": ["done"]}))
    narrow.stage("new", limit=Limit(1))(lambda run: None)
    engine.add(narrow)

    async def told() -> AsyncIterator[str]:
        yield waits.id

    with Dispatch(engine, ["narrow"], connection=client):
        queue = rq.Queue("narrow", connection=client)
        held, waits = (engine.submit(narrow, None) for _ in range(2))
        eventually(lambda: {held.id, waits.id} <= set(queue.job_ids))
        queue.empty()
        attempt = engine.worker().take(held.id)
        assert attempt is not None
        asyncio.run(engine.worker(settings()).run(only=told()))
        assert engine.get(waits.id).parked_on is not None
        attempt.finish()
        eventually(lambda: waits.id in queue.job_ids)


@pytest.mark.shows("P-39")
def test_jobs_are_accepted_while_the_redis_of_rq_is_down(store_url: str, flow: Flow[str]) -> None:
    with Redis() as server, ulak.connect(store_url, flows=[flow]) as engine:
        client = connect(server.url())
        with Dispatch(engine, QUEUES, connection=client):
            server.kill()
            began = time.monotonic()
            job = engine.submit(flow, "ada")
            assert time.monotonic() - began < rings.PATIENCE_S, "nobody waits for that Redis"
            server.start()
            queue = rq.Queue("press", connection=client)
            eventually(lambda: job.id in queue.job_ids)
        client.close()


@pytest.mark.shows("P-13")
def test_a_run_that_never_ends_is_killed_by_rq_and_its_job_is_run_again(
    engine: Engine, flow: Flow[str], dispatch: Dispatch, client: redis.Redis, press: Press,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rings, "MARGIN_S", 1)  # beside the second of the stage
    job = engine.submit(flow, STUCK)
    queue = rq.Queue("press", connection=client)
    eventually(lambda: job.id in queue.job_ids)
    assert rq.job.Job.fetch(job.id, connection=client).timeout == 2
    press.start(STAYING)
    assert engine.wait(job.id, timeout=timedelta(seconds=60)).state == "sent", press.read_log()
    first, second = press.runs()
    assert first[1] != second[1], "another process"
    assert "lapsed" in [event.kind for event in engine.inspect.trail(job.id)]
    assert engine.inspect.verify() == []


def test_what_rq_cannot_run_is_refused(client: redis.Redis, engine: Engine) -> None:
    with pytest.raises(BadInput, match="no stage is in queue 'prss'; queues are post, press"):
        Dispatch(engine, ["prss"], connection=client)
    with pytest.raises(NotSupported, match="RQ cannot serve the memory store"):
        Dispatch(ulak.connect("memory://", flows=[letters()]), QUEUES, connection=client)
    with pytest.raises(BadInput, match=r"RQ_REDIS_URL 'http://ada:.*' cannot be read") as wrong:
        connect("http://ada:hunter2@localhost")
    assert "hunter2" not in str(wrong.value)


def test_the_settings_name_the_queues_that_go_to_rq(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_dispatch(engine, Settings()) is None
    found = find_dispatch(engine, Settings(rq_queues="press"))
    assert found is not None
    assert found.queues == ("press",)
    assert engine.kernel.queues_elsewhere == {"press"}
    monkeypatch.setitem(sys.modules, "ulak.dispatch.rq", None)
    monkeypatch.delattr("ulak.dispatch.rq")
    with pytest.raises(NotSupported, match=r"pip install 'ulak\[rq\]'"):
        find_dispatch(engine, Settings(rq_queues="press"))


def test_a_program_that_cannot_be_started_ends_its_worker(
    press: Press, monkeypatch: pytest.MonkeyPatch
) -> None:
    press._environment["ULAK_APP"] = "nowhere:engine"
    press.start(STAYING)
    [process] = press._started
    assert process.wait(60) == 1
    press._started.clear()
    assert "there is no module 'nowhere'" in press.read_log()
    assert "Traceback" not in press.read_log()
