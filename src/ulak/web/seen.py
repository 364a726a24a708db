"""Which jobs a caller sees, and under which name and with which roles a caller acts."""

from __future__ import annotations

from collections.abc import Collection

from ulak.auth.principal import ANONYMOUS, ANYBODY, Principal
from ulak.engine.engine import Engine
from ulak.engine.view import Job
from ulak.errors import JobNotFound


def seen(engine: Engine, job_id: str, principal: Principal) -> Job:
    """Return a job as it stands now.

    Raises:
        BadInput: this is not the id of a job.
        JobNotFound: there is none, or it belongs to a tenant that the caller does not see.
    """
    job = engine.get(job_id)
    if not principal.sees(job.tenant):
        raise JobNotFound(job_id)
    return job


def actor_of(principal: Principal) -> str:
    """Name a caller in trails and the audit; whoever was not asked who they are is anonymous."""
    return principal.name or ANONYMOUS


def roles_of(principal: Principal) -> Collection[str] | None:
    """Return the roles that a gate checks; none where there is no login."""
    return None if principal is ANYBODY else principal.roles
