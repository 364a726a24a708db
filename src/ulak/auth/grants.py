"""What is given to somebody: a name, a tenant, roles and scopes, checked before they are stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from ulak.auth.principal import ANONYMOUS, ROLES, SCOPES, AccessScope, Principal, Scopes, holders
from ulak.core.bounds import storable_key
from ulak.core.event import ENGINE
from ulak.errors import BadInput, Forbidden

# Trails would not tell these from what the engine does, or from callers that nobody asked.
RESERVED: Final = frozenset({ENGINE, ANONYMOUS})

NAME: Final = "[a-z0-9][a-z0-9._@+-]{0,63}"
"""How the name of a key or a person looks."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Who somebody is to be, and what they may do."""

    name: str
    _: KW_ONLY
    tenant: str | None
    roles: tuple[str, ...]
    scopes: tuple[str, ...]


def checked(
    name: str,
    *,
    roles: Iterable[str],
    tenant: str | None,
    scopes: Iterable[str],
    known: Scopes = SCOPES,
) -> Grant:
    """Return a grant that can be stored, with roles and scopes in the order of their tables;
    `known` has the scopes there are, those of services too.

    Raises:
        BadInput: naming what is wrong and what would work.
    """
    must_be_a_name(name)
    if tenant:
        storable_key(tenant, "the tenant")
    has_roles = known_roles(roles)
    if not has_roles:
        raise BadInput(f"{name} needs a role: {', '.join(ROLES)}")
    narrowed = tuple(map(str, _known(scopes, tuple(known), "scope")))
    whole = Principal(name, tenant=tenant, roles=frozenset(has_roles))
    for scope in narrowed:
        if not whole.may(known[scope]):
            raise BadInput(_useless(known[scope], has_roles, tenant, known))
    return Grant(name, tenant=tenant, roles=has_roles, scopes=narrowed)


def known_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """Return roles in the order of their table.

    Raises:
        BadInput: there is no such role; it names those that are.
    """
    return _known(roles, ROLES, "role")


def must_be_a_name(name: str) -> None:
    """Refuse a name that trails, URLs and people would not carry well.

    Raises:
        BadInput: saying how names look.
    """
    if not is_name(name):
        raise BadInput(
            f"{name[:64]!r} is no name: write lower-case letters, digits and . _ @ + - , 64 at "
            "most, beginning with a letter or a digit"
        )
    if name in RESERVED:
        raise BadInput(f"{name!r} stands for ulak itself in trails; choose another name")


def is_name(text: str) -> bool:
    """Tell whether a text can be the name of a key or a person."""
    return re.fullmatch(NAME, text) is not None


def must_cover(giver: Principal, given: Principal, known: Scopes = SCOPES) -> None:
    """Refuse to hand out more than whoever hands it out has: that would be a way around scopes.

    Raises:
        Forbidden: naming what the giver lacks.
    """
    lacking = [s for s in known.values() if given.may(s) and not giver.may(s)]
    if lacking or not (giver.tenant is None or giver.tenant == given.tenant):
        what = ", ".join(lacking) or "another tenant"
        raise Forbidden(f"{giver.name} may not give what it does not have: {what}")


def _known(words: Iterable[str], table: tuple[str, ...], what: str) -> tuple[str, ...]:
    given = {words} if isinstance(words, str) else set(words)
    unknown = sorted(given.difference(table))
    if unknown:
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
