"""A caller's own transaction: what a store writes in it, whatever the driver.

A store's part is a list of steps, a generator that yields statements and is sent their rows: it
knows SQL and no driver. A driver's part is one function that runs a statement. They meet in `add`
and `add_async`, so that what is written is said once.

Drivers and SQLAlchemy are recognised by what the program has imported already: nobody can hold a
connection of a library that was never loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from ulak.core.job import NewJob
from ulak.errors import BadInput
from ulak.store.protocol import Added

T = TypeVar("T")

Values = Any
Rows = list[tuple[Any, ...]]
Steps = Generator[tuple[str, Values], Rows, T]
"""Yields (statement, values), is sent the rows, and returns its answer. What the driver raises is
raised where the statement was yielded."""


class Driver(NamedTuple):
    """How the connections of one kind are written with."""

    is_async: bool
    execute: Callable[[Any, str, Values], Any]
    """Runs a statement on a connection and answers its rows, to be awaited when `is_async`."""
    check: Callable[[Any], None]
    """Raises `BadInput` when the connection has no transaction that a job could be part of."""


class Guest(Protocol):
    """What a store with `Features.caller_transactions` has besides the verbs of `Store`."""

    caller_kinds: str
    """The connections that it takes, in words."""

    def find_driver(self, connection: object) -> Driver | None:
        """Return how a driver's own connection is written with, or None: it is another's."""

    def add_steps(self, job: NewJob) -> Steps[Added]:
        """Store a job as `Store.add` does, with plain statements and nothing else: no commit, no
        savepoint, no setting, no second try.

        Raises:
            BadInput: the connection cannot be used; nothing was changed.
            NotSupported: no caller's transaction may hold such a job.
        """


def add(guest: Guest, connection: object, make: Callable[[], NewJob]) -> Added:
    """Store a job in the transaction of a synchronous connection.

    Raises:
        BadInput: the connection cannot be used, with what can be; nothing was changed.
    """
    _refuse_wrong_verb(guest, connection, is_async=False)
    below, driver = _reach(guest, connection, connection)
    steps = guest.add_steps(make())
    try:
        step = next(steps)
        while True:
            try:
                rows = driver.execute(below, *step)
            except Exception as error:  # noqa: BLE001 - handed to the steps, which raise it on
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as end:
        added: Added = end.value
        return added


async def add_async(guest: Guest, connection: Any, make: Callable[[], NewJob]) -> Added:
    """Store a job in the transaction of an asynchronous connection; else as `add`."""
    _refuse_wrong_verb(guest, connection, is_async=True)
    if _is_alchemy(connection):
        below, driver = await connection.run_sync(lambda sync: _reach(guest, sync, connection))
    else:
        below, driver = _reach(guest, connection, connection)
    steps = guest.add_steps(make())
    try:
        step = next(steps)
        while True:
            try:
                rows = await driver.execute(below, *step)
            except Exception as error:  # noqa: BLE001 - handed to the steps, which raise it on
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as end:
        added: Added = end.value
        return added


def is_of(connection: object, module: str, *names: str) -> bool:
    """Tell whether this is one of the classes of a module, without importing it."""
    loaded = sys.modules.get(module)
    kinds = [getattr(loaded, name, None) for name in names]
    return isinstance(connection, tuple(kind for kind in kinds if isinstance(kind, type)))


def _reach(guest: Guest, connection: Any, given: object) -> tuple[Any, Driver]:
    """Return the driver's own connection, in a transaction, and how to write with it."""
    if not _is_alchemy(connection):
        driver = _driver(guest, connection, connection)
        driver.check(connection)
        return connection, driver
    # A session takes its connection, and begins, with whatever it is first used for.
    alchemy = connection if _is_alchemy_connection(connection) else connection.connection()
    below = alchemy.connection.driver_connection
    driver = _driver(guest, below, given)
    driver.check(below)
    if not alchemy.in_transaction():
        # As any statement would: without it SQLAlchemy's commit() would know of nothing to do.
        alchemy.begin()
    return below, driver


def _driver(guest: Guest, below: object, given: object) -> Driver:
    driver = guest.find_driver(below)
    if driver is None:
        over = "" if below is given else f" over {_name(below)}"
        raise BadInput(
            f"connection={_name(given)}{over} cannot hold a job here; give {guest.caller_kinds}"
        )
    return driver


def _refuse_wrong_verb(guest: Guest, connection: object, *, is_async: bool) -> None:
    """Raise before anything is touched when the connection and the verb do not go together."""
    driver = guest.find_driver(connection)
    if driver is None and not _is_alchemy(connection):
        _driver(guest, connection, connection)
    given_async = _is_async_alchemy(connection) if driver is None else driver.is_async
    if given_async and not is_async:
        _refuse(connection, "is asynchronous; await engine.aio.submit(..., connection=...)")
    if is_async and not given_async:
        _refuse(
            connection,
            "would stop the event loop; give an asynchronous one, or call "
            "engine.submit(..., connection=...) on the thread that has it",
        )


def _refuse(connection: object, why: str) -> NoReturn:
    raise BadInput(f"connection={_name(connection)} {why}")


def _is_alchemy_connection(connection: object) -> bool:
    return is_of(connection, "sqlalchemy", "Connection")


def _is_async_alchemy(connection: object) -> bool:
    return is_of(
        connection,
        "sqlalchemy.ext.asyncio",
        *("AsyncConnection", "AsyncSession", "async_scoped_session"),
    )


def _is_alchemy(connection: object) -> bool:
    return (
        _is_alchemy_connection(connection)
        or is_of(connection, "sqlalchemy.orm", "Session", "scoped_session")
        or _is_async_alchemy(connection)
    )


def _name(thing: object) -> str:
    kind = type(thing)
    module = kind.__module__.partition(".")[0]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
