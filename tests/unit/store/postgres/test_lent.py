"""Connections that are lent: whoever leaves while one is opened leaves none behind."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ulak.clock import ManualClock
from ulak.store.postgres.connections import Connections, LentConnections
from ulak.store.sql.session import Row


class Door(Connections):
    """Opens a connection when it is let, and remembers each."""

    def __init__(self, url: str) -> None:
        super().__init__(url, clock=ManualClock(), prepare=True, most=2)
        self.asked, self.may_open = threading.Event(), threading.Event()
        self.opened: list[psycopg.Connection[Row]] = []

    def connect_plainly(self) -> psycopg.Connection[Row]:
        self.asked.set()
        assert self.may_open.wait(120)
        self.opened.append(super().connect_plainly())
        return self.opened[-1]


class Hands(ThreadPoolExecutor):
    """The threads of a loop, which tells of the last thing that one was asked to do."""

    last: Future[Any]

    def submit(self, *work: Any, **options: Any) -> Future[Any]:
        self.last = super().submit(*work, **options)
        return self.last


@pytest.fixture
def door(url: str) -> Iterator[Door]:
    made = Door(url)
    yield made
    for connection in made.opened:
        connection.close()
    made.close()


@pytest.fixture
def lent(door: Door) -> Iterator[LentConnections]:
    made = LentConnections(door, prepare=True)
    yield made
    made.close()


async def leave(door: Door, lent: LentConnections, *, too_late: bool = False) -> None:
    """Ask for a connection and go: while it is opened, or when it is there and not handed out."""
    hands = Hands(1)
    asyncio.get_running_loop().set_default_executor(hands)
    asking = asyncio.ensure_future(lent.take())
    await asyncio.sleep(0)
    assert door.asked.wait(120)
    if too_late:
        door.may_open.set()
        # Not awaited: the loop must not hear of it before the cancel.
        hands.last.result(120)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


@pytest.mark.parametrize("too_late", [False, True])
def test_a_connection_that_nobody_waits_for_any_more_is_kept_for_the_next(
    too_late: bool, door: Door, lent: LentConnections
) -> None:
    async def story() -> None:
        await leave(door, lent, too_late=too_late)
        door.may_open.set()

    asyncio.run(story())  # ends when its threads have
    with lent.reading() as db:
        assert [db] == door.opened


def test_one_that_is_opened_after_the_end_is_closed(door: Door, lent: LentConnections) -> None:
    async def story() -> None:
        await leave(door, lent)
        lent.close()
        door.may_open.set()

    asyncio.run(story())
    assert [connection.closed for connection in door.opened] == [True]


def test_what_programs_use_is_lent_to_them_again_and_not_to_the_store(
    door: Door, lent: LentConnections
) -> None:
    """Statements that are not prepared are planned each time."""
    door.may_open.set()
    own = [lent.lend(lambda session: session) for _ in range(2)]
    for session in own:
        lent.give_back(session)
    for _ in range(3):
        with lent.reading():
            pass
    prepared = [session for session in own if session.pipeline.is_preparing]
    assert [lent.lend(lambda session: session)] == prepared
    lent.lend(lambda session: session)
    assert len(door.opened) == 2, "the other one is better than none"
