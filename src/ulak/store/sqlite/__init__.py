"""The store in one SQLite file: no server, every promise of the protocol."""

from ulak.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
