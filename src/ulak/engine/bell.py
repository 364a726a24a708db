"""What wakes a claim loop: a ring of this process, a commit of another, or the time.

A ring is a doorbell: one that is lost costs a little time, since the loop looks by itself too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ulak.engine.crossing import call_on
from ulak.errors import StoreError
from ulak.store.protocol import Store


class Bell:
    """Sleeps until something may have become due. Made on the loop that sleeps."""

    def __init__(self, store: Store, glance_s: float) -> None:
        self._store = store
        self._glance_s = glance_s
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[bool] | None = None
        """Whoever sleeps; told whether it was woken, or only the time has passed."""
        self._on_ring: Callable[[], None] | None = None
        self._is_awake = False
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper from any thread; a crowd of rings is one."""
        if not self._rung:
            self._rung = True
            call_on(self._loop, self._rung_here)

    def wake(self) -> None:
        """Wake the sleeper, on the loop itself."""
        self._is_awake = True
        self._stir(is_woken=True)

    def hush(self) -> None:
        """Forget every ring so far: whoever calls this looks at the store next."""
        self._rung = False
        self._is_awake = False

    async def sleep(self, timeout_s: float, on_ring: Callable[[], None] | None = None) -> None:
        """Sleep until woken; glance at a shared store meanwhile, since its ring may be far away.

        What a ring is to bring about, `on_ring` does at once: before the sleeper has got up.
        """
        is_shared = self._store.features.shared
        glance = self._glance_s if is_shared else timeout_s
        deadline = self._loop.time() + timeout_s
        while not self._is_awake:
            left = deadline - self._loop.time()
            if left <= 0:
                return
            self._sleeper = self._loop.create_future()
            self._on_ring = on_ring
            alarm = self._loop.call_later(min(glance, left), self._stir)
            try:
                is_woken = await self._sleeper
            finally:
                alarm.cancel()
                self._on_ring = None
            # A ring may have been hushed since, by what it has brought about.
            if is_woken or (is_shared and self._has_changed_elsewhere()):
                return

    def _rung_here(self) -> None:
        on_ring, self._on_ring = self._on_ring, None
        self.wake()
        if on_ring is not None:
            on_ring()

    def _stir(self, *, is_woken: bool = False) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(is_woken)

    def _has_changed_elsewhere(self) -> bool:
        try:
            return self._store.changed_elsewhere()
        except StoreError:
            return True  # the claim that follows will say what is wrong
