"""`POST /jobs` over HTTP: many connections at once, against the same application without a store.

Both sides are the whole application in a process of its own, with the same credentials to check,
the same request and the same answer; the one side's jobs are durable when they are answered, the
other's are forgotten.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import ulak
import ulak.web
from bench import postgres
from bench.measure import ROOT, Figure, alternate, scratch
from ulak.auth.identity import Identity
from ulak.auth.principal import SERVICE
from ulak.cli import speed
from ulak.core.job import NewJob
from ulak.engine.process import settle_in
from ulak.store.protocol import Added
from ulak.web.server import Server

CONNECTIONS = 32
REQUESTS = 4_000
OF_NO_STORE = 0.6
AT_ONCE = 200
SECRET = "for a measurement, not for a server"  # noqa: S105 - signs nothing that anybody keeps

FLOW = speed.flow_of("http")
COMMAND = "python -m bench.figures http"


# --- the server, in a process of its own ------------------------------------------


class Forgetful:
    """An intake that answers at once and stores nothing."""

    def offer(self, jobs: Sequence[NewJob]) -> Future[list[Added]]:
        answer: Future[list[Added]] = Future()
        answer.set_result([Added(job.row, True) for job in jobs])
        return answer

    def open(self) -> None: ...
    def close(self) -> None: ...


def serve(url: str, *, with_store: bool) -> None:
    """Serve until standard input ends; first say where, and with which key."""
    engine = ulak.connect(url, flows=[FLOW])
    if not with_store:
        engine.intake = Forgetful()  # type: ignore[assignment] # no more of an intake is used here
    commits = 0
    add = engine.store.add

    def counted(jobs: Sequence[NewJob]) -> list[Added]:
        nonlocal commits
        commits += 1
        return add(jobs)

    engine.store.add = counted  # type: ignore[method-assign]
    settle_in()
    with engine:
        identity = Identity(engine.store, secret=SECRET)
        key = identity.create_key("bench", roles={SERVICE}, actor="bench").text
        server = Server(ulak.web.app(engine, identity=identity), host="127.0.0.1", port=0)
        server.start(on_failure=lambda: None)
        print(json.dumps({"address": server.address, "key": key}), flush=True)
        for _ in sys.stdin:
            print(commits, flush=True)
        server.stop()


class Served:
    """A running server of ours."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        self.host, _, port = said["address"].removeprefix("http://").rpartition(":")
        self.port = int(port)
        body = json.dumps({"flow": FLOW.name, "payload": speed.PAYLOAD}).encode()
        head = (
            f"POST /jobs HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {said['key']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body

    def commits(self) -> int:
        """How many transactions have accepted jobs so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def rate(self, requests: int = REQUESTS, connections: int = CONNECTIONS) -> float:
        """Requests a second that were answered with 201, each connection one at a time."""
        return asyncio.run(self._rate(requests, connections))

    async def _rate(self, requests: int, connections: int) -> float:
        loop = asyncio.get_running_loop()
        clients = [
            (await loop.create_connection(lambda: Client(self.request), self.host, self.port))[1]
            for _ in range(connections)
        ]
        started = time.perf_counter()
        share = requests // connections
        await asyncio.gather(*(client.ask(share) for client in clients))
        spent = time.perf_counter() - started
        for client in clients:
            client.close()
        return share * connections / spent


class Client(asyncio.Protocol):
    """One connection: sends the same request again as soon as it is answered."""

    def __init__(self, request: bytes) -> None:
        self._request = request
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
        self._transport.write(self._request)
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
        if not head.startswith(b"HTTP/1.1 201"):
            if not self._done.done():
                self._done.set_exception(RuntimeError(self._heard.decode()))
            return
        self._heard = body[length:]
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._done.set_result(None)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


@contextmanager
def served(url: str, *, with_store: bool) -> Iterator[Served]:
    """Run a server for as long as the block lasts."""
    words = [sys.executable, "-m", "bench.http", url, *([] if with_store else ["--forget"])]
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Served(process)
    finally:
        process.communicate(timeout=30)


# --- figures ----------------------------------------------------------------------


def http_figures(requests: int = REQUESTS) -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        figures = _figures("SQLite FULL", f"sqlite:///{folder / 'http.db'}", requests)
    with postgres.durable() as server:
        figures += _figures("PostgreSQL", server.fresh(), requests)
    return figures


def _figures(name: str, url: str, requests: int) -> list[Figure]:
    with served(url, with_store=True) as ours, served("memory://", with_store=False) as bare:
        for each in (ours, bare):
            each.rate(CONNECTIONS * 10)
        with_store, without = alternate(lambda: ours.rate(requests), lambda: bare.rate(requests))
        before = ours.commits()
        ours.rate(AT_ONCE, AT_ONCE)
        commits = ours.commits() - before
    ratio = with_store / without
    return [
        Figure(
            f"`POST /jobs` on {CONNECTIONS} connections, {name}, of the same application without "
            "a store",
            f">= {OF_NO_STORE}", f"{ratio:.2f} ({with_store:,.0f} of {without:,.0f} requests/s)",
            ratio >= OF_NO_STORE, COMMAND,
        ),
        Figure(
            f"commits for {AT_ONCE} `POST /jobs` at once, {name}", f"< {AT_ONCE}", str(commits),
            0 < commits < AT_ONCE, COMMAND,
        ),
    ]  # fmt: skip


def main() -> None:
    """Be the server."""
    parser = argparse.ArgumentParser(prog="bench.http", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--forget", action="store_true", help="store nothing")
    given = parser.parse_args()
    serve(given.url, with_store=not given.forget)


if __name__ == "__main__":
    main()
