"""Scopes: who has them, and those that services bring."""

import pytest

from ulak.auth import ADMIN, OPERATOR, SERVICE, VIEWER, AccessScope, Principal
from ulak.auth.principal import JOBS_READ, SCOPES, add_scopes
from ulak.errors import BadInput, Forbidden

WRITE = AccessScope("letters:write", "write letters", roles={SERVICE, "clerk"})
FRANK = AccessScope("letters:frank", "buy stamps", roles={OPERATOR}, of_a_tenant=False)


def who(*roles: str, tenant: str | None = None, scopes: tuple[str, ...] = ()) -> Principal:
    return Principal("ada", tenant=tenant, roles=frozenset(roles), scopes=frozenset(scopes))


@pytest.mark.shows("E-69")
def test_a_scope_is_of_the_roles_that_it_names_and_of_admins() -> None:
    for role, may in ((SERVICE, True), (ADMIN, True), ("clerk", True), (VIEWER, False)):
        assert who(role).may(WRITE) is may
    assert not who(SERVICE, scopes=("jobs:read",)).may(WRITE)
    assert who(SERVICE, scopes=("letters:write",)).may(WRITE)
    assert who(OPERATOR).may(FRANK)
    assert not who(OPERATOR, tenant="acme").may(FRANK)
    with pytest.raises(Forbidden, match="ada may not buy stamps: that takes operator or admin, an"):
        who(VIEWER).must(FRANK)


def test_a_scope_of_the_platform_is_known_by_its_name_too() -> None:
    assert who(VIEWER).may("jobs:read")
    assert not who(ADMIN).may("letters:write")  # a text does not say who has it


@pytest.mark.shows("E-69")
def test_two_services_cannot_bring_the_same_scope() -> None:
    assert list(add_scopes([WRITE], [FRANK])) == [*SCOPES, WRITE, FRANK]
    other = AccessScope("letters:write", "write to anybody", roles={VIEWER})
    for brought in ([WRITE, other], [AccessScope("jobs:read", "read all", roles={VIEWER})]):
        with pytest.raises(BadInput, match=f"there is a scope {brought[-1]} already"):
            add_scopes(brought)
    assert add_scopes([WRITE], [WRITE])[WRITE] is WRITE
    assert JOBS_READ in SCOPES


@pytest.mark.parametrize(
    ("name", "allows", "wrong"),
    [("letters", "x", "is no scope"), ("A:b", "x", "is no scope"), ("a:b", "", "does not say")],
)
def test_a_scope_has_two_words_and_says_what_it_allows(name: str, allows: str, wrong: str) -> None:
    with pytest.raises(BadInput, match=wrong):
        AccessScope(name, allows, roles={SERVICE})
