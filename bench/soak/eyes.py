"""How the storm looks into a store past every engine: what is leased, which slots are held."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from ulak.ids import to_text

UNSENT = "SELECT count(*) FROM {schema}deliveries WHERE open = 1"
LEASED = "SELECT id, token, state, role FROM {schema}jobs WHERE leased_by IS NOT NULL"
SLOTS = """
    SELECT leased_by FROM {schema}slots AS slots
    JOIN {schema}jobs AS jobs ON jobs.id = slots.job_id WHERE leased_by IS NOT NULL
"""
# The keys of an order are those of its line alone.
PACKING = "SELECT count(*) FROM {schema}jobs WHERE state = 'packing' GROUP BY keys"


# SQLite itself waits about ten seconds each time; the longest freeze is shorter than all of them.
TRIES = 3


class Eyes(Protocol):
    """What the storm sees."""

    def unsent(self) -> int:
        """Return how many messages are yet to be published."""

    def leased(self) -> list[tuple[str, int, str, str]]:
        """Return job, token, state and role of every job that is leased."""

    def slots(self) -> list[str]:
        """Return for every slot that is held the worker that holds it."""

    def packing(self) -> int:
        """Return how many orders of one line stand in "packing", of the fullest line."""

    def standstill(self) -> contextlib.AbstractContextManager[bool]:
        """Let nobody write meanwhile where one writer stops all others, or answer False."""

    def close(self) -> None:
        """Give back what was opened."""


class Watchman:
    """Counts the orders in "packing" every 10 ms, in a thread of its own, past every engine."""

    def __init__(self, look: Callable[[], Eyes]) -> None:
        self.most = 0
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(look,), daemon=True)
        self._thread.start()

    def _watch(self, look: Callable[[], Eyes]) -> None:
        eyes = look()
        while not self._stop.wait(0.01):
            # While the server is killed, or a frozen worker holds up readers, there is no look.
            with contextlib.suppress(
                sqlite3.OperationalError, psycopg.OperationalError, redis.RedisError
            ):
                self.most = max(self.most, eyes.packing())
                self.looks += 1
        eyes.close()

    def stop(self) -> None:
        """End the watch."""
        self._stop.set()
        self._thread.join()


class SqliteEyes:
    """Into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def unsent(self) -> int:
        return int(self._rows(UNSENT)[0][0])

    def leased(self) -> list[tuple[str, int, str, str]]:
        return [(to_text(job), *rest) for job, *rest in self._rows(LEASED)]

    def slots(self) -> list[str]:
        return [worker for (worker,) in self._rows(SLOTS)]

    def packing(self) -> int:
        return max((jobs for (jobs,) in self._rows(PACKING)), default=0)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        for _ in range(TRIES - 1):
            # A worker that is frozen while it takes a lock of the WAL holds up who reads.
            with contextlib.suppress(sqlite3.OperationalError):
                return self._db.execute(query.format(schema="")).fetchall()
        return self._db.execute(query.format(schema="")).fetchall()

    @contextlib.contextmanager
    def standstill(self) -> Iterator[bool]:
        """Hold the lock of the database, unless somebody holds it for long: others come and go."""
        with self._path.with_name(f"{self._path.name}.lock").open("rb") as lock:
            for _ in range(20):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.002)
                else:
                    yield True
                    return
            yield False

    def close(self) -> None:
        self._db.close()


class PostgresEyes:
    """Into a database whose server may have been killed since the last look."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True)

    def unsent(self) -> int:
        return int(self._rows(UNSENT)[0][0])

    def leased(self) -> list[tuple[str, int, str, str]]:
        return [(str(job), *rest) for job, *rest in self._rows(LEASED)]

    def slots(self) -> list[str]:
        return [worker for (worker,) in self._rows(SLOTS)]

    def packing(self) -> int:
        return max((jobs for (jobs,) in self._rows(PACKING)), default=0)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        said = query.format(schema="ulak.")
        try:
            return self._db.execute(said).fetchall()
        except psycopg.OperationalError:
            self._db = self._connect()
            return self._db.execute(said).fetchall()

    def standstill(self) -> contextlib.AbstractContextManager[bool]:
        """A transaction that stands still holds its own rows here, not everybody's."""
        return contextlib.nullcontext(True)

    def close(self) -> None:
        self._db.close()


class RedisEyes:
    """Into a database whose server may have been killed since the last look."""

    def __init__(self, url: str) -> None:
        self._db: Any = redis.Redis.from_url(
            url, decode_responses=True, retry=Retry(ConstantBackoff(0.2), TRIES)
        )

    def unsent(self) -> int:
        receivers = self._db.smembers("ulak:receivers")
        return sum(self._db.zcard(f"ulak:deliveries:pending:{name}") for name in receivers)

    def leased(self) -> list[tuple[str, int, str, str]]:
        found = []
        for worker in self._db.hkeys("ulak:workers"):
            for name in self._db.zrange(f"ulak:leased:{worker}", 0, -1):
                token, state, role = self._columns(name, "token", "state", "role")
                found.append((name[:36], int(token), state, role))
        return found

    def slots(self) -> list[str]:
        held = [
            slot.split("|", 2)[2]
            for limit in self._db.zrange("ulak:slots", 0, -1)
            for slot in self._db.hvals(f"ulak:slots:{limit}")
        ]
        workers = [self._columns(name, "leased_by")[0] for name in held if name]
        return [worker for worker in workers if worker]

    def packing(self) -> int:
        orders = self._db.zrange("order:jobs:packing", 0, -1)
        keys = Counter(self._columns(f"{job}:order", "keys")[0] for job in orders)
        return max(keys.values(), default=0)

    def _columns(self, name: str, *columns: str) -> list[str]:
        job, _, flow = name.partition(":")
        found: list[str] = self._db.hmget(f"{flow}:job:{job}", *columns)
        return found

    def standstill(self) -> contextlib.AbstractContextManager[bool]:
        """A worker that stands still holds up nobody: a call is over before another begins."""
        return contextlib.nullcontext(True)

    def close(self) -> None:
        self._db.close()
