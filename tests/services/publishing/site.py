"""One process that serves publishing, and what authors, workers and operators ask of it.

No worker runs here: each step of a saga is taken by the call that a worker would make.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import httpx
import jwt
import pytest

import ulak
import ulak.web
from tests.conformance.stores import make_schema
from ulak import JobFilter
from ulak.auth import SERVICE, Directory
from ulak.service import Service, attach
from ulak.services.publishing import bodies, statuses
from ulak.services.publishing.articles import SCHEMA, Article, Posts
from ulak.services.publishing.dead_letters import DeadLetters
from ulak.services.publishing.keys import SCOPES
from ulak.services.publishing.queue import Queue
from ulak.services.publishing.routes import make_internal, make_public, make_ready
from ulak.services.publishing.saga import Saga
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.tasks import make_tasks
from ulak.services.publishing.users import SCHEMA as USERS
from ulak.services.publishing.users import Logins, Users
from ulak.settings import Settings
from ulak.tables import Tables

SECRET = "a-secret-of-these-tests-and-of-nothing-else"  # noqa: S105 - it guards nothing
AMPLE_S = 120
PREVIEW = "https://preview.example.com/articles/1/preview.png"
TEXTS = {"title": "A first post", "description": "What it is about", "body": "Once upon a time"}
Request = tuple[str, str, str, dict[str, Any]]
MOSTLY_SQLITE = ("sqlite", pytest.param("postgres", marks=pytest.mark.sampled))
"""For what no database decides: of these tests PostgreSQL sees a tenth, and with `--whole` all."""


def make_publishing(url: str) -> None:
    """What every database of these tests begins with."""
    if url.startswith("postgres"):
        make_schema(url)
    with ulak.connect(url) as engine:
        for schema in (SCHEMA, USERS):
            Tables(engine, schema).ensure()


def id_of(name: str) -> str:
    """The id of the user who is called so."""
    return str(uuid5(NAMESPACE_DNS, name))


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + AMPLE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)  # and leave the interpreter to those who work


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make every call on a thread of its own, all at the same time; return what each returned or
    raised."""
    barrier = threading.Barrier(len(calls))
    told: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        barrier.wait()
        try:
            told[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 - it is what was told
            told[number] = error

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


class Site:
    """The posts, the users and the queue on one database, and the application."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.settings = PublishingSettings(secret_key=SECRET, **settings)
        self.engine = ulak.connect(url)
        self.tasks = make_tasks(self.settings)
        for flow in (*self.tasks.saga, self.tasks.dlq):
            self.engine.add(flow)
        self.queue = Queue(self.engine, self.engine, self.tasks)
        self.posts = Posts(self.engine, self.queue)
        self.saga = Saga(self.posts, stuck_after=self.settings.stuck_after)
        self.dead_letters = DeadLetters(self.queue, self.saga)
        self.users = Users(self.engine, self.settings)
        clock = self.engine.store.clock
        self.logins = Logins(SECRET, self.settings.access_token_expire, clock)
        self.keys = Directory(self.engine.open().store, scopes={s: s for s in SCOPES})
        self._made: dict[tuple[str, ...], str] = {}

    def forget(self) -> None:
        """Forget the keys that were made: their database is as new."""
        self._made.clear()

    @cached_property
    def app(self) -> Any:
        """The application; many tests ask nothing over HTTP."""
        service = Service(
            "publishing", attach=lambda *_: None, routes=lambda *_: self.routes(), scopes=SCOPES
        )
        attach(service, self.engine, Settings())
        return ulak.web.app(self.engine, identity=None, services=[service], platform_routes=False)

    @cached_property
    def lines(self) -> list[tuple[Any, list[ulak.web.Access]]]:
        """The routers, each with its lines of access."""
        return [
            make_public(self.engine, self.posts, self.logins),
            make_internal(self.engine, self.saga, self.dead_letters),
            make_ready(self.posts.tables),
        ]

    def routes(self) -> ulak.web.Routes:
        return ulak.web.Routes(
            [router for router, _ in self.lines],
            [line for _, lines in self.lines for line in lines],
            envelope=bodies.envelope,
        )

    # --- credentials -----------------------------------------------------------------

    def login(self, name: str = "ada", *, secret: str = SECRET, **claims: Any) -> str:
        """Return the credential of a user, as the header has it."""
        now = int(time.time())
        said = {"sub": f"{name}@example.com", "user_id": id_of(name), "iat": now, "exp": now + 900}
        return f"Bearer {jwt.encode(said | claims, secret, algorithm='HS256')}"

    def key(self, *scopes: str) -> str:
        """Return the credential of a service key, as the header has it; without scopes of one for
        every internal call."""
        if scopes not in self._made:
            name = "-".join(["worker", *(scope.partition(":")[2] for scope in scopes)])
            made = self.keys.create_key(name, roles=[SERVICE], scopes=scopes, actor="tests")
            self._made[scopes] = f"Token {made.text}"
        return self._made[scopes]

    # --- requests --------------------------------------------------------------------

    def ask(self, method: str, path: str, credential: str = "", **options: Any) -> httpx.Response:
        return self.ask_at_once([(method, path, credential, options)])[0]

    def ask_at_once(self, requests: Iterable[Request]) -> Sequence[httpx.Response]:
        """Send every request at the same time; return the answers in order."""

        async def send() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://blog") as client:

                async def one(request: Request) -> httpx.Response:
                    method, path, credential, options = request
                    headers = {"Authorization": credential} if credential else {}
                    sent = {**options, "headers": headers | options.get("headers", {})}
                    return await client.request(method, path, **sent)

                return await asyncio.gather(*map(one, requests))

        return asyncio.run(send())

    def internal(self, post: Article, step: str, **body: Any) -> httpx.Response:
        """Make an internal call about a post, as a worker with its key does."""
        method = "PUT" if step == "preview" else "POST"
        options = {"json": body} if body else {}
        return self.ask(method, f"/internal/articles/{post.id}/{step}", self.key(), **options)

    # --- posts -------------------------------------------------------------------------

    def write(self, author: str = "ada", **texts: str) -> Article:
        return self.posts.create(id_of(author), **TEXTS | texts)

    def publish(self, post: Article, author: str = "ada") -> Article:
        return self.posts.publish(post.slug, id_of(author))

    def stand(self, status: str, author: str = "ada", **texts: str) -> Article:
        """Write a post and bring it to a status, by the steps that lead there."""
        post = self.write(author, **texts)
        if status == statuses.DRAFT:
            return post
        post = self.publish(post, author)
        if status == statuses.REJECTED:
            self.saga.reject(post.id, post.publication_id, "too short", "moderation")
        if status == statuses.ERROR:
            self.saga.fail(post.id, post.publication_id, "no preview", "preview")
        if status == statuses.PUBLISHED:
            self.saga.approve(post.id, post.publication_id, "moderation")
            self.saga.store_preview(post.id, post.publication_id, PREVIEW, "preview")
            self.saga.publish(post.id, post.publication_id, "publish")
        found = self.posts.get_by_id(post.id)
        assert found.status == status
        return found

    def jobs(self, task: str) -> list[dict[str, Any]]:
        """Return the payloads of the jobs of a task, the first first."""
        found = self.engine.jobs(JobFilter(flow=task))
        return [self.engine.inspect.payload(job.id) for job in reversed(found)]

    def tasks_of(self, post: Article) -> list[str]:
        """Return the names of the tasks that were put for a post, in the order of the saga."""
        names = (*statuses.SAGA_TASKS, statuses.NOTIFY)
        return [n for n in names for each in self.jobs(n) if each["post_id"] == post.id]
