"""What the long soak writes down: a line for each store and moment, seen past every engine."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import psycopg

from ulak.clock import SECOND, Instant
from ulak.store.sqlite.files import Wal

SAMPLES = "samples.jsonl"
MB = 1_000_000

ENDED = "lane = '' AND role NOT IN ('held', 'waiting')"
COUNTS = (
    "SELECT count(*) FILTER (WHERE NOT ({ended})), "
    "count(*) FILTER (WHERE {ended} AND changed_at BETWEEN {since} AND {now}), "
    "(SELECT count(*) FROM {schema}deliveries WHERE open = 1) FROM {schema}jobs"
)
TABLES = """
    SELECT relname, pg_table_size(oid), pg_indexes_size(oid), relispartition FROM pg_class
    WHERE relnamespace = 'ulak'::regnamespace AND relkind = 'r'
"""
DEAD = "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'ulak'"
SERVER = "SELECT pg_database_size(current_database()), (SELECT sum(size) FROM pg_ls_waldir())"
BACKENDS = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Line(NamedTuple):
    """A sample of a store, or a mark: a moment at which something was done to it."""

    t: float
    """Seconds of soaking before it; the time between two parts does not count."""
    store: str
    values: dict[str, float]
    mark: str = ""
    at: float = 0.0
    """When it was written, in seconds since 1970: what lies between two parts is a gap."""


def write(folder: Path, line: Line) -> None:
    """Append a line; a kill loses at most the one that is being written."""
    text = json.dumps(line._replace(at=round(time.time(), 1))._asdict())
    with (folder / SAMPLES).open("a") as out:
        out.write(f"\n{text}")  # first the end of the line before, which a kill may have cut off


def read(folder: Path) -> list[Line]:
    """Return the lines so far, without one that a kill has cut off."""
    found = []
    with suppress(FileNotFoundError):
        for text in (folder / SAMPLES).read_text().splitlines():
            with suppress(json.JSONDecodeError):
                found.append(Line(**json.loads(text)))
    return found


def watch_process(role: str, pid: int) -> dict[str, float]:
    """Return memory, descriptors and threads of a process; nothing when it has just gone."""
    proc = Path("/proc") / str(pid)
    try:
        rollup = (proc / "smaps_rollup").read_text().splitlines()[1:]
        kb = {name: float(rest.split()[0]) for name, _, rest in (r.partition(":") for r in rollup)}
        return {
            f"{role} rss MB": kb["Rss"] * 1024 / MB,
            f"{role} pss MB": kb["Pss"] * 1024 / MB,
            f"{role} anonymous MB": kb["Anonymous"] * 1024 / MB,
            f"{role} descriptors": len(os.listdir(proc / "fd")),
            f"{role} threads": len(os.listdir(proc / "task")),
        }
    except (OSError, KeyError, IndexError):
        return {}


class Pickups:
    """The waits between submit and first stage that workers note, those of each window."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._file.seek(0, os.SEEK_END)

    def take(self) -> dict[str, float]:
        """Return the percentiles since the last call."""
        waits = [float(line) * 1000 for line in self._file if line.endswith("\n")]
        if len(waits) < 2:
            return {}
        return {"pickup p50 ms": median(waits), "pickup p99 ms": quantiles(waits, n=100)[-1]}

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def watch_sqlite(path: Path, now: Instant, window_s: float) -> dict[str, float]:
    """Return rows and sizes of a file; the connection is closed, so that no reader stays."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
        values = {
            f"rows {name}": db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
            for name in tables
            if not name.startswith("sqlite_")
        }
        values |= _rates(db, "", now, window_s)
        page = db.execute("PRAGMA page_size").fetchone()[0]
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
    log = path.with_name(f"{path.name}-wal")
    wal = Wal(log, page, MB)
    values["wal in use MB"] = wal.size() / MB
    wal.close()
    sizes = {"database MB": path, "wal MB": log}
    values |= {name: file.stat().st_size / MB for name, file in sizes.items() if file.exists()}
    return {**values, "free pages MB": free * page / MB}


def watch_postgres(url: str, now: Instant, window_s: float) -> dict[str, float]:
    """Return rows, dead rows and sizes of a database; partitions count for their table."""
    values: dict[str, float] = {}
    oldest: list[int] = []
    with psycopg.connect(url, autocommit=True, options="-c statement_timeout=20s") as db:
        for name, table, indexes, is_part in db.execute(TABLES).fetchall():
            of = name.rpartition("_")[0] if is_part else name
            counted = _one(db, f"SELECT count(*) FROM ulak.{name}")[0]  # noqa: S608
            more = {f"rows {of}": counted, f"table {of} MB": table / MB}
            more |= {f"indexes {of} MB": indexes / MB, "tables MB": table / MB}
            more["indexes MB"] = indexes / MB
            if name.endswith("_other"):
                more["rows of no month"] = counted
            elif of == "events":
                more["months"] = 1
                oldest.append(int(name.removeprefix("events_")))
            _add(values, more)
        for name, dead in db.execute(DEAD).fetchall():
            base = name.rpartition("_")[0]
            of = base if base in ("events", "payloads", "results") else name
            _add(values, {f"dead rows {of}": dead, "dead rows": dead})
        size, wal = _one(db, SERVER)
        values |= {"database MB": size / MB, "wal MB": float(wal) / MB}
        for (pid,) in db.execute(BACKENDS).fetchall():
            # What they share, its buffers, is not anonymous.
            own = watch_process("backend", pid).get("backend anonymous MB", 0.0)
            _add(values, {"connections": 1, "backends anonymous MB": own})
        return {**values, "oldest month": min(oldest), **_rates(db, "ulak.", now, window_s)}


def _rates(db: Any, schema: str, now: Instant, window_s: float) -> dict[str, float]:
    since = now - int(window_s * SECOND)
    query = COUNTS.format(ended=ENDED, since=since, now=now, schema=schema)
    unfinished, ended, unsent = _one(db, query)
    return {"unfinished": unfinished, "ended per s": ended / window_s, "unsent": unsent}


def _one(db: Any, query: str) -> Any:
    return db.execute(query).fetchone()


def _add(values: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        values[name] = values.get(name, 0) + value


def moments(lines: Sequence[Line], store: str, name: str) -> Iterator[tuple[float, float]]:
    """Return the moments and values of one series."""
    return ((li.t, li.values[name]) for li in lines if li.store == store and name in li.values)
