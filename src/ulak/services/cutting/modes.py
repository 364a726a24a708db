"""Modes of the optimiser: what is started for one job, for how long, and how it is ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ulak import Run
    from ulak.services.cutting.rules import Paths, Rules

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportFile:
    """The import file of one batch, and the trim on each side of its sheets."""

    path: Path
    trim_mm: Decimal


def make_settings(payload: Mapping[str, Any], rules: Rules) -> JsonObject:
    """Return what of an order and the rules decides a plan of mode E, as JSON.

    PREPARED stores it with the order, so that a change of the rules leaves the job alone (C-15).
    """
    raise NotImplementedError


async def run_mode(
    mode: str,
    files: Sequence[ImportFile],
    *,
    paths: Paths,
    settings: Mapping[str, Any],
    run: Run[Any],
) -> str:
    """Run the optimiser of a mode on the import files, and return the last 4 KB of its output.

    C starts nothing and returns "". What was started has ended when this returns or raises, with
    everything that it has started itself; also when the run is cancelled, or the worker dies.
    Its exit code and output are a note `cutting.runner` of the run, however it ends.

    Raises:
        CuttingError: `E_OPTI_MODE_A_RUNNER_MISSING`, `E_OPTI_MODE_B_MACRO_MISSING`, or
            `E_OPTI_RUNNER_FAILED`: it ended with another code than 0, or took more than 60 s.
    """
    raise NotImplementedError
