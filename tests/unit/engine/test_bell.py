"""The bell: a ring does at once what it is to bring about, and wakes whoever sleeps."""

import asyncio
import threading

from ulak.engine.bell import Bell
from ulak.store.memory import MemoryStore


def test_a_ring_acts_before_the_sleeper_gets_up() -> None:
    async def scenario() -> list[str]:
        bell, order = Bell(MemoryStore(), 10.0), list[str]()
        threading.Timer(0.01, bell.ring).start()
        await bell.sleep(10.0, on_ring=lambda: order.append("acted"))
        order.append("got up")
        # Rung already: nobody sleeps, and there is nothing to bring about.
        await bell.sleep(10.0, on_ring=lambda: order.append("never"))
        bell.hush()
        await bell.sleep(0.001, on_ring=lambda: order.append("never"))
        bell.wake()
        await bell.sleep(10.0, on_ring=lambda: order.append("never"))
        return order

    assert asyncio.run(scenario()) == ["acted", "got up"]
