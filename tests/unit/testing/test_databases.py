"""A test borrows a database that is as new, whatever others did to it before."""

import subprocess

import psycopg
import pytest

from tests.databases import Databases
from ulak.testing.servers import Pooler, find_program


def make_things(url: str) -> None:
    """A table with a key, one that points to it, and a row that belongs there."""
    with psycopg.connect(url) as db:
        db.execute(
            """
            CREATE TABLE kinds (name text PRIMARY KEY, note text);
            CREATE TABLE things (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                kind text NOT NULL REFERENCES kinds
            );
            CREATE TABLE parted (month int, note text) PARTITION BY LIST (month);
            CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
            INSERT INTO kinds VALUES ('it''s a (kind)', NULL), ('other', 'with "quotes", commas')
            """
        )


def description(url: str) -> str:
    """Definitions and rows, as pg_dump writes them."""
    done = subprocess.run(
        [find_program("pg_dump"), "--inserts", url], capture_output=True, text=True, check=True
    )
    # Newer ones add a random word against injection.
    return "\n".join(line for line in done.stdout.splitlines() if "restrict " not in line)


def use(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute("INSERT INTO things (kind) VALUES ('other'), ('other')")
        db.execute("INSERT INTO parted VALUES (1, 'a')")
        db.execute("DELETE FROM kinds WHERE name <> 'other'")
        db.execute("UPDATE kinds SET note = 'changed'")


def oid(url: str) -> int:
    with psycopg.connect(url) as db:
        return db.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone()[0]


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_finds_an_empty_database_whatever_another_made(turn: int, postgres_url: str) -> None:
    assert "CREATE" not in description(postgres_url)
    make_things(postgres_url)


def test_the_pooled_database_is_the_same_one(postgres_url: str, pooled_url: str) -> None:
    make_things(postgres_url)
    with psycopg.connect(pooled_url) as db:
        assert db.execute("SELECT count(*) FROM kinds").fetchone() == (2,)


def test_a_database_is_lent_again_with_the_rows_it_was_prepared_with(databases: Databases) -> None:
    with databases.lend(make_things) as url:
        as_prepared, first = description(url), oid(url)
        use(url)
        assert description(url) != as_prepared
    with databases.lend(make_things) as url:
        assert oid(url) == first
        assert description(url) == as_prepared


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE more ()",
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)",
        "DROP TABLE things",
        "ALTER TABLE things ADD COLUMN more int",
        "ALTER TABLE things ALTER COLUMN kind SET DEFAULT 'other'",
        "ALTER TABLE things ALTER COLUMN kind DROP NOT NULL",
        "ALTER TABLE things DROP CONSTRAINT things_kind_fkey",
        "ALTER TABLE parted DETACH PARTITION parted_1",
        "CREATE INDEX more ON things (kind)",
        "CREATE SCHEMA more",
        "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TYPE more AS ENUM ('a')",
        "ANALYZE kinds",
        "ALTER DATABASE {} SET work_mem = '1MB'",
        "INSERT INTO parted SELECT 1, repeat('a', 1000) FROM generate_series(1, 5000)",
    ],
)
def test_a_database_in_which_more_than_a_few_rows_changed_is_not_lent_again(
    change: str, databases: Databases
) -> None:
    with databases.lend(make_things) as url:
        as_prepared, first = description(url), oid(url)
        with psycopg.connect(url) as db:
            db.execute(change.format(url.rpartition("/")[2]))
    with databases.lend(make_things) as url:
        assert oid(url) != first
        assert description(url) == as_prepared


def test_two_who_borrow_at_once_get_two_databases(databases: Databases) -> None:
    with databases.lend(make_things) as one, databases.lend(make_things) as two:
        assert oid(one) != oid(two)


@pytest.mark.parametrize("pooled", [False, True], ids=["directly", "through the pooler"])
def test_a_straggler_cannot_reach_the_database_of_the_next_test(
    databases: Databases, pooler_server: Pooler, pooled: bool
) -> None:
    with databases.lend(make_things) as direct:
        first = oid(direct)
        straggler = psycopg.connect(
            pooler_server.url(direct.rpartition("/")[2]) if pooled else direct
        )
        straggler.execute("INSERT INTO things (kind) VALUES ('other')")
    with databases.lend(make_things) as url:
        assert oid(url) == first
        with pytest.raises(psycopg.Error):
            straggler.commit()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(direct)
        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*) FROM things").fetchone() == (0,)
    straggler.close()
