"""The settings of idempotency, by the names that its specification gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from ulak.core.schedule import UTC, cron_rule
from ulak.errors import BadInput, FlowError
from ulak.idempotency.guard import A_BATCH
from ulak.idempotency.scope import LARGEST_BODY, LEASE, LOCK_WAIT, TTL, Mode, Scope


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """What is in force for scopes that say nothing themselves, and for the clean-up."""

    _: KW_ONLY
    backend: str = "sql"
    """`sql` keeps records in the engine's store, `redis` in a Redis, and `memory` forgets them with
    the process."""
    redis_url: str = field(default="", repr=False)
    """Where that Redis is, such as `redis://:PASSWORD@HOST:6379/0`."""
    redis_allow_volatile: bool = False
    """Whether it may be one that forgets records when it restarts or is full."""
    ttl_seconds: int = int(TTL.total_seconds())
    lease_seconds: int = int(LEASE.total_seconds())
    lock_wait_ms: int = int(LOCK_WAIT.total_seconds() * 1000)
    max_body_bytes: int = LARGEST_BODY
    cleanup_cron: str = "0 3 * * *"
    cleanup_batch: int = A_BATCH

    def __post_init__(self) -> None:
        if self.backend == "redis" and not self.redis_url:
            raise BadInput(
                f"{variable('backend')} is redis and {variable('redis_url')} is not set; write "
                "redis://:PASSWORD@HOST:6379/0"
            )

    def scope(self, name: str, *, mode: Mode = "transactional") -> Scope:
        return Scope(
            name, mode=mode, ttl=timedelta(seconds=self.ttl_seconds),
            lease=timedelta(seconds=self.lease_seconds),
            lock_wait=timedelta(milliseconds=self.lock_wait_ms),
            max_body_bytes=self.max_body_bytes,
        )  # fmt: skip


def variable(name: str) -> str:
    return f"IDEMPOTENCY_{name.upper()}"


def names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(IdempotencySettings))


def _backend(text: str) -> str:
    if text not in ("sql", "redis", "memory"):
        raise ValueError(f"{text!r} is none; write sql, redis or memory")
    return text


def _redis_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://")):
        raise ValueError("it is none; write redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS")
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is none; write 0 or 1")
    return text == "1"


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is none; write a number from {least} to {most}")
        return int(text)

    return read


def _cron(text: str) -> str:
    try:
        cron_rule(text, UTC)
    except FlowError as error:
        raise ValueError(str(error)) from None
    return text


_YEARS: Final = 100 * 365 * 24 * 3600

READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    variable("backend"): _backend,
    variable("redis_url"): _redis_url,
    variable("redis_allow_volatile"): _flag,
    variable("ttl_seconds"): _number(1, _YEARS),
    variable("lease_seconds"): _number(1, 24 * 3600),
    variable("lock_wait_ms"): _number(1, 60_000),
    variable("max_body_bytes"): _number(0, 1024**3),
    variable("cleanup_cron"): _cron,
    variable("cleanup_batch"): _number(1, 100_000),
}


def settings_of(found: Mapping[str, Any]) -> IdempotencySettings:
    """Make settings of the variables that are set, the others as they are by default."""
    given = {name: found[variable(name)] for name in names() if variable(name) in found}
    return IdempotencySettings(**given)
