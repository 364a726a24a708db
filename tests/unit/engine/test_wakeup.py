"""A ring does at once what it is to bring about, and wakes whoever sleeps."""

import asyncio
import threading

from ulak.engine.claim_loop import Wakeup
from ulak.store.memory import MemoryStore


def test_a_ring_acts_before_the_sleeper_gets_up() -> None:
    async def scenario() -> list[str]:
        wakeup, order = Wakeup(MemoryStore(), 10.0), list[str]()
        threading.Timer(0.01, wakeup.ring).start()
        await wakeup.sleep(10.0, on_ring=lambda: order.append("acted"))
        order.append("got up")
        # Rung already: nobody sleeps, and there is nothing to bring about.
        await wakeup.sleep(10.0, on_ring=lambda: order.append("never"))
        wakeup.forget()
        await wakeup.sleep(0.001, on_ring=lambda: order.append("never"))
        wakeup.wake()
        await wakeup.sleep(10.0, on_ring=lambda: order.append("never"))
        return order

    assert asyncio.run(scenario()) == ["acted", "got up"]


def test_a_ring_wakes_also_when_what_it_brings_about_forgets_it() -> None:
    async def scenario() -> float:
        wakeup, loop = Wakeup(MemoryStore(), 10.0), asyncio.get_running_loop()
        threading.Timer(0.01, wakeup.ring).start()
        began = loop.time()
        await wakeup.sleep(5.0, on_ring=wakeup.forget)
        return loop.time() - began

    assert asyncio.run(scenario()) < 4.0
