"""What a whole run leaves behind, in tables and in logs, opens nothing.

Every part logs at DEBUG. What the log says is looked at, and what the records held before anything
was hidden in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.publishing.blog import (
    BACKEND,
    PASSWORD,
    SAGA_WORKER,
    SECRET,
    USERS_API,
    Blog,
    wait_until,
)
from tests.secrets_watch import IN_LOGS
from tests.services.publishing.plays import APART, BESIDE, PLAYS, VARIABLES
from ulak.auth import SERVICE, Directory
from ulak.services.publishing import statuses
from ulak.services.publishing.keys import SCOPES
from ulak.testing.secret_scan import FORMS, Scanner

NEW_PASSWORD = "a-password-of-somebody-new"  # noqa: S105 - of nobody
NEW_KEY = "a-subscription-key-that-is-new"


@pytest.fixture
def variables() -> Mapping[str, str]:
    return VARIABLES


def ask_of_users(blog: Blog) -> list[str]:
    """Register, log in, fail to log in, set a key; return the tokens that were handed out."""
    credentials = {"email": "new@example.com", "password": NEW_PASSWORD}
    tokens = []

    def ask(method: str, path: str, body: dict[str, str], token: str = "") -> dict[str, object]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = blog.ask(method, path, at=USERS_API, headers=headers, json=body)
        found: dict[str, object] = answer.json()
        return found

    assert ask("POST", "/api/users", {**credentials, "username": "somebody"})["success"]
    for _ in range(2):
        said = ask("POST", "/api/users/login", credentials)
        tokens.append(str(said["data"]["access_token"]))  # type: ignore[index] # it is an object
    wrong = {**credentials, "password": f"{NEW_PASSWORD}-wrong"}
    assert not ask("POST", "/api/users/login", wrong)["success"]
    body = {"subscription_key": NEW_KEY}
    assert ask("PUT", "/api/users/me/subscription-key", body, tokens[0])["success"]
    assert not ask("PUT", "/api/user", {"password": "x"}, f"{tokens[1]}x")["success"]
    return tokens


def replace_a_key(blog: Blog) -> str:
    """Revoke the key of moderation while a post waits for it, and deploy another; return it."""
    directory = Directory(blog.posts_engine.store, scopes={s: s for s in SCOPES})
    old = blog.keys["moderation"]
    known = directory.keys()
    (found,) = [key for key in known if key.name == "moderation"]
    directory.revoke_key(found.id, actor="tests")
    post = blog.write("a post that has to wait")
    # The backend remembers a key for a moment.
    wait_until(
        lambda: blog.ask("GET", f"/internal/articles/{post.id}", f"Token {old}").status_code == 401,
        "the key is still good",
    )
    blog.publish(post)
    queue = blog.publishing.posts.queue
    wait_until(lambda: b"invalid_api_key" in read_records(blog, SAGA_WORKER), "no call was refused")
    made = directory.create_key("moderation-2", roles=[SERVICE], actor="tests")
    blog.keys["moderation"] = made.text
    blog.stop(SAGA_WORKER)
    blog.start(SAGA_WORKER, records=str(blog.folder / "logs" / "new.records"))
    blog.wait_until_at_rest([post])
    assert queue.find(statuses.MODERATE, blog.publishing.posts.get_by_id(post.id)) is not None
    return made.text


def read_records(blog: Blog, name: str) -> bytes:
    return (blog.folder / "logs" / f"{name}.records").read_bytes()


@pytest.mark.parametrize(
    ("store", "way"),
    [
        ("postgres", APART),
        # The same parts but the relay, on the other store.
        pytest.param("sqlite", BESIDE, marks=pytest.mark.sampled),
    ],
)
@pytest.mark.shows("S-34")
def test_no_table_and_no_log_of_a_run_opens_anything(
    blog: Blog, tmp_path: Path, store: str
) -> None:
    names = (*blog.names, USERS_API)
    logs = tmp_path / "logs"
    blog.start(*names, records=str(logs / "PART.records"))
    planted = {"the password": PASSWORD, "a new password": NEW_PASSWORD, "a new key": NEW_KEY}
    planted |= {"the secret": SECRET, "the author's token": blog.token}
    planted |= {f"the key of {name}": text for name, text in blog.keys.items()}
    planted |= {f"the key of reader {n}": key for n, key in enumerate(blog.subscription_keys)}
    planted |= {f"token {n}": token for n, token in enumerate(ask_of_users(blog))}
    for act in PLAYS.values():
        act(blog)
    planted["the new key of moderation"] = replace_a_key(blog)
    # A call that no route takes, and one whose body is wrong, with credentials of either kind.
    for credential in (f"Token {blog.keys['dlq']}", f"Bearer {blog.token}"):
        blog.ask("POST", "/api/articles/none/publish", credential, content=b"{")
        blog.ask("PUT", "/internal/articles/none/preview", credential, json={"preview_url": 1})
    for name in names:
        assert blog.stop(name) == 0
    # At DEBUG indeed, and of every request.
    assert b"a request was answered" in read_records(blog, BACKEND)
    scanner = Scanner(planted, IN_LOGS)
    leaks = [str(leak) for leak in scanner.scan_folder(logs)]
    tables = Scanner(planted, FORMS)
    for url in blog.stores.urls:
        if store == "sqlite":
            leaks += map(str, tables.scan_file(Path(url.removeprefix("sqlite:///"))))
        else:
            leaks += map(str, tables.scan_postgres(url))
            leaks += map(str, tables.scan_postgres(url, "public"))
    assert leaks == []
    # The scan itself finds each of them, where one is.
    for name, secret in planted.items():
        found = tables.scan_bytes(f"before {secret} after".encode(), "here")
        assert name in {leak.what for leak in found}
