"""Links that log in once: for a person who has a terminal here and a browser there."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ulak.auth.credentials import Credentials
from ulak.auth.grants import Grant, known_roles
from ulak.auth.principal import Principal
from ulak.clock import Duration
from ulak.errors import BadInput
from ulak.store.credentials import LINK

LINK_LIFE: Final = timedelta(minutes=10)
"""How long a link waits for its one use: long enough to find the browser."""
LINK_LIFE_TEXT: Final = f"{LINK_LIFE // timedelta(minutes=1)} minutes"


class Links(Credentials):
    """The one-time links of a store."""

    def make_link(
        self,
        principal: Principal,
        life: Duration = LINK_LIFE,
        *,
        actor: str = "",
        note: str = "",
    ) -> str:
        """Return the code of a link that logs in as a principal, once; the audit keeps its making.

        A principal that came with a credential is logged in by that one: the login ends with it.

        Args:
            principal: Whom it logs in.
            life: How long it waits for its use.
            actor: Who makes it; by default the principal.
            note: Why, for the audit.

        Raises:
            BadInput: the principal has no name or no role that exists, or the link would not live.
        """
        if not principal.name or not principal.roles:
            raise BadInput("a link is made for somebody with a name and a role")
        expires_at = self._end_of(life)
        # Links that are over, and logins that came of them, are of no more use to anybody.
        self._store.forget_credentials(LINK, before=self._now())
        grant = Grant(
            principal.name, tenant=principal.tenant, roles=known_roles(principal.roles),
            scopes=tuple(sorted(principal.scopes)),
        )  # fmt: skip
        by = principal.credential or principal.name
        maker = actor or principal.name
        _, text = self._issue(LINK, grant, expires_at, by=by, actor=maker, note=note)
        return text
