"""Finds store verbs that run on the thread of an event loop, where they would stop everybody."""

import asyncio
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ulak
from ulak.store.memory import MemoryStore
from ulak.store.postgres.store import PostgresStore
from ulak.store.protocol import Store
from ulak.store.sqlite.store import SqliteStore

SOURCE = str(Path(ulak.__file__).parent)
TESTS = str(Path(__file__).parent)

# What a store promises to answer without waiting.
QUICK = {"changed_elsewhere", "on_commit", "on_move"}
VERBS = {
    name
    for name in dir(Store)
    if not name.startswith("_") and callable(getattr(Store, name)) and name not in QUICK
}


@contextmanager
def watching() -> Iterator[list[str]]:
    """Collect the verbs that ulak calls on a loop's thread; what a test calls itself is its own."""
    found: list[str] = []
    undo: list[tuple[type, str, Any]] = []
    for store in (MemoryStore, SqliteStore, PostgresStore):
        for kind in store.__mro__:
            for name in VERBS & vars(kind).keys():
                verb = vars(kind)[name]
                if callable(verb):
                    undo.append((kind, name, verb))
                    setattr(kind, name, _watched(name, verb, found))
    try:
        yield found
    finally:
        for kind, name, verb in reversed(undo):
            setattr(kind, name, verb)


def _watched(name: str, verb: Any, found: list[str]) -> Any:
    @functools.wraps(verb)
    def call(*arguments: Any, **options: Any) -> Any:
        if asyncio._get_running_loop() is not None and (by := _caller()):
            found.append(f"{name} by {by}")
        return verb(*arguments, **options)

    return call


def _caller() -> str:
    """Name the line of ulak that is on the loop; '' when a test has called the verb itself."""
    frame: Any = sys._getframe(2)
    last = ""
    while frame is not None and frame.f_code.co_filename.startswith((SOURCE, __file__)):
        last = f"{Path(frame.f_code.co_filename).relative_to(SOURCE)}:{frame.f_lineno}"
        frame = frame.f_back
    is_test = frame is not None and frame.f_code.co_filename.startswith(TESTS)
    return "" if is_test else last
