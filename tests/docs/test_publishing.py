"""The pages about publishing do what they say, for somebody who types them."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

from bench.ports import reserve_port
from bench.zygote import Zygote
from tests.docs.pages import DOCS, blocks_of
from tests.docs.terminal import STARTED, Terminal, blocks, section, terminal, until
from tests.services.publishing.parts import A_POST, A_USER, User
from ulak.services.publishing import settings, statuses
from ulak.services.publishing.keys import CALLS
from ulak.settings import describe_settings as describe

PAGE = DOCS / "services" / "publishing.md"
TROUBLES = DOCS / "operations" / "publishing-troubleshooting.md"
NOT_ACCEPTED = "API key is not accepted"
NOT_PROCESSED = "Tasks are not processed"
IS_STUCK = "A post is stuck in PENDING_PUBLISH"

SAGA_WORKER = "ulak publishing saga-worker"
A_KEY = "$(python scripts/generate_api_keys.py 2> /dev/null | awk 'NR == 1 {print $2}')"


class Blog:
    """A terminal, and the addresses that the parts have here instead of those of the page."""

    def __init__(self, opened: Terminal, ports: list[int]) -> None:
        self.terminal = opened
        self.backend, self.users, self.push = (f"http://127.0.0.1:{port}" for port in ports)

    @cached_property
    def ada(self) -> User:
        return User(self.users, A_USER)

    def publish(self, title: str) -> str:
        """Have Ada write a post and ask for its publication; return its address."""
        path = f"{self.backend}/api/articles"
        post = (
            f"{path}/{self.ada.ask('POST', path, {**A_POST, 'title': title}, status=201)['slug']}"
        )
        self.ada.ask("POST", f"{post}/publish", status=202)
        return post

    def wait_for(self, post: str, status: str) -> None:
        until(
            lambda: self.ada.ask("GET", post)["article"]["status"] == status,
            f"{post} is not {status}",
        )

    def follow(self, page: Path, *headings: str) -> None:
        """Type every block below these headings, and hold what is printed against the page."""
        typed = blocks(section(page, *headings))
        assert typed
        for block in typed:
            self.terminal.follow(block)


@pytest.fixture
def blog(tmp_path: Path, zygote: Zygote) -> Iterator[Blog]:
    ports = {part: reserve_port() for part in ("backend", "users-api", "push-notificator")}
    replaced = {
        f"localhost:{usual}": f"127.0.0.1:{port}"
        for usual, port in zip((8000, 8001, 8002), ports.values(), strict=True)
    }
    # Typed without a port, they listen where the page says.
    replaced |= {f"{part} &": f"{part} --port {port} &" for part, port in ports.items()}
    environment = {
        "BACKEND_URL": f"http://127.0.0.1:{ports['backend']}",
        "PUSH_SERVICE_URL": f"http://127.0.0.1:{ports['push-notificator']}/api/v1/notify",
        "ULAK_PORT": str(ports["backend"]),
        # What is tried again is so soon.
        "RETRY_BASE_SECONDS": "0.1",
        "RETRY_MAX_SECONDS": "1",
    }
    with terminal(tmp_path, zygote, replaced, **environment) as opened:
        yield Blog(opened, list(ports.values()))


@pytest.mark.shows("S-2", "S-47")
def test_the_walk_does_what_the_page_says(blog: Blog) -> None:
    blog.follow(PAGE, "", "A walk with curl")


@pytest.mark.shows("S-2", "S-15", "S-46")
def test_the_parts_run_as_they_are_typed_with_a_policy_of_ones_own(
    blog: Blog, tmp_path: Path
) -> None:
    ((program, _),) = blocks_of(PAGE)
    said = re.search(r"As `blog.py` it is run by `(.+?)`,\s+instead of `(.+?)`\.", PAGE.read_text())
    assert said is not None
    (tmp_path / "blog.py").write_text(program)
    blog.terminal.type("export ULAK_SERVICE=publishing DATABASE_URL=sqlite:///posts.db")
    blog.terminal.replaced |= {f"{said[2]} &": f"ULAK_SERVICE= {said[1]} &"}
    (block,) = blocks(section(PAGE, "The parts, apart"))
    printed = blog.terminal.type(block.commands)
    parts = block.commands.count("&")
    until(lambda: printed.read_text().count(STARTED) == parts, "some part has not started")
    for queue in ("article-notifications", "dlq"):
        assert re.search(rf"worker started .*queue={queue}", printed.read_text())
    calm, loud = blog.publish("A calm post"), blog.publish("A loud post!")
    blog.wait_for(calm, statuses.PUBLISHED)
    blog.wait_for(loud, statuses.REJECTED)


@pytest.mark.shows("S-44")
def test_keys_and_migrations_are_typed_as_the_page_says(blog: Blog) -> None:
    blog.terminal.type("export ULAK_SERVICE=publishing")
    made, rotated = blocks(section(PAGE, "Service keys"))
    said = blog.terminal.follow(made)
    assert re.findall(r"^(\S+-worker) +ulak_\w+$", said, re.M) == [f"{w}-worker" for w in CALLS]
    ids = re.findall(r" +ulak_([^_]+)_", said)
    blog.terminal.replaced |= {" ID ": f" {ids[0]} "}
    said = blog.terminal.follow(rotated)
    assert all(id in said for id in ids)
    blog.follow(PAGE, "Migrations")


@pytest.mark.shows("S-33")
def test_the_calls_of_each_key_are_those_of_the_page() -> None:
    rows = re.findall(
        r"^\| `(\w+)-worker` \| `INTERNAL_API_KEY_(\w+)` \| ([\w, ]+)[|;]",
        section(PAGE, "Service keys"), re.M,
    )  # fmt: skip
    assert {worker: may.strip().split(", ") for worker, _, may in rows} == {
        worker: [scope.partition(":")[2] for scope in scopes] for worker, scopes in CALLS.items()
    }
    assert all(worker.upper() == variable for worker, variable, _ in rows)


def test_every_setting_is_on_the_page_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `([A-Z_]+)`[^|]*\| *([^|]*?) *\|", section(PAGE, "Settings"), re.M)
    )
    usual = {name: value for name, (value, _) in describe(settings.PublishingSettings()).items()}
    assert set(rows) == {*usual, "INTERNAL_API_KEY_MODERATION"}
    # What stands beside a handler is in force when nothing is set.
    usual |= {"SAGA_MAX_RETRIES": "3", "NOTIFY_MAX_RETRIES": "3", "RETRY_JITTER": "true"}
    spoken = {
        name for name, value in usual.items()
        if value == "not set" or name in ("NOTIFY_MESSAGE", "ACCESS_TOKEN_EXPIRE_MINUTES")
    }  # fmt: skip
    for name in usual.keys() - spoken:
        assert rows[name].strip("`") == re.sub(r"\.0$| s$", "", usual[name]), name
    assert rows.get("ACCESS_TOKEN_EXPIRE_MINUTES") == "30"
    assert settings.load({"NOTIFY_MESSAGE": message_on_the_page()}) == settings.load({})


def message_on_the_page() -> str:
    found = re.search(r"default of `NOTIFY_MESSAGE` is\s+`(.+?)`", PAGE.read_text(), re.S)
    assert found is not None
    return " ".join(found[1].split())


def test_every_kind_of_trouble_is_found_and_cured_as_the_page_says(blog: Blog) -> None:
    opened = blog.terminal
    opened.type("export MODERATION_APPROVE_RATE=1")
    blog.follow(TROUBLES, "")
    opened.type("ulak keys create workers --role service > worker.key")
    opened.start("ulak publishing backend")
    opened.start("ulak publishing users-api")

    # Nobody moderates.
    blog.publish("The first post")
    opened.replaced |= {"JOB": newest(blog)}
    blog.follow(TROUBLES, NOT_PROCESSED)

    # Somebody does, with a key that was revoked.
    opened.type("ulak keys revoke $(cut -d _ -f 2 worker.key)")
    worker = opened.start(f"INTERNAL_API_KEY=$(cat worker.key) {SAGA_WORKER}")
    opened.wait_for(worker, "401 invalid_api_key")
    assert "queue=article-saga" in worker.read_text()
    blog.follow(TROUBLES, NOT_ACCEPTED)
    opened.stop_last()

    # With a good one, and where no backend is.
    opened.type(f"export INTERNAL_API_KEY={A_KEY}")
    nowhere = reserve_port()
    worker = opened.start(
        f"BACKEND_URL=http://127.0.0.1:{nowhere} SAGA_MAX_RETRIES=50 {SAGA_WORKER}"
    )
    post = blog.publish("The second post")
    opened.replaced |= {"JOB": newest(blog)}
    blog.follow(TROUBLES, IS_STUCK)
    opened.stop_last()

    opened.start(SAGA_WORKER)
    blog.wait_for(post, statuses.PUBLISHED)


def newest(blog: Blog) -> str:
    """Return the id of the newest task of moderation."""
    listed = blog.terminal.read("ulak jobs list --flow post.moderate --limit 1 --json")
    found = re.search(r'"id": "(.+?)"', listed)
    assert found is not None, listed
    return found[1]


def test_the_page_about_troubles_has_the_headings_that_are_looked_for() -> None:
    headings = re.findall(r"^## (.+)$", TROUBLES.read_text(), re.M)
    assert headings == [NOT_ACCEPTED, NOT_PROCESSED, IS_STUCK]
