"""The ring between processes: a notification after a commit, and none when it would be too many.

NOTIFY inside a transaction that writes takes a lock that every other such commit waits for. So it
is a transaction of its own, sent along with the commit that comes before it; when the last ring is
too young for that, the listener sends it a moment later. A ring that is lost costs a little time,
since workers look by themselves too. Behind a pooler that hands a connection to another client
after each transaction nothing can be listened to: there the listener looks instead.

A notification is the name of its sender: a job may have become due. A word after it says something
else. A process in which a job is waited for sends `waits`, at once and every second; for a while
then the others send `moved` after commits that make no job due, and nothing otherwise.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from ulak.errors import StoreError
from ulak.store.postgres.pipeline import exchange
from ulak.store.postgres.timeouts import TimedConnection
from ulak.store.processes import Watchers

if TYPE_CHECKING:
    from ulak.store.postgres.connections import Connections

log = logging.getLogger("ulak.postgres")

CHANNEL = "ulak"
# What follows the name in a notification. Earlier releases take no notice of words.
TEST, WAITS, MOVED = "test", "waits", "moved"
# Two rings within this time are one.
QUIET_S = 0.005
TEST_EVERY_S = 30.0
TEST_PATIENCE_S = 2.0
# How often a listener that cannot listen looks whether somebody has committed.
GLANCE_S = 0.1
RECONNECT_S = 0.5
# How often a process that waits says so, and for how long the others believe it.
WAITS_EVERY_S = 1.0
BELIEVED_FOR_S = 3.0
BEGIN_WITHIN_S = 5.0

LAST_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"


class Listener:
    """Hears the commits of other processes, and tells them of ours."""

    def __init__(
        self,
        connections: Connections,
        watchers: Watchers,
        rings: Sequence[Callable[[], None]],
        *,
        listens: bool,
    ) -> None:
        self._connections = connections
        self._watchers = watchers
        self._listens = listens
        self._rings = rings
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._name = os.urandom(8).hex()
        """What our rings say, so that we do not answer them ourselves."""
        self._ring = f"NOTIFY {CHANNEL}, '{self._name}'"
        self._test = f"NOTIFY {CHANNEL}, '{self._name} {TEST}'"
        self._waits = f"NOTIFY {CHANNEL}, '{self._name} {WAITS}'"
        self._moved = f"NOTIFY {CHANNEL}, '{self._name} {MOVED}'"
        self._asked_to_ring = False
        self._has_moved = False
        self._next_moved = 0.0
        self._next_waits = 0.0
        self._believed_until = 0.0
        self._stopping = False
        self._changed = False
        self._last_rung = 0.0
        self._ringing = threading.Lock()
        self._test_sent_at: float | None = None
        self._next_test = 0.0
        self._seen: str | None = None
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else
        self._has_begun = threading.Event()
        self.heard = 0
        self.rung = 0
        self.is_well: bool | None = None
        """The last test of the ring arrived; None before the first, and without a ring."""
        self._tested = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ulak-listener", daemon=True)
        self._thread.start()

    def wait_until_it_hears(self) -> None:
        """Wait, not for ever, until nothing that is committed from now on can be missed."""
        self._has_begun.wait(BEGIN_WITHIN_S)

    def ring(self) -> None:
        """Tell other processes that something was committed; a crowd of rings is one."""
        if self._listens and not self._asked_to_ring:
            self._asked_to_ring = True
            self._wake()

    def ring_along(self) -> str | None:
        """Return the statement that tells them, to be sent now; None when it must wait."""
        if not self._listens or self._asked_to_ring:
            return None
        return self._ring if self._may_ring(time.monotonic()) else None

    def watch(self) -> None:
        if self._listens and time.monotonic() >= self._next_waits:
            self._wake()

    def tell_of_move(self) -> None:
        """Wake other processes that wait for jobs to move; nothing if none does."""
        if not self._has_moved and time.monotonic() < self._believed_until:
            self._has_moved = True
            self._wake()

    def _may_ring(self, now: float) -> bool:
        with self._ringing:
            if now < self._last_rung + QUIET_S:
                return False
            self._last_rung = now
            self.rung += 1
            return True

    def wait_for_test(self) -> bool | None:
        if self._listens:
            self._tested.wait(TEST_PATIENCE_S)
        return self.is_well

    def has_changed(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def close(self) -> None:
        self._stopping = True
        self._wake()
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def forget(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def _wake(self) -> None:
        try:  # noqa: SIM105 - at each submit
            os.write(self._write_end, b"!")
        except BlockingIOError:
            pass  # it is full of wakes already

    def _serve(self) -> None:
        while not self._stopping:
            try:
                with self._connections.connect() as connection:
                    if self._listens:
                        self._listen(connection)
                    else:
                        self._look(connection)
            except Exception as error:
                if self._stopping:
                    return
                self.is_well = False if self._listens else None
                self._tested.set()
                if isinstance(error, psycopg.Error | StoreError | OSError):
                    log.info("the listener has lost its connection", extra={"error": str(error)})
                else:  # without a listener this process would notice nothing any more
                    log.exception("the listener failed; it begins anew")
                # What happened meanwhile was not heard.
                self._notice()
                pause = RECONNECT_S * (1 + self._draw.random()) / 2
                _wait_for(pause, self._read_end)
                self._drain_pipe()

    def _listen(self, connection: TimedConnection) -> None:
        # By libpq itself: psycopg's ways to send and to hear took a tenth of a busy submitter.
        line = connection.pgconn
        # A ring is a transaction too, and nobody should wait until it has survived a power cut.
        _say(connection, "SET synchronous_commit = off")
        _say(connection, f"LISTEN {CHANNEL}")
        self._has_begun.set()
        self._next_test = self._next_waits = 0.0
        while not self._stopping:
            now = time.monotonic()
            self._test_it(connection, now)
            # Also before waiting: what came with the answer to a statement is not on the wire.
            self._hear(line)
            wait = self._speak_of_moves(connection, now)
            if self._asked_to_ring:
                if self._may_ring(now):
                    self._asked_to_ring = False
                    _say(connection, self._ring)
                    continue
                wait = max(0.0, min(wait, self._last_rung + QUIET_S - now))
            readable = _wait_for(wait, line.socket, self._read_end)
            if self._read_end in readable:
                self._drain_pipe()
            if line.socket in readable:
                line.consume_input()

    def _hear(self, line: PGconn) -> None:
        while (notification := line.notifies()) is not None:
            name, _, word = notification.extra.decode().partition(" ")
            if name != self._name:
                if not word:
                    self.heard += 1
                    self._notice()
                elif word == MOVED:
                    self._watchers.ring()
                elif word == WAITS:
                    self._believed_until = time.monotonic() + BELIEVED_FOR_S
            elif word == TEST:
                self._test_sent_at = None
                self.is_well = True
                self._tested.set()

    def _speak_of_moves(self, connection: TimedConnection, now: float) -> float:
        """Send `waits` and `moved` where they are due; return how long to listen."""
        wait = max(0.0, min(self._next_test - now, 1.0))
        if self._watchers:
            if now >= self._next_waits:
                self._next_waits = now + WAITS_EVERY_S
                _say(connection, self._waits)
            wait = min(wait, self._next_waits - now)
        if self._has_moved:
            if now >= self._next_moved:
                self._has_moved = False
                self._next_moved = now + QUIET_S
                _say(connection, self._moved)
            else:
                wait = min(wait, self._next_moved - now)
        return wait

    def _test_it(self, connection: TimedConnection, now: float) -> None:
        """Ring for ourselves now and then: a ring that does not arrive is a ring nobody hears."""
        if self._test_sent_at is not None and now - self._test_sent_at > TEST_PATIENCE_S:
            self._test_sent_at = None
            raise StoreError("a ring of our own has not arrived")
        if now >= self._next_test:
            self._test_sent_at = now
            self._next_test = now + TEST_EVERY_S
            _say(connection, self._test)

    def _look(self, connection: TimedConnection) -> None:
        while not self._stopping:
            found = connection.execute(LAST_TRANSACTION, prepare=False).fetchone()
            last = "" if found is None else str(found[0])
            if last != self._seen:
                self._notice()
            self._seen = last
            self._has_begun.set()
            _wait_for(GLANCE_S, self._read_end)
            self._drain_pipe()

    def _notice(self) -> None:
        self._changed = True
        for ring in self._rings:
            ring()
        self._watchers.ring()

    def _drain_pipe(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass


def _wait_for(seconds: float, *descriptors: int) -> set[int]:
    """Return which of these can be read, after a while at most; `select` ends at 1,023."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}


def _say(connection: TimedConnection, statement: str) -> None:
    result = exchange(connection, statement.encode())
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(result.get_error_message())
