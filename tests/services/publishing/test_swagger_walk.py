"""The walk of docs/services/publishing.md in Swagger UI: clicked in a real browser, on the pages
that `ulak publishing users-api` and `ulak publishing backend` serve."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import reserve_port
from bench.zygote import Zygote
from tests.docs.terminal import Terminal, terminal
from tests.services.publishing.parts import A_POST, A_READER, A_USER, PATIENCE_S, User, until
from tests.web.browsing import Browsing, SwaggerUI, browsing

# With this seed the post is approved, as the page about publishing has it.
SEED = "3"
ANOTHER = {**A_POST, "title": "Another post"}


@dataclass
class Walk:
    """One page of Swagger UI, and what is clicked on it."""

    tab: Browsing
    address: str

    def __post_init__(self) -> None:
        self.tab.page.goto(f"{self.address}/docs")
        self.shown = SwaggerUI(self.tab.page)

    def click(self, operation: str, body: Any = None, **parameters: str) -> tuple[str, Any]:
        """Press "Execute" of an operation; return the status and the document of the answer."""
        if body is not None:
            parameters["body"] = json.dumps(body)
        status, text = self.shown.execute("publishing", operation, **parameters)
        self.shown.close("publishing", operation)
        return status, document_in(text)


def document_in(text: str) -> Any:
    """Return the JSON document in what Swagger UI shows of an answer; None when there is none."""
    start = text.find("{")
    return None if start < 0 else json.JSONDecoder().raw_decode(text, start)[0]


@pytest.fixture
def parts(tmp_path: Path, zygote: Zygote) -> Iterator[tuple[Terminal, str, str]]:
    """The pages of backend and users-api. No worker runs yet, and nothing listens where the pushes
    go."""
    backend, users, push = (reserve_port() for _ in range(3))
    with terminal(
        tmp_path,
        zygote,
        ULAK_SERVICE="publishing",
        BACKEND_URL=f"http://127.0.0.1:{backend}",
        PUSH_SERVICE_URL=f"http://127.0.0.1:{push}/api/v1/notify",
        NOTIFY_MAX_RETRIES="0",
        MODERATION_SEED=SEED,
    ) as opened:
        opened.type("export INTERNAL_API_KEY=$(ulak keys create workers --role service)")
        opened.start(f"ulak publishing backend --port {backend}")
        opened.start(f"ulak publishing users-api --port {users}")
        yield opened, f"http://127.0.0.1:{backend}", f"http://127.0.0.1:{users}"


@pytest.mark.shows("S-45", "S-46")
def test_the_walk_of_the_page_is_clicked_in_swagger_ui(
    parts: tuple[Terminal, str, str],
) -> None:
    opened, backend, users = parts
    key = opened.read("ulak keys create press --role operator")
    with browsing() as tab:
        walk = Walk(tab, users)
        token, author = log_in(walk, A_USER)
        subscribe(users, author)
        walk = Walk(tab, backend)
        assert walk.click("get_internal_dlq")[0] == "401"
        tab.complaints.clear()  # of this refusal
        walk.shown.authorise(bearer=token, token=f"Token {key}")

        # Rejected by hand, while nobody moderates. What is clicked below is not clicked here too:
        # the page takes seconds for each operation.
        slug, id = publish_by_call(backend, token)
        status, told = walk.click(
            "post_internal_articles_id_reject", {"reason": "not for this blog"}, id=id
        )
        assert status == "200", told
        assert (told["data"]["status"], told["data"]["changed"]) == ("REJECTED", True)
        rejected = read_now(f"{backend}/api/articles/{slug}", Authorization=f"Bearer {token}")
        assert rejected["moderation_reason"] == "not for this blog"

        # Published by the workers.
        slug, id = publish(walk, A_POST)
        for part in ("saga-worker", "worker", "dlq-worker"):
            opened.start(f"ulak publishing {part}")
        # To press "Execute" again and again would keep the machine from the workers.
        until(lambda: read_now(f"{backend}/api/articles/{slug}")["status"] == "PUBLISHED")
        _, read = walk.click("get_api_articles_slug", slug=slug)
        assert read["data"]["article"]["status"] == "PUBLISHED"

        # Its notification found nobody who listens: a dead letter, put back, and given up.
        dead = wait_for_letter(walk, key, round=1)
        _, read = walk.click("get_internal_dlq")
        assert read["data"]["dead_letters"] == [dead]
        assert (dead["task"], dead["post_id"]) == ("post.notify", id)
        status, told = walk.click("post_internal_dlq_id_redrive", {}, id=dead["id"])
        assert (status, told["data"]["dead_letter"]["state"]) == ("200", "redriven")
        dead = wait_for_letter(walk, key, round=2)
        status, told = walk.click("delete_internal_dlq_id", id=dead["id"])
        assert (status, told["data"]["dead_letter"]["state"]) == ("200", "discarded")

        assert tab.complaints == []
        own = (f"{backend}/", f"{users}/", "data:")
        assert [url for url in tab.asked if not url.startswith(own)] == []


def log_in(walk: Walk, user: dict[str, str]) -> tuple[str, str]:
    """Register a user and log in; return the token and the id."""
    written = httpx.post(f"{walk.address}/api/users", json=user, timeout=PATIENCE_S)
    assert written.status_code == 201, written.text
    credentials = {name: user[name] for name in ("email", "password")}
    status, told = walk.click("post_api_users_login", credentials)
    assert status == "200", told
    return told["data"]["access_token"], told["data"]["user"]["id"]


def subscribe(users: str, author: str) -> None:
    """Have a reader subscribe, who has a key for pushes."""
    grace = User(users, A_READER)
    about = {"subscription_key": "a-key-of-grace"}
    grace.ask("PUT", f"{users}/api/users/me/subscription-key", about)
    grace.ask("POST", f"{users}/api/users/subscribe", {"target_user_id": author}, status=204)


def publish(walk: Walk, texts: dict[str, str]) -> tuple[str, str]:
    """Write a post and ask for its publication; return its slug and its id."""
    status, told = walk.click("post_api_articles", texts)
    assert (status, told["data"]["article"]["status"]) == ("201", "DRAFT")
    slug = told["data"]["slug"]
    key = {"Idempotency-Key": f"publish-{slug}"}
    status, told = walk.click("post_api_articles_slug_publish", slug=slug, **key)
    assert (status, told["data"]["status"]) == ("202", "PENDING_PUBLISH")
    return slug, told["data"]["article"]["id"]


def publish_by_call(backend: str, token: str) -> tuple[str, str]:
    """Write another post and ask for its publication; return its slug and its id."""
    path, known = f"{backend}/api/articles", {"Authorization": f"Bearer {token}"}
    written = httpx.post(path, json=ANOTHER, headers=known, timeout=PATIENCE_S)
    assert written.status_code == 201, written.text
    post = written.json()["data"]["article"]
    asked = httpx.post(f"{path}/{post['slug']}/publish", headers=known, timeout=PATIENCE_S)
    assert asked.status_code == 202, asked.text
    return post["slug"], post["id"]


def wait_for_letter(walk: Walk, key: str, *, round: int) -> Any:
    """Wait until the only dead letter is one that was logged in a round of its task; return it."""
    letters: list[Any] = []

    def stands() -> bool:
        letters[:] = read_now(path, Authorization=f"Token {key}")["dead_letters"]
        return [(each["state"], each["round"]) for each in letters] == [("logged", round)]

    path = f"{walk.address}/internal/dlq"
    until(stands)
    return letters[0]


def read_now(url: str, **headers: str) -> Any:
    """Return what an address answers, without the page."""
    data = httpx.get(url, headers=headers, timeout=PATIENCE_S).json()["data"]
    return data.get("article", data)
