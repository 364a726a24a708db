"""What one open stream still has to be told, and no more of it than a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

# A reader that lags behind by so much reads too slowly; it comes back and resumes where it was.
MOST_QUEUED: Final = 256
MOST_QUEUED_BYTES: Final = 1024 * 1024

# What is handed to the connection at once: as much as uvicorn takes before it makes us wait.
MOST_AT_ONCE: Final = 64 * 1024


class News(NamedTuple):
    """Something to be told: the number of an event, or of a hint, and its bytes.

    The bytes are made once and shared by every watcher.
    """

    seq: int
    frame: bytes


class Watcher:
    """The news of one stream. Everything here happens on one event loop."""

    def __init__(self, *, start: int = 0, after: int = 0) -> None:
        self.start = start
        """What has this number, or a lower one, is not among the news: the store has it."""
        self.position = after
        """The number of what was told last."""
        self.on_close: Callable[[], object] = lambda: None
        """Called when nothing will follow but the last word."""
        self.on_taken: Callable[[], object] = lambda: None
        """Called when everything that was queued has been taken."""
        self.waits_since = 0.0
        """When what is queued began to wait, by the clock of the loop."""
        self._news: deque[News] = deque()
        self._bytes = 0
        self._last_word: bytes | None = None
        self._is_cut = False
        self._stirred = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        """Whether there is something to be told that only the store has."""
        return self.position < self.start and not self._is_cut

    @property
    def queued(self) -> int:
        """How much waits to be told."""
        return len(self._news)

    @property
    def queued_bytes(self) -> int:
        """The same in bytes."""
        return self._bytes

    def offer(self, news: News) -> bool:
        """Add news; False when too much waits already, and nothing was added."""
        if self._last_word is not None:
            return True
        if not self._news:
            self.waits_since = asyncio.get_running_loop().time()
        elif (
            # One that is larger than the bound by itself must still be tellable.
            len(self._news) >= MOST_QUEUED or self._bytes + len(news.frame) > MOST_QUEUED_BYTES
        ):
            return False
        self._news.append(news)
        self._bytes += len(news.frame)
        self._stirred.set()
        return True

    def finish(self, last_word: bytes) -> None:
        """End the stream with a last word, after everything that is still to be told."""
        if self._last_word is None:
            self._last_word = last_word
            self._stirred.set()

    def cut(self, last_word: bytes) -> None:
        """End the stream with a last word, and tell nothing else before it."""
        self._news.clear()
        self._bytes = 0
        self._is_cut = True
        self._last_word = last_word
        self._stirred.set()
        self.on_close()

    async def take(self, timeout_s: float) -> bytes | None:
        """Return what is to be sent next, b'' when there is nothing yet, None after the last word.

        What was told already, because it was read from the store, is left out.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._stirred.wait()
        except TimeoutError:
            return b""
        chunk = bytearray()
        while self._news and len(chunk) < MOST_AT_ONCE:
            news = self._news.popleft()
            self._bytes -= len(news.frame)
            if news.seq > self.position:
                self.position = news.seq
                chunk += news.frame
        if chunk:
            self.waits_since = asyncio.get_running_loop().time()
            if not self._news:
                self.on_taken()
            return bytes(chunk)
        if self._last_word is None:
            self._stirred.clear()
            return b""
        word, self._last_word = self._last_word, b""
        return word or None
