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


def test_a_ring_wakes_also_when_what_it_brings_about_hushes_the_bell() -> None:
    async def scenario() -> float:
        bell, loop = Bell(MemoryStore(), 10.0), asyncio.get_running_loop()
        threading.Timer(0.01, bell.ring).start()
        began = loop.time()
        await bell.sleep(5.0, on_ring=bell.hush)
        return loop.time() - began

    assert asyncio.run(scenario()) < 4.0
