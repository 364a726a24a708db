"""Ids for rows of services: sixteen bytes in a table, text everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak.ids import from_text, time_ordered_id, to_text, unguessable_id

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

__all__ = ["from_text", "new_id", "new_secret_id", "to_text"]


def new_id(engine: Engine) -> str:
    """Return a new id that begins with the present time of the engine's store (UUIDv7), so that
    new rows stand at the end of an index."""
    return to_text(time_ordered_id(engine.store.clock.now()))


def new_secret_id() -> str:
    """Return a new id that nobody can guess (UUIDv4), for ids that are a permission by
    themselves."""
    return to_text(unguessable_id())
