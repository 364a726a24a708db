"""Plans: found in the export folder, taken when they are stable, read with distrust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_PLAN_BYTES = 50_000_000


class Marked(Protocol):
    """What of a batch stands in the names of its files."""

    @property
    def n(self) -> int: ...
    @property
    def mark(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan's file says of itself."""

    sha256: str
    size: int
    solution: Mapping[str, str] | None
    """The attributes of the chosen `Solution` that C-50 names, as texts, and `boards`."""


def find_plans(
    folder: Path, job_id: str, batches: Sequence[Marked], *, not_before_ns: int
) -> dict[int, Path]:
    """Return the newest plan of each batch that has one. Raises `OSError`."""
    raise NotImplementedError


async def collect_plans(
    folder: Path,
    job_id: str,
    batches: Sequence[Marked],
    *,
    not_before_ns: int,
    patience_s: float,
    stable_s: float,
    poll_s: float,
) -> dict[int, Path]:
    """Wait until every batch has a stable plan, and return them.

    A folder that does not answer is asked again. Raises `CuttingError` E_OPTI_XML_TIMEOUT after
    `patience_s`, which names the batches without a plan.
    """
    raise NotImplementedError


async def read_plan(path: Path, *, stable_s: float) -> Plan:
    """Wait until a plan's file is stable, and return what it holds.

    Raises `CuttingError`: E_XML_INVALID says what is wrong with the file, E_OPTI_XML_TIMEOUT that
    it has gone.
    """
    raise NotImplementedError
