"""How long a caller waits for a store, and what a store says that would make it wait longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ulak.errors import Contended, StoreError


class StoreAway(StoreError):
    """The store cannot be reached. It may come back; it has refused nothing."""


class WouldWait(Contended):
    """Nothing was done: this verb would wait where a wait cannot be ended, and a deadline is set.

    A thread that may wait for longer can ask the same again.
    """


class _Here(threading.local):
    deadline: float | None = None


_here = _Here()


@contextmanager
def answer_by(deadline: float) -> Iterator[None]:
    """Let every verb that this thread calls in the block answer, or fail, until then.

    Args:
        deadline: A moment of the monotonic clock.
    """
    _here.deadline = deadline
    try:
        yield
    finally:
        _here.deadline = None


def get_deadline() -> float | None:
    """Return the moment of the monotonic clock until which this thread waits, if there is one."""
    return _here.deadline
