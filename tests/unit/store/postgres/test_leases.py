"""Leases on the server's own clock: what a server that was down means for those who hold one."""

import os
import time
from collections.abc import Iterator

import psycopg
import pytest

from ulak.core.intake import Submission, begin
from ulak.core.job import Payload
from ulak.ids import time_ordered_id
from ulak.store.postgres import PostgresStore
from ulak.store.protocol import Claim
from ulak.testing.conformance.desk import claim_request
from ulak.testing.conformance.flows import LINE
from ulak.testing.servers import Postgres

LEASE_S = 1.5


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def hire(store: PostgresStore, worker: str, lease_s: float = LEASE_S) -> None:
    store.register(worker, lease_us=int(lease_s * 1e6), lanes=["any"], about="a test")


def claim(store: PostgresStore, worker: str) -> list[Claim]:
    return store.claim(claim_request(worker, 1, (LINE,))).claims


def leased_job(store: PostgresStore, worker: str) -> Claim:
    """Open the store, and return its only job, which the worker has claimed."""
    store.open()
    now = store.clock.now()
    job = begin(
        LINE, Payload(b"null", 1), Submission(), now,
        job_id=time_ordered_id(now), commit_id=os.urandom(16),
    )  # fmt: skip
    store.add([job])
    hire(store, worker)
    (held,) = claim(store, worker)
    return held


@pytest.mark.shows("E-26", "E-58")
def test_who_begins_after_an_outage_leaves_the_jobs_of_those_that_live(server: Postgres) -> None:
    before, after = PostgresStore(server.url()), PostgresStore(server.url())
    held = leased_job(before, "old")
    server.kill()
    time.sleep(1.2 * LEASE_S)
    server.start()
    after.open()
    hire(after, "new")
    assert claim(after, "new") == []
    stored = after.find_job(held.row.id)
    assert stored is not None
    assert (stored.leased_by, stored.token) == ("old", held.row.token)
    # One that does not come back has its whole lease, and no more.
    deadline = time.monotonic() + 4 * LEASE_S
    while not (rescued := claim(after, "new")):
        assert time.monotonic() < deadline
        after.renew("new", lease_us=int(LEASE_S * 1e6))
        time.sleep(0.05)
    assert rescued[0].row.lapses == 1
    before.close()
    after.close()


@pytest.mark.shows("E-26", "E-83")
def test_a_newborn_worker_on_a_promoted_standby_leaves_every_lease_its_whole_length(
    server: Postgres,
) -> None:
    """The standby had been started long before, and every lease has lapsed while nobody served.

    The times of the rows are written by the test, so that nothing depends on its own pace.
    """
    before, after = PostgresStore(server.url()), PostgresStore(server.url())
    held = leased_job(before, "old")
    with psycopg.connect(server.url(), autocommit=True) as db:
        # As when its last renewal that has arrived is old: lapsed, and of a short length.
        db.execute("UPDATE ulak.workers SET renewed_at = 0, expires_at = 1000")
    server.kill()
    (server.directory / "data" / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as db:
        assert db.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        assert db.execute("SELECT pg_promote()").fetchone() == (True,)
        after.open()
        hire(after, "new", lease_s=3600)
        began_at = "UPDATE ulak.workers SET started_at = %s WHERE id = 'new'"
        db.execute(began_at, [after.clock.now() + 3_600_000_000])
        assert claim(after, "new") == []
        stored = after.find_job(held.row.id)
        assert stored is not None
        assert (stored.leased_by, stored.token) == ("old", held.row.token)
        # One that does not come back has its whole lease, and no more.
        db.execute(began_at, [0])
        (rescued,) = claim(after, "new")
        assert rescued.row.id == held.row.id
    before.close()
    after.close()


@pytest.mark.shows("E-26")
def test_a_worker_that_was_silent_for_long_begins_anew(server: Postgres) -> None:
    """It cannot know whether the others were: on a promoted standby it is as good as newborn."""
    store = PostgresStore(server.url())
    store.open()
    with psycopg.connect(server.url(), autocommit=True) as db:
        hire(store, "w", lease_s=3600)

        def began_anew(silence_us: int) -> bool:
            db.execute(
                "UPDATE ulak.workers SET started_at = 0, renewed_at = %(then)s, "
                "expires_at = %(then)s + 3600000000",
                {"then": store.clock.now() - silence_us},
            )
            assert store.renew("w", lease_us=3_600_000_000).alive
            return store.workers()[0].started_at > 0

        assert not began_anew(1_200_000_000), "a third of the lease, as usual"
        assert began_anew(3_000_000_000)
    store.close()
