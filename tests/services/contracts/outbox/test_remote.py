"""A remote is waited for as long as the settings say, and no longer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.services.contracts.outbox.conftest import SETTINGS
from ulak.errors import BadInput
from ulak.services.contracts.outbox import remote as asking
from ulak.services.contracts.outbox.remote import LARGEST_ANSWER, TRANSITION, Fault, Remote, Reply
from ulak.services.contracts.outbox.settings import RemoteSettings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODY = b"{}"
SHORT = timedelta(milliseconds=200)
LONG = timedelta(seconds=30)
# Between the two with room on both sides, however busy the machine is.
SOON_S = 15


@contextmanager
def listening(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Someone on a port of this machine who answers as they like."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    # To its end: who closes with something unread takes back what they said.
                    heard = b""
                    while not heard.endswith(BODY):
                        heard += connection.recv(65536)
                    try:
                        talk(connection, over)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        over.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(120)


def ask(address: str, timeout: timedelta) -> Reply | Fault:
    settings = replace(SETTINGS, base_url=address, timeout=timeout, retries=0)
    return Remote(settings).ask(TRANSITION, BODY)


@pytest.mark.shows("I-54")
def test_a_remote_that_does_not_answer_is_left_after_the_timeout() -> None:
    with listening(lambda connection, over: over.wait(120) and None) as address:
        begun = time.monotonic()
        assert ask(address, SHORT) == Fault("no answer within 0.2 s")
        assert time.monotonic() - begun < SOON_S


@pytest.mark.shows("I-54")
def test_a_remote_that_answers_byte_by_byte_is_left_too() -> None:
    def trickle(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        while not over.wait(0.02):
            connection.sendall(b"x")

    with listening(trickle) as address:
        begun = time.monotonic()
        assert ask(address, SHORT) == Fault("no answer within 0.2 s")
        assert time.monotonic() - begun < SOON_S


def test_an_answer_without_end_is_no_answer() -> None:
    def flood(connection: socket.socket, over: threading.Event) -> None:
        size = 2 * LARGEST_ANSWER
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)

    with listening(flood) as address:
        assert ask(address, LONG) == Fault(f"the answer is larger than {LARGEST_ANSWER} bytes")


def test_what_is_no_http_is_a_fault() -> None:
    with listening(lambda connection, over: connection.sendall(b"SSH-2.0\r\n")) as address:
        answer = ask(address, LONG)
    assert isinstance(answer, Fault)
    assert "RemoteProtocolError" in answer.why


def test_the_connection_is_kept_and_one_that_was_closed_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "KEPT", timedelta(hours=1))
    spoke = 0

    def answer_thrice(connection: socket.socket, over: threading.Event) -> None:
        nonlocal spoke
        spoke += 1
        for left in (2, 1, 0):
            connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")
            heard = b""
            while left and not heard.endswith(BODY):
                heard += connection.recv(65536) or BODY  # closed, as the next send will tell

    with listening(answer_thrice) as address:
        remote = Remote(replace(SETTINGS, base_url=address, timeout=LONG, retries=1))
        for number in range(6):
            reply = remote.ask(TRANSITION, BODY)
            assert isinstance(reply, Reply), reply
            assert spoke == 1 + number // 3


def test_without_an_address_there_is_nobody_to_ask() -> None:
    with pytest.raises(BadInput, match="set HOS_BASE_URL and HOS_API_KEY"):
        Remote(RemoteSettings())
