"""Threads for what would stop a loop, such as the files of a share that may hang."""

from ulak.engine.threads import Aside

__all__ = ["Aside"]
