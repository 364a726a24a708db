"""Credentials as everybody may see them, and what may be given to whom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, Literal

from ulak.auth.principal import ANONYMOUS, ROLES, SCOPES, AccessScope, Principal, Scopes, holders
from ulak.clock import Instant, to_datetime
from ulak.core.bounds import storable_key
from ulak.core.event import ENGINE
from ulak.errors import BadInput, Forbidden, Unauthenticated
from ulak.store.credentials import KEY
from ulak.store.protocol import CredentialRow

# Trails would not tell these from what the engine does, or from callers that nobody asked.
RESERVED: Final = frozenset({ENGINE, ANONYMOUS})

NAME: Final = "[a-z0-9][a-z0-9._@+-]{0,63}"

State = Literal["active", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class Credential:
    """A key or a person without any secret."""

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


def view(row: CredentialRow, now: Instant) -> Credential:
    return Credential(
        row.id,
        row.name,
        principal=_acting_name(row),
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


def principal_of(row: CredentialRow) -> Principal:
    return Principal(
        _acting_name(row),
        tenant=row.tenant,
        roles=frozenset(row.roles.split()),
        scopes=frozenset(row.scopes.split()),
        credential=f"{row.kind}/{row.id}",
    )


def state_of(row: CredentialRow, now: Instant) -> State:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "active"


def must_be_active(row: CredentialRow, now: Instant) -> None:
    """Refuse what is not good any more. Only for whoever has shown the secret. Raises
    `Unauthenticated`: it was revoked, or it has expired."""
    state = state_of(row, now)
    if state != "active":
        raise Unauthenticated(f"the credential of {_acting_name(row)} is {state}", reason=state)


def _acting_name(row: CredentialRow) -> str:
    return f"{KEY}:{row.name}" if row.kind == KEY else row.name


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


@dataclass(frozen=True, slots=True)
class Grant:
    """Who somebody is to be, and what they may do."""

    name: str
    _: KW_ONLY
    tenant: str | None
    roles: tuple[str, ...]
    scopes: tuple[str, ...]


def check_grant(
    name: str,
    *,
    roles: Iterable[str],
    tenant: str | None,
    scopes: Iterable[str],
    known: Scopes = SCOPES,
) -> Grant:
    """Return a grant that can be stored, with roles and scopes in the order of their tables;
    `known` has the scopes there are, those of services too. Raises `BadInput`: naming what is wrong
    and what would work."""
    must_be_a_name(name)
    if tenant:
        storable_key(tenant, "the tenant")
    has_roles = in_order(roles, ROLES, "role")
    if not has_roles:
        raise BadInput(f"{name} needs a role: {', '.join(ROLES)}")
    narrowed = tuple(map(str, in_order(scopes, tuple(known), "scope")))
    whole = Principal(name, tenant=tenant, roles=frozenset(has_roles))
    for scope in narrowed:
        if not whole.may(known[scope]):
            raise BadInput(_useless(known[scope], has_roles, tenant, known))
    return Grant(name, tenant=tenant, roles=has_roles, scopes=narrowed)


def must_be_a_name(name: str) -> None:
    """Refuse a name that trails, URLs and people would not carry well. Raises `BadInput`: saying
    how names look."""
    if not is_name(name):
        raise BadInput(
            f"{name[:64]!r} is no name: write lower-case letters, digits and . _ @ + - , 64 at "
            "most, beginning with a letter or a digit"
        )
    if name in RESERVED:
        raise BadInput(f"{name!r} stands for ulak itself in trails; choose another name")


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None


def must_cover(giver: Principal, given: Principal, known: Scopes = SCOPES) -> None:
    """Refuse to hand out more than whoever hands it out has: that would be a way around scopes.
    Raises `Forbidden`: naming what the giver lacks."""
    lacking = [s for s in known.values() if given.may(s) and not giver.may(s)]
    if lacking or not (giver.tenant is None or giver.tenant == given.tenant):
        what = ", ".join(lacking) or "another tenant"
        raise Forbidden(f"{giver.name} may not give what it does not have: {what}")


def in_order(words: Iterable[str], table: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return words in the order of their table. Raises `BadInput`: one is not there."""
    given = {words} if isinstance(words, str) else set(words)
    if unknown := sorted(given.difference(table)):
        raise BadInput(f"there is no {what} {unknown[0][:64]!r}; there are {', '.join(table)}")
    return tuple(word for word in table if word in given)


def _useless(scope: AccessScope, roles: tuple[str, ...], tenant: str | None, known: Scopes) -> str:
    if tenant is not None and not scope.of_a_tenant:
        return (
            f"the scope {scope} concerns the whole installation, so nobody of one tenant has it; "
            f"a tenant may have {', '.join(s for s in known.values() if s.of_a_tenant)}"
        )
    who = holders(scope)
    return f"the scope {scope} narrows nothing: {' and '.join(roles)} lacks it; give the role {who}"
