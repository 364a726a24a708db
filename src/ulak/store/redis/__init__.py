"""The store of jobs on Redis."""

from ulak.store.redis.store import RedisStore

__all__ = ["RedisStore"]
