"""The store in PostgreSQL: many processes on many machines, every promise of the protocol."""

from ulak.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
