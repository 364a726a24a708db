"""Threads: a fixed set for plain stages, one for what a loop may not do, and the way back to it."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("ulak.worker")

T = TypeVar("T")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call something on a loop, from any thread; when the loop has ended, nobody cares."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return


def guarded(
    serve: Callable[[], None], failed: Callable[[BaseException], None]
) -> Callable[[], None]:
    """Return the body of a thread that reports its end by an error; nothing else would."""

    def run() -> None:
        try:
            serve()
        except BaseException as error:
            log.critical("a thread of the worker has failed", exc_info=True)
            failed(error)

    return run


class Threads:
    """Runs work on at most `size` threads, made when they are first needed.

    The worker never hands over more than it has places, so nothing waits in the queue. Threads
    are daemons: one that cannot be stopped must not keep a drained process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._begin_anew()

    def run(self, work: Callable[[], None]) -> None:
        if self._process != os.getpid():
            self._begin_anew()  # in a forked child, which has none of its parent's threads
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._size:
                self._begin()
        self._queue.put(work)

    def resize(self, size: int) -> None:
        """Have more threads, when some of them hang, or fewer new ones."""
        with self._lock:
            self._size = size
            for _ in range(min(size - len(self._threads), self._queue.qsize())):
                self._begin()

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def _begin(self) -> None:
        name = f"ulak-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            try:
                work()
            except BaseException:  # the thread must go on: its place would be lost
                log.exception("work on a thread failed")
            with self._lock:
                self._idle += 1


class Aside:
    """One thread, or `size`, for what would stop a loop. With `at_once` a thread begins before the
    loop goes on: sooner for one piece of work, slower for many.

    An executor of the standard library takes three times as long, twice for each job.
    """

    def __init__(self, name: str, size: int = 1, *, at_once: bool = True) -> None:
        self._thread = Threads(size, name)
        self._at_once = at_once

    def run(
        self, function: Callable[..., T], *arguments: Any, then: Callable[[T], object] | None = None
    ) -> asyncio.Future[T]:
        """Have it done, from the loop; `then` gets the result before it is that of the future."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                answer = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                call_on(loop, _fail, future, error)
            else:
                call_on(loop, _settle, future, answer, then)

        self._thread.run(work)
        if self._at_once:
            time.sleep(0)  # lets go of the interpreter
        return future

    def resize(self, size: int) -> None:
        """Have more threads, or fewer new ones."""
        self._thread.resize(size)

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:

        def work() -> None:
            try:
                function(*arguments)
            except Exception:  # the next piece of work must be done all the same
                log.exception("work that nobody waits for failed")

        self._thread.run(work)

    def close(self) -> None:
        self._thread.close()


def _settle(future: asyncio.Future[T], answer: T, then: Callable[[T], object] | None) -> None:
    try:
        if then is not None:
            then(answer)
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
        _fail(future, error)
        return
    if not future.done():  # whoever waited may have been cancelled
        future.set_result(answer)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
