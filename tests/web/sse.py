"""A client of server-sent events, plain enough to be cut off and to be started by the hundred."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Told:
    """One event as a client sees it."""

    kind: str
    data: Any
    id: str | None


class Listener:
    """One open stream. HTTP/1.0, so that the body is nothing but events until the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments: list[str] = []

    @classmethod
    async def connect(cls, address: str, path: str, **headers: str) -> "Listener":
        parts = urlsplit(address)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**22)
        made = cls(reader, writer)
        lines = [f"GET {path} HTTP/1.0", "Host: ulak"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        try:
            await made._read_head()
        except BaseException:
            await made.close()
            raise
        return made

    async def _read_head(self) -> None:
        self.status = int((await self._reader.readline()).split()[1])
        while (line := (await self._reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    async def body(self) -> Any:
        return json.loads(await self._reader.read())

    async def __aiter__(self) -> AsyncIterator[Told]:
        fields: dict[str, str] = {}
        async for raw in self._reader:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                if "data" in fields:
                    yield Told(fields["event"], json.loads(fields["data"]), fields.get("id"))
                fields = {}

    async def next(self, timeout: float = 10) -> Told:
        """The next event; an end of the stream is an error."""
        async with asyncio.timeout(timeout):
            async for told in self:
                return told
        raise EOFError("the stream has ended")

    async def all(self, timeout: float = 20) -> list[Told]:
        """Every event until the stream ends."""
        async with asyncio.timeout(timeout):
            return [told async for told in self]

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@asynccontextmanager
async def listening(address: str, *paths: str, **headers: str) -> AsyncIterator[list[Listener]]:
    """Open a stream of each path; none is left open, whatever a test finds."""
    async with AsyncExitStack() as streams:
        yield [
            await streams.enter_async_context(await Listener.connect(address, path, **headers))
            for path in paths
        ]
