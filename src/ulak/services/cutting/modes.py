"""Modes of the optimiser: what is started for one job, for how long, and how it is ended."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Final

from ulak.services.cutting.codes import CuttingError
from ulak.services.cutting.rules import Paths, Rules, number_text

if TYPE_CHECKING:
    from ulak import Run

NOTE: Final = "cutting.runner"
MACRO: Final = "RunOptiPlanning.xls"
LIMIT_S: Final = 60.0
_PATIENCE_S: Final = 2.0
"""How long killed processes may take to go; one that waits for a dead share may never."""
_TAIL: Final = 4096
_GREEDY: Final = Path(__file__).with_name("greedy.py")
_GUARD: Final = ("/bin/sh", "-c", "read _; kill -KILL 0")
"""The first process of a program's group. It reads a pipe whose other end the worker has, and ends
the group when nobody has it any more."""
_KEPT: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "DISPLAY", "XAUTHORITY"}
)
"""Variables that programs get, with those of `LC_`, `WINE` and `OPTI`: no secrets of the worker."""


def make_settings(payload: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return what of an order and the rules decides a plan of mode E, as JSON.

    PREPARED stores it with the order, so that a change of the rules leaves the job alone (C-15).
    """
    default, sides = rules.default_plate_size, rules.machine_config.trim_mm
    plate = payload.get("plate_size") or (default.model_dump() if default else {})
    offcut = rules.offcut_minimum.length_mm, rules.offcut_minimum.width_mm
    return {
        "plate_mm": [number_text(plate[name]) for name in ("width_mm", "height_mm")],
        "kerf_mm": number_text(rules.machine_config.kerf_mm),
        "trimmed_sides": [name for name, trim in sides.model_dump().items() if trim],
        "grain_axis": rules.grain_axis,
        "deduct_bands": rules.deduct_bands,
        "milling_mm": number_text(rules.milling_allowance_mm),
        "offcut_mm": [number_text(side) for side in (max(offcut), min(offcut))],
    }


async def run_mode(
    mode: str,
    files: Sequence[Path],
    *,
    paths: Paths,
    settings: Mapping[str, Any],
    run: Run[Any],
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
    program = _Program(command)
    began, ending = time.monotonic(), "was ended with its run"
    try:
        ending = await program.run()
    finally:
        seconds = round(time.monotonic() - began, 3)
        run.note(
            NOTE, f"mode {mode}: {command[0]} {ending}", mode=mode, exit_code=program.code,
            seconds=seconds, output=program.output,
        )  # fmt: skip
    if program.code != 0:
        last = program.output.strip()[-500:] or "it has written nothing"
        raise CuttingError("E_OPTI_RUNNER_FAILED", f"mode {mode}: {command[0]} {ending}: {last}")
    return program.output


def _make_command(
    mode: str, files: Sequence[Path], paths: Paths, settings: Mapping[str, Any]
) -> list[str]:
    """Return what is executed, without a shell. Raises `CuttingError`: it is not there."""
    names = [str(path) for path in files]
    if mode == "E":
        folder = str(paths.export_folder)
        options = ["--export", folder, "--settings", json.dumps(dict(settings))]
        # By its path and not by `-m`: it does without ulak, and starts in a third of the time.
        return [sys.executable, "-I", str(_GREEDY), *options, "--", *names]
    if mode == "A":
        if not paths.exe_path.is_file():
            raise CuttingError(
                "E_OPTI_MODE_A_RUNNER_MISSING",
                f"there is no program {paths.exe_path}; set optiplanningExePath, then retry",
            )
        return [str(paths.exe_path), *names]
    macro, excel = paths.exe_path.with_name(MACRO), shutil.which("EXCEL.EXE")
    if not macro.is_file() or excel is None:
        lack = f"there is no macro {macro}" if excel else "no EXCEL.EXE is on the path of the worker"
        raise CuttingError("E_OPTI_MODE_B_MACRO_MISSING", f"{lack}; use mode A, C or E here")
    # The macro starts when Excel opens it, reads the import folder, and has to quit Excel.
    return [excel, str(macro)]


class _Program:
    """A program in a process group of its own, which ends with the worker."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._tail = bytearray()
        self.code: int | None = None
        """Its exit code, or less than 0 for a signal; None while it runs, and when it had to be
        ended."""

    @property
    def output(self) -> str:
        """The end of what it has written; no store keeps a NUL."""
        return self._tail.decode(errors="replace").replace("\0", "\ufffd")

    async def run(self) -> str:
        """Run it, and return how it has ended, in words."""
        loop = asyncio.get_running_loop()
        guarded, hold = os.pipe()
        output, written = os.pipe()
        os.set_blocking(output, False)
        processes = []
        try:
            guard = await asyncio.create_subprocess_exec(
                *_GUARD, stdin=guarded, stdout=DEVNULL, stderr=DEVNULL, process_group=0
            )
            processes.append(guard)
            program = await asyncio.create_subprocess_exec(
                *self._command, stdin=DEVNULL, stdout=written, stderr=written, env=_environment(),
                process_group=guard.pid,
            )  # fmt: skip
            processes.append(program)
            loop.add_reader(output, self._read, output)
            async with asyncio.timeout(LIMIT_S):
                self.code = await program.wait()
        except TimeoutError:
            return f"took more than {LIMIT_S:g} s"
        except OSError as error:
            return f"cannot be started: {error}"
        finally:
            try:
                await _end(processes)
            finally:
                loop.remove_reader(output)
                self._read(output)
                for file in (output, written, guarded, hold):
                    os.close(file)
        return f"ended with {self.code}"

    def _read(self, output: int) -> None:
        # A pipe holds no more than that. It never ends: this process has its other end as well.
        with suppress(BlockingIOError):
            self._tail += os.read(output, 1 << 16)
            del self._tail[:-_TAIL]


async def _end(processes: Sequence[asyncio.subprocess.Process]) -> None:
    """Kill the group that the first process leads, and wait until the processes are gone."""
    if processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(processes[0].pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                for process in processes:
                    await process.wait()


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(("LC_", "WINE", "OPTI"))
    }
