"""Who was seen a moment ago, so that the store is not asked for every request."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import Final, NamedTuple

from ulak.auth.principal import Principal
from ulak.clock import SECOND, Clock, Instant

# Revocation acts within five seconds in every process. What was read may have been on its way
# for a while, so a good part of the five is left.
SPAN_US: Final = 2 * SECOND

# A guess: more callers than one process serves in two seconds, in a few megabytes.
MOST: Final = 10_000


class _Seen(NamedTuple):
    principal: Principal
    asked_at: Instant
    until: Instant


class Remembered:
    """Principals under the SHA-256 of their credentials, never the credentials themselves.

    Args:
        clock: The store's.
        most: How many at once; the oldest go first.
    """

    def __init__(self, clock: Clock, *, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._seen: dict[bytes, _Seen] = {}
        self._lock = threading.Lock()

    def find(self, credential: str) -> Principal | None:
        """Return who this was a moment ago, None when nobody knows."""
        seen = self._seen.get(_mark(credential))
        # Not before it was asked either: a clock that went back proves nothing.
        if seen is None or not seen.asked_at <= self._clock.now() < seen.until:
            return None
        return seen.principal

    def keep(
        self,
        credential: str,
        principal: Principal,
        *,
        asked_at: Instant,
        expires_at: Instant | None,
    ) -> None:
        """Remember who this is, from when the store was asked, never longer than it is good."""
        until = asked_at + SPAN_US
        if expires_at is not None:
            until = min(until, expires_at)
        mark = _mark(credential)
        with self._lock:
            self._seen.pop(mark, None)
            while len(self._seen) >= self._most:
                del self._seen[next(iter(self._seen))]
            self._seen[mark] = _Seen(principal, asked_at, until)


def _mark(credential: str) -> bytes:
    return sha256(credential.encode("utf-8", "surrogatepass")).digest()
