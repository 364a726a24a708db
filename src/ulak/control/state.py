"""What adaptive control remembers, in tables of its own beside the engine's."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from ulak.tables import Schema

SCHEMA: Final = Schema(
    "adaptive control",
    folder=files("ulak.control") / "state_sql",
    version_table="adaptive_control_schema",
    why="a mode and its event are one transaction",
)
