"""Links that log in once: for a person who has a terminal here and a browser there."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ulak.auth import secrets
from ulak.auth.credentials import CREATED, Credentials
from ulak.auth.grants import Grant
from ulak.auth.principal import Principal
from ulak.errors import BadInput, StoreError
from ulak.store.credentials import LINK

LINK_LIFE: Final = timedelta(minutes=10)
"""How long a link waits for its one use: long enough to find the browser."""


class Links(Credentials):
    """The one-time links of a store."""

    def make_link(self, principal: Principal, life: timedelta = LINK_LIFE) -> str:
        """Answer the code of a link that logs in as a principal, once.

        A principal that came with a credential is logged in by that one: the login ends with it.

        Raises:
            BadInput: the principal has no name or no role, or the link would not live.
        """
        if not principal.name or not principal.roles:
            raise BadInput("a link is made for somebody with a name and a role")
        expires_at = self._end_of(life)
        # Links that are over, and logins that came of them, are of no more use to anybody.
        self._store.forget_credentials(LINK, before=self._now())
        grant = Grant(
            principal.name, tenant=principal.tenant, roles=tuple(sorted(principal.roles)),
            scopes=tuple(sorted(principal.scopes)),
        )  # fmt: skip
        for _ in range(3):  # an id that is taken is as likely as one in a billion
            text = secrets.new_secret()
            row = self._new(
                LINK, secrets.id_of(text), grant, hash=secrets.hash_of(text),
                expires_at=expires_at, by=principal.credential or principal.name,
            )  # fmt: skip
            if self._store.add_credential(row, act=CREATED, actor=principal.name, note=""):
                return text
        raise StoreError("three new links had an id that is taken; try again")
