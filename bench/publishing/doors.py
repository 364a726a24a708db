"""Doors: HTTP servers that stand before others, count what passes, and break calls by a rule.

A door forwards to a server, or is the receiver of pushes itself. Its rule looks at each request
and says what goes wrong with it: the connection is reset before or after the call was made, the
answer is another one, or it comes late. Both sides speak real HTTP over real sockets.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

LARGEST_HEAD: Final = 64 * 1024
# Closing with this answers the other side with a reset, and not with an end.
RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    raw: bytes

    @property
    def key(self) -> str:
        """Its Idempotency-Key."""
        return self.headers.get("idempotency-key", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request."""

    kind: str
    forwards: bool = True
    """Whether it is passed on; what is answered may be another thing."""
    answer: bytes | None = None
    """What is answered, None for what the server has answered."""
    is_reset: bool = False
    """Whether the connection is reset and nothing is answered."""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that came to a door, and what became of it."""

    request: Request
    fault: Fault | None


Rule = Callable[[Request], Fault | None]
Serve = Callable[[Request], Awaitable[bytes]]


def write_answer(status: int, body: Mapping[str, object], *lines: str) -> bytes:
    """Return an answer in JSON, with further header lines."""
    content = json.dumps(body).encode()
    head = [
        f"HTTP/1.1 {status} {'OK' if status < 400 else 'Refused'}",
        "Content-Type: application/json", f"Content-Length: {len(content)}", *lines, "", "",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + content


def write_refusal(status: int, code: str, *lines: str) -> bytes:
    """Return an error as the backend writes it."""
    body = {"success": False, "code": code, "message": "a fault that a test wanted", "errors": []}
    return write_answer(status, body, *lines)


RESET_BEFORE: Final = Fault("reset-before", forwards=False, is_reset=True)
RESET_AFTER: Final = Fault("reset-after", is_reset=True)
ERROR_BEFORE: Final = Fault("error-before", forwards=False, answer=write_refusal(500, "internal"))
ERROR_AFTER: Final = Fault("error-after", answer=write_refusal(500, "internal"))
BUSY: Final = Fault(
    "busy", forwards=False, answer=write_refusal(503, "unavailable", "Retry-After: 1")
)
SLOW: Final = Fault("slow", delay_s=0.4)
LATE: Final = Fault("late", delay_s=1.5)
"""Later than the caller waits, if it waits for a second."""
FAULTS: Final = (RESET_BEFORE, RESET_AFTER, ERROR_BEFORE, ERROR_AFTER, BUSY, SLOW, LATE)


class RandomFaults:
    """A rule that breaks a share of all calls, drawn from a seed. What is drawn for the nth time
    that one call is made does not depend on what else is called."""

    def __init__(self, seed: int, share: float) -> None:
        self.seed = seed
        self.share = share
        self._made: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        call = f"{request.method} {request.path} {request.key}"
        self._made[call] += 1
        dice = random.Random(f"{self.seed} {call} {self._made[call]}")
        return dice.choice(FAULTS) if dice.random() < self.share else None


class Door:
    """A server on a port of this machine, on a thread of its own while it is open.

    Args:
        serve: Answers a request; `forward_to` makes one that passes it on.
        rule: Says what goes wrong; may be replaced at any time.
    """

    def __init__(self, serve: Serve, rule: Rule = lambda _: None) -> None:
        self._serve = serve
        self.rule = rule
        self.passed: list[Passed] = []
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="door")

    def open(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._began.wait()

    def close(self) -> None:
        """End every connection."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _live(self) -> None:
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0, limit=LARGEST_HEAD)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._loop = asyncio.get_running_loop()
        self._began.set()
        await self._over.wait()
        server.close()  # what is being served is cancelled with the loop

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (raw := await read_message(reader)) is not None:
                answer = await self._pass(_read_request(raw))
                if answer is None:
                    _reset(writer)
                    return
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the caller is gone
        finally:
            writer.close()

    async def _pass(self, request: Request) -> bytes | None:
        """Return the answer, or None when the connection is to be reset."""
        fault = self.rule(request)
        self.passed.append(Passed(request, fault))
        if fault is None:
            return await self._ask(request)
        await asyncio.sleep(fault.delay_s)
        answered = await self._ask(request) if fault.forwards else None
        if fault.is_reset:
            return None
        return answered if fault.answer is None else fault.answer

    async def _ask(self, request: Request) -> bytes | None:
        try:
            return await self._serve(request)
        except (OSError, asyncio.IncompleteReadError):
            return None  # the server is away, or died over it


def forward_to(address: str) -> Serve:
    """Return what passes requests on to a server, each on a connection of its own, so that none is
    lost because an idle one was closed."""
    host, _, port = address.removeprefix("http://").rpartition(":")

    async def serve(request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port), limit=LARGEST_HEAD)
        try:
            writer.write(request.raw)
            answer = await read_message(reader)
        finally:
            writer.close()
        if answer is None:
            raise ConnectionResetError("the server has answered nothing")
        return answer

    return serve


class Receiver:
    """A push service: it answers a repeated Idempotency-Key as it did the first time."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """How often each key came here."""
        self._answers: dict[str, bytes] = {}
        self._changed = threading.Condition()

    async def __call__(self, request: Request) -> bytes:
        """Take a push."""
        message = json.loads(request.body)["message"]
        made = {"id": str(uuid4()), "message": message, "timestamp": "2026-01-01T00:00:00Z"}
        with self._changed:
            self.requests[request.key] += 1
            self._changed.notify_all()
            return self._answers.setdefault(request.key, write_answer(201, made))

    def wait_for(self, how_many: int, timeout_s: float) -> None:
        """Wait until so many different keys have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.requests) >= how_many, timeout_s)
        assert came, f"{len(self.requests)} of {how_many} pushes came within {timeout_s:g} s"


@contextmanager
def opened(door: Door) -> Iterator[Door]:
    """Serve for the length of a block."""
    door.open()
    try:
        yield door
    finally:
        door.close()


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """Return a request or an answer with its body; None when the other side has ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    length = int(_headers_in(head).get("content-length", 0))
    return head + await reader.readexactly(length)


def _read_request(raw: bytes) -> Request:
    head, _, body = raw.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    return Request(method, path, _headers_in(head), body, raw)


def _headers_in(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _reset(writer: asyncio.StreamWriter) -> None:
    found: socket.socket = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
