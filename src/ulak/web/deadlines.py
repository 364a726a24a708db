"""Connections of uvicorn that end when a request does not come whole in time."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ulak.web.problems import problem_document
from ulak.web.schemas import PROBLEM_JSON

HEAD_S: Final = 10.0
"""How long the head of a request may take, from the first byte or the connection on."""
BODY_S: Final = 20.0
"""How long a body may take, and a second more for each `SLOWEST` bytes of it."""
SLOWEST: Final = 64 * 1024
LONGEST_HEAD: Final = 64 * 1024


class TimedProtocol(HttpToolsProtocol):
    """Ends requests that uvicorn itself would wait for without end, and closes their connections.

    The response is 408 when a head or a body does not come in time, and 431 when a head has no end.
    Time in which the server did not read is not counted.

    A connection has one timer, which looks at the date that was last set: most requests are whole
    at once, and set nothing anew.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type] # as every caller gives it
        self._is_in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_at: float | None = None
        self._wait(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._due_at = None
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > LONGEST_HEAD and not self._is_responding():
            self._end(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request is longer than {LONGEST_HEAD:,} bytes; send less",
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_in_head:
            self._is_in_head, self._head_bytes = True, 0
            self._wait(HEAD_S)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_head = False
        self._wait(BODY_S)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._due_at is not None:
            self._due_at += len(body) / SLOWEST

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._due_at = None

    def _wait(self, patience_s: float) -> None:
        self._due_at = self.loop.time() + patience_s
        if self._timer is None:
            self._timer = self.loop.call_later(patience_s, self._look)

    def _look(self) -> None:
        self._timer, due_at = None, self._due_at
        if due_at is None or self.transport.is_closing():
            return
        if self.flow.read_paused or (self._is_in_head and self._is_responding()):
            self._wait(HEAD_S)  # it may well be whole, and was not read
        elif due_at > self.loop.time():
            self._timer = self.loop.call_at(due_at, self._look)
        elif self._is_in_head and not self._head_bytes:
            self.transport.close()  # there is no request
        else:
            part = "head" if self._is_in_head else "body"
            self._end(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the {part} of the request did not come in time; send it in one piece",
            )

    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end(self, status: HTTPStatus, detail: str) -> None:
        """Send a response, unless one has begun, and close the connection."""
        cycle = self.cycle
        has_begun = not self._is_in_head and cycle.response_started
        if not self._is_in_head:
            # A handler that waits for the rest of the body is told that the client has gone.
            cycle.disconnected = True
            cycle.message_event.set()
        if not has_begun:
            self.transport.write(_written(status, detail))
        self.transport.close()


def _written(status: HTTPStatus, detail: str) -> bytes:
    code = status.phrase.lower().replace(" ", "-")
    body = json.dumps(problem_document(status, code, detail=detail)).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {PROBLEM_JSON}\r\n"
        f"content-length: {len(body)}\r\nx-content-type-options: nosniff\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
