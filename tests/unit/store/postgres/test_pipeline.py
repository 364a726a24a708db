"""The pipeline: nobody waits for an empty answer, and no refusal is lost for it."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from ulak.store.postgres import values
from ulak.store.postgres.pipeline import Pipeline, numbered


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as db:
        values.teach(db.adapters)
        db.execute("CREATE TEMP TABLE kept (n bigint PRIMARY KEY)")
        yield db


def kept(db: psycopg.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM kept ORDER BY n").fetchall()]


INSERT = "INSERT INTO kept VALUES (%s::bigint)"


@pytest.mark.parametrize(
    ("statement", "text", "names"),
    [
        ("SELECT %s::text, %s::text", b"SELECT $1::text, $2::text", ()),
        ("SELECT %(b)s, %(a)s, %(b)s", b"SELECT $1, $2, $1", ("b", "a")),
        ("SELECT 1 WHERE x LIKE '%%/%%' AND y = $1", b"SELECT 1 WHERE x LIKE '%/%' AND y = $1", ()),
    ],
)
def test_places_are_numbered(statement: str, text: bytes, names: tuple[str, ...]) -> None:
    assert numbered(statement) == (text, names)


@pytest.mark.parametrize("prepare", [True, False])
def test_answers_come_with_the_next_wait(db: psycopg.Connection, prepare: bool) -> None:
    pipeline = Pipeline(db, prepare=prepare, values=db)
    for n in (1, 2, 3):
        with pipeline:
            pipeline.send("BEGIN")
            pipeline.send(INSERT, (n,))
            found = pipeline.later("SELECT max(n) FROM kept")
            assert found.rows == []
            assert pipeline.ask("SELECT %(a)s::bigint, %(b)s::text", {"a": n, "b": None}) == [
                (n, None)
            ]
            assert found.rows == [(n,)]
            assert pipeline.touch("UPDATE kept SET n = n WHERE n <= %s::bigint", (n,)) == n
            late = pipeline.later("SELECT count(*) FROM kept")
            pipeline.send("COMMIT")
        assert late.rows == [(n,)]
    assert kept(db) == [1, 2, 3]


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_statement_that_is_refused_refuses_the_transaction(
    db: psycopg.Connection, waits: bool, prepare: bool
) -> None:
    pipeline = Pipeline(db, prepare=prepare, values=db)
    for _ in range(2):
        with pytest.raises(errors.UniqueViolation), pipeline:  # noqa: PT012 - the end raises
            pipeline.send("BEGIN")
            pipeline.send(INSERT, (1,))
            pipeline.send(INSERT, (1,))
            pipeline.send(INSERT, (2,))
            if waits:
                pipeline.ask("SELECT 1")
                pytest.fail("nobody may go on")
            pipeline.send("COMMIT")
        assert not pipeline.is_open
        db.pgconn.exec_(b"ROLLBACK")
        assert kept(db) == []
    # What was prepared in vain is prepared again.
    with pipeline:
        pipeline.send("BEGIN")
        pipeline.send(INSERT, (1,))
        assert pipeline.ask("SELECT n FROM kept") == [(1,)]
        pipeline.send("COMMIT")
    assert kept(db) == [1]


def test_an_error_of_the_program_leaves_the_connection_whole(db: psycopg.Connection) -> None:
    pipeline = Pipeline(db, prepare=True, values=db)
    with pytest.raises(ZeroDivisionError), pipeline:  # noqa: PT012 - as above
        pipeline.send("BEGIN")
        pipeline.send(INSERT, (1,))
        raise ZeroDivisionError
    db.pgconn.exec_(b"ROLLBACK")
    assert kept(db) == []


def test_what_comes_after_the_part_is_an_extra(db: psycopg.Connection) -> None:
    pipeline = Pipeline(db, prepare=True, values=db)
    with pipeline:
        pipeline.send("BEGIN")
        pipeline.send(INSERT, (1,))
        pipeline.send("COMMIT")
        pipeline.part()
        pipeline.send("SELECT 1 / 0")
    assert kept(db) == [1]
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_lost_connection_is_an_error_and_is_closed(db: psycopg.Connection, url: str) -> None:
    pipeline = Pipeline(db, prepare=True, values=db)
    with pytest.raises(psycopg.OperationalError), pipeline:  # noqa: PT012 - as above
        pipeline.send("BEGIN")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [db.info.backend_pid])
        pipeline.ask("SELECT 1")
    assert db.closed


def test_a_connection_that_is_closed_before_the_end_is_no_success(db: psycopg.Connection) -> None:
    pipeline = Pipeline(db, prepare=True, values=db)
    with pytest.raises(psycopg.OperationalError), pipeline:  # noqa: PT012 - the end raises
        pipeline.send("BEGIN")
        pipeline.send("COMMIT")
        db.close()
