"""An application in a process of its own, and connections that ask it as fast as it answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fastapi import FastAPI

from bench.measure import ROOT
from ulak.auth.identity import Identity
from ulak.auth.principal import SERVICE
from ulak.engine.engine import Engine
from ulak.web.server import Server, bind

CONNECTIONS = 32
SECRET = "for a measurement, not for a server"  # noqa: S105 - signs nothing that anybody keeps

IsRight = Callable[[bytes, bytes], bool]
"""Tells by its head and its body whether an answer is the one that was to come."""


# --- the server, in a process of its own ------------------------------------------


def serve(
    engine: Engine, make: Callable[[Identity], FastAPI], asked: Callable[[], object] | None = None
) -> None:
    """Serve until standard input ends; first say where, and with which key.

    Args:
        engine: Is open meanwhile.
        make: Makes the application.
        asked: What is said for each line that comes in.
    """
    with engine:
        identity = Identity(engine.store, secret=SECRET)
        key = identity.create_key("bench", roles={SERVICE}, actor="bench").text
        server = Server(make(identity), bind("127.0.0.1", 0))
        server.start(on_failure=lambda: None)
        print(json.dumps({"address": server.address, "key": key}), flush=True)
        for _ in sys.stdin:
            if asked is not None:
                print(asked(), flush=True)
        server.stop()


# --- the clients --------------------------------------------------------------------


class Place(NamedTuple):
    """Where a server of ours is, and with which key it is asked."""

    host: str
    port: int
    key: str
    process: subprocess.Popen[str]

    def post(self, path: str, body: bytes, line: str = "") -> bytes:
        """Make a request; `line` is a header more, with its end."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"{line}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def asked(self) -> str:
        """Return what the server says on a second connection beside its requests."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def rate(
        self, requests: int, make: Callable[[], bytes], is_right: IsRight,
        connections: int = CONNECTIONS,
    ) -> float:  # fmt: skip
        """Requests a second that were answered rightly, each connection one at a time."""
        return asyncio.run(self._rate(requests, make, is_right, connections))

    async def _rate(
        self, requests: int, make: Callable[[], bytes], is_right: IsRight, connections: int
    ) -> float:
        loop = asyncio.get_running_loop()
        clients = [
            (await loop.create_connection(lambda: Client(make, is_right), self.host, self.port))[1]
            for _ in range(connections)
        ]
        started = time.perf_counter()
        share = requests // connections
        await asyncio.gather(*(client.ask(share) for client in clients))
        spent = time.perf_counter() - started
        for client in clients:
            client.close()
        return share * connections / spent


@contextmanager
def served(module: str, words: Sequence[str]) -> Iterator[Place]:
    """Run a server for as long as the block lasts.

    Args:
        module: Is executed, and calls `serve`.
        words: What it is told.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        host, _, port = said["address"].removeprefix("http://").rpartition(":")
        yield Place(host, int(port), said["key"], process)
    finally:
        process.communicate(timeout=30)


class Client(asyncio.Protocol):
    """One connection: sends the next request as soon as the last one is answered."""

    def __init__(self, make: Callable[[], bytes], is_right: IsRight) -> None:
        self._make = make
        self._is_right = is_right
        self._left = 0
        self._heard = b""
        self._transport: Any = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def ask(self, times: int) -> None:
        """Ask so many times."""
        self._done = asyncio.get_running_loop().create_future()
        self._left = times
        self._transport.write(self._make())
        await self._done

    def data_received(self, data: bytes) -> None:
        assert self._done is not None
        self._heard += data
        head, mark, body = self._heard.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        if not self._is_right(head, body[:length]):
            if not self._done.done():
                self._done.set_exception(RuntimeError(self._heard.decode()))
            return
        self._heard = body[length:]
        self._left -= 1
        if self._left:
            self._transport.write(self._make())
        else:
            self._done.set_result(None)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()
