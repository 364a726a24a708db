"""Rings of other processes: a thread that listens to a channel of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from ulak.errors import StoreError
from ulak.store.redis.server import RedisServer

LISTEN_FOR_S = 0.5
AGAIN_AFTER_S = 1.0


class Listener:
    """Hears what others have committed. A ring that is lost costs a look, nothing else."""

    def __init__(
        self,
        server: RedisServer,
        channel: str,
        me: Callable[[], str],
        ring: Callable[[bool], None],
    ) -> None:
        self._server = server
        self._channel = channel
        self._me = me
        self._ring = ring
        self._has_changed = False
        self._is_over = threading.Event()
        self._hears = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="ulak-redis-rings", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._hears.wait(LISTEN_FOR_S)

    def stop(self) -> None:
        self._is_over.set()
        with suppress(StoreError):
            # Our own ring ends its wait.
            self._server.do("PUBLISH", self._channel, self._me())
        if self._thread is not threading.current_thread():
            self._thread.join()

    def has_changed(self) -> bool:
        """Tell whether another process has committed since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def _listen(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._server.client.pubsub() as rings:  # type: ignore[no-untyped-call]
                    rings.subscribe(self._channel)
                    while not self._is_over.is_set():
                        self._hear(rings.get_message(timeout=LISTEN_FOR_S))
            except (RedisError, OSError):
                # What was committed meanwhile has rung in vain.
                self._tell(True)
                self._is_over.wait(AGAIN_AFTER_S)

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message["type"] == "subscribe":
            self._hears.set()
            return
        who, _, is_due = message["data"].decode().partition(":")
        if who != self._me():
            self._tell(bool(is_due))

    def _tell(self, is_due: bool) -> None:
        self._has_changed = True
        self._ring(is_due)
