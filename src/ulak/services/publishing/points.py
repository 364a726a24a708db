"""Points before and after every step of the saga, at which a test may kill the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from ulak.kit import FaultPoint


@contextmanager
def step(name: str) -> Iterator[None]:
    """Pass the point before a step, and the point after it if it succeeds:

        with step("relay.send"):
            await engine.aio.submit(...)

    Each await, HTTP call, submit and transaction of the saga stands in such a block; a test reads
    the sources for that.
    """
    before, after = points(name)
    before()
    yield
    after()


@cache
def points(name: str) -> tuple[FaultPoint, FaultPoint]:
    """Return the points before and after a step."""
    return FaultPoint(f"publishing.{name}.before"), FaultPoint(f"publishing.{name}.after")
