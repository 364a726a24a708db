"""The store in memory: the reference."""

from ulak.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
