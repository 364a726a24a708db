"""Fork: what a process has open belongs to it, and a child begins with nothing of its parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

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


def _everybody() -> list[Forked]:
    return [held for found in tuple(_forked.values()) if (held := found()) is not None]


def _before() -> None:
    for held in _everybody():
        held.before_fork()


def _in_parent() -> None:
    for held in _everybody():
        held.after_fork_in_parent()


def _in_child() -> None:
    for held in _everybody():
        held.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
