"""Connections that send half of a request, on a real server."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

import ulak
import ulak.web
from ulak.web import deadlines
from ulak.web.server import Server, bind

HEAD_S, BODY_S = 1.0, 1.5


@pytest.fixture
def address(engine, monkeypatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(deadlines, "HEAD_S", HEAD_S)
    monkeypatch.setattr(deadlines, "BODY_S", BODY_S)
    monkeypatch.setattr(deadlines, "SLOWEST", 1000)
    bound = bind("127.0.0.1", 0)
    server = Server(ulak.web.app(engine, identity=None), bound)
    host, port = bound.getsockname()[:2]
    server.start(on_failure=lambda: None)
    yield host, port
    server.stop()


def ask(address: tuple[str, int], *parts: bytes, pause_s: float = 0) -> tuple[bytes, float]:
    """Send parts and then nothing; return everything that came until the connection ended, and how
    long that took."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=30) as there:
        for part in parts:
            there.sendall(part)
            time.sleep(pause_s)
        heard = b""
        while received := there.recv(65536):
            heard += received
    return heard, time.monotonic() - began


def is_problem(heard: bytes, status: int, code: str) -> bool:
    head, _, body = heard.partition(b"\r\n\r\n")
    document = json.loads(body)
    return head.startswith(b"HTTP/1.1 %d " % status) and document["code"] == code


JOB = b'{"flow": "greet", "payload": ["ada"]}'
HEAD = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_a_connection_on_which_nothing_comes_is_closed(address) -> None:
    heard, took = ask(address)
    assert heard == b""
    assert took >= HEAD_S


@pytest.mark.parametrize("half", [b"POST", HEAD, HEAD + b"Content-Length: 37\r\n"])
def test_half_a_head_is_answered_and_the_connection_closed(address, half: bytes) -> None:
    heard, _ = ask(address, half)
    assert is_problem(heard, 408, "request-timeout")
    assert b"the head of the request did not come in time" in heard


@pytest.mark.parametrize("said", [b"Content-Length: 37", b"Transfer-Encoding: chunked"])
def test_half_a_body_is_answered_and_the_connection_closed(address, engine, said: bytes) -> None:
    part = JOB[:10] if said.startswith(b"Content") else b"a\r\n" + JOB[:10] + b"\r\n"
    heard, took = ask(address, HEAD + said + b"\r\n\r\n" + part)
    assert is_problem(heard, 408, "request-timeout")
    assert b"the body of the request did not come in time" in heard
    assert took >= BODY_S
    assert not engine.jobs()


def test_bytes_that_drip_do_not_keep_a_connection(address) -> None:
    """Each of them would be in time, were it asked when the last one came."""
    stop = threading.Event()
    with socket.create_connection(address, timeout=30) as there:

        def drip() -> None:
            for byte in (HEAD + b"X: " + b"x" * 1000).decode():
                try:
                    there.sendall(byte.encode())
                except OSError:
                    return
                if stop.wait(0.05):
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        heard = there.recv(65536)
        stop.set()
        dripping.join()
    assert is_problem(heard, 408, "request-timeout")


def test_a_long_body_that_comes_steadily_is_read(address, engine) -> None:
    """It takes longer than a short one may."""
    body = JOB.ljust(6000)
    parts = [body[at : at + 500] for at in range(0, len(body), 500)]
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    heard, took = ask(address, head, *parts, pause_s=0.2)
    assert heard.startswith(b"HTTP/1.1 201 ")
    assert took > BODY_S
    assert len(engine.jobs()) == 1


def test_a_head_without_end_is_refused(address) -> None:
    heard, _ = ask(address, HEAD + b"X-Long: " + b"x" * 65_000, b"x" * 1000)
    assert is_problem(heard, 431, "request-header-fields-too-large")


def test_a_connection_is_used_again_and_again(address) -> None:
    with httpx.Client(base_url="http://{}:{}".format(*address)) as client:
        for _ in range(3):
            assert client.post("/jobs", json=json.loads(JOB)).status_code == 201
            time.sleep(HEAD_S + 0.1)


def test_a_connection_is_kept_longer_than_clients_keep_theirs(address) -> None:
    """A server that closes first loses the request that is on its way: httpx keeps 5 seconds."""
    ask_live = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(address, timeout=30) as there:
        for pause_s in (6, 0):
            there.sendall(ask_live)
            assert there.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(pause_s)


def test_a_request_that_waits_is_no_half_one(address, engine) -> None:
    job = engine.submit(engine.greet, "ada")
    with httpx.Client(base_url="http://{}:{}".format(*address), timeout=30) as client:
        answer = client.get(f"/jobs/{job.id}", params={"wait": 2 * BODY_S})
    assert (answer.status_code, answer.json()["state"]) == (200, job.state)


def test_a_request_that_waits_is_answered_when_the_server_stops(engine) -> None:
    job = engine.submit(engine.greet, "ada")
    bound = bind("127.0.0.1", 0)
    server = Server(ulak.web.app(engine, identity=None), bound)
    base = "http://{}:{}".format(*bound.getsockname()[:2])
    server.start(on_failure=lambda: None)
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(httpx.get(f"{base}/jobs/{job.id}", params={"wait": 60}, timeout=90))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not server._app.state.waits._open:
        time.sleep(0.01)
    server.stop()
    waiting.join()
    assert [answer.status_code for answer in answers] == [200]
    assert answers[0].json()["id"] == job.id
