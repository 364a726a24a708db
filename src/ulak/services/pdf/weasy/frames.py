"""What worker and document say to each other: a short head of JSON and a body of bytes.

Both lengths come first, and whoever reads says how long either may be: what comes from a process
that has read a stranger's document is never more than was agreed on, and never more than data.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, Final

LONGEST_HEAD: Final = 64 * 1024
LONGEST_URL: Final = 8 * 1024
"""Characters of a URL that is asked for; a longer one is not. Six bytes each at most, so that it
always fits into a head."""

_LENGTHS: Final = struct.Struct(">II")
_AT_ONCE: Final = 1 << 20


class TooLong(Exception):
    """A frame is longer than was agreed on: its body, or its head."""

    def __init__(self, *, is_body: bool) -> None:
        super().__init__("the body" if is_body else "the head")
        self.is_body = is_body


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Write a frame."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(body)), text, body))


def receive(line: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for a frame of the worker's, whose word is taken; EOFError when it is gone."""
    head, body = _LENGTHS.unpack(_exactly(line, _LENGTHS.size))
    said: dict[str, Any] = json.loads(_exactly(line, head))
    return said, bytes(_exactly(line, body))


async def read(reader: asyncio.StreamReader, *, longest_body: int) -> tuple[bytes, bytes]:
    """Read a frame of a document's, and return its head as it came and its body.

    Raises:
        TooLong: it is longer than it may be; nothing more can be read.
        EOFError, OSError: it ends before its end, or nothing can be read any more.
    """
    head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if head > LONGEST_HEAD:
        raise TooLong(is_body=False)
    if body > longest_body:
        raise TooLong(is_body=True)
    return await reader.readexactly(head), await reader.readexactly(body)


def _exactly(line: socket.socket, size: int) -> bytearray:
    found = bytearray()
    while len(found) < size:
        chunk = line.recv(min(size - len(found), _AT_ONCE))
        if not chunk:
            raise EOFError
        found += chunk
    return found
