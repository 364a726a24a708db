"""PostgreSQL stands still without a word: nobody waits for it for long, and it is waited for."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

import ulak
from tests.scenario.doubles import Double, engine_on, eventually, settings
from ulak.errors import Contended, UnknownOutcome
from ulak.store.postgres import PostgresStore, timeouts
from ulak.store.postgres.timeouts import NoAnswer
from ulak.store.processes import StoreAway
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.records import TTL, answered, record
from ulak.testing.servers import HOST, ROLE, Postgres

LONG_S = 120.0


@pytest.fixture
def url(own_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. Its clients lose their patience soon."""
    monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 0.2)
    monkeypatch.setattr(timeouts, "PROBE_HOLDS_S", 0.1)
    # The shortest that psycopg knows.
    return f"{own_url}?connect_timeout=2"


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        store.open()
        yield store


def open_connections(store: PostgresStore, number: int) -> None:
    """Have so many connections lie ready: what is asked next is asked of an old one."""
    together = threading.Barrier(number)
    threads = [
        threading.Thread(target=lambda: store._db.use(lambda db: together.wait(LONG_S)))
        for _ in range(number)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_all(questions: dict[str, Callable[[], object]]) -> dict[str, BaseException]:
    """Ask everything at once, each on a thread; return what each question raised."""
    raised: dict[str, BaseException] = {}

    def ask(name: str, question: Callable[[], object]) -> None:
        try:
            question()
        except Exception as error:  # noqa: BLE001 - it is what the test is about
            raised[name] = error

    threads = [
        threading.Thread(target=ask, args=item, daemon=True, name=item[0])
        for item in questions.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert [thread.name for thread in threads if thread.is_alive()] == [], "they wait for ever"
    return raised


@pytest.mark.shows("E-83")
def test_nobody_waits_for_ever_for_an_answer_of_a_stopped_server(
    server: Postgres, store: PostgresStore
) -> None:
    """Keepalives do not help here: the kernel of a stopped server goes on answering them."""
    desk = Desk(store)
    row = desk.leased(1)[0]
    end = desk.end(row)
    lent, on_loop = store.begin(), store.begin()
    theirs = lent.connection
    loop = asyncio.new_event_loop()
    claim = loop.run_until_complete(
        on_loop.claim_record_on_loop(record(), ttl_us=TTL, lease_us=None)
    )
    questions: dict[str, Callable[[], object]] = {
        "submit": desk.submit,
        "claim": desk.look,
        "commit": lambda: desk.commit(end),
        "renew": lambda: store.renew("w", lease_us=60_000_000),
        "read": lambda: desk.job(row.id),
        "program": lambda: theirs.execute("SELECT 1"),
        "loop": lambda: loop.run_until_complete(
            on_loop.commit_record_on_loop(answered(claim.row), ttl_us=TTL)
        ),
    }
    open_connections(store, len(questions))
    with server.frozen():
        raised = ask_all(questions)
    loop.close()
    assert raised.keys() == questions.keys()
    assert isinstance(raised.pop("program"), NoAnswer)
    assert {type(error) for error in raised.values()} == {StoreAway}
    lent.roll_back()
    eventually(lambda: "submit" not in ask_all({"submit": desk.submit}))


@pytest.mark.shows("E-83")
def test_a_stopped_server_is_given_up_although_another_of_the_url_answers(
    server: Postgres, url: str
) -> None:
    """As after a failover, where the old one has not died but stands still."""
    with Postgres() as other:
        hosts = f"{HOST}:{server.port},{HOST}:{other.port}"
        store = PostgresStore(f"postgresql://{ROLE}@{hosts}/postgres?connect_timeout=2")
        store.open()
        open_connections(store, 1)
        with server.frozen():
            raised = ask_all({"read": store.workers})
        assert isinstance(raised["read"], StoreAway)
        store.close()


@pytest.mark.shows("E-83")
def test_an_engine_is_closed_beside_a_stopped_server(server: Postgres, url: str) -> None:
    """It waits for what was offered no longer than the submit itself."""
    flow: ulak.Flow[Any] = ulak.Flow("one", ulak.Lifecycle("go", {"go": ["done"]}))
    flow.stage("go")(lambda run: None)
    store = Double(PostgresStore(url))
    engine = engine_on(store, flow, submit_timeout=timedelta(seconds=1)).open()
    engine.submit(flow)
    with server.frozen():
        asked, raised = store.calls["add"], dict[str, BaseException]()
        submits = {"it": partial(engine.submit, flow)}
        thread = threading.Thread(target=lambda: raised.update(ask_all(submits)))
        thread.start()
        eventually(lambda: store.calls["add"] > asked)
        engine.close()
        thread.join(LONG_S)
    assert isinstance(raised["it"], UnknownOutcome)


@pytest.mark.shows("E-83")
def test_the_listener_leaves_a_stopped_server_and_comes_back(
    server: Postgres, store: PostgresStore
) -> None:
    listener = store._listener
    assert listener is not None
    assert listener.wait_for_test() is True
    with server.frozen():
        listener.ring()
        eventually(lambda: listener.is_well is False)
    eventually(lambda: listener.is_well)


@pytest.mark.shows("E-83", "E-58")
def test_every_part_of_a_worker_gives_up_a_stopped_server_and_asks_again(
    server: Postgres, url: str
) -> None:
    """Nothing is lost or done twice by what a stopped server had been told and does later."""
    flow: ulak.Flow[Any] = ulak.Flow("load", ulak.Lifecycle("go", {"go": ["done"]}))
    store = Double(PostgresStore(url))
    engine = engine_on(store, flow, submit_timeout=timedelta(minutes=10))
    accepted: list[str] = []
    stopped, may_end = threading.Event(), threading.Event()

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        while run.payload == "late" and not may_end.is_set():
            await asyncio.sleep(0.01)

    def submit() -> None:
        while not stopped.is_set():
            accepted.extend(job.id for job in engine.submit_many(flow, range(10)))

    def has_asked_again(before: dict[str, int]) -> bool:
        return all(store.calls[verb] > number + 1 for verb, number in before.items())

    thread = threading.Thread(target=submit)
    with engine, engine.working(settings(poll=0.2, lease=3.0)) as worker:
        accepted.append(engine.submit(flow, "late").id)
        eventually(lambda: worker.running)
        thread.start()
        eventually(lambda: len(accepted) > 100)
        with server.frozen():
            before = {verb: store.calls[verb] for verb in ("add", "find_commits", "renew")}
            # So that there is something to commit.
            may_end.set()
            eventually(lambda: has_asked_again(before))
        went_on = len(accepted)
        eventually(lambda: len(accepted) > went_on + 100)
        stopped.set()
        thread.join()
        eventually(
            lambda: {c.state: c.jobs for c in engine.inspect.counts()} == {"done": len(accepted)}
        )
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-83")
def test_a_statement_that_takes_long_is_waited_for_while_the_server_answers_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by a deadline alone: a program's own statements, and migrations, may take long."""
    # A machine that stands still for a while must not look like a server that does.
    monkeypatch.setattr(timeouts, "CONNECT_TIMEOUT_S", LONG_S)
    store = PostgresStore(url.replace("connect_timeout=2", "connect_timeout=120"))
    store.open()
    slow = "SELECT pg_sleep(1.5)::text"  # seven probes long
    with store.reading() as db:
        assert db.execute(slow).fetchall() == [("",)]
    assert store._db.use(lambda db: db.rows(slow)) == [("",)]

    async def on_loop() -> None:
        transaction = store.begin(patience_ms=30_000)
        claim = await transaction.claim_record_on_loop(record(), ttl_us=TTL, lease_us=None)
        other = store.begin(patience_ms=1500)
        with pytest.raises(Contended):
            await other.claim_record_on_loop(record(), ttl_us=TTL, lease_us=None)
        await transaction.commit_record_on_loop(answered(claim.row), ttl_us=TTL)

    asyncio.run(on_loop())
    store.close()


@pytest.mark.shows("E-83")
def test_a_transaction_of_the_store_ends_although_the_server_answers_others(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LONGEST_TRANSACTION_S", 0.5)
    with pytest.raises(StoreAway, match="answer"):
        store._db.run("renew", lambda t: t.db.rows("SELECT pg_sleep(600)"))
    with psycopg.connect(store._conninfo, autocommit=True) as admin:
        # Not left to itself: what was asked of the server is still under way there.
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
        )
