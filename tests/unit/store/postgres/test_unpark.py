"""What upkeep costs: round trips that do not depend on the rows that it moves."""

import json

import psycopg
import pytest

from tests.unit.store.postgres.conftest import RoundTrips
from ulak.core.outcome import Cancel, Elapsed
from ulak.store.postgres import PostgresStore
from ulak.store.postgres.upkeep import MOST_NAMES
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import KEYED, METERED, WAITS

PARK = "UPDATE ulak.jobs SET parked_on = slot"


@pytest.mark.shows("E-85")
@pytest.mark.parametrize("keys", [10, 3 * MOST_NAMES])
def test_the_round_trips_of_unparking_do_not_depend_on_the_keys(
    keys: int, store: PostgresStore, url: str, round_trips: RoundTrips
) -> None:
    """Broken by a look at each key."""
    desk = Desk(store)
    desk.declare(KEYED)
    for start in range(0, keys, 500):
        jobs = range(start, min(start + 500, keys))
        payloads = [json.dumps({"key": f"k{n}", "cost": 1}).encode() for n in jobs]
        store.add([desk.new(KEYED, payload=payload) for payload in payloads])
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(PARK)
        # Every place of every key is taken: nothing is to be unparked.
        db.execute("UPDATE ulak.limits SET n = 0")
    for _ in range(4):
        round_trips.take()
        assert store.unpark(200) == 0
        assert round_trips.take() <= 6
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.limits SET n = 2")
    assert sum(store.unpark(500) for _ in range(3 + keys // 500 + 4)) == keys


@pytest.mark.shows("E-85")
def test_buckets_that_somebody_looks_after_cost_no_look(
    store: PostgresStore, url: str, round_trips: RoundTrips
) -> None:
    """Broken by a look at each bucket, in every pass."""
    desk = Desk(store)
    desk.declare(METERED)
    store.add([
        desk.new(METERED, payload=json.dumps({"key": f"k{n}", "cost": 1}).encode())
        for n in range(300)
    ])  # fmt: skip
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.jobs SET parked_on = '/rate/' || rate")
        # The first looks say when each bucket is ready, a hundred at a time; then nobody need ask.
        for _ in range(3):
            store.unpark(200)
        round_trips.take()
        store.unpark(200)
        assert round_trips.take() <= 3
        parked = "SELECT count(*) FROM ulak.jobs WHERE parked_on LIKE '/rate/%'"
        assert db.execute(parked).fetchone() == (300,), "they wait for a claim that pays"
        ready = "SELECT count(*) FROM ulak.buckets WHERE ready_at IS NOT NULL"
        assert db.execute(ready).fetchone() == (300,)


@pytest.mark.shows("E-85")
def test_the_round_trips_of_expiring_do_not_depend_on_the_jobs(
    store: PostgresStore, round_trips: RoundTrips
) -> None:
    """Broken by a statement for each job."""
    desk = Desk(store)
    counted = []
    for jobs in (10, 200):
        rows = [desk.submit(WAITS, dedup_key=f"{jobs}-{n}") for n in range(jobs)]
        desk.turn(hours=2)
        changes = [desk.act(row, Elapsed(), flow=WAITS) for row in rows]
        round_trips.take()
        store.commit(changes)
        counted.append(round_trips.take())
        assert {desk.job(row.id).state for row in rows} == {"late"}
    assert counted[0] == counted[1] <= 8


@pytest.mark.shows("E-85")
def test_the_round_trips_of_pruning_do_not_depend_on_the_jobs(
    store: PostgresStore, round_trips: RoundTrips
) -> None:
    desk = Desk(store)
    counted = []
    for jobs in (10, 200):
        rows = desk.submit_many(jobs)
        desk.write(*[desk.act(row, Cancel("ada")) for row in rows])
        before = desk.turn(hours=1)
        round_trips.take()
        assert store.prune(before=before, limit=jobs) == jobs
        counted.append(round_trips.take())
    assert counted[0] == counted[1]
