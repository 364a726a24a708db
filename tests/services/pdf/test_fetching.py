"""Fetching for pages: what is refused is never connected to, what is allowed stays in bounds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ulak.services.pdf.document import Fetched, UrlBlocked
from ulak.services.pdf.fetching import AllowedFetcher, FetchFailed, FetchLimits

EVERYTHING = (r"https?://.*",)


@dataclass
class Server:
    """Answers by path, and remembers what it was asked."""

    port: int = 0
    answers: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The head of each request, in lower case."""
    connections: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head.lower())
            path = head.split(" ")[1]
            writer.write(self.answers.get(path, answer(b"not here", status="404 Not Found")))
            await writer.drain()
            if path == "/silent":
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


def answer(body: bytes = b"", *heads: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *heads, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(to: str) -> bytes:
    return answer(b"", f"Location: {to}", status="302 Found")


class Resolver:
    """Gives one answer after the other, and remembers who was looked up."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


LOOPBACK = ("127.0.0.1",)


async def get(fetcher: AllowedFetcher, url: str, **headers: str) -> Fetched:
    return await fetcher.fetch(url, method="GET", headers=headers)


async def refusal(fetcher: AllowedFetcher, url: str) -> str:
    with pytest.raises(UrlBlocked) as caught:
        await get(fetcher, url)
    return caught.value.reason


def test_an_internal_host_is_fetched_from_loopback() -> None:
    async def story() -> None:
        async with Server().running() as server:
            server.answers["/logo.svg"] = answer(b"<svg/>", "Content-Type: image/svg+xml")
            resolver = Resolver(LOOPBACK)
            fetcher = AllowedFetcher(
                [rf"http://Cdn\.example:{server.port}/.*".lower()],
                internal_hosts=["CDN.example"],
                resolve=resolver,
            )
            fetched = await get(fetcher, f"http://CDN.example:{server.port}/logo.svg")
            assert fetched == Fetched(200, (("content-type", "image/svg+xml"),), b"<svg/>")
            assert resolver.asked == ["cdn.example"]
            assert f"host: cdn.example:{server.port}\r\n" in server.asked[0]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "scheme"),
        ("ftp://a.example/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("view-source:http://a.example/", "scheme"),
        ("http://b.example/", "allowlist"),
        ("http://user@a.example/", "allowlist"),
        ("http://a.example.evil.example/", "allowlist"),
    ],
)
@pytest.mark.shows("P-27")
def test_what_is_not_listed_is_refused_without_a_look_up(url: str, reason: str) -> None:
    resolver = Resolver(LOOPBACK)
    fetcher = AllowedFetcher([r"http://a\.example/.*"], resolve=resolver)
    assert asyncio.run(refusal(fetcher, url)) == reason
    assert resolver.asked == []


@pytest.mark.shows("P-27")
def test_an_empty_list_allows_nothing() -> None:
    fetcher = AllowedFetcher((), internal_hosts=["127.0.0.1"])
    assert asyncio.run(refusal(fetcher, "http://127.0.0.1/")) == "allowlist"


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0177.1", "[::ffff:127.0.0.1]"])
@pytest.mark.shows("P-28", "P-29", "P-30")
def test_an_allowed_url_to_loopback_is_refused_and_never_connected_to(host: str) -> None:
    async def story() -> None:
        async with Server().running() as server:
            fetcher = AllowedFetcher(EVERYTHING)
            assert await refusal(fetcher, f"http://{host}:{server.port}/") == "address"
            assert server.connections == 0

    asyncio.run(story())


@pytest.mark.shows("P-29")
def test_one_address_that_is_not_public_refuses_all_of_them() -> None:
    async def story() -> None:
        async with Server().running() as server:
            resolver = Resolver(("1.1.1.1", "127.0.0.1"))
            fetcher = AllowedFetcher(EVERYTHING, resolve=resolver)
            assert await refusal(fetcher, f"http://a.example:{server.port}/") == "address"
            assert server.connections == 0

    asyncio.run(story())


@pytest.mark.shows("P-30")
def test_a_resolver_that_changes_its_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is public, the second would be loopback: the first is connected to."""
    connected: list[str] = []

    async def story() -> None:
        async with Server().running() as server:
            resolver = Resolver(("1.1.1.1",), LOOPBACK)
            fetcher = AllowedFetcher(EVERYTHING, resolve=resolver)
            loop = asyncio.get_running_loop()

            async def nobody(factory: object, host: str, *rest: object, **more: object) -> None:
                connected.append(host)
                raise ConnectionRefusedError

            async def no_look_up(*_: object, **__: object) -> None:
                raise AssertionError("a second look-up")

            monkeypatch.setattr(loop, "create_connection", nobody)
            monkeypatch.setattr(loop, "getaddrinfo", no_look_up)
            with pytest.raises(FetchFailed):
                await get(fetcher, f"http://a.example:{server.port}/")
            assert resolver.asked == ["a.example"]
            assert server.connections == 0

    asyncio.run(story())
    assert connected == ["1.1.1.1"]


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{port}/", "http://[::ffff:127.0.0.1]:{port}/", "http://localhost:{port}/",
        "http://2130706433:{port}/", "http://169.254.169.254/latest/meta-data/", "//127.1:{port}/",
        "file:///etc/passwd", "http://user@internal.example:{port}/", "http://[",
        "data:text/html,x",
    ],
)  # fmt: skip
@pytest.mark.shows("P-29", "P-30")
def test_a_redirect_to_what_is_not_allowed_is_refused_and_never_followed(to: str) -> None:
    async def story() -> None:
        async with Server().running() as server, Server().running() as victim:
            server.answers["/go"] = redirect(to.format(port=victim.port))
            fetcher = AllowedFetcher(
                EVERYTHING, internal_hosts=["internal.example"], resolve=Resolver(LOOPBACK)
            )
            url = f"http://internal.example:{server.port}/go"
            assert await refusal(fetcher, url) == "redirect"
            assert victim.connections == 0
            assert server.connections == 1

    asyncio.run(story())


@pytest.mark.shows("P-30")
def test_each_hop_is_looked_up_and_checked_anew() -> None:
    """The same host, public at first and not any more: the second hop is refused."""

    async def story() -> None:
        async with Server().running() as server:
            server.answers["/a"] = redirect("/b")
            server.answers["/b"] = redirect(f"http://other.example:{server.port}/c")
            server.answers["/c"] = answer(b"here")
            allowed = [rf"http://internal\.example:{server.port}/.*"]
            internal = ["internal.example", "other.example"]
            url = f"http://internal.example:{server.port}/a"
            resolver = Resolver(LOOPBACK)
            narrow = AllowedFetcher(allowed, internal_hosts=internal, resolve=resolver)
            assert await refusal(narrow, url) == "redirect"
            assert resolver.asked == ["internal.example"] * 2
            wide = AllowedFetcher(EVERYTHING, internal_hosts=internal, resolve=resolver)
            assert (await get(wide, url)).body == b"here"

    asyncio.run(story())


@pytest.mark.parametrize(("hops", "arrives"), [(5, True), (6, False)])
@pytest.mark.shows("P-30")
def test_five_redirects_are_followed_and_no_sixth(hops: int, arrives: bool) -> None:
    async def story() -> None:
        async with Server().running() as server:
            server.answers |= {f"/{left}": redirect(f"/{left - 1}") for left in range(1, hops + 1)}
            server.answers["/0"] = answer(b"here")
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"])
            url = f"http://127.0.0.1:{server.port}/{hops}"
            if arrives:
                assert (await get(fetcher, url)).body == b"here"
            else:
                assert await refusal(fetcher, url) == "redirect"

    asyncio.run(story())


def test_nothing_that_tells_who_asks_is_sent_and_no_cookie_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9/")

    async def story() -> None:
        async with Server().running() as server:
            server.answers["/"] = answer(
                b"x", "Set-Cookie: a=b", "Refresh: 0;url=/x", "Content-Type: text/css",
                "Link: </x>; rel=preload",
            )  # fmt: skip
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"])
            fetched = await fetcher.fetch(
                f"http://127.0.0.1:{server.port}/",
                method="GET",
                headers={
                    "Accept": "image/*", "Referer": "http://secret.example/", "X-Other": "y",
                    "Host": "evil.example", "Accept-Encoding": "gzip", "Range": "bytes=0-",
                },
            )  # fmt: skip
            assert fetched.headers == (("content-type", "text/css"),)
            names = [line.partition(":")[0] for line in server.asked[0].splitlines()[1:] if line]
            assert sorted(names) == ["accept", "accept-encoding", "host", "user-agent"]
            assert "accept-encoding: identity" in server.asked[0]
            assert "evil" not in server.asked[0]

    asyncio.run(story())


def test_only_so_many_fetches_are_under_way_at_a_time() -> None:
    """Each answer waits until all the connections that there may be are there, and no more come."""

    async def story() -> None:
        open_now, most, full = 0, 0, asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            await reader.readuntil(b"\r\n\r\n")
            open_now += 1
            most = max(most, open_now)
            if open_now == 2:
                full.set()
            await full.wait()
            open_now -= 1
            writer.write(answer(b"x"))
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        fetcher = AllowedFetcher(
            EVERYTHING, internal_hosts=["127.0.0.1"], limits=FetchLimits(at_once=2)
        )
        url = f"http://127.0.0.1:{port}/"
        await asyncio.gather(*(get(fetcher, url) for _ in range(8)))
        listener.close()
        assert most == 2

    asyncio.run(story())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_only_get_and_head_are_passed_on(method: str) -> None:
    async def story() -> None:
        async with Server().running() as server:
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"])
            with pytest.raises(FetchFailed, match="GET and HEAD"):
                await fetcher.fetch(f"http://127.0.0.1:{server.port}/", method=method, headers={})
            assert server.connections == 0

    asyncio.run(story())


@pytest.mark.parametrize(("size", "arrives"), [(1000, True), (1001, False)])
def test_a_body_over_the_limit_is_cut(size: int, arrives: bool) -> None:
    async def story() -> None:
        async with Server().running() as server:
            # Without a length, so that only counting finds out.
            server.answers["/"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * size
            fetcher = AllowedFetcher(
                EVERYTHING, internal_hosts=["127.0.0.1"], limits=FetchLimits(body_bytes=1000)
            )
            url = f"http://127.0.0.1:{server.port}/"
            if arrives:
                assert len((await get(fetcher, url)).body) == size
            else:
                with pytest.raises(FetchFailed, match="more than 1000 bytes"):
                    await get(fetcher, url)

    asyncio.run(story())


def test_a_packed_answer_is_refused() -> None:
    async def story() -> None:
        async with Server().running() as server:
            server.answers["/"] = answer(b"\x1f\x8b", "Content-Encoding: gzip")
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"])
            with pytest.raises(FetchFailed, match="packs"):
                await get(fetcher, f"http://127.0.0.1:{server.port}/")

    asyncio.run(story())


@pytest.mark.parametrize(
    "limits", [FetchLimits(read_s=0.05), FetchLimits(total_s=0.05)], ids=["silence", "total"]
)
def test_a_server_that_says_nothing_is_given_up(limits: FetchLimits) -> None:
    async def story() -> None:
        async with Server().running() as server:
            server.answers["/silent"] = b""
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"], limits=limits)
            with pytest.raises(FetchFailed):
                await get(fetcher, f"http://127.0.0.1:{server.port}/silent")

    asyncio.run(story())


def test_a_host_without_an_address_is_no_refusal() -> None:
    async def nowhere(host: str, port: int) -> Sequence[str]:
        raise OSError("unknown")

    with pytest.raises(FetchFailed, match="no address"):
        asyncio.run(get(AllowedFetcher(EVERYTHING, resolve=nowhere), "http://a.example/"))


def certificate(folder: Path, host: str) -> Path:
    """Write a key and a certificate for one host, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{host}.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + made.public_bytes(Encoding.PEM)
    )
    return path


@pytest.mark.shows("P-30")
def test_the_certificate_is_that_of_the_host_and_not_of_the_address(tmp_path: Path) -> None:
    pem = certificate(tmp_path, "good.example")
    mine = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    mine.load_cert_chain(pem)
    named: list[str | None] = []
    mine.sni_callback = lambda _socket, name, _context: named.append(name)

    async def story() -> None:
        async with Server().running(mine) as server:
            server.answers["/"] = answer(b"here")
            trusting = AllowedFetcher(
                EVERYTHING,
                internal_hosts=["good.example", "other.example"],
                resolve=Resolver(LOOPBACK),
                tls=ssl.create_default_context(cafile=str(pem)),
            )
            fetched = await get(trusting, f"https://good.example:{server.port}/")
            assert fetched.body == b"here"
            with pytest.raises(FetchFailed):
                await get(trusting, f"https://other.example:{server.port}/")
            usual = AllowedFetcher(
                EVERYTHING, internal_hosts=["good.example"], resolve=Resolver(LOOPBACK)
            )
            with pytest.raises(FetchFailed):
                await get(usual, f"https://good.example:{server.port}/")
            assert len(server.asked) == 1

    asyncio.run(story())
    assert named == ["good.example", "other.example", "good.example"]


def test_a_server_without_tls_is_not_asked_without_it() -> None:
    async def story() -> None:
        async with Server().running() as server:
            fetcher = AllowedFetcher(EVERYTHING, internal_hosts=["127.0.0.1"])
            with pytest.raises(FetchFailed):
                await get(fetcher, f"https://127.0.0.1:{server.port}/")
            assert server.asked == []

    asyncio.run(story())
