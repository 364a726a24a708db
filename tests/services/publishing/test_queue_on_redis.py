"""The queue on a Redis that is stopped and started while sagas run: `REDIS_URL`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import reserve_port
from bench.publishing.blog import BACKEND, RELAY, Blog, Post, Stores, wait_until
from bench.zygote import Zygote
from tests.services.publishing.parts import Parts, publish_one, until
from tests.services.publishing.plays import PLAYED_ORDERS, VARIABLES
from ulak import JobFilter
from ulak.services.publishing import statuses
from ulak.testing.servers import Redis

SAGAS = 100
STOPS = 3
WAITING = JobFilter(flow=RELAY, role="busy")


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis of this test's own."""
    with Redis() as server:
        yield server


@pytest.fixture
def blog(tmp_path: Path, zygote: Zygote, redis: Redis) -> Iterator[Blog]:
    """Every part as a process of its own: posts and users in SQLite files, the queue in Redis."""
    posts, users = (f"sqlite:///{tmp_path / name}.db" for name in ("posts", "users"))
    stores = Stores(redis.url(), posts, users)
    variables = VARIABLES | {"MODERATION_APPROVE_RATE": "1"}
    with Blog(tmp_path, stores, variables=variables, zygote=zygote, orders=PLAYED_ORDERS) as opened:
        yield opened


def ready(blog: Blog) -> dict[str, Any]:
    """What the backend says of itself; it is ready in any case."""
    answer = blog.ask("GET", "/ready")
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()["data"]
    assert data["status"] == "ready"
    return data


@pytest.mark.shows("S-48", "S-28")
def test_sagas_end_though_their_redis_is_stopped_again_and_again(blog: Blog, redis: Redis) -> None:
    blog.start(*blog.names)
    assert ready(blog)["queue"] == "ready"

    def publish(number: int) -> Post:
        post = blog.write(f"Post {number}")
        blog.publish(post)  # 202, whether the queue is there or not
        return post

    with ThreadPoolExecutor(4) as authors:
        posts = list(authors.map(publish, range(SAGAS // 4)))
        for stop in range(STOPS):
            first, last = ((stop + n) * SAGAS // 4 for n in (1, 2))
            written = authors.map(publish, range(first, last))
            # By SIGKILL, and by SIGTERM as an operator would, while posts are published.
            redis.stop() if stop == 1 else redis.kill()
            posts += written
            wait_until(lambda: blog.posts_engine.jobs(WAITING), "no row waits for the queue")
            assert ready(blog)["queue"].startswith("tasks wait in the posts: the store does not")
            redis.start()
            wait_until(lambda: ready(blog)["queue"] == "ready", "the queue is not ready again")
    assert len({post.id for post in posts}) == SAGAS
    blog.wait_until_at_rest(posts)
    assert {blog.status(post) for post in posts} == {statuses.PUBLISHED}
    expected = {key for post in posts for key in blog.expected_keys(post)}
    assert set(blog.receiver.requests) == expected
    assert {row[2] for row in blog.notifications()} == {"sent"}
    assert [what for post in posts for what in blog.replay(post)] == []
    assert list(blog.engine.inspect.verify()) == []
    assert list(blog.posts_engine.inspect.verify()) == []
    # Nothing of it was silent, and no part had to be started again.
    assert "redis" in blog.log(RELAY).lower()
    assert all(blog.is_running(name) for name in blog.names)
    assert "Traceback" not in blog.log(BACKEND)


@pytest.mark.shows("S-48")
def test_up_says_where_its_queue_is_and_that_its_worker_has_lost_it(
    tmp_path: Path, zygote: Zygote, redis: Redis
) -> None:
    address = f"http://127.0.0.1:{(port := reserve_port())}"
    environ = {"REDIS_URL": redis.url(), "ULAK_SERVICE": "publishing"}
    with Parts(tmp_path, zygote, **environ, MODERATION_APPROVE_RATE="1") as parts:
        up = parts.begin(f"ulak up --lease 1s --port {port}")
        said = up.wait_for("Ctrl-C drains")
        assert "  queues    article-notifications, article-saga, dlq" in said
        assert "  store     redis " in said
        publish_one(address, address, parts.said, "a-key-of-grace")

        def readiness() -> httpx.Response:
            return httpx.get(f"{address}/health/ready")

        redis.kill()
        until(lambda: readiness().status_code == 503, parts.said)
        assert "the worker's lease of 1 s was renewed" in readiness().json()["detail"]
        # What is said again and again is said once.
        until(lambda: up.said.count("upkeep fails") == 1, parts.said)
        redis.start()
        until(lambda: readiness().status_code == 200, parts.said)
        assert up.said.count("upkeep fails") == 1
