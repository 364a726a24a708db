"""How long a connection waits: for the server to be reached, to answer, and to notice our end.

A server that vanishes without a word (a dead host, a cut cable) is found out by the kernel: by
keepalives while nothing is on its way, by the user timeout while something is. A server that is
stopped is not, since its kernel goes on acknowledging. So a client that has waited for a while
asks over a second connection whether the server answers anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready

from ulak.store.sql.session import Row

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5

# A guess: longer than a busy server's slow moments. A probe is one connection of the process.
PROBE_AFTER_S = 3.0
# A probe speaks for every connection of the process that waits just then.
PROBE_HOLDS_S = 1.0

# Even of a server that answers others. A transaction of the store works on a batch, and takes
# milliseconds; what a program asks, and what reads or migrates a whole table, may take hours.
LONGEST_TRANSACTION_S = 60.0

# How long a transaction waits for what another holds, if it has no patience of its own. The
# server goes on waiting when its client has given up, so it has a limit of its own.
LOCK_TIMEOUT_MS = 5000

_IDLE_S, _INTERVAL_S, _COUNT = 5, 2, 3
_USER_TIMEOUT_MS = (_IDLE_S + _INTERVAL_S * _COUNT) * 1000

CLIENT = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives": 1,
    "keepalives_idle": _IDLE_S,
    "keepalives_interval": _INTERVAL_S,
    "keepalives_count": _COUNT,
    "tcp_user_timeout": _USER_TIMEOUT_MS,
}
"""Parameters of libpq; those of the URL go before. A unix socket has no use for them."""

SERVER = {
    "tcp_keepalives_idle": _IDLE_S,
    "tcp_keepalives_interval": _INTERVAL_S,
    "tcp_keepalives_count": _COUNT,
    "tcp_user_timeout": _USER_TIMEOUT_MS,
}
"""Settings of a session: the server gives up a client that has vanished, with all that it holds."""


class NoAnswer(psycopg.OperationalError):
    """The server has not answered in time. The connection is closed: an answer may still come."""


class TimedConnection(psycopg.Connection[Row]):
    """A connection on which no wait for an answer is for ever."""

    probe: Callable[[], bool] | None = None
    """Tells whether the server answers anybody; without it, only the deadline counts."""
    give_up_at: float | None = None
    """When no answer counts any more, by the monotonic clock."""

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        """Wait as psycopg does, which wakes ten times a second, but not for ever."""
        try:
            return super().wait(self._timed(gen), *arguments, **options)
        except NoAnswer:
            self.close()
            raise

    def has_lost_its_server(self) -> bool:
        """Ask whether the server answers anybody; this takes as long as a connection may take."""
        return self.probe is not None and not self.probe()

    def _timed(self, gen: PQGen[T]) -> PQGen[T]:
        began = time.monotonic()
        probe_at = began + PROBE_AFTER_S
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == Ready.NONE:
                    now = time.monotonic()
                    if self.give_up_at is not None and now >= self.give_up_at:
                        raise NoAnswer(f"no answer within {now - began:.1f} s")
                    if now >= probe_at:
                        if self.has_lost_its_server():
                            raise NoAnswer("the server does not answer")
                        probe_at = time.monotonic() + PROBE_AFTER_S
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer


class Address(NamedTuple):
    """One of the servers that a URL may lead to, in libpq's words; a socket has no `hostaddr`."""

    host: str
    hostaddr: str | None
    port: str


class Probes:
    """Asks on a connection of its own whether a server answers; once for all who wait."""

    def __init__(self, connect: Callable[..., TimedConnection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._last: dict[Address, tuple[float, bool]] = {}
        """Until when the last probe speaks for all of a server, and whether that has answered."""

    def has_answer(self, address: Address) -> bool:
        with self._lock:
            holds_until, has_answer = self._last.get(address, (0.0, True))
            if time.monotonic() >= holds_until:
                has_answer = self._ask(address)
                self._last[address] = (time.monotonic() + PROBE_HOLDS_S, has_answer)
            return has_answer

    def _ask(self, address: Address) -> bool:
        try:
            # Whatever it has become: it may be a standby by now.
            with self._connect(**address._asdict(), target_session_attrs="any") as connection:
                connection.give_up_at = time.monotonic() + CONNECT_TIMEOUT_S
                connection.execute("SELECT 1", prepare=False)
        except (NoAnswer, psycopg.errors.ConnectionTimeout):
            return False
        except psycopg.Error:
            return True  # a refusal is an answer; a host that is gone is found out by the kernel
        return True
