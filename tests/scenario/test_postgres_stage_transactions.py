"""`transaction=True` on PostgreSQL: a stage's rows and its move are one commit."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

import ulak
from tests.databases import Databases
from tests.scenario.doubles import SOON, codes, eventually, kinds, settings
from ulak import Flow, Lifecycle, Run
from ulak.store.faults import POINTS
from ulak.store.postgres import timeouts
from ulak.store.protocol import JobFilter
from ulak.testing import faults
from ulak.testing.servers import Postgres

AT_ONCE = ulak.Backoff(delays=[timedelta(0)] * 3)
LIFE = Lifecycle("new", {"new": ["booked"], "booked": ["done"]})

TABLES = """
    CREATE TABLE seats (number integer PRIMARY KEY, taken_by text);
    CREATE TABLE tickets (
        seat integer REFERENCES seats DEFERRABLE INITIALLY DEFERRED,
        id   uuid DEFAULT gen_random_uuid()
    );
    INSERT INTO seats SELECT n FROM generate_series(1, 10) AS n
"""


def prepare(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(TABLES)
    ulak.connect(url).open().close()


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    with databases.lend(prepare) as lent:
        yield lent


def booking(stage: Callable[[Run[Any]], Any], **options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow("booking", LIFE, retry=AT_ONCE)
    flow.stage("new", **{"transaction": True} | options)(stage)
    flow.stage("booked")(lambda run: None)
    return flow


def tickets(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [n for (n,) in db.execute("SELECT seat FROM tickets ORDER BY seat")]


def issue(run: Run[Any]) -> None:
    run.connection.execute("INSERT INTO tickets (seat) VALUES (%s)", [run.payload])


@pytest.mark.shows("E-36")
def test_rows_and_move_are_one_commit(url: str) -> None:
    before: list[Any] = []

    def book(run: Run[Any]) -> dict[str, int]:
        issue(run)
        run.emit("booked", run.payload)
        before.append(tickets(url))
        with psycopg.connect(url) as other:
            before.append(other.execute("SELECT state FROM ulak.jobs").fetchone())
        return {"seat": run.payload}

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert before == [[], ("new",)]
        assert tickets(url) == [1]
        assert kinds(engine, job) == ["submitted", "moved", "moved"]
        assert len(engine.store.scan_messages(uuid.UUID(job.id).bytes)) == 1
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-36")
def test_the_move_is_in_the_very_transaction_of_the_rows(url: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        engine.wait(job.id, timeout=SOON)
    with psycopg.connect(url) as db:
        rows = db.execute("SELECT xmin FROM tickets").fetchall()
        event = db.execute("SELECT xmin FROM ulak.events WHERE to_state = 'booked'").fetchall()
    assert rows == event != []


@pytest.mark.shows("E-72")
def test_what_follows_the_end_is_in_the_transaction_of_the_rows(url: str) -> None:
    notice: Flow[Any] = Flow("notice", Lifecycle("new", {"new": ["done"]}))
    notice.stage("new")(lambda run: None)
    follows = ulak.OnEnd(notice, payload=lambda job, code: {"job": job.id})
    flow: Flow[Any] = Flow("last", Lifecycle("new", {"new": ["done"]}), retry=0, on_end=follows)

    @flow.stage("new", transaction=True)
    def book(run: Run[Any]) -> None:
        issue(run)
        if run.payload == 2:
            raise LookupError("no such seat")

    with ulak.connect(url, flows=[flow, notice]) as engine, engine.working(settings()):
        ends = [engine.wait(engine.submit(flow, n).id, timeout=SOON).state for n in (1, 2)]
        assert ends == ["done", "failed"]
        eventually(lambda: len(engine.jobs(JobFilter(flow="notice", role="done"))) == 2)
        assert engine.inspect.verify() == []
    with psycopg.connect(url) as db:
        rows = db.execute("SELECT xmin FROM tickets").fetchall()
        event = db.execute(
            """SELECT s.xmin FROM ulak.events AS s JOIN ulak.events AS e ON e.xmin = s.xmin
               WHERE s.kind = 'submitted' AND e.kind = 'moved'"""
        ).fetchall()
    assert rows == event != []


@pytest.mark.shows("E-36")
def test_a_stage_that_raises_leaves_no_rows(url: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)
        if run.attempt < 3:
            raise ConnectionError("not yet")

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "retry", "retry", "moved", "moved"]
    assert tickets(url) == [1]


@pytest.mark.shows("E-36", "E-77")
@pytest.mark.parametrize("says_so", [True, False])
def test_a_stage_that_must_stop_leaves_its_rows_only_if_it_returns(url: str, says_so: bool) -> None:
    began: list[int] = []

    def book(run: Run[Any]) -> None:
        issue(run)
        began.append(run.attempt)
        while not run.cancelled:
            time.sleep(0.002)
        if says_so:
            raise ulak.Stopped

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine:
        job = engine.submit(flow, 1)
        with engine.working(settings(drain=60)):
            eventually(lambda: began)
        now = engine.get(job.id)
        assert (now.state, now.attempt) == ("new" if says_so else "booked", 0)
        assert [e.code for e in engine.inspect.trail(job.id)][1:] == [
            None if says_so else "after-stop"
        ]
        assert kinds(engine, job) == ["submitted", "given-back" if says_so else "moved"]
        assert engine.inspect.verify() == []
    assert tickets(url) == ([] if says_so else [1])


@pytest.mark.shows("E-36")
def test_rows_refused_at_the_commit_fail_the_stage_and_not_the_store(url: str) -> None:
    def book(run: Run[Any]) -> None:
        run.connection.execute(
            "INSERT INTO tickets (seat) VALUES (%s)", [99 if run.attempt == 1 else 1]
        )

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert "ForeignKeyViolation" in str(engine.inspect.trail(job.id)[1].message)
        assert engine.inspect.verify() == []
    assert tickets(url) == [1]


@pytest.mark.shows("E-36")
@pytest.mark.parametrize("way", ["commit", "rollback", "COMMIT", "ROLLBACK", "close"])
def test_a_stage_that_ends_its_transaction_itself_is_told_so(url: str, way: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)
        if way.islower():
            getattr(run.connection, way)()
        else:
            run.connection.execute(way)

    flow = booking(book, retry=0)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
        said = str(engine.inspect.trail(job.id)[-1].message)
        expected = "forbidden within a Transaction" if way in ("commit", "rollback") else "itself"
        assert expected in said
        assert engine.inspect.verify() == []
    assert tickets(url) == ([1] if way == "COMMIT" else []), "nobody can take a commit back"


def test_a_stage_that_leaves_a_block_open_harms_no_other(url: str) -> None:
    blocks = []

    def book(run: Run[Any]) -> None:
        issue(run)
        if run.payload == 1:
            blocks.append(run.connection.transaction())
            blocks[0].__enter__()

    flow = booking(book, retry=0)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        bad = engine.submit(flow, 1)
        assert engine.wait(bad.id, timeout=SOON).state == "failed"
        good = [engine.submit(flow, n) for n in (2, 3)]
        assert [engine.wait(job.id, timeout=SOON).state for job in good] == ["done"] * 2
    assert tickets(url) == [2, 3]


@pytest.mark.shows("E-36")
def test_a_swallowed_error_of_the_database_is_brought_to_light(url: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)
        with suppress(errors.DivisionByZero):
            run.connection.execute("SELECT 1 / 0")

    flow = booking(book, retry=0)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "failed"
        assert "run.connection.transaction()" in str(engine.inspect.trail(job.id)[-1].message)
    assert tickets(url) == []


@pytest.mark.shows("E-36")
def test_a_savepoint_lets_a_stage_go_on_after_an_error(url: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)
        with pytest.raises(errors.DivisionByZero), run.connection.transaction():
            run.connection.execute("SELECT 1 / 0")

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        assert engine.wait(engine.submit(flow, 1).id, timeout=SOON).state == "done"
    assert tickets(url) == [1]


@pytest.mark.shows("E-36")
def test_the_connection_is_psycopgs_own_and_comes_back_as_it_was(url: str) -> None:
    seen: list[Any] = []

    def book(run: Run[Any]) -> None:
        db = run.connection
        seen.append(db.info.backend_pid)
        issue(run)
        (row,) = db.execute("SELECT seat, id FROM tickets WHERE seat = %s", [run.payload])
        seen.append((row[0], type(row[1])))
        db.row_factory = dict_row

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        for seat in (1, 2):
            engine.wait(engine.submit(flow, seat).id, timeout=SOON)
    assert seen[1::2] == [(1, uuid.UUID), (2, uuid.UUID)]
    assert seen[0] == seen[2], "the connection was used again"
    assert tickets(url) == [1, 2]


@pytest.mark.shows("E-36")
def test_there_are_at_most_as_many_connections_as_places(url: str) -> None:
    used: set[int] = set()

    def book(run: Run[Any]) -> None:
        used.add(run.connection.info.backend_pid)
        issue(run)

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine:
        jobs = [engine.submit(flow, seat) for seat in range(1, 11)]
        with engine.working(settings(threads=3)):
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
    assert 1 <= len(used) <= 3
    assert tickets(url) == list(range(1, 11))


@pytest.mark.shows("E-36", "E-26")
def test_a_lost_lease_takes_the_rows_with_it(url: str) -> None:
    runs: list[int] = []

    def book(run: Run[Any]) -> None:
        issue(run)
        runs.append(run.token)
        if len(runs) == 1:
            with psycopg.connect(url) as db:
                db.execute("UPDATE ulak.jobs SET token = token + 1, leased_by = NULL")

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert len(runs) == 2
        assert kinds(engine, job) == ["submitted", "moved", "moved"]
    assert tickets(url) == [1]


@pytest.mark.shows("E-36", "E-20")
def test_a_connection_lost_before_the_commit_runs_the_stage_again(url: str) -> None:
    attempts: list[int] = []

    def book(run: Run[Any]) -> None:
        issue(run)
        attempts.append(run.attempt)
        if len(attempts) == 1:
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("SELECT pg_terminate_backend(%s)", [run.connection.info.backend_pid])

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert attempts == [1, 1], "no attempt was spent"
        assert engine.inspect.verify() == []
    assert tickets(url) == [1]


@pytest.mark.shows("E-36", "E-58")
def test_a_server_that_dies_in_the_middle_of_a_stage_runs_it_again_when_it_is_back() -> None:
    attempts: list[int] = []
    with Postgres() as server:
        url = server.url()
        prepare(url)

        def book(run: Run[Any]) -> None:
            issue(run)
            attempts.append(run.attempt)
            if len(attempts) == 1:
                server.kill()
                server.start()

        flow = booking(book)
        with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
            job = engine.submit(flow, 1)
            eventually(lambda: len(attempts) == 2)
            assert engine.wait(job.id, timeout=SOON).state == "done"
            assert engine.inspect.verify() == []
        assert tickets(url) == [1]
    assert attempts == [1, 1], "no attempt was spent"


@pytest.mark.shows("E-36", "E-20")
def test_a_commit_whose_answer_was_lost_is_looked_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    end = psycopg.Transaction.__exit__

    def end_and_lose_the_answer(self: Any, *error: Any) -> Any:
        answer = end(self, *error)
        if error[0] is None and len(runs) == 1:
            runs.append(0)
            self.connection.close()
            raise psycopg.OperationalError("the answer was lost")
        return answer

    def book(run: Run[Any]) -> None:
        issue(run)
        runs.append(1)

    monkeypatch.setattr(psycopg.Transaction, "__exit__", end_and_lose_the_answer)
    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        assert kinds(engine, job) == ["submitted", "moved", "moved"]
    assert runs == [1, 0]
    assert tickets(url) == [1]


@pytest.mark.shows("E-36", "E-19")
def test_a_result_that_postgresql_refuses_holds_the_job_without_its_rows(url: str) -> None:
    def book(run: Run[Any]) -> None:
        issue(run)
        run._host.emit("a\x00b", 1, None)  # past the door, where `run.emit` refuses it

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        eventually(lambda: engine.get(job.id).role == "held")
        assert codes(engine, job)[-1] == "commit-rejected"
    assert tickets(url) == []


@pytest.mark.shows("E-36", "E-13")
def test_an_effect_is_recorded_apart_from_the_rows(url: str) -> None:
    effects: list[str] = []

    def book(run: Run[Any]) -> None:
        issue(run)
        run.once("charge", effects.append)
        if run.attempt == 1:
            raise ConnectionError("after the effect")

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        assert engine.wait(engine.submit(flow, 1).id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []
    assert len(effects) == 1
    assert tickets(url) == [1]


@pytest.mark.shows("E-36")
def test_above_read_committed_a_stage_that_came_too_late_runs_again(url: str) -> None:
    attempts: list[int] = []

    def book(run: Run[Any]) -> None:
        run.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        issue(run)
        run.once("charge", lambda key: key)  # moves the job's row after the snapshot
        attempts.append(run.attempt)

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        assert engine.wait(engine.submit(flow, 1).id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []
    assert attempts == [1, 1]
    assert tickets(url) == [1]


@pytest.mark.shows("E-36")
def test_what_the_database_says_of_transactions_does_not_matter(url: str) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    said: list[Any] = []

    def book(run: Run[Any]) -> None:
        said.append(run.connection.execute("SHOW transaction_isolation").fetchone())
        issue(run)

    flow = booking(book)
    with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
        assert engine.wait(engine.submit(flow, 1).id, timeout=SOON).state == "done"
    assert said == [("read committed",)]
    assert tickets(url) == [1]


@pytest.mark.shows("E-36", "E-8")
def test_a_job_function_is_given_its_connection_first(url: str) -> None:
    engine = ulak.connect(url)

    @engine.job(transaction=True)
    def book(connection: psycopg.Connection[Any], seat: int) -> None:
        connection.execute("INSERT INTO tickets (seat) VALUES (%s)", [seat])

    with engine, engine.working(settings()):
        assert engine.wait(engine.submit(book, 3).id, timeout=SOON).state == "done"
    assert tickets(url) == [3]


@pytest.mark.shows("E-33", "E-36")
def test_a_job_may_be_submitted_in_the_transaction_of_a_stage(url: str) -> None:
    engine = ulak.connect(url)
    printed, answers = list[int](), list[bool]()

    @engine.job
    def print_ticket(seat: int) -> None:
        printed.append(seat)

    def book(run: Run[Any]) -> None:
        issue(run)
        for _ in range(2):
            made = engine.submit(print_ticket, 1, dedup_key="1", connection=run.connection)
            answers.append(made.created)
        if run.attempt == 1:
            raise ConnectionError("and the job is gone with the rows")

    flow = engine.add(booking(book))
    with engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        assert engine.wait(job.id, timeout=SOON).state == "done"
        eventually(lambda: printed == [1])
        assert engine.inspect.verify() == []
    assert answers == [True, False] * 2


@pytest.mark.shows("E-36", "E-55")
def test_the_same_through_a_pooler(url: str, pooler_server: Any) -> None:
    pooled = pooler_server.url(url.rpartition("/")[2])
    flow = booking(issue)
    with ulak.connect(f"{pooled}?pooled=true", flows=[flow]) as engine:
        with engine.working(settings()):
            for seat in range(1, 9):
                assert engine.wait(engine.submit(flow, seat).id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []
    assert tickets(url) == list(range(1, 9))


def work(url: str) -> None:
    """Book every seat. Runs in a child that is killed."""
    flow = booking(issue)
    with ulak.connect(url, flows=[flow]) as engine:
        for seat in range(1, 4):
            engine.submit(flow, seat)
        with engine.working(settings()):
            for job in engine.jobs():
                engine.wait(job.id, timeout=SOON)


@pytest.mark.shows("E-36", "E-61")
@pytest.mark.parametrize("point", POINTS["commit"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_process_killed_around_the_commit_leaves_rows_and_moves_that_agree(
    url: str, point: str, nth: int
) -> None:
    crashed = faults.run(work, url, kill_at=point, nth=nth)
    assert crashed.killed, crashed.errors
    flow = booking(issue)
    with ulak.connect(url, flows=[flow]) as engine:
        for worker in engine.store.workers():
            engine.store.unregister(worker.id)
        moved = sorted(engine.inspect.payload(j.id) for j in engine.jobs() if j.state != "new")
        assert tickets(url) == moved
        with engine.working(settings()):
            for job in engine.jobs():
                assert engine.wait(job.id, timeout=SOON).state == "done"
        assert engine.inspect.verify() == []
    assert tickets(url) == [1, 2, 3]


@pytest.mark.shows("E-83", "E-84", "E-36")
def test_a_move_that_waits_too_long_for_a_lock_takes_its_rows_back_and_runs_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken by a commit on the stage's connection without a lock timeout: it waits for ever."""
    monkeypatch.setattr(timeouts, "LOCK_TIMEOUT_MS", 100)
    with psycopg.connect(url) as foreign:
        runs = []

        def book(run: Run[Any]) -> None:
            runs.append(run.attempt)
            issue(run)
            if len(runs) == 1:
                foreign.execute("SELECT FROM ulak.jobs FOR UPDATE")

        flow = booking(book)
        with ulak.connect(url, flows=[flow]) as engine, engine.working(settings()):
            job = engine.submit(flow, 1)
            eventually(
                lambda: any("a stage's transaction was lost" in r.message for r in caplog.records)
            )
            assert tickets(url) == []
            foreign.rollback()
            assert engine.wait(job.id, timeout=SOON).state == "done"
            assert tickets(url) == [1]
            assert len(runs) > 1
            assert set(runs) == {runs[0]}, "it spends no attempt"
            assert engine.inspect.verify() == []
