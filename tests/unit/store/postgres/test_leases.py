"""Leases on the server's own clock: what a server that was down means for those who hold one."""

import os
import time
from collections.abc import Iterator

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


def hire(store: PostgresStore, worker: str) -> None:
    store.register(worker, lease_us=int(LEASE_S * 1e6), lanes=["any"], about="a test")


def claim(store: PostgresStore, worker: str) -> list[Claim]:
    return store.claim(claim_request(worker, 1, (LINE,))).claims


@pytest.mark.shows("E-26", "E-58")
def test_who_begins_after_an_outage_leaves_the_jobs_of_those_that_live(server: Postgres) -> None:
    before, after = PostgresStore(server.url()), PostgresStore(server.url())
    before.open()
    now = before.clock.now()
    job = begin(
        LINE, Payload(b"null", 1), Submission(), now,
        job_id=time_ordered_id(now), commit_id=os.urandom(16),
    )  # fmt: skip
    before.add([job])
    hire(before, "old")
    (held,) = claim(before, "old")
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
