"""Everything on this machine that a page could reach, each noting which vector arrived.

HTTP on two ports, a TCP and a UDP port for each vector that needs one of its own, a name server,
and files whose opening is noticed. One `Listeners` serves one phase of a run, on ports of its own:
what is late from one phase cannot be taken for an arrival in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from tests.services.pdf.browser.isolation.vector import Vector

METADATA: Final = "169.254.169.254"
"""Stood in for: the browser's own resolver is told to find the listener there."""
ZONE: Final = "probe.test"

_PNG: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c626001000000ffff030000060005"
    "57bfabd40000000049454e44ae426082"
)
_SVG: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg"><g id="a"><rect width="9" height="9"/></g></svg>'
)
_ANSWERS: Final = {
    "png": ("image/png", _PNG),
    "css": ("text/css", b"p{color:black}"),
    "js": ("text/javascript", b"1"),
    "svg": ("image/svg+xml", _SVG),
    "html": ("text/html", b"<p>reached"),
    "xml": ("text/xml", b"<a/>"),
    "xsl": ("text/xsl", b"<a/>"),
    "vtt": ("text/vtt", b"WEBVTT\n\n"),
}


class Listeners:
    """The listeners of one phase.

    Args:
        phase: Part of the host names of this phase.
        name_server: The loopback address whose port 53 the browsers ask, None if there is none.
    """

    def __init__(self, vectors: Iterable[Vector], *, phase: str, name_server: str | None) -> None:
        self.vectors = tuple(vectors)
        self.phase = phase
        self.arrived: set[str] = set()
        self._name_server = name_server
        self._news = asyncio.Condition()
        self._ports: dict[str, int] = {}
        self._http: list[int] = []
        self._pages: dict[str, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = contextlib.AsyncExitStack()
        self._folder = Path()

    async def __aenter__(self) -> Self:
        for _ in range(2):
            self._http.append(await self._serve(self._answer))
        for vector in self.vectors:
            if vector.listener == "tcp":
                self._ports[vector.name] = await self._serve(self._noting(vector.name))
            elif vector.listener == "udp":
                self._ports[vector.name] = await self._hear(_Datagrams(self, vector.name))
        if self._name_server:
            await self._hear(_NameServer(self), (self._name_server, 53))
        self._folder = Path(tempfile.mkdtemp(prefix="ulak-isolation-"))
        self._folder.chmod(0o755)  # the browser is another user
        self._stack.callback(shutil.rmtree, self._folder)
        self._watch_files()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def http_port(self) -> int:
        return self._http[0]

    @property
    def resolver_rules(self) -> str:
        """What makes the metadata address lead here, for a browser that has a network."""
        return f"--host-resolver-rules=MAP {METADATA}:80 127.0.0.1:{self._http[1]}"

    def url(self, kind: str, name: str) -> str:
        if kind == "metadata":
            return f"http://{METADATA}/html/{name}"
        scheme = "ws" if kind == "ws" else "http"
        return f"{scheme}://127.0.0.1:{self._http[0]}/{kind}/{name}"

    def port(self, name: str) -> int:
        return self._ports[name]

    def host(self, name: str) -> str:
        return f"{name}.{self.phase}.{ZONE}"

    def file(self, name: str) -> str:
        return (self._folder / name).as_uri()

    def home(self, vector: Vector) -> str | None:
        """Put the vector's page where it is at home, and answer its URL; None for nowhere."""
        if vector.home == "http":
            self._pages[vector.name] = vector.page(self).encode()
            return self.url("page", vector.name)
        if vector.home == "file":
            page = self._folder / f"{vector.name}.page.html"
            page.write_text(vector.page(self))
            return page.as_uri()
        return None

    def note(self, name: str) -> None:
        """Take down an arrival."""
        self.arrived.add(name)
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_arrived(self, name: str) -> None:
        """Wait for a vector; the caller keeps the time."""
        async with self._news:
            await self._news.wait_for(lambda: name in self.arrived)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _serve(self, handler: object) -> int:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)  # type: ignore[arg-type]
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    async def _hear(
        self, protocol: asyncio.DatagramProtocol, address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> int:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: protocol, local_addr=address
        )
        self._stack.callback(transport.close)
        return int(transport.get_extra_info("sockname")[1])

    def _noting(self, name: str) -> object:
        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.note(name)
            writer.close()

        return accepted

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readline()).decode("latin-1").split()
            while (await reader.readline()).strip():
                pass
            if len(line) < 2:
                return  # a connection opened ahead, and never used
            writer.write(self._response(line[1]))
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _response(self, path: str) -> bytes:
        _, kind, *rest = path.partition("?")[0].split("/")
        name = rest[0] if rest else ""
        content_type, body = _ANSWERS.get(kind, ("text/plain", b"x"))
        status, more = "200 OK", ""
        if kind == "page" and name in self._pages:
            content_type, body = "text/html", self._pages[name]
        elif kind in ("hop", "metadatahop"):
            self.note(f"{name} (first hop)")
            target = self.url("metadata", name)
            if kind == "hop":
                target = f"http://127.0.0.1:{self._http[1]}/png/{name}"
            status, more = "302 Found", f"Location: {target}\r\n"
        elif kind == "nested":
            self.note(f"{name} (first hop)")
            content_type, body = "text/css", f"@import '/css/{name}';".encode()
        else:
            self.note(name or path)
        return (
            f"HTTP/1.1 {status}\r\n{more}Content-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nAccess-Control-Allow-Origin: *\r\n"
            "Access-Control-Allow-Headers: *\r\nConnection: close\r\n\r\n"
        ).encode() + body

    def _watch_files(self) -> None:
        """Have the kernel tell of every opening of a vector's file (inotify)."""
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._stack.callback(os.close, watch)
        names: dict[int, str] = {}
        for vector in self.vectors:
            if vector.listener == "file":
                path = self._folder / vector.name
                path.write_bytes(_PNG)
                path.chmod(0o644)
                names[libc.inotify_add_watch(watch, os.fsencode(path), _IN_OPEN)] = vector.name

        def readable() -> None:
            data = os.read(watch, 65536)
            while data:
                number, _, _, length = struct.unpack_from("iIII", data)
                data = data[16 + length :]
                if number in names:
                    self.note(names[number])

        loop = asyncio.get_running_loop()
        loop.add_reader(watch, readable)
        self._stack.callback(loop.remove_reader, watch)


_IN_OPEN: Final = 0x20


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, listeners: Listeners, name: str) -> None:
        self._listeners, self._name = listeners, name

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._listeners.note(self._name)


class _NameServer(asyncio.DatagramProtocol):
    """Answers that there is no such name, and notes who asked for what."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("latin-1"))
            at += 1 + data[at]
        asked = ".".join(labels).lower()
        if asked.endswith(f".{self._listeners.phase}.{ZONE}"):
            self._listeners.note(labels[0])
        elif not asked.endswith(ZONE):
            self._listeners.note(f"name {asked}")
        assert self._transport is not None
        no_such_name = struct.pack("!HHHHHH", *struct.unpack("!H", data[:2]), 0x8183, 1, 0, 0, 0)
        self._transport.sendto(no_such_name + data[12 : at + 5], addr)


def free_name_server() -> str | None:
    """A loopback address whose port 53 is free; None where that port is not ours to take."""
    for _ in range(20):
        address = "127.{}.{}.{}".format(*(1 + byte % 250 for byte in os.urandom(3)))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 53))
            except PermissionError:
                return None
            except OSError:
                continue
            return address
    return None
