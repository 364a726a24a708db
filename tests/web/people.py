"""Callers whose credentials are known beforehand, for an application that asks who they are."""

from ulak.auth.principal import ADMIN, OPERATOR, SERVICE, VIEWER, Principal
from ulak.errors import Unauthenticated


def _person(name: str, role: str, tenant: str | None = None) -> Principal:
    return Principal(name, tenant=tenant, roles=frozenset({role}), credential=f"user/{name}")


PEOPLE = {
    "viewer": _person("vera", VIEWER),
    "operator": _person("olga", OPERATOR),
    "other-operator": _person("otto", OPERATOR),
    "admin": _person("ada", ADMIN),
    "service": _person("key:shop", SERVICE),
    "acme-operator": _person("anna", OPERATOR, "acme"),
    "acme-service": _person("key:acme", SERVICE, "acme"),
}
"""Who comes with which credential."""


class Known:
    """Knows exactly those people."""

    def recall(self, credential: str) -> Principal | None:
        return None

    def authenticate(self, credential: str) -> Principal:
        if credential not in PEOPLE:
            raise Unauthenticated("nobody has this credential", reason="unknown")
        return PEOPLE[credential]


def as_(who: str) -> dict[str, str]:
    """The headers of a caller."""
    return {"Authorization": f"Bearer {who}"}
