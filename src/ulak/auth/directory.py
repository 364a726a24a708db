"""The keys, people and links of a store: made, listed, changed and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ulak.auth import passwords, secrets
from ulak.auth.credentials import (
    Credential,
    Grant,
    check_grant,
    in_order,
    is_name,
    must_cover,
    principal_of,
    state_of,
    view,
)
from ulak.auth.principal import ANYBODY, ROLES, SCOPES, Principal, Scopes
from ulak.clock import Duration, Instant, micros, read_micros
from ulak.core.acts import must_act
from ulak.errors import BadInput, Contended, NotFound, StoreError, Unauthenticated
from ulak.store.credentials import KEY, LINK, USER
from ulak.store.protocol import CredentialRow, CredentialStore

CREATED: Final = "created"
REVOKED: Final = "revoked"
ROTATED: Final = "rotated"
DISABLED: Final = "disabled"
PASSWORD: Final = "password"  # noqa: S105 - the name of an act, no password

OVERLAP: Final = timedelta(days=1)
"""How long a key that is rotated goes on beside its successor: a working day and a night."""
LONGEST_OVERLAP: Final = timedelta(days=3650)

LINK_LIFE: Final = timedelta(minutes=10)
"""How long a link waits for its one use: long enough to find the browser."""
LINK_LIFE_TEXT: Final = f"{LINK_LIFE // timedelta(minutes=1)} minutes"

# A guess: whoever changes a credential is a person, so another one hardly comes in between twice.
# As often a new id is drawn.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was made just now. Nobody can read its text again."""

    key: Credential
    text: str = field(repr=False)


class Directory:
    """The credentials of a store, which is open.

    Every verb that makes or changes a credential takes the `actor` and a `note` for the audit. What
    is given to others must be had by the `giver`, else it raises `Forbidden`.
    Keys and people may be narrowed to its `scopes`: those of the platform, to which an application
    adds those of its services.
    """

    def __init__(self, store: CredentialStore, *, scopes: Scopes = SCOPES) -> None:
        self._store = store
        self.scopes = scopes

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
        """Make a key, whose acts are those of `key:NAME`. It may do what its roles allow, narrowed
        by scopes where there are any, for the jobs of one tenant or, with None, of all. It is good
        for its `life`, with None for ever. Raises `BadInput`: a name, a role, a scope or a tenant
        that cannot be; it says what can."""
        grant = check_grant(name, roles=roles, tenant=tenant, scopes=scopes, known=self.scopes)
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
        """Make a successor of a key, with its name, its rights and its length of life. Both are
        good until the overlap is over or the old one is revoked. Should this process die half way,
        both are: rotate again. Raises `NotFound`: there is no such key; `BadInput`: it is not good
        any more, or the overlap is negative."""
        overlap_us = read_micros(overlap, "overlap=")
        if overlap_us > micros(LONGEST_OVERLAP):
            raise BadInput("the overlap is a time from nothing to ten years")
        old = self._find_key(id)
        state = state_of(old, self._now())
        if state != "active":
            raise BadInput(f"key {old.id} is {state}; make another with `ulak keys create`")
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
        """End a key in every process within five seconds; one that is revoked stays so. Raises
        `NotFound`: there is no such key."""
        return self._revoke(lambda: self._find_key(id), act=REVOKED, actor=actor, note=note)

    def keys(self) -> list[Credential]:
        """Return every key, by id, revoked and expired ones too."""
        return self._all(KEY)

    def adopt_key(
        self, text: str, *, name: str, roles: Iterable[str], actor: str, scopes: Iterable[str] = ()
    ) -> bool:
        """Store a key that somebody else has made; False when it is stored, revoked or not. Raises
        `BadInput`: it cannot be a key, or another one has its id."""
        grant = check_grant(name, roles=roles, tenant=None, scopes=scopes, known=self.scopes)
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
            raise NotFound(f"there is no key {shown!r}; `ulak keys list` names them")
        return row

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
        """Make a user, who can log in from now on; arguments as of `create_key`. Raises `BadInput`:
        a name that is taken or cannot be, a password, a role, a scope or a tenant that cannot be,
        it says what can; `NotSupported`: argon2-cffi is not installed."""
        grant = check_grant(name, roles=roles, tenant=tenant, scopes=scopes, known=self.scopes)
        must_act(actor, note)
        row = self._new(USER, name, grant, hash="", expires_at=None, by=actor)
        must_cover(giver, principal_of(row), self.scopes)
        row = row._replace(hash=passwords.hash_password(password))
        if not self._store.add_credential(row, act=CREATED, actor=actor, note=note):
            # A name in old trails means one person, so one that was disabled is not free again.
            raise BadInput(f"there is a user {name}, or there was one; choose another name")
        return view(row, self._now())

    def set_password(
        self, name: str, password: str, *, actor: str, note: str = "", giver: Principal = ANYBODY
    ) -> Credential:
        """Give a user another password; every login with the old one ends within five seconds.
        Raises `NotFound`: there is no such user; `BadInput`: the password cannot be used, or the
        user is disabled; `Forbidden`: the user may do more than the giver."""
        user = _must_be_enabled(self._find_user(name))
        must_cover(giver, principal_of(user), self.scopes)
        hash = passwords.hash_password(password)
        changed = self._change(
            lambda: self._find_user(name),
            lambda row: _must_be_enabled(row)._replace(hash=hash),
            act=PASSWORD, actor=must_act(actor, note), note=note,
        )  # fmt: skip
        return view(changed, self._now())

    def disable_user(self, name: str, *, actor: str, note: str = "") -> Credential:
        """Let a user in no more; every login of theirs ends within five seconds. Raises `NotFound`:
        there is no such user."""
        return self._revoke(lambda: self._find_user(name), act=DISABLED, actor=actor, note=note)

    def users(self) -> list[Credential]:
        """Return every user, by name, disabled ones too."""
        return self._all(USER)

    def _find_user(self, name: str) -> CredentialRow:
        row = self._store.find_credential(USER, name) if is_name(name) else None
        if row is None:
            raise NotFound(f"there is no user {name[:64]!r}; `ulak users list` names them")
        return row

    def make_link(
        self, principal: Principal, life: Duration = LINK_LIFE, *, actor: str = "", note: str = ""
    ) -> str:
        """Return the code of a link that logs in as a principal, once; the audit keeps its making.
        A principal that came with a credential is logged in by that one: the login ends with it.
        The link waits for its use during its `life`; by default the principal has made it. Raises
        `BadInput`: the principal has no name or no role that exists, or the link would not live."""
        if not principal.name or not principal.roles:
            raise BadInput("a link is made for somebody with a name and a role")
        expires_at = self._end_of(life)
        # Links that are over, and logins that came of them, are of no more use to anybody.
        self._store.forget_credentials(LINK, before=self._now())
        grant = Grant(
            principal.name, tenant=principal.tenant, roles=in_order(principal.roles, ROLES, "role"),
            scopes=tuple(sorted(principal.scopes)),
        )  # fmt: skip
        by = principal.credential or principal.name
        maker = actor or principal.name
        _, text = self._issue(LINK, grant, expires_at, by=by, actor=maker, note=note)
        return text

    def _now(self) -> Instant:
        return self._store.clock.now()

    def _all(self, kind: str) -> list[Credential]:
        now = self._now()
        return [view(row, now) for row in self._store.credentials(kind)]

    def _new(
        self, kind: str, id: str, grant: Grant, *, hash: str, expires_at: Instant | None, by: str
    ) -> CredentialRow:
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
        revoked = self._change(
            find,
            lambda row: None if row.revoked_at else row._replace(revoked_at=self._now()),
            act=act, actor=must_act(actor, note), note=note,
        )  # fmt: skip
        return view(revoked, self._now())

    def _end_of(self, life: Duration | None) -> Instant | None:
        if life is None:
            return None
        life_us = read_micros(life, "life=")
        if life_us == 0:
            raise BadInput("a credential lives for some time, a hundred years at most")
        return self._now() + life_us


def _must_be_enabled(row: CredentialRow) -> CredentialRow:
    if row.revoked_at is not None:
        raise BadInput(f"user {row.name} is disabled; make another one")
    return row
