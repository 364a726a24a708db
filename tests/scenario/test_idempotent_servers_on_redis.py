"""Two servers on one database, with their records in Redis, which is killed meanwhile."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.scenario.idempotent_servers import Site, at_once, bodies_of, change, site_of
from tests.scenario.test_idempotent_servers import COUNTS, CROWD, answered_once
from ulak.testing.servers import Redis


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def site(shared_url: str, redis: Redis, tmp_path: Path) -> Iterator[Site]:
    settings = {"IDEMPOTENCY_BACKEND": "redis", "IDEMPOTENCY_REDIS_URL": redis.url()}
    with site_of(shared_url, tmp_path, **settings) as made:
        yield made


@pytest.mark.shows("I-10", "I-60", "I-4")
def test_what_is_asked_of_two_servers_is_done_once_though_redis_is_killed(
    site: Site, redis: Redis
) -> None:
    servers = site.start()
    answers = at_once(
        [partial(servers[n % 2].ask, change("k")) for n in range(CROWD)], clients=CROWD
    )
    answered_once(answers)
    counts = [(1, 0, 1, 0)]  # one proof, one subject that moved once, and no record beside them
    assert site.sql(COUNTS) == counts

    redis.kill()
    refused = at_once([partial(server.ask, change("k")) for server in servers], clients=2)
    assert {(answer.status, answer.document["code"]) for answer in refused} == {
        (503, "idempotency_store_unavailable")
    }
    redis.start()
    servers[0].kill()
    again = [servers[1].ask(change("k")), *(one.ask(change("k")) for one in site.start(1))]
    assert all(answer.is_replay for answer in again)
    assert len(bodies_of([*again, *(a for a in answers if a.status == 200)])) == 1
    assert site.sql(COUNTS) == counts
    assert site.verify_proofs() == {"tenants": 1, "proofs": 1, "broken": []}
