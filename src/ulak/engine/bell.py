"""What wakes a claim loop: a ring of this process, a commit of another, or the time.

A ring is a doorbell: one that is lost costs a little time, since the loop looks by itself too.
"""

from __future__ import annotations

import asyncio

from ulak.engine.crossing import call_on
from ulak.errors import StoreError
from ulak.store.protocol import Store


class Bell:
    """Sleeps until something may have become due. Made on the loop that sleeps."""

    def __init__(self, store: Store, glance_s: float) -> None:
        self._store = store
        self._glance_s = glance_s
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper from any thread; a crowd of rings is one."""
        if not self._rung:
            self._rung = True
            call_on(self._loop, self._wake.set)

    def wake(self) -> None:
        """Wake the sleeper, on the loop itself."""
        self._wake.set()

    def hush(self) -> None:
        """Forget every ring so far: whoever calls this looks at the store next."""
        self._rung = False
        self._wake.clear()

    async def sleep(self, timeout_s: float) -> None:
        """Sleep until woken; glance at a shared store meanwhile, since its ring may be far away."""
        is_shared = self._store.features.shared
        glance = self._glance_s if is_shared else timeout_s
        deadline = self._loop.time() + timeout_s
        while not self._wake.is_set():
            left = deadline - self._loop.time()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(min(glance, left)):
                    await self._wake.wait()
            except TimeoutError:
                if is_shared and self._has_changed_elsewhere():
                    return

    def _has_changed_elsewhere(self) -> bool:
        try:
            return self._store.changed_elsewhere()
        except StoreError:
            return True  # the claim that follows will say what is wrong
