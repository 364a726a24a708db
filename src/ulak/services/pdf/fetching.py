"""Fetches what pages may have, which have no network of their own: within bounds, hop by hop.

A URL is refused unless the allow-list names it *and* its host is public. The address that was
judged is the one that is connected to, so a resolver that changes its mind changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urljoin

import httpcore

from ulak.errors import BadInput
from ulak.services.pdf.document import Fetched, UrlBlocked
from ulak.services.pdf.security.urls import BadUrl, Url, UrlPatterns, is_public, parse

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Answers the addresses of a host; fails with OSError."""

METHODS: Final = ("GET", "HEAD")
REDIRECTS: Final = (301, 302, 303, 307, 308)
USER_AGENT: Final = "ulak-pdf"

ASKED: Final = frozenset({"accept", "accept-language", "origin"})
"""What of a page's headers is sent on: nothing that tells who asks, or from where."""
ANSWERED: Final = frozenset(
    {
        "access-control-allow-credentials", "access-control-allow-headers",
        "access-control-allow-methods", "access-control-allow-origin",
        "access-control-expose-headers", "content-disposition", "content-language",
        "content-security-policy", "content-type", "cross-origin-resource-policy",
        "x-content-type-options",
    }
)  # fmt: skip
"""What of an answer's headers the page gets to see: no cookies, and nothing about caching."""

FIXED: Final = frozenset(
    {
        "accept-encoding", "connection", "content-length", "cookie", "host", "proxy-authorization",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""What is the connection's own, or would tell of a session that pages do not have."""

_FAULTS: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What one fetch may cost, redirects included."""

    _: KW_ONLY
    body_bytes: int = 10 * 1024 * 1024
    redirects: int = 5
    connect_s: float = 5.0
    read_s: float = 10.0
    """How long the other side may be silent."""
    total_s: float = 20.0
    at_once: int = 8
    """How many fetches are under way at a time, of all pages together; others wait."""


class FetchFailed(OSError):
    """A URL is allowed, and what is there cannot be had; the message holds nothing of it."""


class AllowedFetcher:
    """Fetches what an allow-list names from public addresses, and from internal hosts if listed.

    Sends no cookies and no referrer, no credentials but those that it was given for a host, and
    knows no proxies. Any number of pages may use it at once; each fetch has its own connection.

    Args:
        patterns: Regular expressions over whole URLs, see `security.urls`; none allows nothing.
        internal_hosts: Hosts that may have any address.
        extra_headers: By host, what is sent there and nowhere else, see `ExtraHeaders`.
        resolve: Returns a host's addresses, by default those of the system.

    Raises:
        BadInput: a pattern or a header cannot be used.
        BadUrl: an internal host is none.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        *,
        internal_hosts: Iterable[str] = (),
        extra_headers: Mapping[str, Mapping[str, str]] | None = None,
        resolve: Resolve | None = None,
        limits: FetchLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._patterns = UrlPatterns(patterns)
        self._internal = frozenset(map(_host, internal_hosts))
        self._extra = ExtraHeaders(extra_headers or {})
        self._resolve = resolve or _system_addresses
        self._limits = limits or FetchLimits()
        self._tls = tls or ssl.create_default_context()
        # Each may hold a whole body in memory, and a page may ask for thousands.
        self._turns = asyncio.Semaphore(self._limits.at_once)

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        """Fetch what the allow-list lets through, from the address that was checked.

        Raises:
            UrlBlocked: the URL, its address or a redirect is not allowed.
            FetchFailed: it is allowed, and cannot be had, or not by this method.
        """
        async with self._turn():
            return await self._hops(url, method.upper(), headers)

    async def post(self, url: str, body: bytes, *, headers: Mapping[str, str]) -> int:
        """Send a body to what the allow-list lets through, and return the status that comes back.

        No redirect is followed. The headers are sent as they are.

        Raises:
            UrlBlocked: the URL or its address is not allowed.
            FetchFailed: it is allowed, and the other side does not answer or takes too long.
        """
        async with self._turn():
            target, addresses = await self._check(url)
            async with self._asking(target, addresses, "POST", headers, body) as answer:
                return answer.status

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with self._turns, asyncio.timeout(self._limits.total_s):
                yield
        except TimeoutError:
            raise FetchFailed("the other side takes too long") from None

    async def _hops(self, url: str, method: str, headers: Mapping[str, str]) -> Fetched:
        target, addresses = await self._check(url)
        if method not in METHODS:
            raise FetchFailed("only GET and HEAD are passed on")
        for _ in range(self._limits.redirects + 1):
            answer = await self._ask(target, addresses, method, headers)
            onward = dict(answer.headers).get("location")
            if answer.status not in REDIRECTS or onward is None:
                kept = tuple((name, value) for name, value in answer.headers if name in ANSWERED)
                return Fetched(answer.status, kept, answer.body)
            try:
                target, addresses = await self._check(urljoin(str(target), onward))
            except (UrlBlocked, ValueError):  # urljoin's, for what is no URL at all
                raise UrlBlocked("redirect") from None
        raise UrlBlocked("redirect")

    async def _check(self, url: str) -> tuple[Url, Sequence[str]]:
        """Return what to connect to, or refuse; the only place where a host is looked up."""
        target = self._patterns.check(url)
        addresses: Sequence[str] = ()
        try:
            addresses = [ip_address(target.host).compressed]
        except ValueError:
            with suppress(OSError):
                addresses = await self._resolve(target.host, target.port)
        if not addresses:
            raise FetchFailed("the host has no address")
        # One address among many that is not public is enough: whoever owns the name chose it.
        if target.host not in self._internal and not all(map(is_public, addresses)):
            raise UrlBlocked("address")
        return target, addresses

    async def _ask(
        self, target: Url, addresses: Sequence[str], method: str, headers: Mapping[str, str]
    ) -> Fetched:
        """Ask one hop."""
        lower = {name.lower(): value for name, value in headers.items()}
        passed_on = {name: value for name, value in lower.items() if name in ASKED}
        # Of this hop's own host, so that a redirect takes nothing along to another.
        passed_on |= self._extra.find(target, is_internal=target.host in self._internal)
        async with self._asking(target, addresses, method, passed_on) as answer:
            heads = tuple(
                (name.decode("ascii").lower(), value.decode("latin-1"))
                for name, value in answer.headers
            )
            if answer.status in REDIRECTS:
                return Fetched(answer.status, heads, b"")
            return Fetched(answer.status, heads, await self._body(answer, dict(heads)))

    @asynccontextmanager
    async def _asking(
        self,
        target: Url,
        addresses: Sequence[str],
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> AsyncIterator[httpcore.Response]:
        """Ask, and lend the answer. Its certificate is checked for the host, its connection is
        the pinned."""
        limits = self._limits
        times = {"connect": limits.connect_s, "read": limits.read_s, "write": limits.read_s}
        asked = {name.lower(): value for name, value in headers.items()} | {
            "host": target.authority,
            "user-agent": USER_AGENT,
            # A packed answer could unpack to more than its limit.
            "accept-encoding": "identity",
        }
        if body is not None:
            asked["content-length"] = str(len(body))
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._tls, network_backend=_Pinned(addresses), max_connections=1
        )
        try:
            heads = [(name.encode("ascii"), text.encode("latin-1")) for name, text in asked.items()]
            extensions = {"timeout": times}
            asking = pool.stream(
                method, str(target), headers=heads, content=body, extensions=extensions
            )
            async with pool, asking as answer:
                yield answer
        except (*_FAULTS, UnicodeError) as error:
            raise FetchFailed(f"the other side does not answer: {type(error).__name__}") from None

    async def _body(self, answer: httpcore.Response, heads: Mapping[str, str]) -> bytes:
        if heads.get("content-encoding", "identity").lower() != "identity":
            raise FetchFailed("the other side packs what it sends, though asked not to")
        body = bytearray()
        async for chunk in answer.aiter_stream():
            body += chunk
            if len(body) > self._limits.body_bytes:
                raise FetchFailed(f"the answer has more than {self._limits.body_bytes} bytes")
        return bytes(body)


class ExtraHeaders:
    """What is sent along to each host; nothing in the clear, but to internal hosts.

    A host is written as in a URL: `files.example.org` is its usual port, any other is said.

    Raises:
        BadInput: a host or a header cannot be used; no value is told.
    """

    __slots__ = ("_by_host",)

    def __init__(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        self._by_host: dict[str, dict[str, str]] = {}
        for host, headers in said.items():
            place = self._by_host.setdefault(_authority(host), {})
            for name, value in headers.items():
                _must_be_header(host, name, value)
                place[name.lower()] = value

    def find(self, target: Url, *, is_internal: bool) -> Mapping[str, str]:
        """Return what is sent along with one request, {} for nothing."""
        if target.scheme != "https" and not is_internal:
            return {}
        return self._by_host.get(target.authority, {})

    def __repr__(self) -> str:
        return f"<ExtraHeaders for {', '.join(sorted(self._by_host)) or 'no host'}>"


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked, whatever host it is asked for."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failed: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


async def _system_addresses(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def _host(name: str) -> str:
    bracketed = f"[{name}]" if ":" in name else name
    return parse(f"http://{bracketed}/").host


def _authority(host: str) -> str:
    try:
        read = parse(f"https://{host}/")
    except BadUrl:
        read = None
    if read is None or read.target != "/" or "@" in host:
        raise BadInput(f"{host[:100]!r} is no host; write it as in a URL, with its port if unusual")
    return read.authority


def _must_be_header(host: str, name: str, value: Any) -> None:
    if not _NAME.fullmatch(name) or name.lower() in FIXED:
        raise BadInput(f"{host}: {name[:100]!r} cannot be sent along; name another header")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise BadInput(f"{host}: the value of {name} is no plain text in one line")
