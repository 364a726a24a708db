"""Connections: how many there are, which are thrown away, and what an error means."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from ulak.clock import ManualClock
from ulak.errors import Contended, Misconfigured, StoreError, WriteRefused
from ulak.store.postgres import connections
from ulak.store.postgres.connections import Connections
from ulak.store.postgres.session import PLAIN, Session, Transaction
from ulak.store.processes import StoreAway

PID = "SELECT pg_backend_pid()"


@pytest.fixture
def pool(url: str) -> Iterator[Connections]:
    pool = Connections(url, clock=ManualClock(), prepare=True, most=2)
    yield pool
    pool.close()


def pid(db: Session) -> int:
    found = db.row(PID)
    assert found is not None
    return int(found[0])


def test_who_finds_none_free_waits_and_whoever_renews_does_not(pool: Connections) -> None:
    inside, go_on, third = threading.Semaphore(0), threading.Event(), threading.Event()

    def hold(db: Session) -> int:
        inside.release()
        assert go_on.wait(120)
        return pid(db)

    holders = [threading.Thread(target=lambda: pool.use(hold)) for _ in range(2)]
    for thread in holders:
        thread.start()
        assert inside.acquire(timeout=120)
    waiting = threading.Thread(target=lambda: (pool.use(pid), third.set()))
    waiting.start()
    assert not third.wait(0.2)
    assert pool.run("renew", lambda t: pid(t.db), urgent=True) > 0
    assert not third.is_set()
    go_on.set()
    assert third.wait(120)
    for thread in (*holders, waiting):
        thread.join()


def test_a_connection_is_used_again_and_a_lost_one_is_not(pool: Connections, url: str) -> None:
    first = pool.use(pid)
    assert pool.use(pid) == first
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    with pytest.raises(StoreError) as lost:
        pool.use(pid)
    assert not isinstance(lost.value, WriteRefused)
    assert pool.use(pid) != first


def test_a_connection_that_is_not_needed_any_more_is_closed(
    pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, crowd = pool.take(PLAIN, False), pool.take(PLAIN, False)
    pool.give_back(crowd, False)
    pool.give_back(used, False)
    assert pool.use(pid) == used.connection.info.backend_pid
    assert not crowd.connection.closed
    monkeypatch.setattr(connections, "LONGEST_UNUSED_S", 0.0)
    assert pool.use(pid) == used.connection.info.backend_pid
    assert crowd.connection.closed
    assert pool.use(pid) == used.connection.info.backend_pid


def test_an_error_leaves_a_connection_that_can_be_used(pool: Connections) -> None:
    first = pool.use(pid)
    with pytest.raises(StoreError):
        pool.run("renew", lambda t: t.db.execute("SELECT nonsense"))
    assert pool.use(pid) == first
    with pytest.raises(KeyError):
        pool.run("renew", lambda t: {}["a bug of ours"])
    assert pool.use(pid) == first


SEEN = "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout'), pg_backend_pid()"


def seen(db: Session) -> tuple[str, str, int]:
    found = db.row(SEEN)
    assert found is not None
    return found[0], found[1], found[2]


def test_a_session_keeps_its_settings_and_a_read_has_those_of_the_server(
    pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set once and not with every claim: it costs a twentieth of one."""
    changed: list[object] = []
    monkeypatch.setattr(
        connections,
        "change_settings",
        lambda chosen, write=connections.change_settings: (changed.append(chosen), write(chosen))[
            1
        ],
    )
    work, plain = (
        lambda: pool.run("claim", lambda t: seen(t.db), in_order=True, patience_ms=2000),
        lambda: pool.use(seen),
    )
    first = work()
    assert first[:2] == ("off", "2s")
    assert [work(), work()] == [first, first]
    assert len(changed) == 1
    assert plain() == ("on", "5s", first[2])
    assert pool.run("renew", lambda t: seen(t.db)) == ("on", "5s", first[2])
    assert pool.run("add", lambda t: seen(t.db), patience_ms=100) == ("on", "100ms", first[2])
    assert len(changed) == 3


def test_of_two_sessions_the_one_with_the_settings_is_taken(pool: Connections) -> None:
    def work() -> tuple[str, str, int]:
        return pool.run("claim", lambda t: seen(t.db), in_order=True)

    reader, worker = pool.use(lambda db: (pid(db), work()[2]))
    assert reader != worker
    for _ in range(2):
        assert (pool.use(pid), work()[2]) == (reader, worker)


def test_settings_that_were_rolled_back_are_set_again(pool: Connections) -> None:
    def fail(t: Transaction) -> None:
        assert seen(t.db)[:2] == ("off", "2s")
        raise KeyError("a bug of ours")

    for _ in range(2):
        with pytest.raises(KeyError):
            pool.run("claim", fail, in_order=True, patience_ms=2000)
        assert pool.use(seen)[:2] == ("on", "5s")


@pytest.mark.parametrize(
    ("statement", "facts", "kind"),
    [
        ("SELECT 1 / 0", None, WriteRefused),
        ("SELECT %s::text", ("\0",), WriteRefused),
        ("SELECT %s::text", ("\ud800",), WriteRefused),
        ("SELECT %s", (2**70,), WriteRefused),
        ("INSERT INTO ulak.retired_months VALUES (NULL)", None, WriteRefused),
        ("SELECT nonsense", None, Misconfigured),
        ("SELECT pg_terminate_backend(pg_backend_pid())", None, StoreAway),
    ],
)
def test_an_error_says_whether_the_data_or_the_database_is_at_fault(
    pool: Connections, statement: str, facts: object, kind: type[StoreError]
) -> None:
    with pytest.raises(StoreError) as raised:
        pool.run("renew", lambda t: t.db.execute(statement, facts))
    assert type(raised.value) is kind


def test_who_waits_too_long_for_a_lock_is_told_that_somebody_holds_it(
    pool: Connections, url: str
) -> None:
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE ulak.weights")
        with pytest.raises(Contended):
            pool.run("renew", lambda t: t.db.rows("SELECT * FROM ulak.weights"), patience_ms=50)
    assert pool.run("renew", lambda t: t.db.rows("SELECT * FROM ulak.weights")) == []


def test_a_closed_pool_answers_nobody(pool: Connections) -> None:
    pool.use(pid)
    pool.close()
    with pytest.raises(StoreError, match="closed"):
        pool.use(pid)


@pytest.mark.shows("E-58")
def test_who_stands_still_in_a_transaction_does_not_stop_the_others_for_long(
    reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process does that a debugger or its machine has stopped, with rows in its hands."""
    monkeypatch.setattr(connections, "MOST_IDLE_MS", 300)
    conninfo, _, pooled = reached.partition("?")
    pool = Connections(conninfo, clock=ManualClock(), prepare=not pooled)
    lock = "SELECT 1 FROM ulak.schema_version FOR UPDATE"
    holds, has_seen = threading.Event(), threading.Event()
    ended: list[Exception] = []

    def stand_still(t: Transaction) -> None:
        t.db.rows(lock)
        holds.set()
        assert has_seen.wait(120)

    def frozen() -> None:
        try:
            pool.run("renew", stand_still)
        except StoreError as error:
            ended.append(error)

    thread = threading.Thread(target=frozen)
    thread.start()
    assert holds.wait(120)
    assert pool.run("renew", lambda t: t.db.rows(lock)) == [(1,)]
    has_seen.set()
    thread.join()
    assert len(ended) == 1
    pool.close()
