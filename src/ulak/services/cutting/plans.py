"""Plans: found in the export folder, taken when they are stable, read with distrust."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from ulak.kit.files import StableFiles
from ulak.kit.threads import Aside, poll
from ulak.kit.xml import BadXml, read_xml
from ulak.services.cutting.codes import CuttingError

LARGEST_PLAN: Final = 50_000_000
"""In bytes."""
SOLUTION: Final = (
    "name", "algo", "best", "mqBoards", "patterns", "cycles", "zcuts", "jobTime", "jobCost",
    "mqDrops", "diffDrops", "boards",
)  # fmt: skip
"""What is kept of a `Solution`: the words of the external program, and the sheets of mode E."""

_LONGEST_VALUE = 200
# How long a file that is no plan may go on changing before nobody waits for it any more. A guess.
_PATIENCE_S = 60.0

T = TypeVar("T")


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
    """The attributes of the chosen `Solution`, as texts; None when there is none."""


def find_plans(
    folder: Path, job_id: str, batches: Sequence[Marked], *, not_before_ns: int
) -> dict[int, Path]:
    """Return the plan of each batch that has one: a file whose name ends with `.xml` and contains
    the job's id and the batch's mark, in whichever case, and that is not older than this.

    Of several the one that is called as the import file is taken, else the newest. Where one mark
    contains another, a file belongs to the longest that it contains. Raises `OSError`.
    """
    marks = {each.mark.lower(): each.n for each in batches}
    by_length = sorted(marks, key=len, reverse=True)
    own = job_id.lower()
    best: dict[int, tuple[bool, int, str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.lower()
            if not name.endswith(".xml") or own not in name:
                continue
            exact = name.removeprefix(f"{own}_").removesuffix(".xml")
            mark = exact if exact in marks else _find_longest(by_length, name)
            if mark is None:
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it was renamed in this moment
            if stat.S_ISREG(facts.st_mode) and facts.st_mtime_ns >= not_before_ns:
                rank = (exact == mark, facts.st_mtime_ns, entry.name)
                best[marks[mark]] = max(best.get(marks[mark], rank), rank)
    return {n: folder / name for n, (_, _, name) in best.items()}


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

    A folder that cannot be read, or that hangs, is waited for as well. What is there in time gets
    the time to prove that it is stable. Raises `CuttingError` E_OPTI_XML_TIMEOUT: after
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
        return await _poll(look, poll_s, is_over)
    except TimeoutError as error:
        missing = ", ".join(each.mark for each in batches if each.n not in found)
        why = f"no plan came for {missing}" if missing else "a plan is still being written"
        trouble = f" ({error})" if str(error) else ""
        raise CuttingError("E_OPTI_XML_TIMEOUT", f"{why} in {folder}{trouble}") from error


async def read_plan(path: Path, *, stable_s: float) -> Plan:
    """Return what a plan's file holds. A file that is no plan is judged when it is stable.

    Raises `CuttingError`: E_XML_INVALID says what is wrong with the file; E_OPTI_XML_TIMEOUT that
    it has gone, cannot be read, or is always being written.
    """
    stable = StableFiles(stable_s)

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

    ends_at = time.monotonic() + stable_s + _PATIENCE_S
    try:
        return await _poll(look, max(stable_s / 4, 0.01), lambda: time.monotonic() > ends_at)
    except TimeoutError as error:
        why = str(error) or "it is always being written"
        raise CuttingError("E_OPTI_XML_TIMEOUT", f"{path} cannot be read: {why}") from error


async def _poll(
    look: Callable[[], T | None], longest_pause_s: float, is_over: Callable[[], bool]
) -> T:
    threads = Aside("cutting-plans", at_once=False)  # its own: one that hangs stops nobody else
    try:
        return await poll(
            threads, look, longest_pause_s=longest_pause_s, checkpoint=_no_stop, is_over=is_over
        )
    finally:
        threads.close()


def _no_stop() -> None:
    """What waits for plans is cancelled when it should stop."""


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


def _find_longest(marks: Sequence[str], name: str) -> str | None:
    return next((mark for mark in marks if mark in name), None)
