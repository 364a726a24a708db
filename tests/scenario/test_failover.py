"""PostgreSQL dies and its streaming replica takes over: clients go on, and no lease is taken."""

from datetime import timedelta

import pytest

import ulak
from tests.scenario.doubles import eventually
from ulak.clock import micros
from ulak.core.change import Committed
from ulak.errors import StoreError
from ulak.store.postgres import PostgresStore
from ulak.testing.conformance.desk import LEASE, Desk
from ulak.testing.conformance.flows import LINE
from ulak.testing.replication import Standby, ask
from ulak.testing.servers import Postgres

LONG_AGO = "UPDATE ulak.workers SET renewed_at = 0, expires_at = 1000"
JUST_BEGAN = "UPDATE ulak.workers SET started_at = started_at + 3600000000 WHERE id = 'new'"


@pytest.mark.shows("E-26", "E-83")
def test_a_streaming_standby_takes_over_with_what_it_has_received() -> None:
    """What it has not received is gone, and nothing else; who works goes on with its jobs."""
    with Postgres() as primary, Standby(primary) as standby:
        store, newborn = (PostgresStore(standby.shared_url()) for _ in range(2))
        store.open()
        desk = Desk(store)
        (held,) = desk.leased(1, worker="old")
        end = desk.end(held)
        # As far as the standby knows, the lease has lapsed when it takes over.
        ask(primary, LONG_AGO)
        standby.catch_up()
        standby.cut_off()
        lost = desk.submit(dedup_key="k")
        primary.kill()
        standby.promote()

        newborn.open()
        Desk(newborn).hire("new", lease=timedelta(hours=1))
        ask(standby, JUST_BEGAN)  # whatever the pace of this machine
        assert Desk(newborn).claim("new") == []

        def is_renewed() -> bool:
            try:
                return store.renew("old", lease_us=micros(LEASE)).alive
            except StoreError:
                return False  # a connection to the dead server, or it is too early to ask again

        eventually(is_renewed)
        assert isinstance(desk.commit(end), Committed)
        assert store.find_job(lost.id) is None
        assert desk.submit(dedup_key="k").id != lost.id
        with ulak.Engine(PostgresStore(standby.shared_url()), flows=[LINE]) as engine:
            assert engine.inspect.verify() == []
        newborn.close()
        store.close()
