"""One visit to a protected route: its answer is held back until the record is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from ulak.errors import IdempotencyError
from ulak.idempotency import Answer, Asked, Execution
from ulak.idempotency.aio import AsyncGuard
from ulak.idempotency.key import HEADER, REPLAYED
from ulak.web import problems
from ulak.web.idempotency.requests import Rule, key_lines
from ulak.web.middleware import LARGEST, too_large

EXECUTION: Final = "ulak.idempotency"
"""Where a handler finds its execution in the connection's scope; None when it has no key."""

_OURS: Final = frozenset({HEADER.lower().encode(), REPLAYED.lower().encode()})
_WITHOUT_BODY: Final = frozenset({204, 304})


class Visit:
    """Stands between the server and a handler, for one request.

    A handler that executes is heard to the end before anybody else: what it answers is stored,
    then sent. It never sees its client go away. Whatever else is answered is sent as it comes.
    """

    def __init__(
        self, guard: AsyncGuard, rule: Rule, connection: Connection, receive: Receive, send: Send
    ) -> None:
        self.guard = guard
        self.rule = rule
        self.connection = connection
        self.asked: Asked | None = None
        self.identify: Callable[[Request], Any] | None = None
        """Tells who asks, if that is to be asked right before the claim."""
        self.is_replay = False
        self.body: bytes | None = None
        """What was sent, once all of it is here."""
        lines = key_lines(connection)
        self._echo = lines[0].encode("latin-1") if len(lines) == 1 and lines[0].strip() else None
        self._receive = receive
        self._send = send
        self._execution: Execution | None = None
        self._read: list[bytes] = []
        self._size = 0
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._ended = asyncio.Event()
        connection[EXECUTION] = None
        connection[problems.EXTRA] = self._marks()
        # What bypasses `send` would bypass the record.
        connection["extensions"] = {}

    def begin(self, execution: Execution) -> None:
        """From now on the handler executes."""
        self._execution = self.connection[EXECUTION] = execution
        if self._echo is None:  # it was in the body
            self._echo = execution.row.key.encode()
            self.connection[problems.EXTRA] = self._marks()

    async def abandon(self) -> None:
        """The handler has failed: what it did is taken back, and its key is free."""
        if self._execution is None or self._ended.is_set():
            return
        execution, self._execution = self._execution, None
        self._ended.set()
        await self.guard.abandon(execution)

    async def receive(self) -> Message:
        """Hand on what the client sends; of its going away a handler that executes hears last."""
        if self.body is not None and self._execution is not None:
            await self._ended.wait()
        message = await self._receive()
        if message["type"] == "http.request" and self.body is None:
            chunk = message.get("body", b"")
            self._size += len(chunk)
            if self._size > LARGEST:
                raise too_large(LARGEST)
            self._read.append(chunk)
            if not message.get("more_body", False):
                self.body = b"".join(self._read)
                self._read = []
        return message

    async def send(self, message: Message) -> None:
        """Hold the answer of an execution back until all of it is here and stored."""
        kind = message["type"]
        if self._execution is None:
            if kind == "http.response.start":
                message = {**message, "headers": self._marked(message.get("headers", ()))}
            await self._send(message)
        elif self._ended.is_set():
            return  # it was answered
        elif kind == "http.response.start":
            self._start = message
        elif kind == "http.response.body":
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._settle(self._execution)

    async def refuse(self, error: IdempotencyError) -> None:
        """Return why nothing was executed, or why it does not count."""
        await self.answer(problems.problem_of(Request(self.connection), error))

    async def answer(self, response: Response) -> None:
        """Return something else than what the handler says."""
        self._execution = None
        await response(self.connection, self._receive, self.send)

    def replayed(self, answer: Answer) -> Response:
        """Return what was answered before, to the byte."""
        self.is_replay = True
        response = Response(answer.body, answer.status)
        raw = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers]
        if answer.status not in _WITHOUT_BODY:
            raw.append((b"content-length", str(len(answer.body)).encode()))
        response.raw_headers = raw
        return response

    async def _settle(self, execution: Execution) -> None:
        assert self._start is not None  # noqa: S101 - a body without a start is no ASGI
        body = b"".join(self._chunks)
        headers = list(self._start.get("headers", ()))
        answer = Answer(
            self._start["status"], body,
            tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers),
        )  # fmt: skip
        try:
            await self.guard.settle(execution, answer)
        except IdempotencyError as error:
            await self.refuse(error)
            self._execution = execution  # whatever else the handler says is of no interest
        else:
            await self._send({**self._start, "headers": self._marked(headers)})
            await self._send({"type": "http.response.body", "body": body})
        finally:
            self._ended.set()

    def _marked(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Add what every answer of a protected route has."""
        kept = [(name, value) for name, value in headers if name.lower() not in _OURS]
        marks = [(n.lower().encode(), v.encode("latin-1")) for n, v in self._marks().items()]
        return [*kept, *marks]

    def _marks(self) -> dict[str, str]:
        marks = {REPLAYED: "true" if self.is_replay else "false"}
        if self._echo is not None:
            marks[HEADER] = self._echo.decode("latin-1")
        return marks
