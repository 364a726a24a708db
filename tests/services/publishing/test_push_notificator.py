"""The stand-in of a push service does as its specification says."""

import asyncio
from typing import Any

import httpx
import pytest

from ulak.services.publishing.push_notificator import make_push_notificator

pytestmark = pytest.mark.shows("S-42")
NOTIFY = "/api/v1/notify"


class Site:
    """The stand-in, and a clock that is turned by hand."""

    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.app = make_push_notificator(time=lambda: self.now, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://push") as client:
                return await client.request(method, path, **options)

        return asyncio.run(one())

    def push(self, who: str = "a-token", key: str = "", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {who}"}
        if key:
            headers["Idempotency-Key"] = key
        return self.ask("POST", NOTIFY, headers=headers, json=body or {"message": "hello"})

    def kept(self, who: str = "a-token") -> list[dict[str, str]]:
        answer = self.ask("GET", "/api/v1/notifications", params={"token": who})
        assert answer.status_code == 200
        return list(answer.json())


def test_a_push_is_kept_and_shown_by_its_token() -> None:
    site = Site()
    made = site.push(message="привет")
    assert made.status_code == 201
    assert set(made.json()) == {"id", "message", "timestamp"}
    assert made.json()["message"] == "привет"
    assert site.kept() == [made.json()]
    assert site.kept("another-token") == []


@pytest.mark.parametrize("authorization", [None, "Bearer", "Bearer  ", "Basic a-token"])
def test_a_push_without_a_token_is_refused(authorization: str | None) -> None:
    site = Site()
    headers = {} if authorization is None else {"Authorization": authorization}
    assert site.ask("POST", NOTIFY, headers=headers, json={"message": "x"}).status_code == 401


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"message": ""}', b'{"message": 1}'])
def test_a_push_without_a_message_is_refused(body: bytes) -> None:
    site = Site()
    headers = {"Authorization": "Bearer a-token"}
    assert site.ask("POST", NOTIFY, headers=headers, content=body).status_code == 400
    assert site.kept() == []


def test_ten_a_minute_are_taken_of_one_token() -> None:
    site = Site()
    assert [site.push().status_code for _ in range(10)] == [201] * 10
    site.now += 18.5
    refused = site.push()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "42")
    assert site.push("another-token").status_code == 201
    site.now += int(refused.headers["retry-after"])
    assert site.push().status_code == 201
    assert len(site.kept()) == 11


def test_the_limit_can_be_switched_off() -> None:
    site = Site(per_minute=0)
    assert {site.push().status_code for _ in range(30)} == {201}


def test_a_repeat_of_a_key_gets_the_first_answer_and_adds_nothing() -> None:
    site = Site()
    first = site.push(key="article:ada", message="one")
    for _ in range(12):
        again = site.push(key="article:ada", message="two")
        assert (again.status_code, again.json()) == (201, first.json())
    assert site.kept() == [first.json()]
    # Neither did the repeats count for the limit, nor is the key known to another token.
    assert [site.push(key=f"k{n}").status_code for n in range(10)] == [201] * 9 + [429]
    other = site.push("another-token", key="article:ada")
    assert other.json()["id"] != first.json()["id"]
