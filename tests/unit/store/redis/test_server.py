"""A Redis is reached by an address, waits for nobody for ever, and comes back."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ulak.errors import BadInput, StoreError
from ulak.store.processes import StoreAway
from ulak.store.redis.server import RedisServer, Script
from ulak.testing import servers
from ulak.testing.servers import EVERY_SECOND, EVICTING, NOT_KEPT, Redis, find_program

PASSWORD = "correct-horse"  # noqa: S105 - of a server that lives for one test
COUNT = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture(scope="module")
def own() -> Iterator[Redis]:
    """A server that these tests may kill."""
    with Redis(settings={"requirepass": PASSWORD}) as server:
        yield server


@pytest.fixture
def server(own: Redis) -> RedisServer:
    return RedisServer(_with_password(own, PASSWORD), timeout_s=0.5)


def _with_password(own: Redis, password: str) -> str:
    return own.url().replace("//", f"//:{password}@")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://host:6379/0", "names no Redis"),
        ("redis:///0", "names no Redis"),
        ("redis://host:port/0", "names no Redis"),
        ("redis://host:99999", "names no Redis"),
        ("redis://host/first", "'first' is no number of a database"),
        ("redis://host/0?socket_timeout=0", "'socket_timeout' is no option"),
        ("redis://host/0?db=1", "'db' is no option"),
        ("rediss://host/0?ssl_min_version=high", "cannot be read"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        RedisServer(url)


@pytest.mark.parametrize("url", ["http://:hunter2@host", "redis://ada:hunter2@host/first"])
def test_no_refusal_names_the_password(url: str) -> None:
    with pytest.raises(BadInput) as refused:
        RedisServer(url)
    assert "hunter2" not in str(refused.value)


def test_a_wrong_password_is_said_without_it(own: Redis) -> None:
    for url in (own.url(), _with_password(own, "hunter2")):
        with pytest.raises(StoreError, match="lets nobody in") as refused:
            RedisServer(url).run(COUNT, ["n"], ["1"])
        assert "hunter2" not in str(refused.value)


def test_a_function_is_sent_once_and_again_when_the_server_has_forgotten_it(
    server: RedisServer,
) -> None:
    assert [server.run(COUNT, ["n"], ["2"]) for _ in range(2)] == [2, 4]
    server.client.script_flush()
    assert server.run(COUNT, ["n"], ["2"]) == 6
    assert server.client.script_exists(COUNT.digest) == [True]


def test_what_a_function_does_wrong_is_a_refusal(server: RedisServer) -> None:
    with pytest.raises(StoreError, match="has refused"):
        server.run(Script("return redis.call('NOTHING')"), [], [])


def test_after_a_kill_the_next_question_is_answered(own: Redis, server: RedisServer) -> None:
    before = server.run(COUNT, ["kept"], ["1"])
    own.kill()
    with pytest.raises(StoreAway, match="does not answer"):
        server.run(COUNT, ["kept"], ["1"])
    own.start()
    assert server.run(COUNT, ["kept"], ["1"]) == before + 1


def test_a_server_that_hangs_is_waited_for_no_longer_than_said(
    own: Redis, server: RedisServer
) -> None:
    server.run(COUNT, ["n"], ["0"])
    begun = time.monotonic()
    with own.frozen(), pytest.raises(StoreAway, match="does not answer"):
        server.run(COUNT, ["n"], ["1"])
    assert time.monotonic() - begun < 30
    # The answer that came too late is nobody's: the next question has one of its own.
    assert server.run(Script("return 'mine'"), [], []) == b"mine"


@pytest.mark.shows("I-59")
@pytest.mark.parametrize(
    ("settings", "complaints", "costs"),
    [
        ({}, [], "nothing that was answered"),
        (EVERY_SECOND, [], "the last second"),
        ({"appendfsync": "no"}, [], "the kernel has not flushed"),
        (NOT_KEPT, ["set appendonly yes"], "everything"),
        (EVICTING, ["set maxmemory-policy noeviction"], "nothing"),
        ({**NOT_KEPT, **EVICTING}, ["appendonly", "noeviction"], "everything"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "forbidden", [{}, {"user": "default on nopass ~* +@all -config"}], ids=["", "no CONFIG"]
)
def test_what_a_server_keeps_is_known(
    settings: dict[str, str], complaints: list[str], costs: str, forbidden: dict[str, str]
) -> None:
    with Redis(settings={**settings, **forbidden}) as server:
        found = RedisServer(server.url()).read_persistence()
    assert [word in said for word, said in zip(complaints, found.complaints, strict=True)] == [
        True
    ] * len(complaints)
    if not forbidden:
        assert costs in found.durability


def test_a_server_that_speaks_tls_is_reached() -> None:
    port = servers._free_port()
    with tempfile.TemporaryDirectory() as folder:
        # The server may run as another user than the tests.
        Path(folder).chmod(0o755)
        key, certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
        subprocess.run(
            [
                str(find_program("openssl")), "req", "-x509", "-newkey", "rsa:2048", "-nodes",
                "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
                "-keyout", key, "-out", certificate,
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        Path(key).chmod(0o644)
        tls = {
            "tls-port": port, "tls-cert-file": certificate, "tls-key-file": key,
            "tls-ca-cert-file": certificate, "tls-auth-clients": "no",
        }  # fmt: skip
        with Redis(settings=tls):
            url = f"rediss://127.0.0.1:{port}/0"
            trusted = RedisServer(f"{url}?ssl_ca_certs={certificate}")
            assert trusted.run(COUNT, ["n"], ["1"]) == 1
            with pytest.raises(StoreAway, match="does not answer"):
                RedisServer(url).run(COUNT, ["n"], ["1"])
