"""A caller that is known: its name, its tenant, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Final

from ulak.errors import Forbidden

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
SERVICE: Final = "service"

JOBS_READ: Final = "jobs:read"
JOBS_SUBMIT: Final = "jobs:submit"
JOBS_SIGNAL: Final = "jobs:signal"
JOBS_ACT: Final = "jobs:act"
QUEUES_READ: Final = "queues:read"
QUEUES_PAUSE: Final = "queues:pause"
QUEUES_LIMIT: Final = "queues:limit"
CONTRACT_READ: Final = "contract:read"
CONTRACT_TRANSITION: Final = "contract:transition"
PDF_READ: Final = "pdf:read"
PDF_RENDER: Final = "pdf:render"
METRICS_READ: Final = "metrics:read"
AUDIT_READ: Final = "audit:read"
IDENTITY: Final = "identity:manage"

SCOPES: Mapping[str, str] = MappingProxyType(
    {
        JOBS_READ: "read jobs, their trails and flows, and watch them",
        JOBS_SUBMIT: "submit jobs",
        JOBS_SIGNAL: "send signals to jobs",
        JOBS_ACT: "decide, release, approve, retry and cancel jobs",
        QUEUES_READ: "read queues, limits, schedules and workers",
        QUEUES_PAUSE: "pause and resume queues, flows, keys and schedules; revive messages",
        QUEUES_LIMIT: "set limits, rates and weights",
        CONTRACT_READ: "read contract versions, subjects and proofs",
        CONTRACT_TRANSITION: "move contract subjects and record proofs",
        PDF_READ: "read PDF jobs of one's own and download what they made",
        PDF_RENDER: "have PDFs rendered",
        METRICS_READ: "read metrics",
        AUDIT_READ: "read what operators did",
        IDENTITY: "make, rotate and revoke keys; make and disable users",
    }
)
"""Every scope and what it allows, a sentence each: the docs and the command line print it."""

# Everything else concerns the whole installation, so nobody of one tenant has it.
OF_A_TENANT: Final = frozenset(
    {
        JOBS_READ, JOBS_SUBMIT, JOBS_SIGNAL, JOBS_ACT, CONTRACT_READ, CONTRACT_TRANSITION,
        PDF_READ, PDF_RENDER,
    }
)  # fmt: skip

_READS = frozenset({JOBS_READ, QUEUES_READ, CONTRACT_READ, PDF_READ, METRICS_READ})
GRANTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        VIEWER: _READS,
        SERVICE: frozenset(
            {
                JOBS_READ, JOBS_SUBMIT, JOBS_SIGNAL, CONTRACT_READ, CONTRACT_TRANSITION,
                PDF_READ, PDF_RENDER, METRICS_READ,
            }
        ),
        OPERATOR: _READS
        | {
            JOBS_SUBMIT, JOBS_SIGNAL, JOBS_ACT, CONTRACT_TRANSITION, PDF_RENDER, QUEUES_PAUSE,
            AUDIT_READ,
        },
        ADMIN: frozenset(SCOPES),
    }
)  # fmt: skip
"""What each role may do."""
ROLES: Final = tuple(GRANTS)


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
        """Tell whether it may do what a scope allows."""
        if self.scopes and scope not in self.scopes:
            return False
        if self.tenant is not None and scope not in OF_A_TENANT:
            return False
        return any(scope in GRANTS[role] for role in self.roles)

    def must(self, scope: str) -> None:
        """Refuse unless it may.

        Raises:
            Forbidden: naming what is missing and who has it.
        """
        if not self.may(scope):
            who = " or ".join(role for role in ROLES if scope in GRANTS[role])
            whole = "" if scope in OF_A_TENANT else ", and no tenant of its own"
            raise Forbidden(f"{self.name} may not {SCOPES[scope]}: that takes {who}{whole}")

    def sees(self, tenant: str) -> bool:
        """Tell whether it sees the jobs of a tenant."""
        return self.tenant is None or self.tenant == tenant


ANONYMOUS: Final = "anonymous"
"""How trails and the audit name a caller who was not asked."""
ANYBODY: Final = Principal("", tenant=None, roles=frozenset({ADMIN}))
"""Who asks where nobody is asked who they are: in the process itself, on the command line."""
