"""How a stage is ended from within: its lease is lost, or the store has nothing for it."""

from __future__ import annotations


class Abandoned(BaseException):
    """Raised inside a stage that must not go on; not an Exception, so that none swallows it."""


class Postponed(Abandoned):
    """Raised inside a stage that cannot go on now, through no fault of its own."""
