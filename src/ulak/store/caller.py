"""A caller's own transaction: what a store writes in it, whatever the driver.

A store's part is a list of steps, a generator that yields statements and is sent their rows: it
knows SQL and no driver. A driver's part is one function that runs a statement. They meet in `write`
and `write_async`, so that what is written is said once. What is done seldom, an act on a job or on
flow control, needs no steps: `use` lends the store's own verbs over such a function.

Drivers and SQLAlchemy are recognised by what the program has imported already: nobody can hold a
connection of a library that was never loaded.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast

from ulak.core.admission import Ask
from ulak.core.job import NewJob
from ulak.errors import BadInput, NotSupported
from ulak.store.protocol import Added, Store

T = TypeVar("T")

Values = Any


class Rows(list[tuple[Any, ...]]):
    """The rows that a statement has returned."""

    touched = 0


Execute = Callable[[str, Values], Rows]
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

    def add_steps(self, job: NewJob, ask: Ask | None = None) -> Steps[Added]:
        """Store a job as `Store.add` does, with plain statements and nothing else: no commit, no
        savepoint, no setting, no second try. A job that is new is judged by `ask` first.

        Raises:
            BadInput: the connection cannot be used; nothing was changed.
            NotSupported: no caller's transaction may hold such a job.
            Overloaded: its flow takes no new jobs now; nothing was written.
        """

    def inside(self, connection: Any, execute: Execute) -> AbstractContextManager[Store]:
        """Lend the verbs of the store inside the transaction of a driver's own connection.

        They write with plain statements and nothing else, as `add_steps` does, and read what
        the transaction sees. Only verbs of single jobs and of flow control are to be used.

        Raises:
            BadInput: the connection cannot be used; nothing was changed.
        """


def find_guest(store: Store, verb: str = "submit") -> Guest:
    """Return the store as one that writes in a caller's transaction, or raise `NotSupported`."""
    if store.features.caller_transactions:
        return cast(Guest, store)
    cure = f"leave connection= out, commit your own rows first and then {verb}"
    if verb == "submit":
        cure += " with a dedup_key, so that after a crash in between you can submit again"
    raise NotSupported(
        f"{verb}(connection=...) is not to be had from the {store.features.name} store: it cannot "
        f"write in a transaction of yours; {cure}"
    )


def write(guest: Guest, connection: object, make: Callable[[], Steps[T]]) -> T:
    """Take steps in the transaction of a synchronous connection.

    Raises:
        BadInput: the connection cannot be used, with what can be; nothing was changed.
    """
    _refuse_wrong_verb(guest, connection, is_async=False)
    below, driver = _reach(guest, connection, connection)
    return take(make(), lambda *step: driver.execute(below, *step))


def take(steps: Steps[T], execute: Callable[[str, Values], Rows]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                rows = execute(*step)
            except Exception as error:  # noqa: BLE001 - handed to the steps, which raise it on
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as end:
        answer: T = end.value
        return answer


async def write_async(guest: Guest, connection: Any, make: Callable[[], Steps[T]]) -> T:
    """Take steps in the transaction of an asynchronous connection; else as `write`."""
    _refuse_wrong_verb(guest, connection, is_async=True)
    below, driver = await _reach_async(guest, connection)
    steps = make()
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
        answer: T = end.value
        return answer


class Bridge:
    """The way of a thread to the loop that waits for it, where the caller's connection lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._under_way: Future[Any] | None = None
        self._is_over = False

    def run(self, promise: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something, and wait for it; called on the thread."""
        with self._lock:
            if self._is_over:
                promise.close()
                raise asyncio.CancelledError
            under_way = asyncio.run_coroutine_threadsafe(promise, self._loop)
            self._under_way = under_way
        return under_way.result()

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            if self._under_way is not None:
                self._under_way.cancel()


_BRIDGE: ContextVar[Bridge | None] = ContextVar("ulak_bridge", default=None)


async def from_loop(call: Callable[[], T]) -> T:
    """Run a verb with an asynchronous connection: on a thread, its statements on this loop.

    If the caller is cancelled, the verb ends before this does: no statement of it may come into
    what the caller does next with the connection.
    """
    bridge = Bridge(asyncio.get_running_loop())
    token = _BRIDGE.set(bridge)
    try:
        thread = asyncio.ensure_future(asyncio.to_thread(call))
    finally:
        _BRIDGE.reset(token)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        bridge.stop()
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()  # seen: what the caller gets is the cancel
        raise


def use(
    guest: Guest,
    connection: Any,
    verb: str,
    work: Callable[[Store], T],
    *,
    ready: Callable[[], object],
) -> T:
    """Do `work` with the verbs of a store inside a caller's transaction; `ready` opens it first.

    A refusal names `verb`, which the caller has called.

    Raises:
        BadInput: the connection cannot be used, with what can be; nothing was changed.
    """
    bridge = _BRIDGE.get()
    _refuse_wrong_verb(guest, connection, is_async=bridge is not None, verb=verb)
    ready()
    if bridge is None:
        below, driver = _reach(guest, connection, connection)
    else:
        below, driver = bridge.run(_reach_async(guest, connection))

    def execute(statement: str, values: Values) -> Rows:
        answer = driver.execute(below, statement, values)
        rows: Rows = answer if bridge is None else bridge.run(answer)
        return rows

    with guest.inside(below, execute) as store:
        return work(store)


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


async def _reach_async(guest: Guest, connection: Any) -> tuple[Any, Driver]:
    if not _is_alchemy(connection):
        return _reach(guest, connection, connection)
    reached: tuple[Any, Driver] = await connection.run_sync(
        lambda sync: _reach(guest, sync, connection)
    )
    return reached


def _driver(guest: Guest, below: object, given: object) -> Driver:
    driver = guest.find_driver(below)
    if driver is None:
        over = "" if below is given else f" over {_name(below)}"
        raise BadInput(
            f"connection={_name(given)}{over} cannot be used here; give {guest.caller_kinds}"
        )
    return driver


def _refuse_wrong_verb(
    guest: Guest, connection: object, *, is_async: bool, verb: str = "submit"
) -> None:
    """Raise before anything is touched when the connection and the verb do not go together."""
    driver = guest.find_driver(connection)
    if driver is None and not _is_alchemy(connection):
        _driver(guest, connection, connection)
    given_async = _is_async_alchemy(connection) if driver is None else driver.is_async
    if given_async and not is_async:
        _refuse(connection, f"is asynchronous; await engine.aio.{verb}(..., connection=...)")
    if is_async and not given_async:
        _refuse(
            connection,
            "would stop the event loop; give an asynchronous one, or call "
            f"engine.{verb}(..., connection=...) on the thread that has it",
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
