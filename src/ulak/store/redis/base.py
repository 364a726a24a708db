"""What every verb stands on: a connection, the functions, the time, and rings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ulak.clock import Clock, Instant, ServerClock
from ulak.store import faults
from ulak.store.processes import Watchers, tell_of_forks
from ulak.store.redis.scripts import make_library
from ulak.store.redis.server import RedisServer, UnknownFunction
from ulak.store.redis.values import pack

# Whoever is beaten so often to what operators change would wait no longer than this for a lock.
MOST_TRIES = 100
MOST_READ = 500


class RedisBase:
    """Calls verbs of the library, by their names in the files of Lua."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._url = url
        self.clock: Clock = clock or ServerClock()
        self._server = RedisServer(url)
        self._channel = f"ulak:{self._server.database}"
        self._function, self._library = make_library()
        self._me = os.urandom(8).hex()
        self._rings: list[Callable[[], None]] = []
        self._watchers = Watchers()
        self._is_open = False
        self._is_inherited = False
        """It was open when this process was forked: its first use opens it here."""
        tell_of_forks(self)

    def open(self) -> None:
        """Be ready for use."""
        self._is_open = True

    def before_fork(self) -> None:
        """Nothing to do: a connection belongs to the thread that uses it."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        self._is_inherited, self._is_open = self._is_inherited or self._is_open, False
        self._server = RedisServer(self._url)
        self._me = os.urandom(8).hex()
        self._watchers.clear()

    def call(self, verb: str, *args: object, kind: str = "") -> Any:
        """Call a verb; `kind` names a write in `ulak.store.faults`."""
        return self.call_at(verb, *args, kind=kind)[1]

    def call_at(self, verb: str, *args: object, kind: str = "") -> tuple[Instant, Any]:
        """Call a verb and return the store's time with its answer."""
        self._must_be_open()
        points = faults.POINTS[kind] if kind else None
        given = "" if isinstance(self.clock, ServerClock) else str(self.clock.now())
        if points is not None:
            faults.point(points.before)
        packed = pack(args)
        if points is not None:
            # A call is whole: nothing is written before it is sent, everything when it is answered.
            faults.point(points.inside)
        words = (self._function, 0, verb, packed, len(args), given, self._channel, self._me)
        try:
            answered = self._server.do("FCALL", *words)
        except UnknownFunction:
            self._server.do("FUNCTION", "LOAD", "REPLACE", self._library)
            answered = self._server.do("FCALL", *words)
        now, is_due, has_moved, answer = answered
        if isinstance(self.clock, ServerClock):
            self.clock.hear(int(now))
        if points is not None:
            faults.point(points.after)
        if is_due or has_moved:
            self._ring(bool(is_due))
        return int(now), answer

    def _must_be_open(self) -> None:
        if self._is_inherited:
            self._is_inherited = False
            self.open()

    def _ring(self, is_due: bool) -> None:
        if is_due:
            for ring in tuple(self._rings):
                ring()
        self._watchers.ring()

    def do(self, *words: object) -> Any:
        """Run one command that reads."""
        return self._server.do(*words)

    def on_commit(self, ring: Callable[[], None]) -> None:
        self._rings.append(ring)
