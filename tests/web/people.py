"""Callers for tests: whoever shows a credential is its person, until it is taken away."""

from ulak.auth.principal import ADMIN, OPERATOR, SERVICE, VIEWER, Principal
from ulak.errors import Unauthenticated


def person(name: str, role: str, tenant: str | None = None) -> Principal:
    return Principal(name, tenant=tenant, roles=frozenset({role}), credential=f"user/{name}")


PEOPLE = {
    "viewer": person("vera", VIEWER),
    "operator": person("olga", OPERATOR),
    "other-operator": person("otto", OPERATOR),
    "admin": person("ada", ADMIN),
    "service": person("key:shop", SERVICE),
    "acme-operator": person("anna", OPERATOR, "acme"),
    "acme-service": person("key:acme", SERVICE, "acme"),
}
"""Who comes with which credential."""


class Known:
    """Knows these people, each by a credential that is the name; without any, those above."""

    def __init__(self, *people: Principal) -> None:
        self.people = {principal.name: principal for principal in people} or dict(PEOPLE)

    def recall(self, credential: str) -> Principal | None:
        return None

    def authenticate(self, credential: str) -> Principal:
        if credential not in self.people:
            raise Unauthenticated("nobody has this credential", reason="unknown")
        return self.people[credential]


def as_(who: str) -> dict[str, str]:
    """The headers of a caller."""
    return {"Authorization": f"Bearer {who}"}
