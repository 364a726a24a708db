"""Statements over many rows at once."""

import re
import sqlite3
from contextlib import closing

import pytest

from ulak.store.sqlite.rows import SIZES, Batch

SHARED_LAST = Batch("INSERT INTO t VALUES", "(?, ?, ?1, ?2)", shared=2)
SHARED_FIRST = Batch("INSERT INTO t (c, d, a, b) VALUES", "(?1, ?2, ?, ?)", shared=2)


@pytest.mark.parametrize("batch", [SHARED_LAST, SHARED_FIRST])
@pytest.mark.parametrize("many", [1, 2, 3, 41, 171, 2 * SIZES[0]])
def test_every_row_gets_its_own_values_and_those_it_shares(batch: Batch, many: int) -> None:
    rows = [(n, -n) for n in range(many)]
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (a, b, c, d)")
        assert batch.write(db, rows, ("x", "y")) == many
        written = db.execute("SELECT a, b, c, d FROM t ORDER BY a").fetchall()
    assert written == [(a, b, "x", "y") for a, b in rows]


def test_rows_without_shared_values_get_their_own() -> None:
    rows = [(n, -n) for n in range(200)]
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (a, b)")
        Batch("INSERT INTO t VALUES", "(?, ?)").write(db, rows)
        assert db.execute("SELECT a, b FROM t ORDER BY a").fetchall() == rows


class Recording(sqlite3.Connection):
    """Remembers the statements that are executed."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.statements: list[str] = []

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        self.statements.append(statement)
        return super().execute(statement, *values)


@pytest.mark.parametrize("batch", [SHARED_LAST, SHARED_FIRST])
def test_values_of_rows_are_not_bound_by_number(batch: Batch) -> None:
    with closing(Recording(":memory:")) as db:
        db.execute("CREATE TABLE t (a, b, c, d)")
        batch.write(db, [(1, 2)] * SIZES[0], ("x", "y"))
        assert set(re.findall(r"\?\d+", db.statements[-1])) == {"?1", "?2", "?3"}
