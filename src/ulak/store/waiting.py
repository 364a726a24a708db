"""How long a caller waits for a store, and what a store says that would make it wait longer."""

from __future__ import annotations

import threading

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


class WaitUntil:
    """Within the block every verb that this thread calls returns, or fails, by then.

    A class, since every submit enters one: a generator would cost it a microsecond more.

    Args:
        deadline: A moment of the monotonic clock.
    """

    __slots__ = ("_deadline",)

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def __enter__(self) -> None:
        _here.deadline = self._deadline

    def __exit__(self, *_: object) -> None:
        _here.deadline = None


def get_deadline() -> float | None:
    """Return the moment of the monotonic clock until which this thread waits, if there is one."""
    return _here.deadline
