"""A Redis server of the tests' own, which writes everything down before it answers."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import redis

PATIENCE_S = 20.0


class RedisServer:
    """Started on entering, stopped on leaving."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def start(self) -> None:
        """Start it, with what it has written down before."""
        options = {
            "port": str(self.port), "bind": "127.0.0.1", "dir": str(self._folder),
            "appendonly": "yes", "appendfsync": "always", "save": "",
            "logfile": str(self._folder / "log"), **self._settings,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(["redis-server", *words])  # noqa: S607 - found in PATH
        give_up = time.monotonic() + PATIENCE_S
        with redis.Redis(port=self.port) as client:
            while True:
                try:
                    client.dbsize()
                    return
                except redis.RedisError:
                    assert time.monotonic() < give_up, "the server does not start"
                    time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def empty(self) -> str:
        """Forget everything and return where the server is."""
        with redis.Redis(port=self.port) as client:
            client.flushall()
        return self.url
