"""Claims that pay with tokens follow one another, and are dated when it is their turn."""

import threading
import time

import psycopg
import pytest

from ulak.store.postgres import PostgresStore
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import RATED

HOLD = "SELECT pg_advisory_xact_lock(hashtextextended('ulak buckets', 0))"
WAITS = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@pytest.mark.shows("E-60")
def test_a_claim_that_waited_for_a_bucket_is_dated_after_the_wait(url: str) -> None:
    """Broken by a lease that bears the time at which its claim began."""
    store = PostgresStore(url)
    store.open()
    try:
        desk = Desk(store)
        desk.declare(RATED)
        desk.hire("w")
        desk.submit_keyed("k", RATED)
        claimed: list[int] = []
        with psycopg.connect(url) as other:
            other.execute(HOLD)
            claimer = threading.Thread(
                target=lambda: claimed.append(desk.lease(RATED).leased_at or 0)
            )
            claimer.start()
            while other.execute(WAITS).fetchone() is None:
                time.sleep(0.005)
            time.sleep(0.02)
            ((let_go_at,),) = other.execute(NOW).fetchall()
        claimer.join()
        assert claimed[0] >= let_go_at
    finally:
        store.close()
