"""What Redis keeps: idempotency records."""

from ulak.store.redis.records import RedisRecords

__all__ = ["RedisRecords"]
