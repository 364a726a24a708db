"""How good cutting plans are: on public instances, and on a workshop's orders.

The variable CUTTING_INSTANCES names a folder with the sets `berkey1987`, `alvarez2002` and
`cintra2008_1bintype`, as their publishers have them; without it they are left out. Where rectpack
is installed, each set is packed by it too, which takes an hour for the parts of gcut.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

from bench.cutting.packers import has_rectpack, pack_by_rectpack
from bench.measure import Figure
from ulak.services.cutting.optimise.bench import add_up, measure, read_instances
from ulak.services.cutting.optimise.document import write_plan
from ulak.services.cutting.optimise.model import Order, OrderPart, Stock
from ulak.services.cutting.optimise.solver import solve
from ulak.services.cutting.optimise.verify import find_faults

SECONDS: Final = 10.0
COMMAND: Final = "python -m bench.figures plans"
VARIABLE: Final = "CUTTING_INSTANCES"
SETS: Final = (
    ("CLASS 1, 3, 5, oriented", "berkey1987", "y", False, 2630),
    ("CLASS 1, 3, 5, rotated", "berkey1987", "y", True, 2548),
    ("ATP30-39", "alvarez2002", "x", False, 106),
    ("gcut1d-6d", "cintra2008_1bintype", "", False, 2385),
)
"""Name, folder, first cut, whether parts turn, and the gate."""
WORKSHOP: Final = 40
PLATES: Final = ((2100, 2800), (1830, 3660))


def draw_workshop_order(seed: int) -> Order:
    """Return an order of the workshop set (C-103), by its number."""
    draw = random.Random(seed)
    width, height = draw.choice(PLATES)
    bands = [Decimal(text) for text in ("0", "0.4", "1", "2")]
    parts = [
        OrderPart(
            f"P{n}", "", Decimal(draw.randint(150, 1200)), Decimal(draw.randint(80, 600)),
            draw.randint(1, 40), draw.choice([0, 0, 1, 1, 2, 3]),
            (draw.choice(bands), draw.choice(bands), draw.choice(bands), draw.choice(bands)),
        )
        for n in range(draw.randint(3, 30))
    ]  # fmt: skip
    return Order(parts, (Stock(Decimal(width), Decimal(height)),), trim=Decimal(10))


def plans_figures(seconds: float = SECONDS) -> list[Figure]:
    """Measure every set that is there."""
    figures = list(_time_figures())
    folder = os.environ.get(VARIABLE)
    for name, own, first, is_rotating, gate in SETS if folder else ():
        figures += _set_figures(name, Path(str(folder), own), first, is_rotating, gate, seconds)
    return [*figures, *_workshop_figures(seconds)]


def _set_figures(
    name: str, folder: Path, first: str, is_rotating: bool, gate: int, seconds: float
) -> Iterator[Figure]:
    instances = read_instances(folder, first_cut=first, is_rotating=is_rotating)
    solving = partial(solve, seconds=seconds, seed=1)
    results = [measure(instance, solving) for instance in instances]
    *_, total = add_up(results)
    assert not total.faults, total.faults
    command = f"{VARIABLE}=FOLDER {COMMAND}"
    yield Figure(
        f"sheets of {name}, {len(instances)} instances, three stages, {seconds:g} s each",
        f"<= {gate}", f"{total.sheets} (best known {total.best_known}, greedy {total.greedy})",
        total.sheets <= gate, command,
    )  # fmt: skip
    if has_rectpack():
        packed = {each.name: pack_by_rectpack(each.order) for each in instances}
        yield compare(name, {each.name: each.sheets for each in results}, packed, command)


def compare(
    name: str, ours: Mapping[str, int], packed: Mapping[str, int | None], command: str
) -> Figure:
    """Return how many sheets of a set rectpack needs, and where it needs fewer than plans do."""
    theirs = {instance: sheets for instance, sheets in packed.items() if sheets is not None}
    total, own = sum(theirs.values()), sum(ours[instance] for instance in theirs)
    fewer = [each for each in theirs if theirs[each] < ours[each]]
    wins = [f"{each} ({theirs[each]} of {ours[each]})" for each in fewer]
    return Figure(
        f"sheets of {name} beside the best of 40 of rectpack, which needs no full cuts (C-105)",
        f"<= {total}", f"{own}; rectpack needs fewer on {len(wins)}: {', '.join(wins) or 'none'}",
        own <= total, command,
    )  # fmt: skip


def _workshop_figures(seconds: float) -> list[Figure]:
    above, worse = [], 0
    for seed in range(WORKSHOP):
        order = draw_workshop_order(seed)
        found, greedy = solve(order, seconds=seconds), solve(order, seconds=0)
        assert not find_faults(order, write_plan(order, found))
        worse += len(found.sheets) > len(greedy.sheets)
        if len(found.sheets) >= 5:
            above.append(len(found.sheets) / found.bound - 1)
    mean = 100 * sum(above) / len(above)
    return [
        Figure(
            f"sheets of {len(above)} workshop orders above their bound, mean, {seconds:g} s each "
            "(C-103)", "<= 6 %", f"{mean:.1f} %", mean <= 6, COMMAND,
        ),
        Figure(
            f"workshop orders of {WORKSHOP} that need more sheets than the greedy start (C-103)",
            "0", f"{worse}", worse == 0, COMMAND,
        ),
    ]  # fmt: skip


def _time_figures() -> Iterator[Figure]:
    draw = random.Random(1)
    parts = [
        OrderPart(f"P{n}", "", Decimal(draw.randint(50, 1500)), Decimal(draw.randint(50, 800)), 1)
        for n in range(200)
    ]
    order = Order(parts, (Stock(Decimal(2100), Decimal(2800)),), trim=Decimal(10))
    began = time.perf_counter()
    solve(order, seconds=0)
    warm = time.perf_counter() - began
    yield Figure(
        "a first plan of 200 parts, in a warm process (C-97)", "<= 1 s", f"{warm:.2f} s", warm <= 1,
        COMMAND,
    )  # fmt: skip
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bench.cutting.plans"], check=True)
    cold = time.perf_counter() - began
    yield Figure(
        "the same in a process that is started for it", "<= 2 s", f"{cold:.2f} s", cold <= 2,
        COMMAND,
    )  # fmt: skip


if __name__ == "__main__":
    for _ in _time_figures():
        break
