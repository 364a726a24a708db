"""What Redis keeps: jobs, and idempotency records with or without them."""

from ulak.store.redis.records import RedisRecords
from ulak.store.redis.store import RedisStore

__all__ = ["RedisRecords", "RedisStore"]
