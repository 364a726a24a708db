"""API keys: who holds one, remembered for a moment."""

from __future__ import annotations

import logging
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from ulak.auth import secrets
from ulak.auth.credentials import must_be_active, principal_of
from ulak.auth.principal import Principal
from ulak.clock import SECOND, Clock, Instant
from ulak.errors import StoreError, Unauthenticated
from ulak.store.credentials import KEY
from ulak.store.protocol import CredentialRow, CredentialStore

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

log = logging.getLogger("ulak.auth")

_MINUTE = 60 * SECOND


class Keys:
    """Knows the API keys of an engine, and nothing else: no login, no link, no cookie. It is an
    `Authenticator`, for the routes of a service that only programs call.

    A principal is remembered for two seconds, so a key that is revoked ends within five in every
    process. The minute of its last use is written once a minute.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._remembered = Remembered(engine.store.clock)

    def recall(self, credential: str) -> Principal | None:
        """Return who was seen with this key a moment ago; None when the store must be read."""
        return self._remembered.find(credential)

    def authenticate(self, credential: str) -> Principal:
        """Return who holds this key; the engine is opened if it is not. Raises `Unauthenticated`:
        nobody, its reason says why; `StoreError`: the store could not answer."""
        store = self._engine.open().store
        asked_at = store.clock.now()
        principal, expires_at = read_key(store, credential, asked_at)
        self._remembered.keep(credential, principal, asked_at=asked_at, expires_at=expires_at)
        return principal


def read_key(store: CredentialStore, text: str, now: Instant) -> tuple[Principal, Instant | None]:
    """Return who holds a key, and until when it is good; its use is noted. Raises
    `Unauthenticated`: it is no key of this store, or not good any more."""
    row = find_shown(store, KEY, text)
    if row is None:
        raise Unauthenticated("nobody has this key", reason="unknown")
    must_be_active(row, now)
    note_use(store, row, now)
    return principal_of(row), row.expires_at


def find_shown(store: CredentialStore, kind: str, text: str) -> CredentialRow | None:
    """Return the row of a secret that somebody shows, in a time that does not tell whether its id
    is known. Raises `Unauthenticated`: it cannot be a secret."""
    row = store.find_credential(kind, secrets.id_of(text))
    is_right = secrets.is_hash_of(text, None if row is None else row.hash)
    return row if is_right else None


def note_use(store: CredentialStore, row: CredentialRow, now: Instant) -> None:
    """Keep the minute of a use, once a minute, over all processes. Nobody fails for it."""
    minute = now - now % _MINUTE
    if row.used_at is not None and row.used_at >= minute:
        return
    try:
        store.note_use(row.kind, row.id, minute)
    except StoreError:
        log.warning(
            "a use was not noted", extra={"credential": f"{row.kind}/{row.id}"}, exc_info=True
        )


# Revocation acts within five seconds in every process. What was read may have been on its way
# for a while, so a good part of the five is left.
SPAN_US: Final = 2 * SECOND

# A guess: more callers than one process serves in two seconds, in a few megabytes.
MOST_REMEMBERED: Final = 10_000


class _Seen(NamedTuple):
    principal: Principal
    asked_at: Instant
    until: Instant


class Remembered:
    """Principals under the SHA-256 of their credentials, never the credentials themselves. Of more
    than `most` the oldest go first."""

    def __init__(self, clock: Clock, *, most: int = MOST_REMEMBERED) -> None:
        self._clock = clock
        self._most = most
        self._seen: dict[bytes, _Seen] = {}
        self._lock = threading.Lock()

    def find(self, credential: str) -> Principal | None:
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
