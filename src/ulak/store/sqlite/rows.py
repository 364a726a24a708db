"""Rows as the records of the core, and statements over many rows at once.

Five properties of the driver were measured and shape what is here, the first four on CPython 3.11:

- It lets go of the interpreter at every row it steps over, and a busy thread then keeps it for
  milliseconds. So a hundred rows are one step: written by one statement, read as one value.
- Binding None or bytes takes eight times as long as binding an integer. So what is absent is
  written into the statement, and ids are bound packed or as bytearrays.
- A statement over many rows that may fail in the middle keeps the pages it changes in a journal
  of its own. `OR FAIL` does not: whoever runs one takes the whole transaction back on an error.
- Binding a text takes three times as long as an integer, and reading one six times. So what a
  batch has in common is bound once, and a claim reads rows as JSON that SQLite writes.
- CPython 3.12 and newer look up the name of each placeholder, and SQLite searches the numbered ones
  from the first: a batch of 128 rows takes five times as long on 3.13. So few are numbered.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count

from ulak.store.sql.session import Row

# Few sizes, so that few statements are compiled; the largest keeps a statement's program small.
SIZES = (128, 32, 8, 2, 1)

PACKED_IDS = """(
    WITH RECURSIVE ids (at) AS (
        SELECT 1 WHERE length(?1) > 0 UNION ALL SELECT at + 16 FROM ids WHERE at + 16 < length(?1)
    )
    SELECT substr(?1, at, 16) FROM ids
)"""
"""The ids that are bound as one value, the first: sixteen bytes each, one after the other."""

ABSENT = -1
"""Stands for None among the integers of a row; no time and no number of ours is negative."""
ABSENT_TEXT = "\0"
"""Stands for None among the texts of a row; intake refuses a text that holds it."""

_PLACEHOLDER = re.compile(r"\?(?!\d)")


class Batch:
    """One statement with a list of rows in its middle.

    Args:
        head: The statement before the first row.
        row: One row, a `?` for each of its values.
        tail: The statement after the last row.
        shared: How many values, `?1` and on, come before those of the rows.
    """

    def __init__(self, head: str, row: str, tail: str = "", *, shared: int = 0) -> None:
        self._statements: list[tuple[int, str]] = []
        # SQLite counts on from the largest number that it has read so far. So the first value of
        # the rows has its number written, and those after it follow by themselves.
        first = _PLACEHOLDER.sub(f"?{shared + 1}", row, count=1) if shared else row
        for size in SIZES:
            rows = ",".join([first, *[row] * (size - 1)])
            self._statements.append((size, f"{head} {rows} {tail}".strip()))

    def write(self, db: sqlite3.Connection, rows: Sequence[Row], shared: Row = ()) -> int:
        """Run the statement over all rows; answer how many rows of the table it touched."""
        touched = at = 0
        left = len(rows)
        for size, statement in self._statements:
            while left >= size:
                values = (*shared, *chain.from_iterable(rows[at : at + size]))
                touched += db.execute(statement, values).rowcount
                at += size
                left -= size
        return touched


def insert_begun(
    table: str, columns: Sequence[str], begins: Mapping[str, object], own: Mapping[str, str]
) -> str:
    """Write the INSERT of a row that binds `own`, by expressions; the rest is as a job begins."""
    literals = {name: "NULL" if value is None else repr(value) for name, value in begins.items()}
    values = [own.get(name) or literals[name] for name in columns]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)})"


Compose = Callable[[Mapping[str, str]], tuple[str, str, str]]


class Spread:
    """A batch whose rows have columns in common: those are bound once, absent ones not at all.

    The values of `shared` make a group; `compose` writes head, row and tail, given the expression
    of each shared column.
    """

    def __init__(self, shared: Sequence[str], compose: Compose) -> None:
        self._shared = tuple(shared)
        self._compose = compose
        self._batches: dict[Row, Batch] = {}

    def write(self, db: sqlite3.Connection, groups: Mapping[Row, Sequence[Row]]) -> int:
        """Write each group of rows, by its shared values; answer how many rows were touched."""
        touched = 0
        for shared, rows in groups.items():
            absent = tuple([value is None for value in shared])
            # Two stores may make the same one at once, and either will do.
            batch = self._batches.get(absent) or self._batches.setdefault(
                absent, self._make(absent)
            )
            touched += batch.write(db, rows, tuple([v for v in shared if v is not None]))
        return touched

    def _make(self, absent: Row) -> Batch:
        numbers = count(1)
        expressions = {
            name: "NULL" if is_absent else f"?{next(numbers)}"
            for name, is_absent in zip(self._shared, absent, strict=True)
        }
        return Batch(*self._compose(expressions), shared=next(numbers) - 1)


def inserting(table: str, own: Mapping[str, str]) -> Compose:
    """Compose an INSERT whose rows bind `own`, each column with its expression."""

    def compose(shared: Mapping[str, str]) -> tuple[str, str, str]:
        columns = ", ".join((*shared, *own))
        values = ", ".join((*shared.values(), *own.values()))
        return f"INSERT OR FAIL INTO {table} ({columns}) VALUES", f"({values})", ""

    return compose


def or_absent(value: int | None) -> int:
    """Write an integer so that it can be bound cheaply; read it with `nullif(?, -1)`."""
    return ABSENT if value is None else value


def pack(ids: Iterable[bytes]) -> bytes:
    """Write ids as one value, for `PACKED_IDS`."""
    return b"".join(ids)


NULLABLE_NUMBER = f"nullif(?, {ABSENT})"
NULLABLE_TEXT = "nullif(?, char(0))"
