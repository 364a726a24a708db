"""The host of PostgreSQL vanishes: nothing comes back, neither FIN nor RST, and nobody hears us."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.scenario.doubles import eventually
from ulak.errors import StoreError
from ulak.store.postgres import PostgresStore, timeouts
from ulak.testing.networks import Network, NoNetwork, RemotePostgres

LONG_S = 120.0
ASLEEP = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
SOON = {
    "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2,
    "tcp_user_timeout": 3000, "connect_timeout": 2,
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[RemotePostgres]:
    try:
        with Network() as network, RemotePostgres(network) as server:
            yield server
    except NoNetwork as error:
        pytest.skip(str(error))


@pytest.mark.shows("E-83")
def test_a_host_that_vanishes_is_given_up_and_found_again(
    server: RemotePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel alone, while an answer is awaited, and while something is sent."""
    monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 600.0)
    # As short as can be, since the test waits for it.
    for name, value in SOON.items():
        monkeypatch.setitem(timeouts.CLIENT, name, value)
    store = PostgresStore(server.url())
    store.open()
    raised = dict[str, StoreError]()

    def fails(name: str, question: Callable[[], object]) -> bool:
        try:
            question()
        except StoreError as error:
            raised[name] = error
            return True
        return False

    def sleep() -> None:
        store._db.use(lambda db: db.rows("SELECT pg_sleep(3600)"))

    waiting = threading.Thread(target=fails, args=("waits", sleep), daemon=True)
    waiting.start()
    # The server has begun, so that only an answer is missing.
    eventually(lambda: store._db.use(lambda db: db.rows(ASLEEP)))
    server.network.vanish()
    sending = threading.Thread(target=fails, args=("sends", store.workers), daemon=True)
    sending.start()
    waiting.join(LONG_S)
    sending.join(LONG_S)
    assert raised.keys() == {"waits", "sends"}
    server.network.come_back()
    eventually(lambda: not fails("comes back", store.workers))
    store.close()
