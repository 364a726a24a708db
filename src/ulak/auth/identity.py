"""The identity of an installation: who a credential is, and what a login is worth."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Final

from ulak.auth import passwords
from ulak.auth.api_keys import Remembered, find_shown, note_use, read_key
from ulak.auth.attempts import Attempts
from ulak.auth.credentials import is_name, must_be_active, principal_of, state_of
from ulak.auth.directory import Directory
from ulak.auth.principal import ADMIN, ANONYMOUS, Principal
from ulak.auth.tokens import Claims, Tokens, is_token
from ulak.clock import SECOND, Duration, Instant, read_micros, to_datetime
from ulak.errors import StoreError, Unauthenticated
from ulak.store.credentials import LINK, USER
from ulak.store.protocol import CredentialRow, Store

SPENT: Final = "spent"
FIRST: Final = "admin"
"""The name of the first key, and who is said to have made it."""

LOGIN_LIFE: Final = timedelta(hours=24)

REFUSED: Final = "refused"

log = logging.getLogger("ulak.auth")


@dataclass(frozen=True, slots=True)
class Login:
    """A token, who it stands for, and how long."""

    principal: Principal
    expires_at: datetime
    lasts: timedelta
    token: str = field(repr=False)


class Identity(Directory):
    """Tells who a credential is, and keeps keys, people and links.

    A principal is remembered for two seconds, so what is revoked or disabled ends within five in
    every process. Tokens are signed with the `secret`, the same in every process; it has 32
    characters or more, else `BadInput` is raised. The `first_key` is an administrator's from its
    first use on, unless it was revoked.
    """

    def __init__(
        self, store: Store, *, secret: str, first_key: str = "", login_life: Duration = LOGIN_LIFE
    ) -> None:
        super().__init__(store)
        self._tokens = Tokens(secret)
        self._first_key = first_key
        self._login_us = read_micros(login_life, "login_life=")
        self._remembered = Remembered(store.clock)
        self.attempts = Attempts(store.clock)

    def derive(self, purpose: str) -> bytes:
        """Return a secret for one purpose: the same in every process that has the same secret."""
        return self._tokens.derive(purpose)

    def adopt_first_key(self) -> None:
        """Store the first key now, so that it is listed before anybody has used it."""
        if self._first_key:
            self.adopt_key(self._first_key, name=FIRST, roles=[ADMIN], actor=FIRST)

    def recall(self, credential: str) -> Principal | None:
        return self._remembered.find(credential)

    def authenticate(self, credential: str) -> Principal:
        """Return who this is: the holder of a key, or of a token. Raises `Unauthenticated`: nobody,
        its reason says why; `StoreError`: the store could not answer."""
        asked_at = self._now()
        find = self._by_token if is_token(credential) else self._by_key
        principal, expires_at = find(credential, asked_at)
        self._remembered.keep(credential, principal, asked_at=asked_at, expires_at=expires_at)
        return principal

    def _by_key(self, text: str, now: Instant) -> tuple[Principal, Instant | None]:
        try:
            return read_key(self._store, text, now)
        except Unauthenticated as error:
            is_first = error.reason == "unknown" and compare_digest(text, self._first_key)
            if not is_first:
                raise
        self.adopt_first_key()
        return read_key(self._store, text, now)

    def _by_token(self, text: str, now: Instant) -> tuple[Principal, Instant | None]:
        claims = self._tokens.read(text, now)
        row = self._standing(claims.kind, claims.id, now)
        if row.version != claims.version:
            raise _ended()
        expires_at = claims.expires_at
        if row.expires_at is not None:
            expires_at = min(expires_at, row.expires_at)
        return principal_of(row), expires_at

    def _standing(self, kind: str, id: str, now: Instant) -> CredentialRow:
        row = self._store.find_credential(kind, id)
        if row is None:
            raise _ended()
        # A link is revoked by being spent, and its row lives on as the login that came of it.
        if kind != LINK:
            must_be_active(row, now)
        return row

    def login(self, name: str, password: str, *, address: str = "") -> Login:
        """Let a person in who knows the password. An unknown name takes as long as a wrong
        password, and is answered alike; who has failed from this address waits before the next
        try. It may take some seconds: call it on a thread. Raises `Unauthenticated`: the name or
        the password is wrong, or the user is disabled; `Overloaded`: it was not looked at, it says
        when to try again; `NotSupported`: argon2-cffi is not installed."""
        row = self._store.find_credential(USER, name) if is_name(name) else None
        stored = None if row is None else row.hash
        is_right = self.attempts.check(
            name, address, lambda: passwords.is_password(password, stored)
        )
        if row is None or not is_right:
            self._note_refusal(name, address)
            raise Unauthenticated("the name or the password is wrong", reason="unknown")
        now = self._now()
        must_be_active(row, now)
        note_use(self._store, row, now)
        return self._login(row, now)

    def _note_refusal(self, name: str, address: str) -> None:
        """Leave a line in the log and the audit. Nobody is answered otherwise because of it."""
        user = name if is_name(name) else "unknown"
        facts = {"user": user, "address": address}
        log.warning("a login was refused", extra=facts)
        note = f"from {address}" if address else ""
        try:
            self._store.note_refusal(USER, user, act=REFUSED, actor=ANONYMOUS, note=note)
        except StoreError:
            log.warning("a refused login was not noted in the audit", extra=facts, exc_info=True)

    def spend_link(self, text: str) -> Login:
        """Log in with a link. Of several that spend it at once, one is let in. Raises
        `Unauthenticated`: it is no link, it was spent, or it has expired; the message names the
        command that prints another."""
        try:
            row, now = find_shown(self._store, LINK, text), self._now()
        except Unauthenticated as error:
            raise _dead_link("is not whole", reason=error.reason) from None
        if row is None:  # links that are over are forgotten after a while
            raise _dead_link("is not known here, or has expired", reason="unknown")
        if row.revoked_at is not None:
            raise _dead_link("was used already", reason="revoked")
        if state_of(row, now) != "active":
            raise _dead_link("has expired", reason="expired")
        # A link of somebody who has a credential stands for that one.
        kind, has_credential, id = row.created_by.partition("/")
        behind = self._standing(kind, id, now) if has_credential else None
        # The row stays as long as the login that comes of it.
        spent = row._replace(revoked_at=now, expires_at=now + self._login_us)
        if not self._store.change_credential(spent, act=SPENT, actor=row.name, note=""):
            raise _dead_link("was used already", reason="revoked")
        return self._login(behind or spent._replace(version=row.version + 1), now)

    def _login(self, row: CredentialRow, now: Instant) -> Login:
        principal = principal_of(row)
        claims = Claims(
            principal, kind=row.kind, id=row.id, version=row.version, issued_at=now,
            # A token counts in seconds, and nobody is promised more than it says.
            expires_at=(now + self._login_us) // SECOND * SECOND,
        )  # fmt: skip
        lasts = timedelta(microseconds=claims.expires_at - now)
        return Login(principal, to_datetime(claims.expires_at), lasts, self._tokens.make(claims))


def _ended() -> Unauthenticated:
    return Unauthenticated("the login has ended; log in again", reason="revoked")


def _dead_link(why: str, *, reason: str) -> Unauthenticated:
    return Unauthenticated(f"this link {why}; `ulak link` prints another", reason=reason)
