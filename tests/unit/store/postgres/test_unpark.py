"""What upkeep costs however many keys have jobs parked on them."""

import json

import psycopg
import pytest

from ulak.store.postgres import PostgresStore
from ulak.store.postgres.pipeline import Pipeline
from ulak.store.postgres.upkeep import MOST_NAMES
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import KEYED, METERED

PARK = "UPDATE ulak.jobs SET parked_on = slot"


def count_round_trips(store: PostgresStore) -> tuple[int, int]:
    """Unpark once; return how many jobs were unparked, and in how many round trips."""
    round_trips = 0
    wait = Pipeline.wait

    def counted(self: Pipeline) -> object:
        nonlocal round_trips
        round_trips += 1
        return wait(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "wait", counted)
        return store.unpark(200), round_trips


@pytest.mark.shows("E-85")
@pytest.mark.parametrize("keys", [10, 3 * MOST_NAMES])
def test_the_round_trips_of_unparking_do_not_depend_on_the_keys(
    keys: int, store: PostgresStore, url: str
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
        unparked, round_trips = count_round_trips(store)
        assert unparked == 0
        assert round_trips <= 6
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ulak.limits SET n = 2")
    assert sum(store.unpark(500) for _ in range(3 + keys // 500 + 4)) == keys


@pytest.mark.shows("E-85")
def test_buckets_that_somebody_looks_after_cost_no_look(store: PostgresStore, url: str) -> None:
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
        _, round_trips = count_round_trips(store)
        assert round_trips <= 3
        parked = "SELECT count(*) FROM ulak.jobs WHERE parked_on LIKE '/rate/%'"
        assert db.execute(parked).fetchone() == (300,), "they wait for a claim that pays"
        ready = "SELECT count(*) FROM ulak.buckets WHERE ready_at IS NOT NULL"
        assert db.execute(ready).fetchone() == (300,)
