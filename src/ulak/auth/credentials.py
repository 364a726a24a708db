"""What keys, people and links have in common: a row that is read, changed and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, Literal

from ulak.auth import secrets
from ulak.auth.grants import Grant, must_cover
from ulak.auth.principal import ANYBODY, SCOPES, Principal, Scopes
from ulak.clock import Duration, Instant, read_micros, to_datetime
from ulak.core.acts import must_act
from ulak.errors import BadInput, Contended, NotFound, StoreError, Unauthenticated
from ulak.store.credentials import KEY
from ulak.store.protocol import CredentialRow, CredentialStore

CREATED: Final = "created"
REVOKED: Final = "revoked"

State = Literal["active", "expired", "revoked"]


# A guess: whoever changes a credential is a person, so another one hardly comes in between twice.
# As often a new id is drawn.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Credential:
    """A key or a person as everybody may see them: without any secret."""

    id: str
    name: str
    _: KW_ONLY
    principal: str
    """As trails and the audit name its acts."""
    tenant: str | None
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    state: State
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    """When it was last used, to the minute."""


class Credentials:
    """Reads and changes the credentials of a store, which is open.

    Args:
        store: Where they are.
        scopes: What keys and people may be narrowed to; by default the platform's own scopes. An
            application adds those of its services.
    """

    def __init__(self, store: CredentialStore, *, scopes: Scopes = SCOPES) -> None:
        self._store = store
        self.scopes = scopes

    def _now(self) -> Instant:
        return self._store.clock.now()

    def _all(self, kind: str) -> list[Credential]:
        now = self._now()
        return [view(row, now) for row in self._store.credentials(kind)]

    def _new(
        self, kind: str, id: str, grant: Grant, *, hash: str, expires_at: Instant | None, by: str
    ) -> CredentialRow:
        """Make the row of a new credential."""
        return CredentialRow(
            kind, id, grant.name, grant.tenant, " ".join(grant.roles), " ".join(grant.scopes),
            hash, self._now(), by, expires_at, None, None, 1,
        )  # fmt: skip

    def _change(
        self,
        find: Callable[[], CredentialRow],
        change: Callable[[CredentialRow], CredentialRow | None],
        *,
        act: str,
        actor: str,
        note: str,
    ) -> CredentialRow:
        """Change a row as it is now; again, if somebody was faster. None changes nothing."""
        for _ in range(_TRIES):
            row = find()
            new = change(row)
            if new is None:
                return row
            if self._store.change_credential(new, act=act, actor=actor, note=note):
                return find()
        raise Contended(f"others keep changing {row.kind}/{row.id}; try again")

    def _issue(
        self,
        kind: str,
        grant: Grant,
        expires_at: Instant | None,
        *,
        by: str,
        actor: str,
        note: str = "",
        giver: Principal = ANYBODY,
    ) -> tuple[CredentialRow, str]:
        """Store a credential with a new secret; answers both.

        Raises:
            Forbidden: the giver would give more than it has.
        """
        for _ in range(_TRIES):  # an id that is taken is as likely as one in a billion
            text = secrets.new_secret()
            row = self._new(
                kind, secrets.id_of(text), grant, hash=secrets.hash_of(text),
                expires_at=expires_at, by=by,
            )  # fmt: skip
            must_cover(giver, principal_of(row), self.scopes)
            if self._store.add_credential(row, act=CREATED, actor=actor, note=note):
                return row, text
        raise StoreError(f"every new {kind} had an id that is taken; try again")

    def _revoke(
        self, find: Callable[[], CredentialRow], *, act: str, actor: str, note: str
    ) -> Credential:
        """End a credential; one that is over stays as it is."""
        revoked = self._change(
            find,
            lambda row: None if row.revoked_at else row._replace(revoked_at=self._now()),
            act=act, actor=must_act(actor, note), note=note,
        )  # fmt: skip
        return view(revoked, self._now())

    def _end_of(self, life: Duration | None) -> Instant | None:
        """Return when what begins now expires."""
        if life is None:
            return None
        life_us = read_micros(life, "life=")
        if life_us == 0:
            raise BadInput("a credential lives for some time, a hundred years at most")
        return self._now() + life_us


def principal_of(row: CredentialRow) -> Principal:
    """Return who a caller is by this credential."""
    return Principal(
        f"{KEY}:{row.name}" if row.kind == KEY else row.name,
        tenant=row.tenant,
        roles=frozenset(row.roles.split()),
        scopes=frozenset(row.scopes.split()),
        credential=f"{row.kind}/{row.id}",
    )


def view(row: CredentialRow, now: Instant) -> Credential:
    """Show a credential as it stands now."""
    return Credential(
        row.id,
        row.name,
        principal=principal_of(row).name,
        tenant=row.tenant,
        roles=tuple(row.roles.split()),
        scopes=tuple(row.scopes.split()),
        state=state_of(row, now),
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        expires_at=_moment(row.expires_at),
        revoked_at=_moment(row.revoked_at),
        used_at=_moment(row.used_at),
    )


def state_of(row: CredentialRow, now: Instant) -> State:
    """Tell whether a credential is good now."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    return "active"


def must_be_active(row: CredentialRow, now: Instant) -> None:
    """Refuse what is not good any more. Only for whoever has shown the secret.

    Raises:
        Unauthenticated: it was revoked, or it has expired.
    """
    state = state_of(row, now)
    if state != "active":
        what = f"{KEY}:{row.name}" if row.kind == KEY else row.name
        raise Unauthenticated(f"the credential of {what} is {state}", reason=state)


def unknown(what: str, shown: str) -> NotFound:
    """Say that there is none of this name."""
    return NotFound(f"there is no {what} {shown}; `ulak {what}s list` names them")


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
