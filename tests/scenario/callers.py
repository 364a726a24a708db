"""Every kind of connection in which a caller may hold a transaction, behind the same few words."""

import asyncio
import inspect
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ulak.engine.engine import Engine
from ulak.engine.view import Job

OWN_TABLE = "CREATE TABLE IF NOT EXISTS orders (number INTEGER)"


class Caller:
    """A program's own connection. Async ones are driven by a loop that this object has.

    Args:
        runner: Has that loop, which is made when it is needed.
        connection: What is given to `submit`.
        execute: Runs a statement of the program, and answers its rows.
        close: Gives everything back.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        connection: Any,
        execute: Callable[[str], Any],
        *close: Callable[[], Any],
    ) -> None:
        self._runner = runner
        self.connection = connection
        self._execute = execute
        self._close = close

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.connection.commit)

    def do(self, answer: Any) -> Any:
        """Return what was answered, or what it was a promise of."""
        if not inspect.isawaitable(answer):
            return answer

        async def wait() -> Any:
            return await answer

        return self._runner.run(wait())

    def execute(self, statement: str) -> Any:
        return self.do(self._execute(statement))

    def order(self, number: int) -> None:
        """Write a row of the program's own: on SQLite this makes the transaction a write."""
        self.execute(f"INSERT INTO orders VALUES ({number:d})")  # noqa: S608 - a number of ours

    def submit(self, engine: Engine, *arguments: Any, **options: Any) -> Job:
        verb = engine.aio.submit if self.is_async else engine.submit
        return self.do(verb(*arguments, connection=self.connection, **options))

    def commit(self) -> None:
        self.do(self.connection.commit())

    def rollback(self) -> None:
        self.do(self.connection.rollback())

    def close(self) -> None:
        with self._runner:
            for close in self._close:
                self.do(close())


def connected(connecting: Coroutine[Any, Any, Any]) -> tuple[asyncio.Runner, Any]:
    """Connect on a loop of its own, which is closed if that fails."""
    runner = asyncio.Runner()
    try:
        return runner, runner.run(connecting)
    except BaseException:
        runner.close()
        raise


def sqlite3_connection(path: Path) -> Caller:
    db = sqlite3.connect(path)
    return Caller(asyncio.Runner(), db, db.execute, db.close)


def aiosqlite_connection(path: Path) -> Caller:
    async def connect() -> Any:
        return await aiosqlite.connect(path)

    runner, db = connected(connect())
    return Caller(runner, db, db.execute, db.close)


def alchemy(kind: str, url: str) -> Caller:
    """One of the four connections of SQLAlchemy."""
    runner = asyncio.Runner()
    if not kind.startswith("Async"):
        engine = sqlalchemy.create_engine(url)
        connection: Any = engine.connect() if kind == "Connection" else Session(engine)
    else:
        engine = create_async_engine(url)

        async def connect() -> Any:
            return await engine.connect()

        if kind == "AsyncSession":
            connection = AsyncSession(engine)
        else:
            runner, connection = connected(connect())
    run = connection.execute
    return Caller(
        runner, connection, lambda s: run(sqlalchemy.text(s)), connection.close, engine.dispose
    )


def on_sqlite(kind: str, path: Path) -> Caller:
    """Open a connection of this kind to a file."""
    if kind == "sqlite3":
        return sqlite3_connection(path)
    if kind == "aiosqlite":
        return aiosqlite_connection(path)
    driver = "sqlite+aiosqlite" if kind.startswith("Async") else "sqlite"
    return alchemy(kind, f"{driver}:///{path}")


def psycopg_connection(url: str) -> Caller:
    db = psycopg.connect(url)
    return Caller(asyncio.Runner(), db, db.execute, db.close)


def psycopg_async_connection(url: str) -> Caller:
    runner, db = connected(psycopg.AsyncConnection.connect(url))
    return Caller(runner, db, db.execute, db.close)


def on_postgres(kind: str, url: str) -> Caller:
    """Open a connection of this kind to a database."""
    if kind == "psycopg":
        return psycopg_connection(url)
    if kind == "psycopg async":
        return psycopg_async_connection(url)
    return alchemy(kind, url.replace("postgresql://", "postgresql+psycopg://"))


ALCHEMY = ("Connection", "Session", "AsyncConnection", "AsyncSession")
SQLITE = ("sqlite3", "aiosqlite", *ALCHEMY)
POSTGRES = ("psycopg", "psycopg async", *ALCHEMY)
