"""Public instances, solved, judged and compared with what is known of them.

An instance is a pair of files: `NAME_items.csv` with the columns ID, WIDTH, HEIGHT and perhaps
COPIES, and `NAME_bins.csv` with ID, WIDTH, HEIGHT and perhaps COST and COPIES. Files as
`best_known_3nho.csv` have the columns Path and `Best known solution value`.
"""

from __future__ import annotations

import csv
import os
import platform
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, NamedTuple

from ulak.errors import BadInput
from ulak.kit.texts import read_number
from ulak.services.cutting.optimise.document import write_plan
from ulak.services.cutting.optimise.model import Order, OrderPart, Plan, Stock, Unsolvable, to_units
from ulak.services.cutting.optimise.solver import solve as solve_order
from ulak.services.cutting.optimise.verify import find_faults

ITEMS, BINS = "_items.csv", "_bins.csv"
# Stages, then exact or not, then the first cut, then oriented or rotated: 3nho, 3hao.
_RULE: Final = re.compile(r"best_known_(\d)[a-z]{2}([or])(?:_.*)?\.csv")


@dataclass(frozen=True, slots=True)
class Instance:
    """A public order; its kerf and its trim are 0."""

    name: str
    """Its path below the folder."""
    order: Order
    best_known: int | None


class Result(NamedTuple):
    """What came of an instance, or of several together."""

    name: str
    sheets: int
    plate_area: int
    """Of all sheets together; what counts where plates are of several sizes."""
    greedy: int | None
    """The sheets of the greedy start."""
    area_bound: int
    best_known: int | None
    seconds: float
    faults: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as JSON, with the gap to the best that is known, or else to the bound."""
        least = self.area_bound if self.best_known is None else self.best_known
        gap = (self.sheets / least - 1) * 100 if self.sheets and least else None
        return {**self._asdict(), "gap_percent": None if gap is None else round(gap, 2)}


def read_instances(
    folder: Path, *, stages: int = 3, is_rotating: bool = False, first_cut: str = "",
    sample: int | None = None, seed: int = 1,
) -> list[Instance]:  # fmt: skip
    """Return the instances below a folder by their names, or a sample of them.

    Raises `BadInput`: there are none, or a file cannot be used.
    """
    paths = sorted(path for path in folder.rglob(f"*{ITEMS}") if path.is_file())
    if not paths:
        raise BadInput(f"there is no file NAME{ITEMS} below {folder}")
    if sample is not None and sample < len(paths):
        paths = sorted(random.Random(seed).sample(paths, sample))  # noqa: S311 - to be drawn again
    known = _read_best_known(folder, stages, is_rotating)
    rules = {"stages": stages, "first_cut": first_cut}
    return [
        Instance(
            _strip_name(str(path.relative_to(folder))), _read_order(path, is_rotating, rules),
            known.get(_strip_name(str(path.resolve()))),
        )
        for path in paths
    ]  # fmt: skip


def measure(instance: Instance, solve: Callable[[Order], Plan]) -> Result:
    """Solve an instance, judge the plan, and return what came of it."""
    order, faults, began = instance.order, list[str](), time.perf_counter()
    try:
        plan = solve(order)
    except Unsolvable as error:
        plan, faults = Plan(()), [str(error)]
    seconds = time.perf_counter() - began
    greedy = len(solve_order(order, seconds=0).sheets) if plan.sheets else None
    areas = [to_units(stock.width) * to_units(stock.height) for stock in order.stock]
    net = sum(to_units(p.length) * to_units(p.width) * p.quantity for p in order.parts)
    return Result(
        instance.name, len(plan.sheets), sum(areas[sheet.plate] for sheet in plan.sheets) // 10**4,
        greedy, -(-net // max(areas)), instance.best_known, seconds,
        tuple(faults or find_faults(order, write_plan(order, plan))),
    )  # fmt: skip


def add_up(results: Iterable[Result]) -> Iterator[Result]:
    """Yield the sums of each folder, then of all folders if there are several. A sum of what is not
    known of every instance is not known."""
    folders = defaultdict[str, list[Result]](list)
    for result in results:
        folders[str(Path(result.name).parent)].append(result)
    if len(folders) > 1:
        folders["all"] = [result for found in folders.values() for result in found]
    for name, found in folders.items():
        columns: list[Any] = list(zip(*found, strict=True))
        sums = map(_add, columns[1:-1])
        yield Result._make((f"{name}: {len(found)}", *sums, sum(columns[-1], ())))


def describe_machine() -> dict[str, Any]:
    """Return what figures of time depend on: the machine and the versions."""
    names = ("ulak", "numpy", "numba", "highspy")
    versions = {each.name: each.version for each in distributions() if each.name in names}
    return {
        "system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count(),
        "implementation": platform.python_implementation(),
        "versions": {"python": platform.python_version(), **versions},
    }  # fmt: skip


def _read_order(path: Path, is_rotating: bool, rules: Mapping[str, Any]) -> Order:
    bins = path.with_name(path.name.removesuffix(ITEMS) + BINS)
    stock = tuple(
        Stock(
            _size(row, "WIDTH"), _size(row, "HEIGHT"), _count(row, None), _whole(row, "COST"),
            row.get("ID") or "",
        )
        for row in _read_rows(bins)
    )  # fmt: skip
    is_wide = {plate.width > plate.height for plate in stock}
    if len(is_wide) > 1 and not is_rotating:
        raise BadInput(f"{bins}: plates are wide and high; an order can rotate its parts then only")
    # Grain 1 keeps the length, which is the width of an item, along the long side of a plate.
    grain = 0 if is_rotating else 1 if True in is_wide else 2
    parts = [
        OrderPart(
            row.get("ID") or str(n), "", _size(row, "WIDTH"), _size(row, "HEIGHT"),
            _count(row, 1) or 1, grain,
        )
        for n, row in enumerate(_read_rows(path))
    ]  # fmt: skip
    return Order(parts, stock, kerf=Decimal(0), **rules)


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Raises `BadInput`: the file cannot be read, or has no row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if not rows:
        raise BadInput(f"{path} has no row below its head")
    return [{**row, "": str(path)} for row in rows]


def _size(row: Mapping[str, str], column: str) -> Decimal:
    size = read_number(row.get(column))
    if size is None or not 0 < size < 10**7:
        raise BadInput(f"{row['']}: {row.get(column)!r} is no {column} of {row.get('ID')}")
    return size


def _whole(row: Mapping[str, str], column: str) -> int | None:
    text = row.get(column) or ""
    if text and not re.fullmatch(r"-?\d{1,9}", text):
        raise BadInput(f"{row['']}: {text!r} is no {column} of {row.get('ID')}")
    return int(text) if text else None


def _count(row: Mapping[str, str], otherwise: int | None) -> int | None:
    """Return the copies of a row; -1 stands for as many as are needed."""
    count = _whole(row, "COPIES")
    return otherwise if count is None or count < 0 else count


def _read_best_known(folder: Path, stages: int, is_rotating: bool) -> dict[str, int]:
    """Return the fewest sheets that are known of instances under such rules, by their paths. The
    files lie in the folder, below it or right above it."""
    found: dict[str, int] = {}
    above = folder.resolve().parent.glob("best_known*.csv")
    for path in (*above, *folder.rglob("best_known*.csv")):
        rule = _RULE.fullmatch(path.name)
        if rule and (rule[2] != "or"[is_rotating] or int(rule[1]) != (stages or 3)):
            continue
        for row in _read_rows(path):
            value = row.get("Best known solution value") or ""
            if value.isdecimal():
                name = _strip_name(str(path.resolve().parent / (row.get("Path") or "")))
                found[name] = min(int(value), found.get(name, int(value)))
    return found


def _strip_name(path: str) -> str:
    return path.removesuffix(ITEMS).removesuffix(".txt")


def _add(numbers: Sequence[Any]) -> Any:
    return None if None in numbers else sum(numbers)
