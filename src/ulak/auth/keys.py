"""API keys: made, listed, rotated and revoked. The key itself is answered once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ulak.auth import secrets
from ulak.auth.credentials import (
    CREATED,
    REVOKED,
    Credential,
    Credentials,
    state_of,
    unknown,
    view,
)
from ulak.auth.grants import Grant, checked
from ulak.auth.principal import ANYBODY, Principal
from ulak.clock import Duration, Instant, micros, read_micros
from ulak.core.acts import must_act
from ulak.errors import BadInput, Unauthenticated
from ulak.store.credentials import KEY
from ulak.store.protocol import CredentialRow

ROTATED: Final = "rotated"

OVERLAP: Final = timedelta(days=1)
LONGEST_OVERLAP: Final = timedelta(days=3650)
"""How long a key that is rotated goes on beside its successor: a working day and a night."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was made just now. Nobody can read its text again."""

    key: Credential
    text: str = field(repr=False)


class Keys(Credentials):
    """The keys of a store."""

    def create_key(
        self,
        name: str,
        *,
        roles: Iterable[str],
        actor: str,
        tenant: str | None = None,
        scopes: Iterable[str] = (),
        life: Duration | None = None,
        note: str = "",
        giver: Principal = ANYBODY,
    ) -> IssuedKey:
        """Make a key.

        Args:
            name: Whose it is; its acts are those of `key:NAME`.
            roles: What it may do.
            actor: Who makes it.
            tenant: The only tenant that it sees; None sees all.
            scopes: Narrow what the roles allow; none narrow nothing.
            life: How long it is good; None for ever.
            note: Why, for whoever reads the audit.
            giver: Who must have what is given.

        Raises:
            BadInput: a name, a role, a scope or a tenant that cannot be; it says what can.
            Forbidden: the giver would give more than it has.
        """
        grant = checked(name, roles=roles, tenant=tenant, scopes=scopes, known=self.scopes)
        return self._issue_key(grant, self._end_of(life), actor=actor, note=note, giver=giver)

    def rotate_key(
        self,
        id: str,
        *,
        actor: str,
        overlap: Duration = OVERLAP,
        note: str = "",
        giver: Principal = ANYBODY,
    ) -> IssuedKey:
        """Make a successor of a key, with its name, its rights and its length of life.

        Both are good until the overlap is over or the old one is revoked. Should this process
        die half way, both are: rotate again.

        Raises:
            NotFound: there is no such key.
            BadInput: it is not good any more, or the overlap is negative.
            Forbidden: the giver would give more than it has.
        """
        overlap_us = read_micros(overlap, "overlap=")
        if overlap_us > micros(LONGEST_OVERLAP):
            raise BadInput("the overlap is a time from nothing to ten years")
        old = self._rotatable(id)
        life = None if old.expires_at is None else old.expires_at - old.created_at
        expires_at = None if life is None else self._now() + life
        grant = Grant(
            old.name, tenant=old.tenant, roles=tuple(old.roles.split()),
            scopes=tuple(old.scopes.split()),
        )  # fmt: skip
        issued = self._issue_key(
            grant, expires_at, actor=actor, note=note or f"rotates {old.id}", giver=giver
        )
        ends_at = self._now() + overlap_us

        def shorten(row: CredentialRow) -> CredentialRow | None:
            ends_sooner = row.expires_at is not None and row.expires_at <= ends_at
            if row.revoked_at is not None or ends_sooner:
                return None
            return row._replace(expires_at=ends_at)

        self._change(
            lambda: self._find_key(id), shorten, act=ROTATED, actor=actor,
            note=note or f"by {issued.key.id}",
        )  # fmt: skip
        return issued

    def revoke_key(self, id: str, *, actor: str, note: str = "") -> Credential:
        """End a key in every process within five seconds. One that is revoked stays so.

        Raises:
            NotFound: there is no such key.
        """
        return self._revoke(lambda: self._find_key(id), act=REVOKED, actor=actor, note=note)

    def keys(self) -> list[Credential]:
        """Return every key, by id, revoked and expired ones too."""
        return self._all(KEY)

    def adopt_key(self, text: str, *, name: str, roles: Iterable[str], actor: str) -> bool:
        """Store a key that somebody else has made; False when it is stored, revoked or not.

        Raises:
            BadInput: it cannot be a key, or another one has its id.
        """
        grant = checked(name, roles=roles, tenant=None, scopes=())
        try:
            id, hash = secrets.id_of(text), secrets.hash_of(text)
        except Unauthenticated as error:
            raise BadInput(str(error)) from None
        row = self._new(KEY, id, grant, hash=hash, expires_at=None, by=actor)
        if self._store.add_credential(row, act=CREATED, actor=actor, note=""):
            return True
        stored = self._store.find_credential(KEY, id)
        if stored is not None and stored.hash != hash:
            raise BadInput(f"another key has the id {id}; choose another key")
        return False

    def _issue_key(
        self, grant: Grant, expires_at: Instant | None, *, actor: str, note: str, giver: Principal
    ) -> IssuedKey:
        row, text = self._issue(
            KEY, grant, expires_at, by=must_act(actor, note), actor=actor, note=note, giver=giver
        )
        return IssuedKey(view(row, self._now()), text)

    def _find_key(self, id: str) -> CredentialRow:
        # Whoever pastes the whole key, or what lists show of it, means it; it is not repeated.
        shown = id.removeprefix(secrets.PREFIX)[: secrets.ID_LENGTH]
        row = self._store.find_credential(KEY, shown) if secrets.is_id(shown) else None
        if row is None:
            raise unknown("key", repr(shown))
        return row

    def _rotatable(self, id: str) -> CredentialRow:
        row = self._find_key(id)
        state = state_of(row, self._now())
        if state != "active":
            raise BadInput(f"key {row.id} is {state}; make another with `ulak keys create`")
        return row
