"""A whole blog: every part of publishing as a process of its own, real databases, a real receiver.

The parts are those of `ulak publishing PART`. A door stands before the backend and another one
before the receiver; workers call through them.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

import ulak
from bench.ports import reserve_port
from bench.publishing.doors import Door, Receiver, forward_to
from bench.zygote import Zygote
from ulak.auth import SERVICE, Directory
from ulak.service import attach
from ulak.services.publishing import service, statuses
from ulak.services.publishing.keys import SCOPES
from ulak.settings import Settings

BACKEND, USERS_API, RELAY = "backend", "users-api", "relay"
SAGA_WORKER, WORKER, DLQ_WORKER = "saga-worker", "worker", "dlq-worker"
SERVERS: Final = (BACKEND, USERS_API)
WORKERS: Final = (SAGA_WORKER, WORKER, DLQ_WORKER)

SCOPES_OF: Final[Mapping[str, Sequence[str]]] = {
    "moderation": ("read", "approve", "reject"),
    "preview": ("read", "preview"),
    "publish": ("read", "publish"),
    "dlq": ("read", "reject", "publish", "error", "dlq"),
}
"""What the key of each worker is for, and no more."""
SECRET: Final = "the-secret-of-a-blog-that-is-there-for-a-test"  # noqa: S105 - it guards nothing
PASSWORD: Final = "correct-horse-battery-staple"  # noqa: S105 - of nobody
NOTIFY: Final = "/api/v1/notify"
FINAL: Final = (statuses.PUBLISHED, statuses.REJECTED, statuses.ERROR)
LIVE: Final = frozenset({"ready", "busy", "waiting", "held", "undoing"})
PATIENCE_S: Final = 120.0
GLANCE_S: Final = 0.01
# A look at every post and queue takes a good part of a shorter time, from those who work.
REST_GLANCE_S: Final = 0.04
READY: Final = "Ctrl-C drains"
"""Said by a part once it serves, or works."""
_ROWS: Final = (
    "SELECT article_id, subscriber_id, status, attempts FROM {schema}.publishing_notifications"
)


@dataclass(frozen=True, slots=True)
class Stores:
    """Where everything is. Without `posts` the posts are beside the queue, which may be in Redis
    where they are not; without `users` the users are beside the posts."""

    queue: str
    posts: str = ""
    users: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that say so."""
        said = {
            "REDIS_URL" if self.queue.startswith("redis") else "ULAK_STORE": self.queue,
            "DATABASE_URL": self.posts,
            "USERS_DATABASE_URL": self.users,
        }
        return {name: url for name, url in said.items() if url}

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.queue, self.posts, self.users)))


@dataclass(frozen=True, slots=True)
class Post:
    """A post of the author of this blog."""

    id: str
    slug: str


@dataclass(slots=True)
class Part:
    """A process that runs a part."""

    name: str
    pid: int
    log: Path
    has_ended: bool = field(default=False)


class Blog:
    """The parts of publishing, an author and the author's subscribers. Where the queue is apart
    from the posts the relay is a process of its own, and not in the backend.

    Args:
        folder: Of the logs, and of what the parts keep.
        stores: Where everything is; the databases exist.
        variables: Settings by their names in section 12, over those of this class.
        subscribers: How many subscribe to the author.
        zygote: What forks the parts; by default one of its own.
        orders: What every order to it has besides.
    """

    def __init__(
        self,
        folder: Path,
        stores: Stores,
        *,
        variables: Mapping[str, str] | None = None,
        subscribers: int = 2,
        zygote: Zygote | None = None,
        orders: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.stores = stores
        self.is_apart = bool(stores.posts)
        self.receiver = Receiver()
        self._ports = {name: reserve_port() for name in SERVERS}
        self.to_backend = Door(forward_to(self.address(BACKEND)))
        self.to_receiver = Door(self.receiver)
        self._parts: dict[str, Part] = {}
        self._logs: Counter[str] = Counter()
        self._stack = ExitStack()
        self._variables = dict(variables or {})
        self._how_many = subscribers
        self._lent = zygote
        self._orders = dict(orders or {})
        self.keys: dict[str, str] = {}
        self.author = self.token = ""
        self.subscription_keys: list[str] = []
        self.subscribers: list[str] = []
        (folder / "logs").mkdir(parents=True, exist_ok=True)

    # --- its life ------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for door in (self.to_backend, self.to_receiver):
                door.open()
                stack.callback(door.close)
            self.zygote = self._lent or Zygote()
            if self._lent is None:
                stack.callback(self.zygote.close)
            stack.callback(self._kill_all)
            self._connect(stack)
            self._make_keys()
            self._invite()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.close()

    def _connect(self, stack: ExitStack) -> None:
        """Look at the same databases from this process; it serves and works nothing."""
        with _environ(self.environ(BACKEND)):
            self.engine = ulak.connect(self.stores.queue)
            attach(service, self.engine, Settings(data=self.folder / "data"))
        _, self.publishing = self.engine.kernel.attached["publishing"]
        for engine in dict.fromkeys((self.engine, self.posts_engine, self.users_engine)):
            stack.enter_context(engine)

    def _make_keys(self) -> None:
        directory = Directory(self.posts_engine.store, scopes={s: s for s in SCOPES})
        for name, words in SCOPES_OF.items():
            scopes = [f"publishing:{word}" for word in words]
            made = directory.create_key(name, roles=[SERVICE], scopes=scopes, actor="bench")
            self.keys[name] = made.text

    def _invite(self) -> None:
        """Register an author, and those who subscribe."""
        users = self.publishing.users
        self.author, self.token = self.register("author")
        for n in range(self._how_many):
            reader, _ = self.register(f"reader{n}")
            key = f"subscription-key-of-reader-{n}-{os.urandom(8).hex()}"
            users.set_key(reader, key)
            users.subscribe(reader, self.author)
            self.subscription_keys.append(key)
            self.subscribers.append(reader)

    def register(self, name: str) -> tuple[str, str]:
        """Make a user; return the id and a token, as a login does."""
        values = {"email": f"{name}@example.com", "password": PASSWORD, "username": name}
        user = self.publishing.users.register(values)
        return user.id, self.publishing.logins.make(user.id, user.email)

    def direct(self) -> None:
        """Have parts that are started from now on call the backend without a door between."""
        self._variables["BACKEND_URL"] = self.address(BACKEND)

    # --- its parts -----------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parts that this blog consists of, the stand-in of the receiver apart."""
        return (BACKEND, *WORKERS, *([RELAY] if self.is_apart else []))

    @property
    def posts_engine(self) -> ulak.Engine:
        found: ulak.Engine = self.publishing.posts_engine
        return found

    @property
    def users_engine(self) -> ulak.Engine:
        found: ulak.Engine = self.publishing.users_engine
        return found

    def address(self, server: str) -> str:
        """Return the address of a part that serves."""
        return f"http://127.0.0.1:{self._ports[server]}"

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment of a part."""
        keys = {f"INTERNAL_API_KEY_{key.upper()}": text for key, text in self.keys.items()}
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept,
            **self.stores.environ,
            **keys,
            "ULAK_SERVICE": "publishing",
            "ULAK_DATA": str(self.folder / "data"),
            "ULAK_PORT": str(self._ports.get(name, 0)),
            "SECRET_KEY": SECRET,
            "ACCESS_TOKEN_EXPIRE_MINUTES": "600",
            "BACKEND_URL": self.to_backend.url,
            "PUSH_SERVICE_URL": self.to_receiver.url + NOTIFY,
            **self._variables,
        }

    def start(self, *names: str, **options: Any) -> None:
        """Start parts, all of them at once, and wait until they serve or work. The options are
        those of an order of a zygote; `PART` in a path is the name of each part."""
        begun = [self._begin(name, options) for name in names]
        for part in begun:
            self._wait_until_ready(part)

    def _begin(self, name: str, options: Mapping[str, Any]) -> Part:
        self._logs[name] += 1
        log = self.folder / "logs" / f"{name}-{self._logs[name]}.log"
        pid = self.zygote.fork(
            {
                "command": ["publishing", name],
                "environ": self.environ(name),
                "folder": str(self.folder),
                "log": str(log),
                "serves_only": name == BACKEND and self.is_apart,
                "arms": str(self._arms(name)),
                **self._orders,
                **{key: _for_part(value, name) for key, value in options.items()},
            }
        )
        self._parts[name] = part = Part(name, pid, log)
        return part

    def _wait_until_ready(self, part: Part) -> None:
        def is_ready() -> bool:
            if not is_alive(part.pid):
                return True  # killed on its way, or it could not start: `end` tells
            return part.log.exists() and READY in part.log.read_text()

        wait_until(is_ready, f"{part.name} did not start", part.log.read_text)
        if part.name in SERVERS:
            wait_until(lambda: self._answers(part), f"{part.name} does not answer")

    def _answers(self, part: Part) -> bool:
        try:
            return httpx.get(self.address(part.name) + "/health").is_success
        except httpx.TransportError:
            return not is_alive(part.pid)

    def arm(self, name: str, point: str, nth: int = 1) -> None:
        """Have a part be killed when it passes a point, for the nth time from now on."""
        self._arms(name).write_text(f"{point} {nth}")
        os.kill(self._parts[name].pid, signal.SIGUSR1)
        wait_until(lambda: not self._arms(name).exists(), f"{name} is not armed")

    def _arms(self, name: str) -> Path:
        return self.folder / f"{name}.arms"

    def stop(self, name: str, how: int = signal.SIGTERM) -> int:
        """End a part, and return its exit code."""
        part = self._parts.pop(name)
        os.kill(part.pid, how)
        return self._reap(part)

    def is_running(self, name: str) -> bool:
        """Tell whether the process of a part has not ended."""
        return is_alive(self._parts[name].pid)

    def pid(self, name: str) -> int:
        return self._parts[name].pid

    def log(self, name: str) -> str:
        """Return what the present process of a part has written."""
        return self._parts[name].log.read_text()

    def forget(self, name: str) -> int:
        """Return the exit code of a part that has ended by itself."""
        return self._reap(self._parts.pop(name))

    def _reap(self, part: Part) -> int:
        wait_until(lambda: not is_alive(part.pid), f"{part.name} does not end", part.log.read_text)
        return self.zygote.reap(part.pid)

    def _kill_all(self) -> None:
        for name in list(self._parts):
            self.stop(name, signal.SIGKILL)

    # --- its author ----------------------------------------------------------------

    def ask(
        self, method: str, path: str, credential: str = "", *, at: str = BACKEND, **options: Any
    ) -> httpx.Response:
        """Ask a part that serves, by default the backend and as the author; again for as long as
        it is away, or asks for that itself."""
        options.setdefault("headers", {"Authorization": credential or f"Bearer {self.token}"})
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with httpx.Client(base_url=self.address(at), timeout=PATIENCE_S) as client:
                    answer = client.request(method, path, **options)
                if answer.status_code != 503 or time.monotonic() >= deadline:
                    return answer
            except httpx.TransportError:
                assert time.monotonic() < deadline, f"{method} {path}: the backend is away"
            time.sleep(GLANCE_S)

    def write(self, title: str) -> Post:
        """Write a draft."""
        texts = {"title": title, "description": "What it is about", "body": "Once upon a time"}
        answer = self.ask("POST", "/api/articles", json=texts)
        assert answer.status_code == 201, answer.text
        article = answer.json()["data"]["article"]
        return Post(article["id"], article["slug"])

    def publish(self, post: Post) -> None:
        """Ask for a publication. Where the answer is lost it is asked again, and refused then."""
        answer = self.ask("POST", f"/api/articles/{post.slug}/publish")
        is_done = answer.status_code == 202 or answer.json()["code"] == "invalid_status"
        assert is_done, answer.text

    # --- how it stands -------------------------------------------------------------

    def status(self, post: Post) -> str:
        """Return the status of a post."""
        return str(self.publishing.posts.get_by_id(post.id).status)

    def notifications(self) -> list[tuple[str, str, str, int]]:
        """Return article, subscriber, status and attempts of every delivery."""
        rows: list[tuple[str, str, str, int]] = self.publishing.users.tables.read(_ROWS)
        return rows

    def is_at_rest(self) -> bool:
        """Tell whether no task is under way, nor on its way to the queue."""
        flows = {"relay", "dlq", *self._task_names}
        # What has left the posts when they are looked at is in the queue by then.
        engines = dict.fromkeys((self.posts_engine, self.engine))
        counts = [count for engine in engines for count in engine.inspect.counts()]
        return not any(c.jobs for c in counts if c.flow in flows and c.role in LIVE)

    @property
    def _task_names(self) -> Sequence[str]:
        return [flow.name for flow in self.publishing.posts.queue.tasks.saga]

    def wait_until_at_rest(self, posts: Sequence[Post], timeout_s: float = PATIENCE_S) -> None:
        """Wait until every one of these posts is final and nothing is under way."""

        def is_over() -> bool:
            return all(self.status(post) in FINAL for post in posts) and self.is_at_rest()

        def say() -> str:
            found = Counter(self.status(post) for post in posts)
            return f"{dict(found)}; {[str(c) for c in self.engine.inspect.counts()]}"

        why = "some posts are not final, or tasks are under way"
        wait_until(is_over, why, say, timeout_s, glance_s=REST_GLANCE_S)

    def replay(self, post: Post) -> list[str]:
        """Return what is wrong with the history of a post, by the table of section 2."""
        wrong = []
        stands = statuses.DRAFT
        for moved in self.publishing.posts.history(post.id):
            if moved.from_status != stands:
                wrong.append(f"{moved}: it stood in {stands}")
            if moved.cause not in statuses.MOVES.get((moved.from_status, moved.to_status), ()):
                wrong.append(f"{moved}: no such move")
            if not moved.publication_id or not moved.actor:
                wrong.append(f"{moved}: nobody did it, or for no publication")
            stands = moved.to_status
        if stands != self.status(post):
            wrong.append(f"it is {self.status(post)}, and its history ends with {stands}")
        return wrong

    def keys_of(self, post: Post) -> Counter[str]:
        """Return how often each key of a post came to the receiver."""
        came = self.receiver.requests
        return Counter({k: n for k, n in came.items() if k.startswith(f"{post.id}:")})

    def expected_keys(self, post: Post) -> set[str]:
        """Return the keys that come to the receiver once the post is published."""
        return {f"{post.id}:{subscriber}" for subscriber in self.subscribers}


# --- what others need too ------------------------------------------------------------


def wait_until(
    holds: Callable[[], object],
    what: str,
    say: Callable[[], str] = str,
    timeout_s: float = PATIENCE_S,
    *,
    glance_s: float = GLANCE_S,
) -> None:
    """Wait until something holds. Raises `AssertionError`: it did not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: {say()}"
        time.sleep(glance_s)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def processor_s(pid: int) -> float:
    """Return how many seconds of processor time a process has used."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def _for_part(option: Any, name: str) -> Any:
    return option.replace("PART", name) if isinstance(option, str) else option


@contextmanager
def _environ(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
