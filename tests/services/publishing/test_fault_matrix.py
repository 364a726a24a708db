"""A process of each part is killed at every point of the saga; no post is ever stuck.

Each crash is one post on a running blog: the part is killed by SIGKILL when it passes a point, and
started again as an init system would. Then the post is final, its history is one that the table of
section 2 allows, and the receiver knows each subscriber's key exactly once. A run takes a seeded
tenth of the crashes, `--whole` takes all.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from bench.publishing.blog import GLANCE_S, Blog
from tests.services.publishing.plays import (
    APART,
    BESIDE,
    PLAYED_ORDERS,
    SHORT_PUSHES,
    VARIABLES,
    Cell,
    cells,
)

LAST_POINT_S = 10.0


@pytest.fixture
def variables() -> Mapping[str, str]:
    return VARIABLES | SHORT_PUSHES


@pytest.fixture
def orders() -> Mapping[str, Any]:
    return PLAYED_ORDERS | {"lease_s": 0.5}


class Death:
    """How a part has ended that was to be killed."""

    code: int | None = None

    @property
    def wrong(self) -> list[str]:
        if self.code is None:
            return ["the point was not passed"]
        return [] if self.code == -signal.SIGKILL else [f"it ended with {self.code}"]


@contextmanager
def restarted(blog: Blog, name: str) -> Iterator[Death]:
    """Start a part again as soon as it has ended, once, for the length of a block."""
    death, over = Death(), threading.Event()

    def watch() -> None:
        while not over.wait(GLANCE_S):
            if not blog.is_running(name):
                death.code = blog.forget(name)
                blog.start(name)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield death
        # The last point of all is passed when the play is over already.
        thread.join(LAST_POINT_S)
    finally:
        over.set()
        thread.join()


def crash(blog: Blog, cell: Cell) -> list[str]:
    """Act one play while a part is killed; return what is wrong in the end."""
    blog.arm(cell.part, cell.point, cell.nth)
    with restarted(blog, cell.part) as death:
        played = cell.act(blog)
    wrong = [*death.wrong, *played.wrong(crashed=True)]
    if death.code is None:
        # It would die in a later play.
        blog.stop(cell.part, signal.SIGKILL)
        blog.start(cell.part)
    return [f"{cell}: {what}" for what in wrong]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("way", [BESIDE, APART])
@pytest.mark.shows("S-14", "S-19", "S-39")
def test_no_post_is_stuck_wherever_a_process_is_killed(
    blog: Blog,
    way: str,
    store: str,
    sized: Callable[[int, int], int],
    request: pytest.FixtureRequest,
) -> None:
    every = cells(way)
    seed = request.config.option.sample_seed
    drawn = random.Random(f"{seed} {way} {store}").sample(  # noqa: S311 - a draw to repeat
        every, sized(len(every), len(every) // 10)
    )
    blog.start(*blog.names)
    wrong = [what for cell in drawn for what in crash(blog, cell)]
    assert not wrong, "\n".join(wrong)
    assert list(blog.engine.inspect.verify()) == []
    assert list(blog.posts_engine.inspect.verify()) == []
