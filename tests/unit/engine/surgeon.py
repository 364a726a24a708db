"""Damages a store below its verbs: dictionaries in memory, tables in SQLite and PostgreSQL."""

# ruff: noqa: S608 - the statements are built from names that are in this file

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from ulak.core.job import Event, JobRow, Message
from ulak.store.memory import MemoryStore
from ulak.store.protocol import DedupRow, OutboxRow


class MemorySurgeon:
    """Works on the tables of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def edit_job(self, job_id: bytes, **columns: Any) -> None:
        self.store._jobs[job_id] = self.store._jobs[job_id]._replace(**columns)

    def drop_job(self, job_id: bytes) -> None:
        self.store._take_away(job_id)

    def add_event(self, event: Event) -> None:
        self.store._trails[event.job_id].append(event)

    def edit_event(self, job_id: bytes, number: int, /, **columns: Any) -> None:
        trail = self.store._trails[job_id]
        trail[:] = [e._replace(**columns) if e.seq == number else e for e in trail]
        trail.sort(key=lambda event: event.seq)

    def drop_event(self, job_id: bytes, seq: int) -> None:
        trail = self.store._trails[job_id]
        trail[:] = [e for e in trail if e.seq != seq]

    def drop_message(self, job_id: bytes, n: int) -> None:
        (key,) = [k for k in self.store._messages if k[0] == job_id and k[2] == n]
        del self.store._messages[key]

    def add_message(self, message: Message) -> None:
        self.store._messages[message.job_id, message.seq, message.n, ""] = OutboxRow(message, "")

    def drop_payload(self, job_id: bytes) -> None:
        del self.store._payloads[job_id]

    def drop_worker(self, worker: str) -> None:
        del self.store._workers[worker]

    def count(self, flow: str, state: str, role: str, jobs: int) -> None:
        self.store._counts[flow, 1, state, role] += jobs

    def fill_slot(self, limit: str, n: int, job_id: bytes | None) -> None:
        slots = self.store._slots[limit]
        slots[n] = slots.get(n, slots[min(slots)])._replace(n=n, job_id=job_id, of_state=0)

    def rename_slots(self, limit: str, to: str) -> None:
        slots = self.store._slots.pop(limit)
        self.store._slots[to] = {n: slot._replace(limit=to) for n, slot in slots.items()}

    def drop_rates(self) -> None:
        self.store._rates.clear()

    def edit_bucket(self, name: str, level: int) -> None:
        self.store._buckets[name] = self.store._buckets[name]._replace(level=level)

    def end_pauses(self, until_at: int) -> None:
        for key, pause in self.store._pauses.items():
            self.store._pauses[key] = pause._replace(until_at=until_at)

    def lower_limit(self, name: str, n: int) -> None:
        self.store._limits[name] = self.store._limits[name]._replace(n=n)

    def add_key(self, key: DedupRow) -> None:
        self.store._keys[key[:3]] = key

    def drop_key(self, job_id: bytes) -> None:
        self.store._keys = {k: v for k, v in self.store._keys.items() if v.job_id != job_id}

    def drop_tick(self, job_id: bytes) -> None:
        self.store._ticks = {k: v for k, v in self.store._ticks.items() if v.job_id != job_id}

    def pass_tick_on(self, job_id: bytes, to: bytes) -> None:
        (key,) = [k for k, tick in self.store._ticks.items() if tick.job_id == job_id]
        self.store._ticks[key] = self.store._ticks[key]._replace(job_id=to)

    def drop_requests(self, job_id: bytes) -> None:
        self.store._requests[job_id].clear()

    def edit_proof(self, tenant: str, proof_id: int, **columns: Any) -> None:
        chain = self.store._proofs[tenant]
        chain[proof_id - 1] = chain[proof_id - 1]._replace(**columns)

    def drop_proof(self, tenant: str, proof_id: int) -> None:
        del self.store._proofs[tenant][proof_id - 1]


class SqlSurgeon:
    """Works on tables with SQL; a key that forbids the damage is taken off first."""

    def _run(self, statement: str, facts: Sequence[Any] = ()) -> Any:
        """Run a statement in which a question mark is a value; answer its cursor."""
        raise NotImplementedError

    def _without_keys(self, table: str) -> None:
        raise NotImplementedError

    def _edit(self, table: str, where: str, key: tuple[Any, ...], columns: dict[str, Any]) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        done = self._run(f"UPDATE {table} SET {names} WHERE {where}", (*columns.values(), *key))
        assert done.rowcount == 1

    def _drop(self, table: str, where: str, *key: Any) -> None:
        assert self._run(f"DELETE FROM {table} WHERE {where}", key).rowcount == 1

    def edit_job(self, job_id: bytes, **columns: Any) -> None:
        self._edit("jobs", "id = ?", (job_id,), columns)

    def drop_job(self, job_id: bytes) -> None:
        columns = ", ".join(JobRow._fields)
        row = self._run(f"SELECT {columns} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        job = JobRow._make(row)
        self._drop("jobs", "id = ?", job_id)
        self.count(job.flow, job.state, job.role, -1)

    def add_event(self, event: Event) -> None:
        self._insert_event(event._asdict())

    def _insert_event(self, columns: Mapping[str, Any]) -> None:
        marks = ", ".join("?" * len(columns))
        self._run(
            f"INSERT INTO events ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
        )

    def edit_event(self, job_id: bytes, number: int, /, **columns: Any) -> None:
        self._edit("events", "job_id = ? AND seq = ?", (job_id, number), columns)

    def drop_event(self, job_id: bytes, seq: int) -> None:
        self._drop("events", "job_id = ? AND seq = ?", job_id, seq)

    def drop_message(self, job_id: bytes, n: int) -> None:
        self._drop("deliveries", "job_id = ? AND n = ?", job_id, n)

    def add_message(self, message: Message) -> None:
        self._run(
            "INSERT INTO deliveries (job_id, seq, n, key, topic, data, at, handler, not_before)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, '', 0)",
            message,
        )

    def drop_payload(self, job_id: bytes) -> None:
        self._drop("payloads", "job_id = ?", job_id)

    def drop_worker(self, worker: str) -> None:
        self._drop("workers", "id = ?", worker)

    def count(self, flow: str, state: str, role: str, jobs: int) -> None:
        self._run(
            "INSERT INTO count_deltas (flow, flow_version, state, role, jobs)"
            " VALUES (?, 1, ?, ?, ?)",
            (flow, state, role, jobs),
        )

    def fill_slot(self, limit: str, n: int, job_id: bytes | None) -> None:
        self._without_keys("slots")
        self._run("DELETE FROM slots WHERE limit_name = ? AND n = ?", (limit, n))
        self._run(
            "INSERT INTO slots (limit_name, n, job_id, closed) VALUES (?, ?, ?, 0)",
            (limit, n, job_id),
        )

    def rename_slots(self, limit: str, to: str) -> None:
        self._run("UPDATE slots SET limit_name = ? WHERE limit_name = ?", (to, limit))

    def drop_rates(self) -> None:
        self._run("DELETE FROM rates")

    def edit_bucket(self, name: str, level: int) -> None:
        self._edit("buckets", "name = ?", (name,), {"level": level})

    def end_pauses(self, until_at: int) -> None:
        self._run("UPDATE pauses SET until_at = ?", (until_at,))

    def lower_limit(self, name: str, n: int) -> None:
        self._edit("limits", "name = ?", (name,), {"n": n})

    def add_key(self, key: DedupRow) -> None:
        self._run("INSERT INTO dedup VALUES (?, ?, ?, ?, ?)", key)

    def drop_key(self, job_id: bytes) -> None:
        self._drop("dedup", "job_id = ?", job_id)

    def drop_tick(self, job_id: bytes) -> None:
        self._drop("ticks", "job_id = ?", job_id)

    def pass_tick_on(self, job_id: bytes, to: bytes) -> None:
        self._edit("ticks", "job_id = ?", (job_id,), {"job_id": to})

    def drop_requests(self, job_id: bytes) -> None:
        self._drop("requests", "job_id = ?", job_id)

    def edit_proof(self, tenant: str, proof_id: int, **columns: Any) -> None:
        self._edit("proofs", "tenant = ? AND proof_id = ?", (tenant, proof_id), columns)

    def drop_proof(self, tenant: str, proof_id: int) -> None:
        self._drop("proofs", "tenant = ? AND proof_id = ?", tenant, proof_id)


class SqliteSurgeon(SqlSurgeon):
    """Works on the file."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)

    def _run(self, statement: str, facts: Sequence[Any] = ()) -> Any:
        return self.db.execute(statement, facts)

    def _without_keys(self, table: str) -> None:
        self.db.executescript(
            f"CREATE TABLE bare AS SELECT * FROM {table}; DROP TABLE {table};"
            f"ALTER TABLE bare RENAME TO {table};"
        )


class _AsTheyAre(Dumper):
    """Sends bytes as the column has them: sixteen to a uuid, any number to a bytea."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: Any) -> Any:
        return obj


class PostgresSurgeon(SqlSurgeon):
    """Works on the database, in which an event has a month besides."""

    def __init__(self, url: str) -> None:
        self.db = psycopg.connect(url, autocommit=True, options="-c search_path=ulak")
        self.db.adapters.register_dumper(bytes, _AsTheyAre)

    def _run(self, statement: str, facts: Sequence[Any] = ()) -> Any:
        return self.db.execute(statement.replace("?", "%s"), facts, binary=True)

    def _without_keys(self, table: str) -> None:
        keys = self._run(
            "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(?)"
            " AND contype IN ('p', 'u')",
            (table,),
        ).fetchall()
        for (name,) in keys:
            self._run(f"ALTER TABLE {table} DROP CONSTRAINT {name}")

    def _insert_event(self, columns: Mapping[str, Any]) -> None:
        (month,) = self._run("SELECT month FROM jobs WHERE id = ?", (columns["job_id"],)).fetchone()
        super()._insert_event({"month": month, **columns})

    def move_event(self, job_id: bytes, seq: int, month: int) -> None:
        """Put an event where the events of another month are."""
        self._edit("events", "job_id = ? AND seq = ?", (job_id, seq), {"month": month})

    def copy_event(self, job_id: bytes, seq: int, month: int) -> None:
        """Put an event into another month too, where its number is free."""
        names = ", ".join(Event._fields)
        self._run(
            f"INSERT INTO events (month, {names}) SELECT ?, {names} FROM events"
            " WHERE job_id = ? AND seq = ?",
            (month, job_id, seq),
        )


Surgeon = MemorySurgeon | SqlSurgeon
Cut = Callable[[Surgeon, Any], None]
