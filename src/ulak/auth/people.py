"""People: users of the store, known by a name and a password."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ulak.auth import passwords
from ulak.auth.credentials import (
    CREATED,
    Credential,
    Credentials,
    principal_of,
    unknown,
    view,
)
from ulak.auth.grants import checked, is_name, must_cover
from ulak.auth.principal import ANYBODY, Principal
from ulak.core.acts import must_act
from ulak.errors import BadInput
from ulak.store.credentials import USER
from ulak.store.protocol import CredentialRow

PASSWORD: Final = "password"  # noqa: S105 - the name of an act, no password
DISABLED: Final = "disabled"


class People(Credentials):
    """The users of a store."""

    def create_user(
        self,
        name: str,
        password: str,
        *,
        roles: Iterable[str],
        actor: str,
        tenant: str | None = None,
        scopes: Iterable[str] = (),
        note: str = "",
        giver: Principal = ANYBODY,
    ) -> Credential:
        """Make a user, who can log in from now on.

        Args:
            name: Who it is, also in trails.
            password: Eight characters or more.
            roles: What they may do.
            actor: Who makes the user.
            tenant: The only tenant that they see; None sees all.
            scopes: Narrow what the roles allow; none narrow nothing.
            note: Why, for whoever reads the audit.
            giver: Who must have what is given.

        Raises:
            BadInput: a name that is taken or cannot be, a password, a role, a scope or a tenant
                that cannot be; it says what can.
            Forbidden: the giver would give more than it has.
            NotSupported: argon2-cffi is not installed.
        """
        grant = checked(name, roles=roles, tenant=tenant, scopes=scopes, known=self.scopes)
        must_act(actor, note)
        row = self._new(USER, name, grant, hash="", expires_at=None, by=actor)
        must_cover(giver, principal_of(row), self.scopes)
        row = row._replace(hash=passwords.hash_of(password))
        if not self._store.add_credential(row, act=CREATED, actor=actor, note=note):
            # A name in old trails means one person, so one that was disabled is not free again.
            raise BadInput(f"there is a user {name}, or there was one; choose another name")
        return view(row, self._now())

    def set_password(
        self, name: str, password: str, *, actor: str, note: str = "", giver: Principal = ANYBODY
    ) -> Credential:
        """Give a user another password; every login with the old one ends within five seconds.

        Raises:
            NotFound: there is no such user.
            BadInput: the password cannot be used, or the user is disabled.
            Forbidden: the user may do more than the giver.
        """
        user = self._find_user(name)
        self._must_be_enabled(user)
        must_cover(giver, principal_of(user), self.scopes)
        hash = passwords.hash_of(password)

        def renew(row: CredentialRow) -> CredentialRow:
            self._must_be_enabled(row)
            return row._replace(hash=hash)

        changed = self._change(
            lambda: self._find_user(name),
            renew,
            act=PASSWORD,
            actor=must_act(actor, note),
            note=note,
        )
        return view(changed, self._now())

    def disable_user(self, name: str, *, actor: str, note: str = "") -> Credential:
        """Let a user in no more; every login of theirs ends within five seconds.

        Raises:
            NotFound: there is no such user.
        """
        return self._revoke(lambda: self._find_user(name), act=DISABLED, actor=actor, note=note)

    def users(self) -> list[Credential]:
        """Return every user, by name, disabled ones too."""
        return self._all(USER)

    def _find_user(self, name: str) -> CredentialRow:
        row = self._store.find_credential(USER, name) if is_name(name) else None
        if row is None:
            raise unknown("user", repr(name[:64]))
        return row

    def _must_be_enabled(self, row: CredentialRow) -> None:
        if row.revoked_at is not None:
            raise BadInput(f"user {row.name} is disabled; make another one")
