"""The parts of publishing as real processes: started, waited for, read and stopped."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.forked_commands import Forked

if TYPE_CHECKING:
    from bench.zygote import Zygote

ROOT = Path(__file__).parents[3]
PATIENCE_S = 180
STARTED = "Ctrl-C drains and stops."
A_USER = {"email": "ada@example.org", "username": "ada", "password": "difference engine"}
A_READER = {"email": "grace@example.org", "username": "grace", "password": "nanoseconds"}
A_POST = {"title": "A first post", "description": "What it is about", "body": "Once upon a time"}


def until(holds: Callable[[], Any], what: Callable[[], str] = str) -> Any:
    """Wait until another process has done something; return what holds then."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what() or "it did not happen"
        time.sleep(0.05)
    return found


class Part:
    """One process, and the file that has what it says."""

    def __init__(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str], zygote: Zygote
    ) -> None:
        self.name = " ".join(command)
        self.log = folder / f"{len(list(folder.glob('*.log')))}.log"
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        own |= environ
        self.process: subprocess.Popen[bytes] | Forked
        with self.log.open("wb") as out:
            if command[0] == "ulak":
                self.process = Forked(zygote, command[1:], folder=folder, environ=own, out=out)
                return
            self.process = subprocess.Popen(
                command, cwd=folder, env=own, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> str:
        """Wait until it has said something; return all that it has said."""
        until(lambda: text in self.said or self.process.poll() is not None, lambda: self.said)
        assert text in self.said, f"{self.name} ended: {self.said}"
        return self.said

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)


class Parts:
    """Processes in one folder, with one environment; all are killed at the end."""

    def __init__(self, folder: Path, zygote: Zygote, **environ: str) -> None:
        self.folder = folder
        self.zygote = zygote
        self.environ = environ
        self.running: list[Part] = []

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.running:
            if part.process.poll() is None:
                part.process.kill()
            part.process.wait()

    def begin(self, command: str, **environ: str) -> Part:
        """Start `ulak ...`, or another program, and wait for nothing."""
        words = shlex.split(command)
        self.running.append(Part(words, self.folder, self.environ | environ, self.zygote))
        return self.running[-1]

    def start(self, *commands: str) -> list[Part]:
        """Start programs, all at once, and wait until each says that it has begun."""
        parts = [self.begin(command) for command in commands]
        for part in parts:
            part.wait_for(STARTED)
        return parts

    def run(self, command: str, **environ: str) -> Part:
        """Run a program to its end."""
        part = self.begin(command, **environ)
        part.process.wait(PATIENCE_S)
        return part

    def said(self) -> str:
        return "\n".join(f"--- {part.name}\n{part.said}" for part in self.running)

    def stop_all(self) -> None:
        """Have every process that still runs drain, all at once; each must end well."""
        alive = [part for part in self.running if part.process.poll() is None]
        for part in alive:
            part.process.terminate()
        ended = {part.name: part.process.wait(PATIENCE_S) for part in alive}
        assert not any(ended.values()), f"{ended}\n{self.said()}"


class User:
    """A user who was registered at an address, and is logged in."""

    def __init__(self, users: str, user: Mapping[str, str]) -> None:
        self.headers: dict[str, str] = {}
        self.ask("POST", f"{users}/api/users", dict(user), status=201)
        credentials = {name: user[name] for name in ("email", "password")}
        logged_in = self.ask("POST", f"{users}/api/users/login", credentials)
        self.id = str(logged_in["user"]["id"])
        self.headers["Authorization"] = f"Bearer {logged_in['access_token']}"

    def ask(self, method: str, url: str, document: Any = None, *, status: int = 200) -> Any:
        """Ask, and return what the answer is about."""
        told = httpx.request(method, url, json=document, headers=self.headers, timeout=PATIENCE_S)
        assert told.status_code == status, told.text
        return told.json()["data"] if told.content else None


def publish_one(users: str, posts: str, said: Callable[[], str], key: str) -> dict[str, Any]:
    """Have Ada publish a post, to whom Grace has subscribed with a key; return the post, once it
    is published."""
    ada, grace = User(users, A_USER), User(users, A_READER)
    about = {"subscription_key": key}
    grace.ask("PUT", f"{users}/api/users/me/subscription-key", about)
    grace.ask("POST", f"{users}/api/users/subscribe", {"target_user_id": ada.id}, status=204)
    slug = ada.ask("POST", f"{posts}/api/articles", A_POST, status=201)["slug"]
    ada.ask("POST", f"{posts}/api/articles/{slug}/publish", status=202)

    def published() -> Any:
        post = ada.ask("GET", f"{posts}/api/articles/{slug}")["article"]
        return post if post["status"] == "PUBLISHED" else None

    post: dict[str, Any] = until(published, said)
    return post


def pushes(address: str, key: str) -> list[dict[str, Any]]:
    """Return what the stand-in of a push service has got for a key."""
    found: list[dict[str, Any]] = httpx.get(
        f"{address}/api/v1/notifications", params={"token": key}, timeout=PATIENCE_S
    ).json()
    return found
