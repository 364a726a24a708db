"""Who is asking: principals, API keys, people and tokens, one system for every surface."""

from ulak.auth.principal import (
    ADMIN,
    JOBS_ACT,
    JOBS_READ,
    JOBS_SIGNAL,
    JOBS_SUBMIT,
    METRICS_READ,
    OPERATOR,
    SERVICE,
    VIEWER,
    AccessScope,
    Principal,
)

__all__ = [
    "ADMIN",
    "JOBS_ACT",
    "JOBS_READ",
    "JOBS_SIGNAL",
    "JOBS_SUBMIT",
    "METRICS_READ",
    "OPERATOR",
    "SERVICE",
    "VIEWER",
    "AccessScope",
    "Principal",
]
