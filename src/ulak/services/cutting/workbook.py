"""Workbooks of the optimiser: the template, the names of import files, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final, Protocol

SHEET: Final = "ŞABLON"
TAGS: Final = (
    "[P_CODE_MAT]", "[P_LENGTH]", "[P_WIDTH]", "[P_MINQ]", "[P_GRAIN]", "[P_IDESC]",
    "[P_EDGE_MAT_UP]", "[P_EGDE_MAT_LO]", "[P_EDGE_MAT_SX]", "[P_EDGE_MAT_DX]", "[P_IIDESC]",
    "[P_DESC1]",
)  # fmt: skip
"""Row 1, to the letter: the optimiser knows the eighth by its misspelling."""

Cell = Decimal | int | str | None


class Named(Protocol):
    """What the name of an import file is made of."""

    @property
    def part_type(self) -> str: ...
    @property
    def color(self) -> str: ...
    @property
    def thickness(self) -> Decimal: ...
    @property
    def material_code(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Written:
    """An import file as it lies in the folder."""

    sha256: str
    mtime_ns: int


def make_template(path: Path) -> None:
    """Write the template that is shipped; what is there is replaced."""
    raise NotImplementedError


def check_template(path: Path) -> None:
    """Raises `HoldCode` E_TEMPLATE_INVALID, whose message says what differs."""
    raise NotImplementedError


def make_marks(batches: Sequence[Named], revision: int | None = None) -> tuple[str, ...]:
    """Return the mark of each batch: no two are the same, also without regard to case."""
    raise NotImplementedError


def import_name(job_id: str, mark: str) -> str:
    """Return the name of a batch's import file: `{job id}_{mark}.xlsx`."""
    return f"{job_id}_{mark}.xlsx"


def write_import(
    template: Path, rows: Sequence[Sequence[Cell]], target: Path, *, recorded: str = ""
) -> Written:
    """Write an import file, and return its SHA-256 and time; rows have the 12 values of `TAGS`.

    A file that is there with the `recorded` SHA-256, or with the content that it would get, stays
    as it is. Raises `HoldCode` as `check_template`, and `OSError`.
    """
    raise NotImplementedError
