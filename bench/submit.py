"""A single submit against a bare loop that writes exactly the rows of one, and commits.

The rows are not guessed: one engine submits, what its store holds afterwards is read back, table
by table, and written again, row by row, into a store that was freshly created the same way.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import ulak
from bench.measure import Figure, alternate, scratch
from ulak.cli import speed

SUBMITS = 300
OF_THE_BARE_LOOP = 0.6

Writes = list[tuple[str, tuple[Any, ...]]]


def submit_figure() -> Figure:
    """One thread, one submit after the other."""
    with scratch() as folder:
        writes = _rows_of_submits(folder / "model.db")
        names = iter(range(1000))
        ours, bare = alternate(
            lambda: speed.submit(f"sqlite:///{folder / f'ours-{next(names)}.db'}", SUBMITS),
            lambda: _bare_rate(folder / f"bare-{next(names)}.db", writes),
        )
    return Figure(
        "single submit, of a loop that writes the same rows with sqlite3 and commits",
        f">= {OF_THE_BARE_LOOP}",
        f"{ours / bare:.2f} ({ours:,.0f}/s of {bare:,.0f}/s)",
        ours / bare >= OF_THE_BARE_LOOP,
        "python -m bench.figures submit",
    )


def _bare_rate(path: Path, jobs: list[Writes]) -> float:
    with ulak.connect(f"sqlite:///{path}", flows=[speed.flow_of("submit")]):
        pass
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        _write(db, jobs[0])
        started = time.perf_counter()
        for writes in jobs[1:]:
            _write(db, writes)
        return (len(jobs) - 1) / (time.perf_counter() - started)
    finally:
        db.close()


def _write(db: sqlite3.Connection, writes: Writes) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement, row in writes:
        db.execute(statement, row)
    db.execute("COMMIT")


def _rows_of_submits(path: Path) -> list[Writes]:
    """Submit, and answer what each submit has written."""
    flow = speed.flow_of("submit")
    with ulak.connect(f"sqlite:///{path}", flows=[flow]) as engine:
        db = sqlite3.connect(path)
        try:
            before = dict(_tables(db))
            for _ in range(SUBMITS):
                engine.submit(flow, speed.PAYLOAD)
            after = dict(_tables(db))
        finally:
            db.close()
    jobs: list[Writes] = [[] for _ in range(SUBMITS)]
    for table, rows in after.items():
        added = [row for row in rows if row not in before[table]]
        assert len(added) in (0, SUBMITS), f"{len(added)} rows of {table} for {SUBMITS} submits"
        for writes, row in zip(jobs, added, strict=False):
            places = ", ".join("?" * len(row))
            writes.append((f"INSERT INTO {table} VALUES ({places})", row))  # noqa: S608 - our own
    return jobs


def _tables(db: sqlite3.Connection) -> list[tuple[str, list[tuple[Any, ...]]]]:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [
        (table, db.execute(f"SELECT * FROM {table}").fetchall())  # noqa: S608 - our own tables
        for (table,) in db.execute(names).fetchall()
    ]
