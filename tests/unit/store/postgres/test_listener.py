"""The ring between processes: heard, seldom, tested, and never behind a pooler (E-55)."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psycopg
import pytest

from tests.scenario.doubles import quickest
from ulak.core.outcome import Held
from ulak.store.postgres import PostgresStore, listener
from ulak.store.postgres.listener import CHANNEL, QUIET_S, Listener
from ulak.testing.conformance.desk import Desk
from ulak.testing.servers import Pooler

LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ulak' AND query ~ %s"


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as db:
        yield db


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.open()
    yield store
    store.close()


def listener_of(store: PostgresStore) -> Listener:
    assert store._listener is not None
    assert store._listener.wait_for_test() is True
    return store._listener


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def rings_in(db: psycopg.Connection, seconds: float) -> int:
    return sum(not n.payload.endswith(" test") for n in db.notifies(timeout=seconds))


def words_in(db: psycopg.Connection, seconds: float) -> list[str]:
    return [n.payload.partition(" ")[2] for n in db.notifies(timeout=seconds)]


@pytest.mark.shows("E-55")
def test_a_commit_of_another_process_wakes(store: PostgresStore, url: str) -> None:
    rung = threading.Event()
    store.on_commit(rung.set)
    ours = listener_of(store)
    other = PostgresStore(url)
    other.open()
    try:
        desk = Desk(other)

        def ring() -> None:
            rung.clear()
            desk.submit()
            assert rung.wait(120)

        assert quickest(ring) < 1.0, "sooner than a wait of the listener"
        assert ours.heard >= 1
        assert store.changed_elsewhere()
    finally:
        other.close()


@pytest.mark.shows("E-79")
def test_a_move_that_makes_nothing_due_is_told_to_those_who_wait(
    store: PostgresStore, url: str, db: psycopg.Connection
) -> None:
    """Broken by a ring that tells only of what may be due, or that is sent where nobody waits."""
    rung = threading.Event()
    other = PostgresStore(url)
    other.open()
    try:
        desk = Desk(other)
        leased = desk.leased(300)

        def end_one() -> None:
            desk.write(desk.end(leased.pop(), Held("odd", "look")))

        db.execute(f"LISTEN {CHANNEL}")
        listener_of(store)
        theirs = listener_of(other)
        end_one()
        theirs.ring()
        words = words_in(db, 1.0)
        assert "" in words
        assert "moved" not in words, "nobody waits"

        stop = store.on_move(rung.set)
        wait_until(lambda: theirs._believed_until > time.monotonic())

        def is_told() -> bool:
            end_one()
            return "moved" in words_in(db, 0.1)

        wait_until(is_told)
        assert rung.wait(120)
        stop()
    finally:
        other.close()


@pytest.mark.shows("E-55")
def test_a_crowd_of_commits_is_at_most_one_ring_in_five_milliseconds(
    store: PostgresStore, db: psycopg.Connection
) -> None:
    db.execute(f"LISTEN {CHANNEL}")
    ours, desk = listener_of(store), Desk(store)
    rings_in(db, 0.1)
    before = ours.rung
    began = time.monotonic()
    for _ in range(100):
        desk.submit()
    took = time.monotonic() - began
    rings = rings_in(db, 0.3)
    assert 1 <= rings == ours.rung - before <= took / QUIET_S + 2
    for _ in range(1000):
        ours.ring()
    assert 1 <= rings_in(db, 0.3) <= 3


@pytest.mark.shows("E-55")
def test_threads_that_commit_at_once_ring_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = listener_of(store)
    # One moment for all of them, however long a busy machine takes to come round.
    moment = time.monotonic() + 1
    monkeypatch.setattr(listener, "time", SimpleNamespace(monotonic=lambda: moment))
    gate, along = threading.Barrier(8), []

    def commit() -> None:
        gate.wait()
        along.append(ours.ring_along())

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(ring is not None for ring in along) == 1


@pytest.mark.shows("E-55")
def test_a_process_does_not_answer_its_own_rings(store: PostgresStore, url: str) -> None:
    ours, desk = listener_of(store), Desk(store)
    for _ in range(3):
        desk.submit()
        time.sleep(2 * QUIET_S)
    other = PostgresStore(url)
    other.open()
    try:
        Desk(other).submit()
        wait_until(lambda: ours.heard)
        assert ours.heard == 1
        assert ours.rung >= 3
    finally:
        other.close()


@pytest.mark.shows("E-55")
def test_a_ring_that_is_refused_is_no_failed_commit(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, desk = listener_of(store), Desk(store)
    time.sleep(2 * QUIET_S)
    monkeypatch.setattr(ours, "_ring", f"NOTIFY {CHANNEL}, '{'x' * 9000}'")
    job = desk.submit()
    assert desk.job(job.id) == job
    monkeypatch.undo()
    time.sleep(2 * QUIET_S)
    before = ours.rung
    desk.submit()
    assert ours.rung == before + 1


@pytest.mark.shows("E-55")
@pytest.mark.parametrize("harm", ["terminated", "deaf"])
def test_a_listener_that_hears_nothing_notices_it_and_begins_again(
    store: PostgresStore, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    ours = listener_of(store)
    (pid,) = db.execute(LISTENERS, [CHANNEL]).fetchone()
    if harm == "terminated":
        db.execute("SELECT pg_terminate_backend(%s)", [pid])
    else:
        # The test of the ring comes at once, its channel is another's, and its patience is short.
        monkeypatch.setattr(listener, "TEST_PATIENCE_S", 0.05)
        monkeypatch.setattr(ours, "_test", "NOTIFY elsewhere, 'test'")
        ours._next_test = 0.0
        ours.ring()
        wait_until(lambda: ours.is_well is False)
        monkeypatch.undo()
    wait_until(lambda: db.execute(LISTENERS, [CHANNEL]).fetchall() not in ([], [(pid,)]))
    wait_until(lambda: ours.is_well)
    db.execute(f"NOTIFY {CHANNEL}")
    wait_until(lambda: ours.heard)
    assert store.changed_elsewhere(), "what happened meanwhile was not heard either"


@pytest.mark.shows("E-55")
def test_behind_a_pooler_nobody_listens_and_commits_are_seen_all_the_same(
    url: str, db: psycopg.Connection, pooler_server: Pooler
) -> None:
    store = PostgresStore(pooler_server.url(url.rpartition("/")[2]), pooled=True)
    store.open()
    direct = PostgresStore(url)
    try:
        wait_until(lambda: not store.changed_elsewhere())
        direct.open()
        Desk(direct).submit()
        wait_until(store.changed_elsewhere)
        direct.close()
        Desk(store).submit()
        assert store.about()["ring"] is None
        said = "query ~* '(un)?listen|notify' AND pid <> pg_backend_pid()"
        assert (
            db.execute(
                f"SELECT query FROM pg_stat_activity WHERE datname = current_database() AND {said}"  # noqa: S608
            ).fetchall()
            == []
        )
    finally:
        direct.close()
        store.close()
