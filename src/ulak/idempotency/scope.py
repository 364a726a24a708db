"""Scopes: the name of a protected operation, and how it is protected."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final, Literal

from ulak.clock import Duration, micros, read_micros, seconds
from ulak.errors import BadInput

Mode = Literal["transactional", "lease"]

TTL: Final = timedelta(days=7)
LEASE: Final = timedelta(seconds=60)
LOCK_WAIT: Final = timedelta(seconds=2)
LARGEST_BODY: Final = 1024 * 1024
LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Scope:
    """What is protected, and how. The same key in two scopes is two records.

    Raises:
        BadInput: a value cannot be used, or its records are forgotten while some caller may
            still try again.
    """

    name: str
    """Such as `letters.write`; '' is one too."""
    _: KW_ONLY
    mode: Mode = "transactional"
    """`transactional` where all effects are in the store's database: they and the record are one
    commit. `lease` where some are elsewhere: the claim is committed before the work begins."""
    ttl: Duration = TTL
    """How long an answer is kept, from the end of the execution."""
    lease: Duration = LEASE
    """How long an execution of mode `lease` is left alone when its process has died."""
    lock_wait: Duration = LOCK_WAIT
    """How long a duplicate waits for a transaction that has claimed the key."""
    cache_errors: bool = False
    """Whether 408, 425, 429 and 5xx are stored too, so that a retry does not try again."""
    max_body_bytes: int = LARGEST_BODY
    """The largest answer that is kept."""
    headers: tuple[str, ...] = ()
    """Which headers are replayed besides Content-Type, Location, ETag and Link."""
    fingerprint_fields: tuple[str, ...] | None = None
    """The members of a JSON body that count; None means all."""
    fed_for: Duration | None = None
    """For how long the outbox that feeds it tries again, if one does."""

    def __post_init__(self) -> None:
        for name in ("ttl", "lease", "lock_wait"):
            if read_micros(getattr(self, name), f"{self._named()}: {name}=") == 0:
                self._refuse(f"{name} is {getattr(self, name)}; it must be positive")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            self._refuse(f"its name must be printable and at most {LONGEST_NAME} characters long")
        if self.max_body_bytes < 0:
            self._refuse(f"max_body_bytes is {self.max_body_bytes}; 0 keeps empty bodies only")
        if self.fed_for is None:
            return
        if micros(self.ttl) <= read_micros(self.fed_for, f"{self._named()}: fed_for="):
            self._refuse(
                f"answers are kept for {seconds(self.ttl):.0f} s and the outbox that feeds "
                f"it tries for {seconds(self.fed_for):.0f} s: a late retry would be "
                "executed a second time; keep them longer"
            )

    def _refuse(self, why: str) -> None:
        raise BadInput(f"{self._named()}: {why}")

    def _named(self) -> str:
        return f'the idempotency scope "{self.name}"'
