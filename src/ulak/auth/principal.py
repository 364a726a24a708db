"""A caller that is known: its name, its tenant, and what it may do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, Self

from ulak.errors import BadInput, Forbidden

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
SERVICE: Final = "service"

ROLES: Final = (VIEWER, SERVICE, OPERATOR, ADMIN)

_SCOPE: Final = re.compile(r"[a-z][a-z0-9-]*:[a-z][a-z0-9-]*")


class AccessScope(str):
    """One thing that a caller may be allowed to do: its name, as keys and routes have it, and the
    roles that have it. A service declares its own.

    Args:
        name: Two words, as `letters:write`.
        allows: What it allows, as the end of the sentence "Ada may ...".
        roles: Who has it; `admin` always does.
        of_a_tenant: Whether callers of one tenant have it. False for what concerns the whole
            installation.

    Raises:
        BadInput: the name is none, or nothing says what it allows.
    """

    __slots__ = ("allows", "of_a_tenant", "roles")

    allows: str
    roles: frozenset[str]
    of_a_tenant: bool

    def __new__(
        cls, name: str, allows: str, *, roles: Iterable[str], of_a_tenant: bool = True
    ) -> Self:
        if not _SCOPE.fullmatch(name):
            raise BadInput(f"{name[:64]!r} is no scope; write two words, as letters:write")
        if not allows:
            raise BadInput(f"the scope {name} does not say what it allows; write it down")
        made = super().__new__(cls, name)
        made.allows = allows
        made.roles = frozenset({ADMIN, *roles})
        made.of_a_tenant = of_a_tenant
        return made


JOBS_READ: Final = AccessScope(
    "jobs:read", "read jobs, their trails and flows, and watch them",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
JOBS_SUBMIT: Final = AccessScope("jobs:submit", "submit jobs", roles={SERVICE, OPERATOR})
JOBS_SIGNAL: Final = AccessScope("jobs:signal", "send signals to jobs", roles={SERVICE, OPERATOR})
JOBS_ACT: Final = AccessScope(
    "jobs:act", "decide, release, approve, retry and cancel jobs", roles={OPERATOR}
)
QUEUES_READ: Final = AccessScope(
    "queues:read", "read queues, limits, schedules and workers", roles={VIEWER, OPERATOR},
    of_a_tenant=False,
)  # fmt: skip
QUEUES_PAUSE: Final = AccessScope(
    "queues:pause", "pause and resume queues, flows, keys and schedules; revive messages",
    roles={OPERATOR}, of_a_tenant=False,
)  # fmt: skip
QUEUES_LIMIT: Final = AccessScope(
    "queues:limit", "set limits, rates and weights", roles=(), of_a_tenant=False
)
METRICS_READ: Final = AccessScope(
    "metrics:read", "read metrics", roles={VIEWER, SERVICE, OPERATOR}, of_a_tenant=False
)
AUDIT_READ: Final = AccessScope(
    "audit:read", "read what operators did", roles={OPERATOR}, of_a_tenant=False
)
OPS: Final = AccessScope(
    "ops:manage", "see and steer kill switches, overrides and adaptive control", roles=(),
    of_a_tenant=False,
)  # fmt: skip
IDENTITY: Final = AccessScope(
    "identity:manage", "make, rotate and revoke keys; make and disable users", roles=(),
    of_a_tenant=False,
)  # fmt: skip

Scopes = Mapping[str, AccessScope]
"""Scopes by their names, in the order in which they are shown."""


def add_scopes(*brought: Iterable[AccessScope]) -> Scopes:
    """Return the platform's scopes and, after them, those that services bring. Raises `BadInput`:
    two bring the same."""
    table = dict(SCOPES)
    for scope in chain(*brought):
        if table.setdefault(scope, scope) is not scope:
            raise BadInput(f"there is a scope {scope} already; give this one another name")
    return MappingProxyType(table)


SCOPES: Final[Scopes] = MappingProxyType(
    {
        scope: scope
        for scope in (
            JOBS_READ, JOBS_SUBMIT, JOBS_SIGNAL, JOBS_ACT, QUEUES_READ, QUEUES_PAUSE, QUEUES_LIMIT,
            METRICS_READ, AUDIT_READ, OPS, IDENTITY,
        )
    }
)  # fmt: skip
"""The platform's own scopes; the docs and the command line print what each allows."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, whatever the credential was."""

    name: str
    """As trails and the audit show it: a person's name, or `key:` and the name of a key."""
    _: KW_ONLY
    tenant: str | None
    """The one tenant whose jobs it sees; None sees all."""
    roles: frozenset[str]
    scopes: frozenset[str] = frozenset()
    """Narrows what its roles allow; empty narrows nothing."""
    credential: str = ""
    """Which credential it came with, as the audit names it: `key/ab12cd34`, `user/ada`."""

    def may(self, scope: str) -> bool:
        """Tell whether it may do what a scope allows: one of the platform's by its name, one of a
        service by the `AccessScope` that declares it."""
        known = scope if isinstance(scope, AccessScope) else SCOPES.get(scope)
        if known is None or (self.scopes and scope not in self.scopes):
            return False
        return (self.tenant is None or known.of_a_tenant) and not known.roles.isdisjoint(self.roles)

    def must(self, scope: AccessScope) -> None:
        """Refuse unless it may. Raises `Forbidden`: naming what is missing and who has it."""
        if not self.may(scope):
            whole = "" if scope.of_a_tenant else ", and no tenant of its own"
            raise Forbidden(
                f"{self.name} may not {scope.allows}: that takes {holders(scope)}{whole}"
            )

    def sees(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant


def holders(scope: AccessScope) -> str:
    known = [role for role in ROLES if role in scope.roles]
    return " or ".join([*known, *sorted(scope.roles.difference(ROLES))])


ANONYMOUS: Final = "anonymous"
"""How trails and the audit name a caller who was not asked."""
ANYBODY: Final = Principal("", tenant=None, roles=frozenset({ADMIN}))
"""Who asks where nobody is asked who they are: in the process itself, on the command line."""


@dataclass(slots=True)
class CurrentRequest:
    """One request while it is answered."""

    correlation_id: str
    principal: str = ""


CURRENT_REQUEST: Final[ContextVar[CurrentRequest | None]] = ContextVar("ulak_asking", default=None)
"""The request that is answered here, for the log. Whatever is called on its behalf, on a thread
too, is in its context, and no other request is."""
