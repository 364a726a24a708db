"""The tables of PDF rendering: what is no part of a job."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from ulak.tables import Schema

SCHEMA: Final = Schema(
    "PDF rendering",
    folder=files("ulak.services.pdf") / "sql",
    version_table="pdf_schema",
    why="every process must see who owns a job",
)
