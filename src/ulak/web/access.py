"""Who may call what: one table, from which routes are guarded, documented and tested.

A route without a line here is not served: the application refuses to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ulak.auth.principal import (
    AUDIT_READ,
    IDENTITY,
    JOBS_ACT,
    JOBS_READ,
    JOBS_SIGNAL,
    JOBS_SUBMIT,
    METRICS_READ,
    QUEUES_LIMIT,
    QUEUES_PAUSE,
    QUEUES_READ,
)

About = Literal["job", "jobs", "all"]
"""What a route is about: one job (a foreign tenant's is not found), the jobs of the caller's
tenant, or the whole installation."""

KNOWN: Final = "known"
"""Instead of a scope: whoever has a good credential."""
PUBLIC: Final = "public"
"""Instead of a scope: everybody, without a credential."""


@dataclass(frozen=True, slots=True)
class Access:
    """One line: what a call needs."""

    method: str
    path: str
    scope: str
    about: About = "all"

    @property
    def is_public(self) -> bool:
        """Whether nobody is asked who they are."""
        return self.scope == PUBLIC


def table(lines: Iterable[Access]) -> Mapping[tuple[str, str], Access]:
    """Arrange lines by method and path."""
    return {(line.method, line.path): line for line in lines}


ACCESS: Final = table(
    [
        Access("GET", "/", PUBLIC),
        Access("GET", "/health", PUBLIC),
        Access("GET", "/health/live", PUBLIC),
        Access("GET", "/health/ready", PUBLIC),
        Access("GET", "/metrics", METRICS_READ),
        Access("GET", "/openapi.json", KNOWN, "jobs"),
        Access("GET", "/docs", KNOWN, "jobs"),
        #
        Access("POST", "/auth/login", PUBLIC),
        Access("GET", "/auth/link", PUBLIC),
        Access("POST", "/auth/logout", PUBLIC),
        Access("GET", "/auth/me", KNOWN, "jobs"),
        Access("GET", "/keys", IDENTITY),
        Access("POST", "/keys", IDENTITY),
        Access("POST", "/keys/{id}/rotate", IDENTITY),
        Access("POST", "/keys/{id}/revoke", IDENTITY),
        Access("GET", "/users", IDENTITY),
        Access("POST", "/users", IDENTITY),
        Access("POST", "/users/{name}/password", IDENTITY),
        Access("POST", "/users/{name}/disable", IDENTITY),
        Access("GET", "/audit", AUDIT_READ),
        #
        Access("GET", "/jobs", JOBS_READ, "jobs"),
        Access("POST", "/jobs", JOBS_SUBMIT, "jobs"),
        Access("POST", "/jobs/bulk", JOBS_ACT, "jobs"),
        Access("GET", "/jobs/{id}", JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/trail", JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/payload", JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/result", JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/why", JOBS_READ, "job"),
        Access("GET", "/jobs/{id}/events", JOBS_READ, "job"),
        Access("POST", "/jobs/{id}/approve", JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/decide", JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/release", JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/retry", JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/cancel", JOBS_ACT, "job"),
        Access("POST", "/jobs/{id}/signal", JOBS_SIGNAL, "job"),
        Access("GET", "/events", JOBS_READ, "jobs"),
        Access("GET", "/counts", JOBS_READ, "jobs"),
        #
        Access("GET", "/flows", JOBS_READ, "jobs"),
        Access("GET", "/flows/{name}", JOBS_READ, "jobs"),
        Access("GET", "/flows/{name}/diagram", JOBS_READ, "jobs"),
        Access("GET", "/queues", QUEUES_READ),
        Access("POST", "/queues/{name}/pause", QUEUES_PAUSE),
        Access("POST", "/queues/{name}/resume", QUEUES_PAUSE),
        Access("GET", "/pauses", QUEUES_READ),
        Access("PUT", "/pauses/{kind}/{name:path}", QUEUES_PAUSE),
        Access("DELETE", "/pauses/{kind}/{name:path}", QUEUES_PAUSE),
        Access("GET", "/limits", QUEUES_READ),
        Access("PUT", "/limits/{flow}/{state}", QUEUES_LIMIT),
        Access("DELETE", "/limits/{flow}/{state}", QUEUES_LIMIT),
        Access("GET", "/rates", QUEUES_READ),
        Access("PUT", "/rates/{flow}/{state}", QUEUES_LIMIT),
        Access("DELETE", "/rates/{flow}/{state}", QUEUES_LIMIT),
        Access("GET", "/weights", QUEUES_READ),
        Access("PUT", "/weights/{tenant:path}", QUEUES_LIMIT),
        Access("DELETE", "/weights/{tenant:path}", QUEUES_LIMIT),
        Access("GET", "/workers", QUEUES_READ),
        Access("GET", "/schedules", QUEUES_READ),
        Access("GET", "/schedules/{name}/ticks", QUEUES_READ),
        Access("POST", "/schedules/{name}/pause", QUEUES_PAUSE),
        Access("POST", "/schedules/{name}/resume", QUEUES_PAUSE),
        #
        Access("GET", "/dead-letters", JOBS_READ, "jobs"),
        Access("POST", "/dead-letters/redrive", JOBS_ACT, "jobs"),
        Access("POST", "/dead-letters/{id}/redrive", JOBS_ACT, "job"),
        Access("GET", "/outbox/dead", QUEUES_READ),
        Access("POST", "/outbox/dead/{id:path}/revive", QUEUES_PAUSE),
    ]
)
"""The engine's own routes; a service brings lines of its own."""
