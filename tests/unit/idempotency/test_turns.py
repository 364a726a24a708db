"""Executions on a store with one writer share its turn and its commit, and nothing else."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ulak.errors import GuardUnavailable, StoreError
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.store.records import RecordId
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite.transactions import SqliteTransaction

SCOPE = Scope("orders")
OK = Answer(201, b"made")

Handler = Callable[[Execution], Awaitable[Answer]]


class House:
    """A guard of an event loop, and another process that looks into the same file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder / "jobs.db"
        self.store, self.elsewhere = SqliteStore(path), SqliteStore(path)
        self.store.open()
        self.elsewhere.open()
        self.guard = Guard(self.store).aio
        self.commits = 0
        commit, commit_parts = SqliteTransaction.commit, SqliteTransaction.commit_parts

        def counted(transaction: SqliteTransaction) -> None:
            commit(transaction)
            self.commits += 1

        def counted_parts(transaction: SqliteTransaction) -> None:
            commit_parts(transaction)
            self.commits += 1

        monkeypatch.setattr(SqliteTransaction, "commit", counted)
        monkeypatch.setattr(SqliteTransaction, "commit_parts", counted_parts)
        with_rows = self.store.begin()
        with_rows.connection.execute("CREATE TABLE parents (n INTEGER PRIMARY KEY)")
        with_rows.connection.execute(
            "CREATE TABLE rows (n INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED)"
        )
        with_rows.commit()
        self.commits = 0

    async def ask(self, key: str, handler: Handler) -> Answer:
        """Execute under a key; once it is answered, everybody sees the record."""
        begun = await self.guard.begin(Asked(SCOPE, key, request_hash="same"))
        if isinstance(begun, Answer):
            return begun
        try:
            answer = await handler(begun)
            await self.guard.settle(begun, answer)
        finally:
            await self.guard.abandon(begun)
        if answer.is_kept(SCOPE):
            assert self.status(key) == answer.status, "it was answered before it was durable"
        return answer

    def status(self, key: str) -> int | None:
        (row,) = self.elsewhere.find_records([RecordId("", SCOPE.name, key)])
        return None if row is None else row.response_status

    def rows(self) -> list[int]:
        with self.elsewhere.reading() as db:
            return [n for (n,) in db.execute("SELECT n FROM rows ORDER BY n").fetchall()]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House(tmp_path, monkeypatch)
    yield house
    house.elsewhere.close()
    house.store.close()


async def nothing(_: Execution) -> Answer:
    return OK


def writing(n: int, answer: Answer = OK) -> Handler:
    async def write(execution: Execution) -> Answer:
        execution.connection.execute("INSERT INTO rows VALUES (?)", (n,))
        return answer

    return write


def failing(error: Exception) -> Handler:
    async def fail(_: Execution) -> Answer:
        raise error

    return fail


def all_of(house: House, asked: dict[str, Handler]) -> list[Any]:
    """Ask all at once; answer what each was answered or has raised."""

    async def story() -> list[Any]:
        asking = (house.ask(key, handler) for key, handler in asked.items())
        return await asyncio.gather(*asking, return_exceptions=True)

    return asyncio.run(story())


def test_those_who_wait_at_the_same_time_share_commits(house: House) -> None:
    answers = all_of(house, {f"key-{n}": nothing for n in range(40)})
    assert answers == [OK] * 40
    assert 0 < house.commits < 10


def test_one_who_is_alone_commits_at_once(house: House) -> None:
    assert all_of(house, {"alone": nothing}) == [OK]
    assert house.commits == 1


def test_one_who_fails_harms_no_neighbour(house: House) -> None:
    bad, error = Answer(400), RuntimeError("of its own")
    answers = all_of(
        house,
        {"a": nothing, "b": failing(error), "c": nothing, "d": failing(error), "e": nothing}
        | {"f": lambda _: asyncio.sleep(0, bad), "g": nothing},
    )
    assert answers == [OK, error, OK, error, OK, bad, OK]
    assert [house.status(key) for key in "abcdefg"] == [201, None, 201, None, 201, None, 201]


def test_a_refusal_takes_back_its_own_rows_only(house: House) -> None:
    no = Answer(422, b"no")
    asked = {"a": writing(1), "b": writing(2, no), "c": nothing, "d": writing(4)}
    assert all_of(house, asked) == [OK, no, OK, OK]
    assert house.rows() == [1, 4]
    assert house.status("b") == 422


def test_rows_that_are_refused_at_the_commit_harm_no_neighbour(house: House) -> None:
    async def orphan(execution: Execution) -> Answer:
        execution.connection.execute("PRAGMA defer_foreign_keys = ON")
        return await writing(7)(execution)

    house.store._lent._connection().execute("PRAGMA foreign_keys = ON")  # as a program would
    answers = all_of(house, {"a": nothing, "b": nothing, "c": orphan, "d": nothing})
    assert [answers[n] for n in (0, 1, 3)] == [OK, OK, OK]
    assert isinstance(answers[2], sqlite3.IntegrityError)
    assert house.status("c") is None
    assert house.rows() == []


def test_those_who_have_ended_do_not_wait_for_one_who_takes_long(house: House) -> None:
    async def story() -> None:
        go_on = asyncio.Event()

        async def slow(_: Execution) -> Answer:
            await go_on.wait()
            return OK

        async with asyncio.timeout(20):
            quick = [asyncio.create_task(house.ask(f"quick-{n}", nothing)) for n in range(3)]
            long = asyncio.create_task(house.ask("slow", slow))
            assert await asyncio.gather(*quick) == [OK] * 3
            assert not long.done()
            assert house.status("slow") is None, "its claim is nobody's to see"
            go_on.set()
            assert await long == OK

    asyncio.run(story())
    assert house.status("slow") == 201


def test_of_duplicates_in_one_turn_one_executes(house: House) -> None:
    executed: list[str] = []

    async def once(execution: Execution) -> Answer:
        executed.append(execution.row.key)
        return OK

    async def story() -> list[Answer]:
        keys = [f"key-{n % 5}" for n in range(40)]
        return await asyncio.gather(*(house.ask(key, once) for key in keys))

    assert asyncio.run(story()) == [OK] * 40
    assert sorted(executed) == [f"key-{n}" for n in range(5)]


def test_a_commit_that_fails_answers_nobody(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(transaction: SqliteTransaction) -> None:
        transaction.roll_back()
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteTransaction, "commit", fail)
        answers = all_of(house, {f"key-{n}": nothing for n in range(5)})
    assert all(isinstance(answer, GuardUnavailable) for answer in answers)
    assert {house.status(f"key-{n}") for n in range(5)} == {None}
    assert all_of(house, {f"key-{n}": nothing for n in range(5)}) == [OK] * 5


def test_the_turn_is_given_back_when_nobody_wants_it(house: House) -> None:
    all_of(house, {"a": nothing, "b": failing(RuntimeError("no")), "c": writing(3)})
    opened = house.elsewhere.begin(patience_ms=0)
    opened.roll_back()
