"""Protected requests over HTTP: the same no-op `POST` with a key and without, side by side.

One server process serves both, with the same credentials to check, the same body and the same
answer; the protected ones are of the default mode, so each first one is a transaction that is
durable when it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

import ulak
import ulak.web
from bench import postgres
from bench.http import SECRET
from bench.measure import ROOT, Figure, alternate, scratch
from ulak.auth.identity import Identity
from ulak.auth.principal import JOBS_SUBMIT, SERVICE
from ulak.engine.engine import Engine
from ulak.engine.process import settle_in
from ulak.idempotency import Guard, Scope
from ulak.service import Service
from ulak.web import Access, Routes
from ulak.web.idempotency import IdempotentRoute, idempotent_route
from ulak.web.jobs import tenant_and_actor
from ulak.web.server import Server

CONNECTIONS = 32
REQUESTS = 4_000
FIRST = 0.5
REPLAYS = 0.8

PLAIN, PROTECTED = "/bench/plain", "/bench/protected"
BODY = b'{"order": 4711, "lines": [{"article": "A-1", "amount": 2}]}'
ANSWER = b'{"ok": true, "order": 4711, "state": "accepted"}'

COMMAND = "python -m bench.figures idempotency"


# --- the server, in a process of its own ------------------------------------------


class Order(BaseModel):
    """What is sent: both sides read and validate it."""

    order: int
    lines: list[dict[str, Any]]


def routes_of(engine: Engine) -> Routes:
    """A route that does nothing, twice: plain, and protected."""
    routes = APIRouter(route_class=IdempotentRoute)
    protect = idempotent_route(
        Guard(engine.store), Scope("bench.protected"), identify=tenant_and_actor
    )

    @routes.post(PLAIN, status_code=201)
    async def plain(order: Order) -> Response:
        return Response(ANSWER, 201, media_type="application/json")

    @routes.post(PROTECTED, status_code=201, dependencies=[Depends(protect)])
    async def protected(order: Order) -> Response:
        return Response(ANSWER, 201, media_type="application/json")

    lines = [Access("POST", path, JOBS_SUBMIT, "jobs") for path in (PLAIN, PROTECTED)]
    return Routes([routes], lines)


def serve(url: str) -> None:
    """Serve until standard input ends; first say where, and with which key."""
    engine = ulak.connect(url)
    settle_in()
    service = Service("bench", attach=lambda *_: None, routes=routes_of)
    with engine:
        identity = Identity(engine.store, secret=SECRET)
        key = identity.create_key("bench", roles={SERVICE}, actor="bench").text
        app = ulak.web.app(engine, identity=identity, services=[service])
        server = Server(app, host="127.0.0.1", port=0)
        server.start(on_failure=lambda: None)
        print(json.dumps({"address": server.address, "key": key}), flush=True)
        sys.stdin.read()
        server.stop()


# --- the clients --------------------------------------------------------------------


class Served:
    """A running server of ours."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        self.host, _, port = said["address"].removeprefix("http://").rpartition(":")
        self.port = int(port)
        self._credential = said["key"]
        self._numbers = itertools.count()
        self._run = token_hex(4)

    def plain(self, requests: int = REQUESTS) -> float:
        """Requests a second to the route that is not protected."""
        request = self._request(PLAIN)
        return asyncio.run(self._rate(requests, lambda: request))

    def first(self, requests: int = REQUESTS) -> float:
        """Requests a second, each with a key that was never seen."""
        return asyncio.run(self._rate(requests, self._new))

    def replays(self, requests: int = REQUESTS) -> float:
        """Requests a second, each with a key that was answered before."""
        known = [self._new() for _ in range(CONNECTIONS * 8)]
        asyncio.run(self._rate(len(known), itertools.cycle(known).__next__))
        again = itertools.cycle(known)
        return asyncio.run(self._rate(requests, again.__next__, expect=b"replayed: true"))

    def _new(self) -> bytes:
        key = f"order-{self._run}-{next(self._numbers)}"
        return self._request(PROTECTED, f"Idempotency-Key: {key}\r\n")

    def _request(self, path: str, line: str = "") -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\n"
            f"Authorization: Bearer {self._credential}\r\n{line}"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        return head.encode() + BODY

    async def _rate(
        self, requests: int, make: Callable[[], bytes], expect: bytes = b""
    ) -> float:  # fmt: skip
        loop = asyncio.get_running_loop()
        clients = [
            (await loop.create_connection(lambda: Client(make, expect), self.host, self.port))[1]
            for _ in range(CONNECTIONS)
        ]
        started = time.perf_counter()
        share = requests // CONNECTIONS
        await asyncio.gather(*(client.ask(share) for client in clients))
        spent = time.perf_counter() - started
        for client in clients:
            client.close()
        return share * CONNECTIONS / spent


class Client(asyncio.Protocol):
    """One connection: sends the next request as soon as the last one is answered."""

    def __init__(self, make: Callable[[], bytes], expect: bytes) -> None:
        self._make = make
        self._expect = expect
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
        if not mark or len(body) < len(ANSWER):
            return
        is_right = head.startswith(b"HTTP/1.1 201") and self._expect in head.lower()
        if not is_right or body != ANSWER:
            if not self._done.done():
                self._done.set_exception(RuntimeError(self._heard.decode()))
            return
        self._heard = b""
        self._left -= 1
        if self._left:
            self._transport.write(self._make())
        else:
            self._done.set_result(None)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


@contextmanager
def served(url: str) -> Iterator[Served]:
    """Run a server for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.idempotency", url],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Served(process)
    finally:
        process.communicate(timeout=30)


# --- figures ------------------------------------------------------------------------


def idempotency_figures(requests: int = REQUESTS) -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        figures = _figures("SQLite FULL", f"sqlite:///{folder / 'idempotency.db'}", requests)
    with postgres.durable() as server:
        figures += _figures("PostgreSQL", server.fresh(), requests)
    return figures


def _figures(name: str, url: str, requests: int) -> list[Figure]:
    with served(url) as ours:
        for warm_up in (ours.plain, ours.first, ours.replays):
            warm_up(CONNECTIONS * 10)
        plain, first, replays = alternate(
            lambda: ours.plain(requests),
            lambda: ours.first(requests),
            lambda: ours.replays(requests),
        )
    return [
        _figure(f"a no-op `POST` with a key that was never seen, {name}", first, plain, FIRST),
        _figure(f"a no-op `POST` with a key that was answered, {name}", replays, plain, REPLAYS),
    ]


def _figure(name: str, rate: float, plain: float, bound: float) -> Figure:
    ratio = rate / plain
    return Figure(
        f"{name}, of the same without, {CONNECTIONS} connections", f">= {bound}",
        f"{ratio:.2f} ({rate:,.0f} of {plain:,.0f} requests/s)", ratio >= bound, COMMAND,
    )  # fmt: skip


def main() -> None:
    """Be the server."""
    parser = argparse.ArgumentParser(prog="bench.idempotency", description=__doc__)
    parser.add_argument("url")
    serve(parser.parse_args().url)


if __name__ == "__main__":
    main()
