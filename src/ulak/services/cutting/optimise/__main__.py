"""The program of mode E: plans for import files, in a process of its own.

    python -m ulak.services.cutting.optimise --export FOLDER --settings JSON FILE.xlsx ...

Each file gets one plan in the folder: its own name, ending in `.xml`. The best plan so far is kept
beside it, ending in `.best`, at most every five seconds: a later run of the same file goes on from
there.

The exit code is 0; 2 when parts are larger than a sheet; 3 when a file cannot be used. Then no plan
is written, and stderr says why; it is 3 too when a plan cannot be written.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ulak.kit.files import write_atomically
from ulak.services.cutting.optimise.document import read_plan, write_plan
from ulak.services.cutting.optimise.model import CHECKPOINT, Order, Oversize, Plan, Unsolvable
from ulak.services.cutting.optimise.reading import read_import
from ulak.services.cutting.optimise.solver import solve
from ulak.services.cutting.optimise.verify import find_faults

OVERSIZE, UNUSABLE = 2, 3
MEMORY: Final = 6 << 30
"""Of address space; compiled code reserves some of it and uses a fraction."""
CHECKPOINT_S: Final = 5.0


class Checkpoint:
    """The best plan so far, in a file that tells of which order and settings it is."""

    def __init__(self, path: Path, order: Order, digest: str) -> None:
        self.path, self._order, self._digest = path, order, digest
        self._written_s = time.monotonic()

    def read(self) -> Plan | None:
        """Return the plan that an earlier run has left, if it is one of the same order."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            data = kept["plan"].encode()
            if kept["digest"] != self._digest or find_faults(self._order, data):
                return None
            return read_plan(self._order, data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, plan: Plan) -> None:
        """Write a plan, unless one was written within five seconds."""
        if time.monotonic() - self._written_s >= CHECKPOINT_S:
            self._written_s = time.monotonic()
            text = write_plan(self._order, plan).decode()
            document = json.dumps({"digest": self._digest, "plan": text})
            write_atomically(self.path, document.encode())


def find_digest(file: bytes, settings: Mapping[str, Any]) -> str:
    """Return what tells of which import file and settings a plan is."""
    return sha256(file + json.dumps(settings, sort_keys=True).encode()).hexdigest()


def make_plan(path: Path, export: Path, settings: Mapping[str, Any]) -> tuple[bytes, Path]:
    """Return the plan of an import file as XML, and its checkpoint. Raises `Unsolvable`."""
    order = read_import(path, settings)
    digest = find_digest(path.read_bytes(), settings)
    checkpoint = Checkpoint(export / f"{path.stem}{CHECKPOINT}", order, digest)
    plan = solve(
        order, seconds=float(settings.get("seconds", 10)), seed=int(digest[:6], 16),
        iterations=settings.get("iterations"), on_better=checkpoint.keep, start=checkpoint.read(),
    )  # fmt: skip
    data = write_plan(order, plan)
    if faults := find_faults(order, data):
        raise Unsolvable(f"the plan is wrong, which is a fault of this program: {faults[0]}")
    print(f"{path.name}: {len(plan.sheets)} sheets, at least {plan.bound}")  # noqa: T201 - a program prints
    return data, checkpoint.path


def main(arguments: Sequence[str] | None = None) -> int:
    """Make plans of the files that are named, and return the exit code."""
    parser = argparse.ArgumentParser(prog="optimise", description="Plan how parts are cut.")
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    made: dict[Path, tuple[bytes, Path]] = {}
    path = options.export
    try:
        for path in options.files:
            target = options.export / f"{path.stem}.xml"
            made[target] = make_plan(path, options.export, options.settings)
        for path, (plan, checkpoint) in made.items():
            write_atomically(path, plan)
            checkpoint.unlink(missing_ok=True)
    except (Unsolvable, OSError) as error:
        print(f"{path.name}: {error}", file=sys.stderr)  # noqa: T201 - a program prints
        return OVERSIZE if isinstance(error, Oversize) else UNUSABLE
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.exit(main())
