"""Callers for tests: whoever says a name is that person, until it is taken away."""

from ulak.auth.principal import Principal
from ulak.errors import Unauthenticated


def person(name: str, role: str, tenant: str | None = None) -> Principal:
    return Principal(name, tenant=tenant, roles=frozenset({role}))


class Known:
    """Knows some people by a credential that is their name."""

    def __init__(self, *people: Principal) -> None:
        self.people = {principal.name: principal for principal in people}
        self.asked = 0

    def recall(self, credential: str) -> Principal | None:
        return None

    def authenticate(self, credential: str) -> Principal:
        self.asked += 1
        if credential not in self.people:
            raise Unauthenticated("nobody is known by this", reason="unknown")
        return self.people[credential]


def by(name: str) -> dict[str, str]:
    """The headers of a person's request."""
    return {"Authorization": f"Bearer {name}"}
