"""Where stories about idempotency keep their records: a store of jobs, or a Redis."""

from typing import Any

from ulak.clock import Clock
from ulak.store.redis import RedisRecords
from ulak.wiring import store_of


def is_redis(url: str) -> bool:
    return url.startswith("redis:")


def records_at(url: str, clock: Clock | None = None) -> Any:
    """Open what a URL names, by the time of its server or of a clock."""
    store: Any = RedisRecords(url, clock=clock) if is_redis(url) else store_of(url, clock=clock)
    store.open()
    return store
