"""Logins of a service's own users: tokens that any process with the secret can check.

    logins = Logins(secret, timedelta(minutes=30), engine.store.clock)
    Access("GET", "/mine", KNOWN, authenticate=logins, schemes=("Bearer",))

Needs PyJWT, which `ulak[web]` brings.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import jwt

from ulak.auth import Principal
from ulak.clock import SECOND, Clock, micros
from ulak.errors import Unauthenticated

__all__ = ["Logins"]

_ALGORITHM: Final = "HS256"


class Logins:
    """Makes and checks tokens: JWT with HS256 and nothing else.

    Args:
        secret: Signs them; the same in every process that checks them.
        lasts: How long one is good.
        clock: Tells the time that decides.
        role: What the principals of these tokens have as their one role.
    """

    def __init__(self, secret: str, lasts: timedelta, clock: Clock, *, role: str = "user") -> None:
        self._secret, self._lasts_us, self._clock = secret, micros(lasts), clock
        self._roles = frozenset({role})

    def make(self, user_id: str, subject: str) -> str:
        """Return a new token of a user, with the claims `sub`, `user_id`, `iat` and `exp`."""
        now = self._clock.now()
        times = {"iat": now // SECOND, "exp": (now + self._lasts_us) // SECOND}
        claims = {"sub": subject, "user_id": user_id, **times}
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def authenticate(self, credential: str) -> Principal:
        """Return the user of a token, named by the id. Raises `Unauthenticated`: it was not made
        with this secret, is no such token, or has expired."""
        # The clock of the store decides, not that of this machine.
        checks = {f"verify_{claim}": False for claim in ("exp", "iat", "nbf")}
        options: Any = {"require": ["sub", "user_id", "iat", "exp"], **checks}
        try:
            claims = jwt.decode(credential, self._secret, algorithms=[_ALGORITHM], options=options)
            user_id, expires_at = str(claims["user_id"]), int(claims["exp"]) * SECOND
        except (jwt.PyJWTError, TypeError, ValueError):
            raise Unauthenticated("this is no token of a user", reason="unknown") from None
        if expires_at <= self._clock.now():
            raise Unauthenticated("the login has expired; log in again", reason="expired")
        return Principal(user_id, tenant=None, roles=self._roles, credential=f"user/{user_id}")

    def recall(self, credential: str) -> Principal | None:
        """Return the same at once, since nothing is read for it; None where `authenticate` says
        why not."""
        try:
            return self.authenticate(credential)
        except Unauthenticated:
            return None
