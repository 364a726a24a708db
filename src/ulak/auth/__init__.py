"""Who is asking: principals, API keys, people and tokens, one system for every surface."""

from ulak.auth.api_keys import Keys
from ulak.auth.attempts import Attempts
from ulak.auth.directory import Directory
from ulak.auth.kept import kept_secrets
from ulak.auth.passwords import hash_password, is_password
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
from ulak.auth.secrets import new_secret

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
    "Attempts",
    "Directory",
    "Keys",
    "Principal",
    "hash_password",
    "is_password",
    "kept_secrets",
    "new_secret",
]
