"""Users and subscribers of a blog in a real database, and receivers of pushes over real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any, NamedTuple

import psycopg

from ulak import RetryLater
from ulak.clock import Clock, ManualClock
from ulak.engine.engine import Engine
from ulak.services.publishing.notifications import Notifications
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.users import Users
from ulak.wiring import store_of

SECRET = "a-secret-of-these-tests-and-of-nothing-else"  # noqa: S105 - it guards nothing
ANOTHER_SECRET = "another-secret-of-these-tests-and-of-nobody"  # noqa: S105 - it guards nothing
AUTHOR = "author-1"
ARTICLE = {"id": "article-1", "author_id": AUTHOR, "title": "Первая запись в блоге"}
AMPLE_S = 60.0
# What a receiver does instead of answering with a status.
HANGS = 0
DROPS = -1

WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
ADD_USER = """
    INSERT INTO {schema}.publishing_users (
        id, email, email_key, username, password_hash, subscription_key, is_active, created_at,
        updated_at
    ) VALUES (?, ?, ?, ?, 'none', ?, 1, ?, ?)
"""
SUBSCRIBE = """
    INSERT INTO {schema}.publishing_subscribers (author_id, subscriber_id, created_at)
    VALUES (?, ?, ?)
"""
ROWS = """
    SELECT subscriber_id, status, attempts FROM {schema}.publishing_notifications
    WHERE article_id = ? ORDER BY subscriber_id
"""


class Blog:
    """One process on a store of users, with a clock that is turned by hand."""

    def __init__(
        self, url: str, push_url: str = "http://127.0.0.1:9/api/v1/notify",
        *, clock: Clock | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.url = url
        self.clock = ManualClock() if clock is None else clock
        self.engine = Engine(store_of(url, clock=self.clock))
        usual: dict[str, Any] = {
            "secret_key": SECRET, "push_service_url": push_url, "push_timeout_s": AMPLE_S,
            "retry_jitter": False,
        }  # fmt: skip
        self.settings = PublishingSettings(**usual | settings)
        self.users = Users(self.engine, self.settings)
        self.notifications = Notifications(self.users, self.settings)

    def close(self) -> None:
        self.engine.close()

    def add(self, *names: str, has_key: bool = True) -> None:
        """Make users who subscribe to the author; the push service knows each by `key_of`."""
        now = self.clock.now()
        with self.users.tables.writing() as connection:
            for name in names:
                sealed = self.users.seal.seal(key_of(name))
                email, key = f"{name}@example.com", sealed if has_key else None
                self.users.tables.execute(
                    connection, ADD_USER, name, email, email, name, key, now, now
                )
                self.users.tables.execute(connection, SUBSCRIBE, AUTHOR, name, now)

    def run(self, **options: Any) -> RetryLater | None:
        """Run the task once, as a worker would."""
        return asyncio.run(self.notifications.run(ARTICLE, **options))

    def finish(self) -> int:
        """Run the task until nothing is open, turning the clock; return how many runs it took."""
        for runs in range(1, 30):
            again = self.run(attempt=runs)
            if again is None:
                return runs
            self.clock.advance(again.after)
        raise AssertionError("it never ended")

    def rows(self) -> dict[str, tuple[str, int]]:
        """Return status and attempts of each delivery, by its subscriber."""
        found = self.users.tables.read(ROWS, ARTICLE["id"])
        return {id: (status, attempts) for id, status, attempts in found}

    def statuses(self) -> dict[str, str]:
        return {id: status for id, (status, _) in self.rows().items()}


def work(url: str, push_url: str, concurrency: str = "5") -> None:
    """The life of a child that runs the task once, unless it is killed."""
    blog = Blog(url, push_url, notify_concurrency=int(concurrency))
    blog.run()
    blog.close()


def wait_for_a_lock(url: str) -> None:
    """Wait until somebody waits for a lock of this PostgreSQL database."""
    give_up = monotonic() + AMPLE_S
    with psycopg.connect(url, autocommit=True) as db:
        while not db.execute(WAITING).fetchone()[0]:
            assert monotonic() < give_up, "nobody waits for it"
            sleep(0.005)


def key_of(name: str) -> str:
    return f"subscription-key-of-{name}"


class Push(NamedTuple):
    """One request, as it came."""

    name: str
    """Whose key it brought."""
    idempotency_key: str
    message: Any


class Server(ThreadingHTTPServer):
    """Takes as many connections at once as come: the usual five would reset some."""

    request_queue_size = 128
    daemon_threads = True


class Receiver:
    """A push service that does for each subscriber what its script says, and then answers 201.

    Args:
        script: By the names of subscribers, in turn: a status, a status and its `Retry-After`,
            `HANGS` (no answer until `let_go`), or `DROPS` (the connection is closed).
        hold: So many pushes must be there at once before the first of them is answered.
    """

    def __init__(self, script: dict[str, list[Any]] | None = None, *, hold: int = 0) -> None:
        self.pushes: list[Push] = []
        self.most_at_once = 0
        self._script = {name: list(answers) for name, answers in (script or {}).items()}
        self._hold = hold
        self._at_once = 0
        self._changed = threading.Condition()
        self._may_go = False
        self._server = Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/api/v1/notify"

    def told(self) -> list[str]:
        """Return whose pushes came, in order."""
        return [push.name for push in self.pushes]

    def wait_for(self, number: int) -> None:
        """Wait until so many pushes have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.pushes) >= number, AMPLE_S)

    def let_go(self) -> None:
        """Answer what hangs."""
        with self._changed:
            self._may_go = True
            self._changed.notify_all()

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, push: Push) -> Any:
        with self._changed:
            self.pushes.append(push)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
            script = self._script.get(push.name)
            answer = script.pop(0) if script else 201
            if self._hold and len(self.pushes) <= self._hold:
                self._changed.wait_for(lambda: len(self.pushes) >= self._hold, AMPLE_S)
            if answer == HANGS:
                self._changed.wait_for(lambda: self._may_go, AMPLE_S)
                answer = 201
            self._at_once -= 1
        return answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                scheme, _, key = self.headers["Authorization"].partition(" ")
                assert scheme == "Bearer"
                name = key.removeprefix("subscription-key-of-")
                message = json.loads(body)["message"]
                answer = receiver._take(Push(name, self.headers["Idempotency-Key"], message))
                if answer == DROPS:
                    self.close_connection = True
                    return
                status, *after = answer if isinstance(answer, Sequence) else (answer,)
                self.send_response(status)
                for seconds in after:
                    self.send_header("Retry-After", str(seconds))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def receiving(script: dict[str, list[Any]] | None = None, **options: Any) -> Iterator[Receiver]:
    receiver = Receiver(script, **options)
    try:
        yield receiver
    finally:
        receiver.close()
