"""Publishing in one process with everything that is real outside it: HTTP, databases, workers.

The backend is served on a port; what goes wrong between it and the workers, the test says.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uvicorn

import ulak
import ulak.web
from tests.conformance.stores import make_schema
from tests.services.publishing.site import AMPLE_S, SECRET, TEXTS, eventually
from ulak import Job, JobFilter, WorkerSettings
from ulak.auth import SERVICE, Directory
from ulak.service import Service, attach
from ulak.services.publishing import bodies, statuses
from ulak.services.publishing.articles import Article, Posts
from ulak.services.publishing.dead_letters import DeadLetters
from ulak.services.publishing.keys import SCOPES
from ulak.services.publishing.notifications import Notifications
from ulak.services.publishing.queue import RELAY_QUEUE, Queue
from ulak.services.publishing.routes import make_internal
from ulak.services.publishing.saga import Saga
from ulak.services.publishing.settings import WORKERS, PublishingSettings
from ulak.services.publishing.tasks import declare, make_tasks
from ulak.services.publishing.users import Users
from ulak.settings import Settings

FINAL = (statuses.PUBLISHED, statuses.REJECTED, statuses.ERROR)
QUICK: dict[str, Any] = {
    "retry_base": timedelta(milliseconds=5), "retry_jitter": False, "approve_rate": 1.0,
    "saga_max_retries": 3,
}  # fmt: skip
"""Settings of tests in which retries are to be over soon."""
BEFORE, LOST = "before", "lost"
"""A call is refused with 500 before it does anything; or it is done, and its answer is lost."""


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a port of this machine; return its address."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(AMPLE_S)
        bound.close()
    assert not thread.is_alive()


class Between:
    """What stands between the workers and the backend: it counts calls, and breaks them as
    `rule` says of a step such as `approve`: None, `BEFORE`, `LOST`, or a status and a code."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.rule: Callable[[str], Any] = lambda step: None
        self.calls: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        step = "read" if scope["method"] == "GET" else path.rpartition("/")[2]
        self.calls[step] += 1
        said = self.rule(step)
        if said is None:
            await self.app(scope, receive, send)
            return
        if said == LOST:

            async def lose(message: Any) -> None:
                """Tell nobody."""

            await self.app(scope, receive, lose)
        status, code = (502, "") if said in (BEFORE, LOST) else said
        body = json.dumps({"success": False, "code": code, "message": "broken by a test"}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Receiver:
    """A push service that remembers every request, and takes each."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = dict(scope["headers"])
        self.keys.append(headers[b"idempotency-key"].decode())
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


class Plant:
    """One process of publishing.

    Args:
        url: The database of the posts and the users.
        queue_url: The database of the queue, where it is another.
        settings: Those of publishing.
    """

    def __init__(self, url: str, queue_url: str | None = None, **settings: Any) -> None:
        self.url, self.queue_url = url, queue_url
        self.settings = PublishingSettings(secret_key=SECRET, **QUICK | settings)
        self.posts_engine = ulak.connect(url)
        self.engine = self.posts_engine if queue_url is None else ulak.connect(queue_url)
        self.tasks = make_tasks(self.settings)
        self.queue = Queue(self.posts_engine, self.engine, self.tasks)
        self.posts = Posts(self.posts_engine, self.queue)
        self.saga = Saga(self.posts, stuck_after=self.settings.stuck_after)
        self.users = Users(self.posts_engine, self.settings)
        self.dead_letters = DeadLetters(self.queue, self.saga)
        self.backend: Between
        self.receiver = Receiver()
        self.keys = Directory(self.posts_engine.open().store, scopes={s: s for s in SCOPES})

    def close(self) -> None:
        self.posts_engine.close()
        self.engine.close()

    # --- the parts ---------------------------------------------------------------------

    def make_backend(self) -> Between:
        """Make the backend: its internal routes alone, which is what workers call."""
        made = make_internal(self.posts_engine, self.saga, self.dead_letters)
        routes = ulak.web.Routes([made[0]], made[1], envelope=bodies.envelope)
        service = Service(
            "publishing", attach=lambda *_: None, routes=lambda *_: routes, scopes=SCOPES
        )
        attach(service, self.posts_engine, Settings())
        app = ulak.web.app(
            self.posts_engine, identity=None, services=[service], platform_routes=False
        )
        self.backend = Between(app)
        return self.backend

    def make_key(self) -> tuple[str, str]:
        """Make a service key for every call; return its id and its text."""
        made = self.keys.create_key(f"worker-{uuid4().hex[:8]}", roles=[SERVICE], actor="tests")
        return made.key.id, made.text

    def work_with(self, backend_url: str, key: str, push_url: str) -> None:
        """Declare what workers need, with the addresses of the others."""
        self.settings = replace(
            self.settings, backend_url=backend_url, push_service_url=push_url,
            internal_api_keys=dict.fromkeys(WORKERS, key),
        )  # fmt: skip
        declare(
            self.queue, self.settings, dead_letters=self.dead_letters,
            notifications=Notifications(self.users, self.settings),
        )  # fmt: skip

    @contextmanager
    def running(self, *queues: str, relay: bool = True) -> Iterator[None]:
        """Run a worker of these queues, by default of all, and the relay."""
        settings = WorkerSettings(
            queues=frozenset(queues) or None, lease=timedelta(seconds=2), drain=timedelta(seconds=9)
        )
        with ExitStack() as stack:
            stack.enter_context(self.engine.working(settings))
            if not self.queue.is_same and relay:
                stack.enter_context(self.relaying())
            yield

    @contextmanager
    def relaying(self) -> Iterator[None]:
        """Run a worker of the posts' database: the relay."""
        only = WorkerSettings(queues=frozenset({RELAY_QUEUE}), lease=timedelta(seconds=2))
        with self.posts_engine.working(only):
            yield

    # --- posts ---------------------------------------------------------------------------

    def publish(self, title: str = "A post", author: str | None = None) -> Article:
        """Write a post and ask for its publication."""
        author = author or str(uuid4())
        post = self.posts.create(author, **TEXTS | {"title": title})
        return self.posts.publish(post.slug, author)

    def find(self, post: Article) -> Article:
        return self.saga.find(post.id)

    def wait(self, *posts: Article) -> list[str]:
        """Wait until posts have their final status and nothing is under way; return it."""
        eventually(lambda: all(self.find(post).status in FINAL for post in posts))
        self.settle()
        return [self.find(post).status for post in posts]

    def settle(self) -> None:
        """Wait until nothing is under way."""
        eventually(self.is_idle)

    def is_idle(self) -> bool:
        """Tell whether nothing is under way, in two databases of which one feeds the other."""
        engines = {self.engine, self.posts_engine}
        before = self._count()
        is_busy = any(
            engine.jobs(JobFilter(role=role)) for engine in engines for role in ("ready", "busy")
        )
        return not is_busy and self._count() == before

    def _count(self) -> int:
        """Return how many jobs there are, ended ones too."""
        engines = {self.engine, self.posts_engine}
        return sum(row.jobs for engine in engines for row in engine.inspect.counts())

    def make_author(self, readers: int) -> tuple[str, set[str]]:
        """Make a user with so many subscribers; return the ids of all."""
        author, *made = (self._register() for _ in range(readers + 1))
        for reader in made:
            self.users.set_key(reader, f"push-{uuid4().hex}")
            self.users.subscribe(reader, author)
        return author, set(made)

    def _register(self) -> str:
        name = f"user{uuid4().hex[:12]}"
        values = {"email": f"{name}@example.com", "username": name, "password": uuid4().hex}
        return self.users.register(values).id

    def jobs(self, task: str) -> list[Job]:
        """Return the jobs of a task, the first first."""
        return self.engine.jobs(JobFilter(flow=task), limit=1000)[::-1]

    def letters(self) -> list[dict[str, Any]]:
        return [*self.dead_letters.list(limit=1000)]

    def moves(self, post: Article) -> list[tuple[str, str]]:
        """Return how a post moved, and why; each move must be one of the table."""
        found = self.posts.history(post.id)
        for each in found:
            assert each.cause in statuses.MOVES[each.from_status, each.to_status]
            assert each.publication_id
        return [(each.to_status, each.cause) for each in found]


@contextmanager
def planted(url: str, queue_url: str | None = None, **settings: Any) -> Iterator[Plant]:
    """Open a process of publishing, its backend and a push service for the length of a block."""
    plant = Plant(url, queue_url, **settings)
    try:
        with serving(plant.make_backend()) as backend, serving(plant.receiver) as push:
            plant.work_with(backend, plant.make_key()[1], push)
            yield plant
    finally:
        plant.close()


@contextmanager
def lend_queue(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """Lend another database of the same kind, for a queue that is not beside the posts."""
    if url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / f'queue-{uuid4().hex[:8]}.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as lent:
        yield lent


def place(plant: Plant) -> tuple[str, ...]:
    """Return where a child finds the parts of a process, as arguments of `live_worker`."""
    settings = plant.settings
    key = settings.internal_api_keys["dlq"]
    about = (settings.backend_url, key, settings.push_service_url, str(settings.saga_max_retries))
    return (plant.url, plant.queue_url or "", *about)


def open_like(url: str, queue_url: str, backend: str, key: str, push: str, retries: str) -> Plant:
    plant = Plant(url, queue_url or None, saga_max_retries=int(retries))
    plant.work_with(backend, key, push)
    return plant


def live_worker(*at: str) -> None:
    """The life of a child that works until nothing is due, unless it is killed."""
    plant = open_like(*at)
    settings = WorkerSettings(lease=timedelta(seconds=1))
    asyncio.run(plant.engine.worker(settings).run(until_idle=True))
    plant.close()


def live_relay(*at: str) -> None:
    """The life of a child that relays what is due, unless it is killed."""
    plant = open_like(*at)
    settings = WorkerSettings(lease=timedelta(seconds=1), queues=frozenset({RELAY_QUEUE}))
    asyncio.run(plant.posts_engine.worker(settings).run(until_idle=True))
    plant.close()


def live_author(slug: str, author: str, *at: str) -> None:
    """The life of a backend that takes one request to publish, unless it is killed."""
    plant = open_like(*at)
    plant.posts.publish(slug, author)
    plant.close()
