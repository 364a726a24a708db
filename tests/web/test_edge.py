"""What strangers may cost: nothing of them is read before they are known."""

import asyncio
import json
from typing import Any

import pytest

import ulak
import ulak.web
from tests.web.test_identity import Site, is_problem, quick  # noqa: F401 - a fixture
from ulak.engine.view import HIDDEN
from ulak.web.middleware import LARGEST, LARGEST_OF_STRANGERS


@pytest.fixture
def site(ask):
    made = Site(ask)
    yield made
    made.engine.close()


def send(
    app: Any, path: str, chunks: list[bytes], headers: list[tuple[bytes, bytes]], method="POST"
) -> tuple[int, int, dict[str, str]]:
    """Send a body in chunks; return the status, how many chunks were taken, and the headers."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1), "server": ("ulak", 80), "state": {},
    }  # fmt: skip
    waiting, started = list(chunks), {}

    async def receive() -> dict[str, Any]:
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def hear(message: dict[str, Any]) -> None:
        started.update({k: v for k, v in message.items() if k in ("status", "headers")})

    asyncio.run(app(scope, receive, hear))
    found = {name.decode(): value.decode() for name, value in started["headers"]}
    return started["status"], len(chunks) - len(waiting), found


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


@pytest.mark.parametrize("sent", [[], [bearer("x" * 40)], [(b"authorization", b"Basic eDp5")]])
@pytest.mark.parametrize("path", ["/jobs", "/keys", "/jobs/bulk"])
def test_whoever_is_not_known_is_refused_before_a_byte_of_the_body_is_read(site, path, sent):
    length = [(b"content-length", b"9")]
    status, taken, headers = send(site.app, path, [b"not", b"json"], [*sent, *length])
    assert (status, taken) == (401, 0)
    assert headers["www-authenticate"].startswith('Bearer realm="ulak"')
    large = [(b"content-length", str(LARGEST + 1).encode())]
    assert send(site.app, path, [b"{"], [*sent, *large])[:2] == (401, 0)


def test_whoever_may_not_is_refused_before_a_byte_of_the_body_is_read(site):
    by = bearer(site.keys["viewer"])
    assert send(site.app, "/keys", [b"not", b"json"], [by])[:2] == (403, 0)


def test_the_body_of_whoever_is_known_has_the_usual_bound(site):
    by = bearer(site.keys["service"])
    large = [(b"content-length", str(LARGEST + 1).encode())]
    assert send(site.app, "/jobs", [b"{"], [by, *large])[:2] == (413, 0)
    most = b"{}".ljust(LARGEST)
    assert send(site.app, "/jobs", [most], [by])[:2] == (422, 1)


def test_who_need_not_say_who_they_are_may_send_little(site):
    body = json.dumps({"name": "ada", "password": "wrong"}).encode()
    most = body.ljust(LARGEST_OF_STRANGERS)
    assert send(site.app, "/auth/login", [most], [])[:2] == (401, 1)
    large = [(b"content-length", str(LARGEST_OF_STRANGERS + 1).encode())]
    assert send(site.app, "/auth/login", [b"{"], large)[:2] == (413, 0)
    chunk = b" " * (LARGEST_OF_STRANGERS // 2)
    assert send(site.app, "/auth/login", [chunk] * 9, [])[:2] == (413, 3)


def test_two_credentials_in_one_header_are_a_bad_request(site):
    twice = [bearer(site.keys["admin"]), bearer(site.keys["viewer"])]
    status, taken, _ = send(site.app, "/jobs", [b"{}"], twice)
    assert (status, taken) == (400, 0)
    assert send(site.app, "/jobs", [b""], twice, method="GET")[0] == 400


def test_no_browser_takes_an_answer_for_what_its_type_does_not_say(site):
    for path, status in (("/health/live", 200), ("/jobs", 200), ("/nowhere", 404)):
        answer = site.ask("GET", path)
        assert answer.status_code == status
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/jobs/", "/health/live/", "/auth/login/"])
def test_nobody_is_sent_to_where_the_request_says_that_the_server_is(site, path):
    answer = site.ask("GET", path, headers={"Host": "evil.example"})
    assert is_problem(answer, 404, "not-found")
    assert "location" not in answer.headers


def test_what_is_allowed_is_said_of_every_route_of_the_path(site):
    answer = site.ask("DELETE", "/jobs")
    assert is_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, POST"
    assert site.ask("PATCH", "/pauses/queue/a/b").headers["allow"] == "DELETE, PUT"


def test_a_refused_login_leaves_a_line_in_the_log_and_the_audit(site, caplog):
    site.ask("POST", "/users", json={"name": "ada", "password": "a" * 10, "roles": ["viewer"]})
    for name, shown in (("ada", "ada"), ("bob", "bob"), ("<no name>", "unknown")):
        caplog.clear()
        body = {"name": name, "password": "wrong one"}
        assert site.ask("POST", "/auth/login", None, json=body).status_code == 401
        (line,) = (each for each in caplog.records if each.name == "ulak.auth")
        assert (line.message, line.user, line.address) == (
            "a login was refused",
            shown,
            "127.0.0.1",
        )
        assert "wrong one" not in caplog.text
        kept = site.ask("GET", f"/audit?subject=credential/user/{shown}").json()["items"][0]
        assert (kept["act"], kept["actor"]) == ("refused", "anonymous")
        assert kept["note"] == "from 127.0.0.1"
        site.turn(minutes=20)


def test_after_a_wrong_password_the_next_try_waits(site):
    site.ask("POST", "/users", json={"name": "ada", "password": "a" * 10, "roles": ["viewer"]})

    def log_in(password: str):
        body = {"name": "ada", "password": password}
        return site.ask("POST", "/auth/login", None, json=body)

    assert log_in("wrong one").status_code == 401
    refused = log_in("a" * 10)
    assert is_problem(refused, 429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    site.turn(seconds=1)
    assert log_in("a" * 10).status_code == 200


def test_fields_that_a_flow_calls_secret_are_hidden_in_its_result(engine, ask):
    flow = ulak.Flow.steps(
        "keep", ("kept", lambda run: {"key": "a place", "size": 3}), secret_results=["key"]
    )
    engine.add(flow)
    with engine.working():
        job = engine.submit(flow)
        assert engine.result(engine.wait(job.id, timeout=60)) == {"key": "a place", "size": 3}
        answer = ask(ulak.web.app(engine, identity=None), f"/jobs/{job.id}/result")
    assert answer.json()["result"] == {"key": HIDDEN, "size": 3}
