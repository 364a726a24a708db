"""The stores under test, each by a factory that a child process can import."""

from collections.abc import Callable

from ulak.clock import ManualClock
from ulak.store.memory import MemoryStore
from ulak.store.postgres import PostgresStore
from ulak.store.protocol import Store
from ulak.store.redis import RedisRecords, RedisStore
from ulak.store.sqlite import SqliteStore


def memory(_: str) -> Store:
    return MemoryStore(clock=ManualClock())


def sqlite(path: str) -> Store:
    return SqliteStore(path, clock=ManualClock())


def postgres(url: str) -> Store:
    return PostgresStore(url, clock=ManualClock())


def pooled(url: str) -> Store:
    return PostgresStore(url, clock=ManualClock(), pooled=True)


def redis_records(url: str) -> RedisRecords:
    """A place for records alone: only their classes of the suite are about it."""
    return RedisRecords(url, clock=ManualClock())


def redis(url: str) -> Store:
    return RedisStore(url, clock=ManualClock())


def make_schema(url: str) -> None:
    """What every database of PostgreSQL begins with, months of either clock included."""
    for store in (postgres(url), PostgresStore(url)):
        store.open()
        store.close()


STORES: dict[str, Callable[[str], Store]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "pooled": pooled,
    "redis": redis,
}
