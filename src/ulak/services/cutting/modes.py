"""Modes of the optimiser: what is started for one job, and for how long."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ulak.kit.programs import Program, plain_environment
from ulak.kit.texts import number_text
from ulak.services.cutting.codes import CuttingError
from ulak.services.cutting.rules import Paths, Rules

if TYPE_CHECKING:
    from ulak import Run

MACRO: Final = "RunOptiPlanning.xls"
LIMIT: Final = timedelta(seconds=60)
_GREEDY: Final = Path(__file__).with_name("greedy.py")


def make_settings(payload: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return what of an order and the rules decides a plan of mode E, as JSON.

    PREPARED stores it with the order, so that a change of the rules leaves the job alone (C-15).
    """
    default, sides = rules.default_plate_size, rules.machine_config.trim_mm
    plate = payload.get("plate_size") or (default.model_dump() if default else {})
    return {
        "plate_mm": [number_text(plate[name]) for name in ("width_mm", "height_mm")],
        "kerf_mm": number_text(rules.machine_config.kerf_mm),
        "trimmed_sides": [name for name, trim in sides.model_dump().items() if trim],
        "grain_axis": rules.grain_axis,
        "deduct_bands": rules.deduct_bands,
        "milling_mm": number_text(rules.milling_allowance_mm),
    }


async def run_mode(
    mode: str, files: Sequence[Path], *, paths: Paths, settings: Mapping[str, Any], run: Run[Any]
) -> str:
    """Run the optimiser of a mode on the import files, and return the last 4 KB of its output.

    C starts nothing and returns "". What was started has ended when this returns or raises, with
    everything that it has started itself; so it has when the run is cancelled or the worker dies.
    Exit code and output are a note `cutting.runner` of the run, however it ends.

    Raises:
        CuttingError: `E_OPTI_MODE_A_RUNNER_MISSING`, `E_OPTI_MODE_B_MACRO_MISSING`, or
            `E_OPTI_RUNNER_FAILED`: it ended with another code than 0, or took more than 60 s.
    """
    if mode == "C":
        return ""
    command = await asyncio.to_thread(_make_command, mode, files, paths, settings)
    program = Program(command, limit=LIMIT, environment=plain_environment("WINE", "OPTI"))
    began, ending = time.monotonic(), "was ended with its run"
    try:
        ending = await program.run()
    finally:
        seconds, told = round(time.monotonic() - began, 3), f"mode {mode}: {command[0]} {ending}"
        run.note(
            "cutting.runner", told, mode=mode, exit_code=program.code, seconds=seconds,
            output=program.output,
        )  # fmt: skip
    if program.code != 0:
        last = program.output.strip()[-500:] or "it has written nothing"
        raise CuttingError("E_OPTI_RUNNER_FAILED", f"{told}: {last}")
    return program.output


def _make_command(
    mode: str, files: Sequence[Path], paths: Paths, settings: Mapping[str, Any]
) -> list[str]:
    """Return what is executed, without a shell. Raises `CuttingError`: it is not there."""
    program, names = paths.exe_path, [str(path) for path in files]
    if mode == "E":
        options = ["--export", str(paths.export_folder), "--settings", json.dumps(dict(settings))]
        # By its path and not by `-m`: it does without ulak, and starts in a third of the time.
        return [sys.executable, "-I", str(_GREEDY), *options, "--", *names]
    if mode == "A":
        if not program.is_file():
            why = f"there is no program {program}; set optiplanningExePath, then retry"
            raise CuttingError("E_OPTI_MODE_A_RUNNER_MISSING", why)
        return [str(program), *names]
    macro, excel = program.with_name(MACRO), shutil.which("EXCEL.EXE")
    if not macro.is_file() or excel is None:
        lack = f"there is no macro {macro}" if excel else "no EXCEL.EXE is on the worker's path"
        raise CuttingError("E_OPTI_MODE_B_MACRO_MISSING", f"{lack}; use mode A, C or E here")
    # The macro starts when Excel opens it, reads the import folder, and has to quit Excel.
    return [excel, str(macro)]
