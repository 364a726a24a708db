"""The parts of publishing apart and together, as the commands that people type."""

import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import ulak
from bench.ports import reserve_port
from tests.services.publishing.parts import (
    A_POST,
    PATIENCE_S,
    STARTED,
    Parts,
    publish_one,
    pushes,
    until,
)
from ulak import WorkerSettings
from ulak.cli import main
from ulak.service import attach
from ulak.services.publishing import Publishing, make_service
from ulak.settings import Settings

KEY, PUSH_KEY = "ulak_nobodys1_" + "k" * 49, "a-key-of-grace"
SECRET = "a-secret-of-these-tests-and-of-nothing-else"  # noqa: S105 - it guards nothing
QUEUES = {"saga-worker": "article-saga", "worker": "article-notifications", "dlq-worker": "dlq"}


def lines_of_queues(said: str) -> list[str]:
    return [line for line in said.splitlines() if "queue" in line]


@pytest.mark.shows("S-2", "S-28", "S-46")
def test_the_parts_publish_a_post_with_posts_users_and_queue_apart(tmp_path, postgres_url, zygote):
    ports = {name: reserve_port() for name in ("backend", "users-api", "push-notificator")}
    at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    environ = {
        "ULAK_STORE": postgres_url, "DATABASE_URL": "sqlite:///posts.db",
        "USERS_DATABASE_URL": "sqlite:///users.db", "SECRET_KEY": SECRET, "BACKEND_URL":
        at["backend"], "PUSH_SERVICE_URL": f"{at['push-notificator']}/api/v1/notify",
        "MODERATION_APPROVE_RATE": "1", "ULAK_ENV": "production",
    }  # fmt: skip
    with Parts(tmp_path, zygote, **environ) as parts:
        made = parts.run("ulak publishing make-keys").said
        key = re.search(r"^dlq-worker +(\S+)$", made, re.M)[1]
        parts.environ["INTERNAL_API_KEY"] = key
        commands = {name: f"ulak publishing {name} --port {port}" for name, port in ports.items()}
        commands |= {name: f"ulak publishing {name}" for name in QUEUES}
        running = dict(zip(commands, parts.start(*commands.values()), strict=True))
        for name, queue in {**QUEUES, "backend": "idempotency-cleanup, publishing-relay"}.items():
            (line,) = map(json.loads, lines_of_queues(running[name].said))
            assert (line["worker"], line["queue"]) == (name, queue)
        for name in ("backend", "users-api"):
            assert f"{name} serves {at[name]}" in running[name].said
            assert httpx.get(f"{at[name]}/ready").json()["success"] is True
        until(lambda: httpx.get(f"{at['backend']}/health/ready").status_code == 200)
        paths = httpx.get(f"{at['backend']}/openapi.json").json()["paths"]
        assert {"/api/articles", "/internal/dlq"} <= set(paths)
        assert "/api/users" not in paths
        publish_one(at["users-api"], at["backend"], parts.said, PUSH_KEY)
        assert len(until(lambda: pushes(at["push-notificator"], PUSH_KEY), parts.said)) == 1
        parts.stop_all()
        assert all("drained" in part.said for part in running.values())
        secrets = [key, SECRET, PUSH_KEY]
        assert [s for s in secrets for part in running.values() if s in part.said] == []


@pytest.mark.shows("S-46", "S-47")
def test_up_makes_keys_once_tells_where_the_backend_is_and_publishes(tmp_path, zygote):
    """By a child, which learns the address that the system has chosen from its parent; the posts
    are in a store of their own, which `ulak up` works on too."""
    receiver = reserve_port()
    push = f"http://127.0.0.1:{receiver}"
    environ = {"MODERATION_APPROVE_RATE": "1", "ULAK_SERVICE": "publishing"}
    with Parts(tmp_path, zygote, **environ) as parts:
        parts.environ["PUSH_SERVICE_URL"] = f"{push}/api/v1/notify"
        parts.environ |= {"ULAK_STORE": "sqlite:///tasks.db", "DATABASE_URL": "sqlite:///posts.db"}
        parts.begin(f"ulak publishing push-notificator --port {receiver}")
        up = parts.begin("ulak up --port 0 --workers 1")
        said = up.wait_for(STARTED)
        base = re.search(r"serves publishing at (\S+)", said)[1]
        assert re.search(rf"  log in    .+\n  internal  {base}/internal\n", said)
        kept = tmp_path / ".ulak" / "publishing.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        before = kept.read_bytes()
        keys = json.loads(before)
        publish_one(base, base, parts.said, PUSH_KEY)
        until(lambda: pushes(push, PUSH_KEY), parts.said)
        posts = {"ULAK_STORE": parts.environ["DATABASE_URL"]}
        listed = json.loads(parts.run("ulak keys list --json", **posts).said)["keys"]
        assert {key["name"] for key in listed} == {
            "moderation-worker", "preview-worker", "publish-worker", "dlq-worker",
        }  # fmt: skip
        used = {key["name"] for key in listed if key["used_at"] is not None}
        assert used == {"moderation-worker", "preview-worker", "publish-worker"}
        assert up.stop() == 0
        again = parts.begin("ulak up --port 0")
        again.wait_for(STARTED)
        assert kept.read_bytes() == before
        assert len(json.loads(parts.run("ulak keys list --json", **posts).said)["keys"]) == 4
        assert again.stop() == 0
        assert [name for name, secret in keys.items() if secret in up.said + again.said] == []


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder, with these variables only."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ULAK_")]:
        monkeypatch.delenv(name)

    def call(command: str, **environ: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patched:
            for name, value in environ.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(command.split())
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.mark.shows("S-35")
@pytest.mark.parametrize("worker", QUEUES)
@pytest.mark.parametrize("key", ["", "change-me-in-production"])
def test_a_worker_without_a_key_of_its_own_stops_with_one_line(run, worker, key):
    code, out, err = run(f"publishing {worker}", INTERNAL_API_KEY=key)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: INTERNAL_API_KEY (is not set|holds a placeholder)[^\n]+\n", err)
    assert "generate_api_keys.py" in err


@pytest.mark.shows("S-47")
def test_in_production_up_demands_a_key_and_a_secret(run):
    production = {"ULAK_ENV": "production", "ULAK_SECRET": "u" * 40, "SECRET_KEY": SECRET}
    code, _, err = run("up --service publishing --port 0", **production)
    assert (code, "error: INTERNAL_API_KEY is not set" in err) == (1, True)
    del production["SECRET_KEY"]
    code, _, err = run("up --service publishing --port 0", **production, INTERNAL_API_KEY=KEY)
    assert (code, "error: SECRET_KEY is not set" in err) == (1, True)


@pytest.mark.parametrize("part", ["backend", "users-api"])
def test_users_are_not_served_in_production_without_a_secret(run, part):
    code, _, err = run(f"publishing {part} --port 0", ULAK_ENV="production")
    assert (code, "error: SECRET_KEY is not set" in err) == (1, True)


@pytest.mark.shows("S-44")
@pytest.mark.parametrize("command", ["ulak publishing outbox", "ulak up --port 0"])
def test_a_file_env_is_read_and_what_is_set_wins(tmp_path, zygote, command):
    (tmp_path / ".env").write_text(
        "DATABASE_URL=sqlite:///from-the-file.db\nULAK_DATA=kept\nULAK_SERVICE=publishing\n"
    )
    with Parts(tmp_path, zygote, DATABASE_URL="sqlite:///from-the-shell.db") as parts:
        part = parts.begin(command)
        until(lambda: (tmp_path / "from-the-shell.db").exists(), parts.said)
        if "up" in command:
            part.wait_for(STARTED)
            part.process.send_signal(signal.SIGTERM)
        assert part.process.wait(PATIENCE_S) == 0, parts.said()
    assert (tmp_path / "kept").is_dir()
    assert not (tmp_path / "from-the-file.db").exists()


class Shop:
    """Publishing in this process, on the stores that the commands are about."""

    def __init__(self, folder: Path, *, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = f"sqlite:///{folder}/queue.db"
        self.environ = {"ULAK_STORE": self.queue, "SECRET_KEY": SECRET, "INTERNAL_API_KEY": KEY}
        # A backend that is not there: every task fails at once, and again in compensation.
        self.environ |= {"BACKEND_URL": "http://127.0.0.1:1", "SAGA_MAX_RETRIES": "0"}
        self.environ |= {"RETRY_BASE_SECONDS": "0.001", "RETRY_MAX_SECONDS": "0.001"}
        if apart:
            self.environ["DATABASE_URL"] = f"sqlite:///{folder}/posts.db"
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        self.engine = ulak.connect(self.queue)
        attach(make_service(policy=lambda post: True), self.engine, Settings(data=folder))
        self.own: Publishing = self.engine.kernel.attached["publishing"][1]

    def publish(self, title: str) -> None:
        texts = A_POST | {"title": title}
        post = self.own.posts.create("ada", **texts)
        self.own.posts.publish(post.slug, "ada")

    def work(self, engine: ulak.Engine, *queues: str) -> None:
        with engine.working(WorkerSettings(queues=frozenset(queues))):
            until(lambda: all(job.is_final for job in engine.jobs() if self._is_in(job, queues)))

    def _is_in(self, job: ulak.Job, queues: tuple[str, ...]) -> bool:
        named = {"relay": "publishing-relay", "post.moderate": "article-saga", "dlq": "dlq"}
        return named.get(job.flow) in queues


@pytest.fixture
def open_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def start(*, apart: bool) -> Shop:
        made.append(Shop(tmp_path, apart=apart, monkeypatch=monkeypatch))
        return made[-1]

    yield start
    for shop in made:
        shop.own.posts_engine.close()
        shop.engine.close()


@pytest.mark.shows("S-20")
def test_the_outbox_beside_the_posts_is_the_queue(run, open_shop):
    shop = open_shop(apart=False)
    shop.publish("one")
    (row,) = json.loads(run("publishing outbox --json")[1])
    assert list(row) == [
        "id", "event_id", "task", "queue", "payload", "available_at", "attempts", "last_error",
        "sent_at",
    ]  # fmt: skip
    assert (row["task"], row["queue"], row["attempts"]) == ("post.moderate", "article-saga", 0)
    assert row["payload"]["event_id"] == row["event_id"]
    assert row["sent_at"] is not None
    assert row["id"] in run("publishing outbox")[1]
    assert json.loads(run("publishing inbox --json")[1]) == []


@pytest.mark.shows("S-26")
def test_the_outbox_apart_has_what_the_relay_has_sent_and_what_it_has_not(run, open_shop):
    shop = open_shop(apart=True)
    shop.publish("one")
    (row,) = json.loads(run("publishing outbox --json")[1])
    assert (row["task"], row["queue"], row["sent_at"]) == ("post.moderate", "article-saga", None)
    shop.work(shop.own.posts_engine, "publishing-relay")
    (sent,) = json.loads(run("publishing outbox --json")[1])
    assert sent["sent_at"] is not None
    assert sent["event_id"] == row["event_id"]
    assert len(shop.engine.jobs(ulak.JobFilter(flow="post.moderate"))) == 1


@pytest.mark.shows("S-24")
def test_dead_letters_are_redriven_in_bulk_at_a_rate(run, open_shop, monkeypatch):
    shop = open_shop(apart=False)
    for title in ("one", "two", "three"):
        shop.publish(title)
    shop.work(shop.engine, "article-saga", "dlq")
    pauses: list[float] = []
    monkeypatch.setattr("ulak.services.publishing.dead_letters.time.sleep", pauses.append)
    none = run("publishing redrive --task post.notify")
    assert none[:2] == (0, "redriven 0 dead letters\n")
    code, out, _ = run("publishing redrive --task post.moderate --per-second 4")
    assert (code, out) == (0, "redriven 3 dead letters\n")
    assert pauses == [0.25] * 3
    assert {job.round for job in shop.engine.jobs(ulak.JobFilter(flow="post.moderate"))} == {2}
