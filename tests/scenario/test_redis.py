"""Jobs on Redis: what a server must be, how it looks there, and what a crash costs."""

import time
from typing import Any

import pytest
import redis

import ulak
from bench.ports import reserve_port
from tests.scenario import test_crash_points as crashes
from tests.scenario.doubles import eventually
from tests.scenario.test_postgres_outage import Load
from ulak.errors import Misconfigured
from ulak.ids import from_text
from ulak.store.protocol import JobFilter
from ulak.store.records import RecordId
from ulak.testing import faults
from ulak.testing.conformance import Desk
from ulak.testing.servers import EVERY_SECOND, EVICTING, NOT_KEPT, Redis
from ulak.wiring import store_of

# What a store without transactions does not write; and what is a sum.
NOT_THERE = ("transaction", "fold")


@pytest.mark.shows("E-56")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (NOT_KEPT, "appendonly"),
        (EVICTING, "maxmemory-policy"),
        # Else its nodes speak at the port that is 10,000 above, and may be another's.
        ({"cluster-enabled": "yes", "cluster-port": reserve_port(), "databases": 1}, "cluster"),
    ],
)
def test_a_server_that_would_lose_jobs_is_refused(
    settings: dict[str, str | int], said: str
) -> None:
    with Redis(settings=settings) as server:
        with pytest.raises(Misconfigured, match=said):
            ulak.connect(server.url()).open()
        if "cluster-enabled" not in settings:
            with ulak.connect(f"{server.url()}?durability=none") as engine:
                assert not engine.store.features.durable


@pytest.mark.shows("E-56", "E-57")
def test_what_may_be_lost_is_said(redis_url: str) -> None:
    with ulak.connect(redis_url) as engine:
        assert "costs nothing that was answered" in engine.store.features.durability
    with Redis(settings=EVERY_SECOND) as server, ulak.connect(server.url()) as engine:
        assert "in the last second" in engine.store.features.durability


@pytest.mark.shows("E-56")
def test_a_job_lies_in_redis_as_the_layout_says(redis_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow(
        "pages",
        ulak.Lifecycle("queued", {"queued": ["succeeded"]}, done="succeeded"),
        dedup=ulak.Dedup(key=str),
    )
    flow.stage("queued")(lambda run: None)
    with ulak.connect(redis_url, flows=[flow]) as engine, redis.Redis.from_url(redis_url) as client:
        job = engine.submit(flow, "a", dedup_key="cafe")
        other = engine.submit(flow, "b", dedup_key="a:b", tenant="acme")
        facts = {k.decode(): v.decode() for k, v in client.hgetall(f"pages:job:{job.id}").items()}
        assert (facts["id"], facts["state"], facts["code"]) == (job.id, "queued", "")
        assert client.get("pages:key:cafe") == job.id.encode()
        assert client.get("pages:key:acme:a%3Ab") == other.id.encode()
        queued = client.zrange("pages:jobs:queued", 0, -1, withscores=True)
        assert [name.decode() for name, _ in queued] == sorted([job.id, other.id])
        assert abs(queued[0][1] - time.time()) < 60
        engine.cancel(job.id, actor="ada")
        assert client.zrange("pages:jobs:finished", 0, -1) == [job.id.encode()]
        assert client.exists("pages:key:cafe") == 0


@pytest.mark.shows("E-75")
def test_a_list_reads_no_more_jobs_than_it_shows(redis_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow.steps("many", ("go", lambda run: None))
    with ulak.connect(redis_url, flows=[flow]) as engine, redis.Redis.from_url(redis_url) as client:
        engine.submit_many(flow, [None] * 50)
        client.config_resetstat()
        assert len(engine.jobs(limit=5)) == 5
        assert client.info("commandstats")["cmdstat_hvals"]["calls"] <= 6
        assert len(engine.jobs(limit=1000)) == 50


@pytest.mark.shows("E-75")
def test_a_list_of_a_span_of_time_reads_the_jobs_of_that_span(redis_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow.steps("many", ("go", lambda run: None))
    with ulak.connect(redis_url, flows=[flow]) as engine, redis.Redis.from_url(redis_url) as client:
        engine.submit_many(flow, [None] * 50)
        newest = engine.submit(flow)
        since = newest.created_at
        for span, jobs in (("submitted_since", 1), ("submitted_before", 50)):
            client.config_resetstat()
            assert len(engine.jobs(JobFilter(**{span: since}), limit=100)) == jobs
            assert client.info("commandstats")["cmdstat_hvals"]["calls"] == jobs


def test_jobs_and_records_share_their_connections(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client, ulak.connect(redis_url) as engine:
        engine.store.stops()
        engine.store.find_records([RecordId("", "x", "k")])
        number = redis_url.rpartition("/")[2]
        ours = [one for one in client.client_list() if one["db"] == number]
        assert len(ours) == 3, "this client, the listener, and one that is free"


def work(url: str) -> None:
    """Pass every kind of write that there is on Redis."""
    crashes.protect = crashes.protect_without_transactions
    crashes.work(url)


@pytest.mark.sampled
@pytest.mark.shows("E-61")
@pytest.mark.parametrize(
    ("point", "nth"),
    [each for each in crashes.PASSES if each[0].split(".")[0] not in NOT_THERE],
)
def test_a_process_killed_at_any_point_of_a_write_loses_nothing(
    point: str, nth: int, redis_url: str
) -> None:
    crashed = faults.run(work, redis_url, kill_at=point, nth=nth)
    assert crashed.killed, crashed.errors
    said = [line.split(" ", 1) for line in crashed.lines]
    with crashes.finish(redis_url) as harness:
        assert harness.verify() == []
        assert harness.unfinished() == []
        jobs = {job.id: job for job in harness.engine.jobs(limit=1000)}
        assert jobs.keys() >= {what for word, what in said if word == "accepted"}
        was_asked = point in ("request.after", "dismiss.before", "dismiss.inside")
        end = "cancelled" if was_asked else "shipped"
        crashes.each_moved_once(harness, list(jobs), end_of_doubtful=end)


@pytest.mark.shows("E-56", "E-58")
def test_nothing_is_lost_or_twice_when_the_server_is_killed_three_times() -> None:
    with Redis() as server:
        load = PatientLoad(server.url())
        with load.running():
            for _ in range(3):
                server.kill()
                time.sleep(0.2)
                server.start()
                load.goes_on()


class PatientLoad(Load):
    """Its callers submit again what they do not know to be stored, under the same key."""

    def _submit(self) -> None:
        n = 0
        while not self.stopped.is_set():
            key = f"{id(self)}-{time.monotonic_ns()}-{n}"
            n += 1
            while True:
                try:
                    job = self.engine.submit(self.flow, n, dedup_key=key)
                except ulak.StoreError:
                    time.sleep(0.05)
                else:
                    break
            self.accepted.append(job.id)


def test_a_store_that_is_not_there_is_named_without_its_password() -> None:
    store = store_of("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(ulak.StoreError) as told:
        store.find_job(from_text("0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"))
    assert "127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)


@pytest.mark.shows("E-56")
def test_a_commit_of_another_process_wakes_a_worker(redis_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("rung", ulak.Lifecycle("go", {"go": ["done"]}))
    flow.stage("go")(lambda run: None)
    with ulak.connect(redis_url, flows=[flow]) as engine, ulak.connect(redis_url) as other:
        rung: list[int] = []
        engine.store.on_commit(lambda: rung.append(1))
        other.store.add([Desk(other.store).new()])
        eventually(lambda: rung)


def test_a_store_says_what_it_stands_on_and_which_password_nobody_may_read(redis_url: str) -> None:
    with ulak.connect(redis_url) as engine:
        store: Any = engine.store
        about = store.about()
        assert (about["appendonly"], about["appendfsync"]) == ("yes", "always")
        assert about["database"] == redis_url
    other: Any = store_of("redis://ada:p%40ss@nowhere/0")
    assert other.secrets() == ["p@ss"]
    assert other.place == "redis://ada:***@nowhere/0"
