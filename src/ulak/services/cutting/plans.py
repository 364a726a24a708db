"""Plans: made by the optimiser of a mode, found in the export folder, taken when they are stable,
read with distrust."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ulak.kit.files import StableFiles, list_files
from ulak.kit.programs import Program, plain_environment
from ulak.kit.texts import number_text
from ulak.kit.threads import poll
from ulak.kit.xml import BadXml, read_xml
from ulak.services.cutting.codes import CuttingError
from ulak.services.cutting.rules import Paths, Rules

if TYPE_CHECKING:
    from ulak import Run
    from ulak.services.cutting.records import StoredBatch

MACRO: Final = "RunOptiPlanning.xls"
LIMIT: Final = timedelta(seconds=60)
LARGEST_PLAN: Final = 50_000_000  # bytes
SOLUTION: Final = (
    "name", "algo", "best", "mqBoards", "patterns", "cycles", "zcuts", "jobTime", "jobCost",
    "mqDrops", "diffDrops", "boards",
)  # fmt: skip
"""What is kept of a `Solution`: the words of the external program, and the sheets of mode E."""

_LONGEST_VALUE = 200
# How long a file that is no plan may go on changing before nobody waits for it any more. A guess.
_PATIENCE_S = 60.0
_FORMER_VERSION, _HEAD = b'<Plan version="1"', 200
_OPTIMISER: Final = "ulak.services.cutting.optimise"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan's file says of itself."""

    sha256: str
    size: int
    solution: Mapping[str, str] | None
    """The attributes of the chosen `Solution`, as texts; None when there is none."""


def make_settings(payload: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return what of an order and the rules decides a plan of mode E, as JSON: PREPARED stores it,
    so that a change of the rules leaves the job alone (C-15)."""
    default, sides = rules.default_plate_size, rules.machine_config.trim_mm
    plate = payload.get("plate_size") or (default.model_dump() if default else {})
    return {
        "plate_mm": [number_text(plate[name]) for name in ("width_mm", "height_mm")],
        "kerf_mm": number_text(rules.machine_config.kerf_mm),
        "trimmed_sides": [name for name, trim in sides.model_dump().items() if trim],
        "grain_axis": rules.grain_axis, "deduct_bands": rules.deduct_bands,
        "milling_mm": number_text(rules.milling_allowance_mm),
        "stages": rules.cut_stages, "first_cut": rules.first_cut, "trimming": rules.trimming_cut,
        "stack_mm": number_text(rules.max_stack_height_mm), "seconds": rules.opt_seconds,
        "offcut_mm": [
            number_text(rules.offcut_minimum.length_mm), number_text(rules.offcut_minimum.width_mm),
        ],
    }  # fmt: skip


async def run_mode(
    mode: str, files: Sequence[Path], *, paths: Paths, settings: Mapping[str, Any], run: Run[Any]
) -> str:
    """Run the optimiser of a mode on the import files, and return the last 4 KB of its output; C
    starts nothing and returns "".

    What was started has ended when this returns or raises, with everything that it has started
    itself; so it has when the run is cancelled or the worker dies. Exit code and output are a note
    `cutting.runner` of the run, however it ends. Raises `CuttingError`:
    E_OPTI_MODE_A_RUNNER_MISSING, E_OPTI_MODE_B_MACRO_MISSING, or E_OPTI_RUNNER_FAILED for another
    code than 0 and for more than 60 s.
    """
    if mode == "C":
        return ""
    command = await asyncio.to_thread(_make_command, mode, files, paths, settings)
    seconds = float(settings.get("seconds", 0)) if mode == "E" else 0
    # The embedded optimiser has the time of the rules for each file; its first run is compiled.
    limit = LIMIT + timedelta(seconds=seconds * len(files)) + (LIMIT if seconds else timedelta())
    program = Program(command, limit=limit, environment=plain_environment("WINE", "OPTI"))
    name = f"mode {mode}: {command[0]}"
    told = await program.run_noted(run, "cutting.runner", name, mode=mode)
    if program.code != 0:
        last = program.output.strip()[-500:] or "it has written nothing"
        raise CuttingError("E_OPTI_RUNNER_FAILED", f"{told}: {last}")
    return program.output


def find_plans(
    folder: Path, job_id: str, batches: Sequence[StoredBatch], *, not_before_ns: int
) -> dict[int, Path]:
    """Return the plan of each batch that has one: a file whose name ends with `.xml` and contains
    the job's id and the batch's mark, in whichever case, and that is not older than this.

    Of several the one that is called as the import file is taken, else the newest. Where one mark
    contains another, a file belongs to the longest that it contains. Raises `OSError`.
    """
    marks = {each.mark.lower(): each.n for each in batches}
    by_length, own = sorted(marks, key=len, reverse=True), job_id.lower()

    def is_ours(name: str) -> bool:
        return name.lower().endswith(".xml") and own in name.lower()

    best: dict[int, tuple[bool, int, str]] = {}
    for file, changed_ns in list_files(folder, is_ours):
        name = file.lower()
        exact = name.removeprefix(f"{own}_").removesuffix(".xml")
        contained = (mark for mark in by_length if mark in name)
        mark = exact if exact in marks else next(contained, None)
        if mark is not None and changed_ns >= not_before_ns:
            rank = (exact == mark, changed_ns, file)
            best[marks[mark]] = max(best.get(marks[mark], rank), rank)
    return {n: folder / file for n, (_, _, file) in best.items()}


async def collect_plans(
    folder: Path, job_id: str, batches: Sequence[StoredBatch], *, not_before_ns: int,
    patience_s: float, stable_s: float, poll_s: float,
) -> dict[int, Path]:  # fmt: skip
    """Wait until every batch has a stable plan, and return them.

    A folder that cannot be read, or that hangs, is waited for as well. What is there in time gets
    the time to prove that it is stable. Raises `CuttingError` E_OPTI_XML_TIMEOUT after
    `patience_s`, with the batches that have no plan.
    """
    stable, found = StableFiles(stable_s), dict[int, Path]()

    def look() -> dict[int, Path] | None:
        nonlocal found
        found = find_plans(folder, job_id, batches, not_before_ns=not_before_ns)
        # Each is looked at, also after one that is not stable: its time begins at the first look.
        are_stable = [stable.is_stable(path) for path in found.values()]
        return found if len(found) == len(batches) and all(are_stable) else None

    ends_at = time.monotonic() + max(patience_s, 0)

    def is_over() -> bool:
        grace_s = stable_s + poll_s if len(found) == len(batches) else 0
        return time.monotonic() > ends_at + grace_s

    try:
        return await poll(None, look, longest_pause_s=poll_s, is_over=is_over)
    except TimeoutError as error:
        missing = ", ".join(each.mark for each in batches if each.n not in found)
        why = f"no plan came for {missing}" if missing else "a plan is still being written"
        trouble = f" ({error})" if str(error) else ""
        raise CuttingError("E_OPTI_XML_TIMEOUT", f"{why} in {folder}{trouble}") from error


async def read_plan(path: Path, *, stable_s: float) -> Plan:
    """Return what a plan's file holds. A file that is no plan is judged when it is stable. Raises
    `CuttingError`: E_XML_INVALID says what is wrong with the file; E_OPTI_XML_TIMEOUT that it has
    gone, cannot be read, or is always being written."""
    stable, ends_at = StableFiles(stable_s), time.monotonic() + stable_s + _PATIENCE_S

    def look() -> Plan | None:
        is_stable = stable.is_stable(path)
        try:
            return _read(path)
        except BadXml as error:
            if is_stable:
                raise CuttingError("E_XML_INVALID", f"{path.name}: {error}") from error
        except FileNotFoundError as error:
            why = f"the plan {path} has gone; retry the job"
            raise CuttingError("E_OPTI_XML_TIMEOUT", why) from error
        return None

    pause_s = max(stable_s / 4, 0.01)
    try:
        return await poll(
            None, look, longest_pause_s=pause_s, is_over=lambda: time.monotonic() > ends_at
        )
    except TimeoutError as error:
        why = str(error) or "it is always being written"
        raise CuttingError("E_OPTI_XML_TIMEOUT", f"{path} cannot be read: {why}") from error


def verify_plan(path: Path, file: Path, settings: Mapping[str, Any]) -> None:
    """Check a plan of mode E against its import file. Raises `CuttingError`: E_PLAN_INVALID says
    what is wrong; E_OPTI_XML_TIMEOUT that one of both cannot be read."""
    from ulak.services.cutting.optimise.model import Unsolvable
    from ulak.services.cutting.optimise.reading import read_import
    from ulak.services.cutting.optimise.verify import find_faults

    try:
        data = path.read_bytes()
        faults = find_faults(read_import(file, settings), data)
    except (OSError, Unsolvable) as error:
        why = f"{file.name} or its plan cannot be read: {error}"
        raise CuttingError("E_OPTI_XML_TIMEOUT", why) from error
    if faults and _FORMER_VERSION in data[:_HEAD]:
        why = f"{path.name} was made by an earlier release; retry the job"
        raise CuttingError("E_OPTI_RUNNER_FAILED", why)
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise CuttingError("E_PLAN_INVALID", f"{path.name}: {faults[0]}{more}")


def _read(path: Path) -> Plan:
    """Raises `BadXml`, and `OSError`."""
    children, solutions = 0, list[dict[str, str]]()

    def take(name: str, attributes: Mapping[str, str], depth: int) -> None:
        nonlocal children
        children += depth == 1
        is_best = attributes.get("best") == "1"
        if name == "Solution" and (not solutions or (is_best and solutions[-1].get("best") != "1")):
            said = {key: attributes[key] for key in SOLUTION if key in attributes}
            solutions.append({key: text[:_LONGEST_VALUE] for key, text in said.items()})

    digest, size = read_xml(path, take, largest=LARGEST_PLAN)
    if not children:
        raise BadXml("its root has no child")
    return Plan(digest, size, solutions[-1] if solutions else None)


def _make_command(
    mode: str, files: Sequence[Path], paths: Paths, settings: Mapping[str, Any]
) -> list[str]:
    """Return what is executed, without a shell. Raises `CuttingError`: it is not there."""
    program, names = paths.exe_path, [str(path) for path in files]
    if mode == "E":
        options = ["--export", str(paths.export_folder), "--settings", json.dumps(dict(settings))]
        return [sys.executable, "-I", "-m", _OPTIMISER, *options, "--", *names]
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
