"""The stores under test, each by a factory that a child process can import."""

from collections.abc import Callable

from ulak.clock import ManualClock
from ulak.store.memory import MemoryStore
from ulak.store.protocol import Store
from ulak.store.sqlite import SqliteStore


def memory(_: str) -> Store:
    return MemoryStore(clock=ManualClock())


def sqlite(path: str) -> Store:
    return SqliteStore(path, clock=ManualClock())


STORES: dict[str, Callable[[str], Store]] = {"memory": memory, "sqlite": sqlite}
