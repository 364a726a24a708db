"""A fixed set of threads for plain `def` stages; one that hangs is simply not free."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Threads:
    """Runs work on at most `size` threads, made when they are first needed.

    The worker never hands over more than it has places, so nothing waits in the queue. Threads
    are daemons: one that cannot be stopped must not keep a drained process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Have a thread do this."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._size:
                name = f"ulak-{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Let every idle thread go."""
        for _ in self._threads:
            self._queue.put(None)

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work()
            with self._lock:
                self._idle += 1
