"""What a store shares with its process: deadlines of callers, callbacks after commits, forks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

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
    """Within the block every verb that this thread calls returns, or fails, by a monotonic time.

    A class, since every submit enters one: a generator would cost it a microsecond more.
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


class Watchers:
    """Callbacks that come and go on any thread. Their calls must be quick and must not raise."""

    def __init__(self) -> None:
        self._watching: dict[object, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._watching)

    def add(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` from now on; return what ends that."""
        place = object()
        self._watching[place] = ring

        def stop() -> None:
            self._watching.pop(place, None)

        return stop

    def ring(self) -> None:
        if self._watching:
            for ring in list(self._watching.values()):
                ring()

    def clear(self) -> None:
        """Forget all of them: in a forked child nothing waits."""
        self._watching.clear()


# A fork waits no longer than this for what is being written or read. A guess: longer than any
# statement of ulak's, short enough for a program that forks inside of a transaction.
QUIET_WITHIN_S = 1.0


class Forked(Protocol):
    """Something that has connections, threads or locks."""

    def before_fork(self) -> None:
        """Let what is under way end, if it must not be cut in two."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Let go of everything that is the parent's, without a word to anybody else."""


# The kernel knows no object: this is the one list of those that a fork concerns.
_forked: dict[int, weakref.ref[Forked]] = {}


def tell_of_forks(held: Forked) -> None:
    """Call an object at every fork, for as long as it lives."""
    key = id(held)
    _forked[key] = weakref.ref(held, lambda _: _forked.pop(key, None))


def _tell(act: str) -> None:
    for held in [held for found in tuple(_forked.values()) if (held := found()) is not None]:
        getattr(held, act)()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=partial(_tell, "before_fork"),
        after_in_parent=partial(_tell, "after_fork_in_parent"),
        after_in_child=partial(_tell, "after_fork_in_child"),
    )
