"""The way of a verb to the loop that the caller's connection lives on."""

import asyncio
import threading

import pytest

from tests.scenario.doubles import pass_steps
from ulak.store import caller


@pytest.mark.shows("E-87")
def test_a_verb_whose_caller_is_cancelled_sends_no_statement_any_more() -> None:
    """Its thread may be about to send its first one just then."""
    sent: list[str] = []
    begun, is_cancelled = threading.Event(), threading.Event()

    async def send() -> None:
        sent.append("a statement")

    def verb() -> None:
        bridge = caller._BRIDGE.get()
        assert bridge is not None
        begun.set()
        assert is_cancelled.wait(120)
        bridge.run(send())

    async def story() -> None:
        task = asyncio.create_task(caller.from_loop(verb))
        assert await asyncio.to_thread(begun.wait, 120)
        task.cancel()
        await pass_steps(5)
        is_cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert sent == []
