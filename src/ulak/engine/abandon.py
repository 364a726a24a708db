"""How a stage is ended whose lease is lost."""

from __future__ import annotations


class Abandoned(BaseException):
    """Raised inside a stage that must not go on; not an Exception, so that none swallows it."""
