"""Sagas a second against plain requests, and how long a publication takes on an idle system.

Every part is a process of its own, on one database. R is how many requests a second the backend
answers that write one row, a comment, with the same client and as many connections; c is how many
calls a saga makes, counted by the backend and by the receiver. A blog that did nothing but answer
these calls would publish R/c posts a second.
"""

from __future__ import annotations

import itertools
import json
import pstats
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from bench import postgres
from bench.measure import Figure, alternate, scratch
from bench.publishing.blog import BACKEND, RELAY, WORKERS, Blog, Post, Stores, processor_s
from bench.served import CONNECTIONS, Place
from ulak.auth import ADMIN, Directory
from ulak.services.publishing import statuses

OF_REQUESTS: Final = 0.35
WITHIN_MS: Final = 300.0
RELAYED_WITHIN_MS: Final = 200.0
COMMENTS: Final = 30 * CONNECTIONS
SAGAS: Final = 5 * CONNECTIONS
ROUNDS: Final = 5
LONE: Final = 60
SHOWN: Final = 18

VARIABLES: Final = {"MODERATION_APPROVE_RATE": "1"}


class Press:
    """A running blog whose workers call the backend directly, and one client of it."""

    def __init__(self, blog: Blog) -> None:
        self.blog = blog
        parts = urlsplit(blog.address(BACKEND))
        unused: subprocess.Popen[str] = None  # type: ignore[assignment] # it is asked over HTTP alone
        self._place = Place(str(parts.hostname), parts.port or 0, blog.token, unused)
        made = Directory(blog.posts_engine.store).create_key("bench", roles=[ADMIN], actor="bench")
        self._metrics_key = made.text
        self._titles = itertools.count(1)

    def write(self, how_many: int) -> list[Post]:
        """Write drafts."""
        return [self.blog.write(f"post {next(self._titles)}") for _ in range(how_many)]

    def comment_rate(self, post: Post, comments: int) -> float:
        """Comments a second on a published post."""
        body = json.dumps({"body": "Well said"}).encode()
        request = self._place.post(f"/api/articles/{post.slug}/comments", body)
        return self._place.rate(comments, lambda: request, _is_created)

    def saga_rate(self, posts: list[Post]) -> float:
        """Sagas a second, from the first request until the last subscriber was told."""
        before = len(self.blog.receiver.requests)
        requests = iter(
            [self._place.post(f"/api/articles/{post.slug}/publish", b"") for post in posts]
        )
        began = time.perf_counter()
        self._place.rate(len(posts), lambda: next(requests), _is_accepted)
        told = before + len(posts) * len(self.blog.subscribers)
        self.blog.receiver.wait_for(told, timeout_s=300)
        return len(posts) / (time.perf_counter() - began)

    def calls(self) -> int:
        """How many requests the backend and the receiver have answered, by their own counts."""
        answer = self.blog.ask("GET", "/metrics", f"Bearer {self._metrics_key}")
        assert answer.is_success, answer.text
        lines = [
            line for line in answer.text.splitlines() if line.startswith("ulak_requests_total")
        ]
        # These two are asked by nobody but us.
        ours = ("/metrics", "/health")
        counted = [line for line in lines if not any(f'route="{path}' in line for path in ours)]
        at_backend = sum(float(line.rsplit(" ", 1)[1]) for line in counted)
        return int(at_backend) + sum(self.blog.receiver.requests.values())

    def calls_of_a_saga(self, posts: list[Post]) -> float:
        """Count the calls of some sagas, the author's own included."""
        before = self.calls()
        self.saga_rate(posts)
        self.blog.wait_until_at_rest(posts)
        return (self.calls() - before) / len(posts)

    def delays_ms(self, posts: list[Post]) -> list[float]:
        """How long each of these posts takes from the request until a reader sees it published,
        one after the other."""
        headers = {"Authorization": f"Bearer {self.blog.token}"}
        taken = []
        with httpx.Client(base_url=self.blog.address(BACKEND), headers=headers) as client:
            for post in posts:
                path = f"/api/articles/{post.slug}"
                began = time.perf_counter()
                assert client.post(f"{path}/publish").status_code == 202
                while _status_in(client.get(path)) != statuses.PUBLISHED:
                    time.sleep(0.004)
                taken.append((time.perf_counter() - began) * 1000)
                self.blog.wait_until_at_rest([post])
        return taken


def _status_in(answer: httpx.Response) -> str:
    return str(answer.json()["data"]["article"]["status"])


def _is_created(head: bytes, _: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 201")


def _is_accepted(head: bytes, _: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 202")


@contextmanager
def pressing(url: str, **options: Any) -> Iterator[Press]:
    """Run a blog on one database for as long as the block lasts; one post is published. The
    options are those of an order of a zygote; `profiles` is a folder."""
    profiles: Path | None = options.pop("profiles", None)
    with scratch() as folder, Blog(folder, Stores(url), variables=VARIABLES, subscribers=1) as blog:
        blog.direct()
        for name in blog.names:
            more = {} if profiles is None else {"profile": str(profiles / f"{name}.profile")}
            blog.start(name, **more, **options)
        yield Press(blog)
        if profiles is not None:
            for name in blog.names:
                blog.stop(name)


def publishing_figures(sagas: int = SAGAS) -> list[Figure]:
    """On SQLite."""
    with scratch() as folder:
        return _figures("SQLite FULL", f"sqlite:///{folder / 'blog.db'}", sagas, "publishing")


def postgres_publishing_figures(sagas: int = SAGAS) -> list[Figure]:
    """On PostgreSQL."""
    with postgres.durable() as server:
        return _figures("PostgreSQL", server.fresh(), sagas, "postgres-publishing")


def relay_figures() -> list[Figure]:
    """How soon a task is in the queue that another database has, from the commit of its post."""
    with scratch() as folder:
        figures = [_relay_figure("SQLite FULL", Stores(*_files(folder)))]
    with postgres.durable() as server:
        figures.append(_relay_figure("PostgreSQL", Stores(server.fresh(), server.fresh())))
    return figures


def _files(folder: Path) -> Iterator[str]:
    return (f"sqlite:///{folder / name}.db" for name in ("queue", "posts"))


def _relay_figure(name: str, stores: Stores) -> Figure:
    with scratch() as folder, Blog(folder, stores, variables=VARIABLES, subscribers=0) as blog:
        blog.direct()
        blog.start(BACKEND, RELAY)
        posts = [blog.write(f"post {n}") for n in range(LONE)]
        headers = {"Authorization": f"Bearer {blog.token}"}
        taken = []
        with httpx.Client(base_url=blog.address(BACKEND), headers=headers) as client:
            for known, post in enumerate(posts):
                # Its answer is sent once the post and the row are committed.
                assert client.post(f"/api/articles/{post.slug}/publish").status_code == 202
                committed = time.perf_counter()
                while _tasks_in(blog) == known:
                    time.sleep(0.002)
                taken.append((time.perf_counter() - committed) * 1000)
    p95 = statistics.quantiles(taken, n=20)[-1]
    return Figure(
        f"from commit to queue, each in a database of its own, {name}, p95",
        f"<= {RELAYED_WITHIN_MS:g} ms",
        f"{p95:.0f} ms (p50 {statistics.median(taken):.0f} ms)", p95 <= RELAYED_WITHIN_MS,
        "python -m bench.figures relay",
    )  # fmt: skip


def _tasks_in(blog: Blog) -> int:
    return sum(
        count.jobs for count in blog.engine.inspect.counts() if count.flow == statuses.MODERATE
    )


def _figures(name: str, url: str, sagas: int, figure: str) -> list[Figure]:
    with pressing(url) as press:
        first, *warm = press.write(1 + CONNECTIONS)
        press.delays_ms([first])
        press.saga_rate(warm)
        press.comment_rate(first, CONNECTIONS * 10)
        calls = press.calls_of_a_saga(press.write(CONNECTIONS))
        # Drafts are written between the rounds, and not while one is measured.
        drafts = iter([press.write(sagas) for _ in range(ROUNDS)])
        requests, published = alternate(
            lambda: press.comment_rate(first, COMMENTS),
            lambda: press.saga_rate(next(drafts)),
            rounds=ROUNDS,
        )
        press.blog.wait_until_at_rest([])
        delays = press.delays_ms(press.write(LONE))
    ratio = published * calls / requests
    p95 = statistics.quantiles(delays, n=20)[-1]
    command = f"python -m bench.figures {figure}"
    return [
        Figure(
            f"sagas/s, {name}, of R/c: R requests/s that write one row, c calls of a saga",
            f">= {OF_REQUESTS}",
            f"{ratio:.2f} ({published:,.0f} sagas/s; R = {requests:,.0f}, c = {calls:.2f})",
            ratio >= OF_REQUESTS, command,
        ),
        Figure(
            f"from publish to PUBLISHED on an idle system, {name}, p95", f"<= {WITHIN_MS:g} ms",
            f"{p95:.0f} ms (p50 {statistics.median(delays):.0f} ms)", p95 <= WITHIN_MS, command,
        ),
    ]  # fmt: skip


# --- where the time goes ---------------------------------------------------------------


def print_profile(url: str, other_url: str, sagas: int) -> None:
    """Print the processor time of each part for a saga, and then, of another run, the functions in
    which each part spent it."""
    with pressing(url) as press:
        press.saga_rate(press.write(CONNECTIONS))
        posts = press.write(sagas)
        before = _spent(press.blog)
        rate = press.saga_rate(posts)
        after = _spent(press.blog)
    print(f"{rate:,.0f} sagas/s; processor time of a saga:")
    for name, spent in after.items():
        print(f"  {name:12} {(spent - before[name]) / sagas * 1000:6.2f} ms")
    with scratch() as folder:
        with pressing(other_url, profiles=folder) as press:
            press.saga_rate(press.write(sagas))
        for path in sorted(folder.glob("*.profile")):
            print(f"\n{path.stem}, by its own time")
            stats = pstats.Stats(str(path))
            stats.sort_stats("tottime").print_stats(SHOWN)


def _spent(blog: Blog) -> Mapping[str, float]:
    return {name: processor_s(blog.pid(name)) for name in (BACKEND, *WORKERS)}
