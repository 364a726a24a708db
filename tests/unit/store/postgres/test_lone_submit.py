"""A lone job is written in one round trip, and is whole or not there all the same."""

import threading
import time
from typing import Any

import psycopg
import pytest

import ulak
from tests.unit.store.postgres.conftest import store_at
from ulak.errors import StoreError, WriteRefused
from ulak.ids import from_text
from ulak.store.postgres import PostgresStore
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import faults

TABLES = ("jobs", "payloads", "events", "count_deltas")


def flow() -> ulak.Flow[Any]:
    async def nothing(run: ulak.Run[Any]) -> None: ...

    return ulak.Flow.steps("lone", ("work", nothing))


def submit(reached: str) -> None:
    """Runs in a child that is killed."""
    work = flow()
    with ulak.Engine(store_at(reached), flows=[work]) as engine:
        print(engine.submit(work, {"n": 1}).id, flush=True)  # noqa: T201 - the child's way to tell


def stored(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [db.execute(f"SELECT count(*) FROM ulak.{t}").fetchone()[0] for t in TABLES]  # type: ignore[index]  # noqa: S608 - our own tables


@pytest.mark.shows("E-61")
@pytest.mark.parametrize(
    ("point", "rows"), [("add.before", 0), ("add.inside", 0), ("add.after", 1)]
)
def test_a_submitter_killed_at_any_point_leaves_a_whole_job_or_none(
    reached: str, url: str, point: str, rows: int
) -> None:
    assert faults.run(submit, reached, kill_at=point).killed
    with psycopg.connect(url) as db:
        # The server needs a moment to notice that its client is gone.
        db.execute("LOCK TABLE ulak.jobs, ulak.payloads, ulak.events, ulak.count_deltas")
    assert stored(url) == [rows] * 4


def test_a_lone_job_is_stored_after_its_statement_was_deallocated(
    store: PostgresStore, url: str
) -> None:
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    jobs = [engine.kernel.prepare(work, {"n": n}) for n in range(3)]
    for job in jobs[:2]:
        store.add([job])
    # As psycopg does after some rollbacks, with whatever is prepared on that connection.
    store._db.use(lambda db: db.plainly("DEALLOCATE ALL"))
    store.add([jobs[2]])
    assert stored(url) == [3] * 4


@pytest.mark.shows("E-20")
def test_a_lone_job_whose_answer_was_lost_is_recognised(store: PostgresStore, url: str) -> None:
    work = flow()
    new = ulak.Engine(store, flows=[work]).kernel.prepare(work, {"n": 1})
    first, again = store.add([new]), store.add([new])
    assert again == first
    assert again[0].created
    assert stored(url) == [1] * 4


def test_a_commit_that_the_server_refuses_is_no_success(store: PostgresStore, url: str) -> None:
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    first, second = (engine.kernel.prepare(work, {"n": n}) for n in range(2))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER TABLE ulak.jobs ADD CONSTRAINT late UNIQUE (flow) INITIALLY DEFERRED")
        try:
            store.add([first])
            with pytest.raises(StoreError):
                store.add([second])
        finally:
            db.execute("ALTER TABLE ulak.jobs DROP CONSTRAINT late")
    assert store.find_job(second.row.id) is None
    assert stored(url) == [1] * 4


def test_a_submit_and_a_claim_wait_for_the_server_once_each(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = flow()
    waits: list[Any] = []
    wait = psycopg.Connection.wait

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():  # not the listener
            waits.append(given)
        return wait(self, *given, **options)

    with ulak.Engine(store_at(url), flows=[work]) as engine:
        engine.submit(work, {"n": 1})
        monkeypatch.setattr(psycopg.Connection, "wait", noted)
        job = engine.submit(work, {"n": 2})
        assert len(waits) == 1
        engine.submit_many(work, [{"n": 3}, {"n": 4}])
        assert len(waits) == 2
        engine.store.register("w", lease_us=30_000_000, lanes=(), about="")
        waits.clear()
        wants = (Want(tuple(work.table.lanes), 10),)
        assert len(engine.store.claim(ClaimRequest("w", wants)).claims) == 4
        assert len(waits) == 1
        assert engine.store.find_job(from_text(job.id)) is not None


def test_a_payload_larger_than_any_buffer_arrives_whole(store: PostgresStore) -> None:
    work = flow()
    work.max_payload = 32_000_000
    new = ulak.Engine(store, flows=[work]).kernel.prepare(work, "x" * 20_000_000)
    store.add([new])
    assert store.find_payload(new.row.id) == new.payload


def test_a_connection_that_is_lost_meanwhile_is_replaced(store: PostgresStore, url: str) -> None:
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    first, second = (engine.kernel.prepare(work, {"n": n}) for n in range(2))
    store.add([first])
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    for _ in range(20):
        try:
            store.add([second])
            break
        except StoreError:
            time.sleep(0.05)
    assert stored(url) == [2] * 4


def test_what_cannot_be_stored_is_refused_and_the_connection_goes_on(store: PostgresStore) -> None:
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    good, bad = (engine.kernel.prepare(work, {"n": n}) for n in range(2))
    bad = bad._replace(row=bad.row._replace(submitter="a\x00b"))
    for text in ("a\x00b", "\ud800"):
        with pytest.raises(WriteRefused):
            store.add([bad._replace(row=bad.row._replace(submitter=text))])
    assert store.add([good])[0].created
    assert store.find_job(bad.row.id) is None


@pytest.mark.shows("E-71")
def test_that_a_flow_is_followed_is_learnt_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    careful = []

    def noted(self: PostgresStore, jobs: Any) -> Any:
        careful.append(len(jobs))
        return add_carefully(self, jobs)

    add_carefully = PostgresStore._add_carefully
    monkeypatch.setattr(PostgresStore, "_add_carefully", noted)
    work = flow()
    engine = ulak.Engine(store, flows=[work])
    engine.submit(work, 0)
    assert careful == []
    engine.follow(name="books", flow="lone")(lambda events, connection: None)
    ids = {engine.submit(work, n).id for n in range(3)}
    assert careful == [1]
    assert {delivery.job_id for delivery in engine.outbox.deliveries(handler="books")} == ids
