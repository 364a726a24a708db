"""Column generation: patterns for whole plates, chosen by a linear program, cut many times each.

A pattern is priced by knapsacks, from the inside out: parts into a column, columns into a strip,
strips into a plate. Long lengths are rounded up to a grid for that, so a pattern always fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import highspy
import numpy as np

from ulak.services.cutting.optimise.kernel import compiled
from ulak.services.cutting.optimise.layout import Column, Layout, Placed, Problem
from ulak.services.cutting.optimise.model import Plate

_GRID: Final = 2_500
"""A plate that is longer, in the largest unit of its parts, is priced on so many steps."""
_LEAST_GAIN: Final = 1e-6
_MOST_FRACTIONS: Final = 1e-6


class Pattern(NamedTuple):
    """How a plate is cut, and how many pieces of each part it has."""

    layout: Layout
    counts: Counter[int]


def cover(
    counts: Sequence[int], problem: Problem, start: Sequence[Layout], is_over: Callable[[], bool]
) -> tuple[list[Layout], list[int], int]:
    """Return layouts of most of the pieces, how many of each part are left, and how few sheets all
    of them may take by the linear program. `start` has all of them, on equal plates."""
    demands = {number: n for number, n in enumerate(counts) if n}
    program, patterns = _Program(list(demands.values())), list[Pattern]()
    pricers = [_Pricer(problem, start[0].plate, axis, list(demands)) for axis in problem.axes]
    found = [*{frozenset(each.counts.items()): each for each in map(_count, start)}.values()]
    while True:
        for pattern in found:
            patterns.append(pattern)
            program.add([pattern.counts[number] for number in demands])
        value, duals = program.solve()
        priced = [] if is_over() else [pricer.price(duals) for pricer in pricers]
        found = [pattern for pattern in priced if pattern is not None]
        if not found:
            break
    layouts, left = _round(patterns, program.amounts, counts)
    return layouts, left, math.ceil(value - _MOST_FRACTIONS)


def _round(
    patterns: Sequence[Pattern], amounts: Sequence[float], counts: Sequence[int]
) -> tuple[list[Layout], list[int]]:
    """Cut every pattern as often as it is chosen, rounded down; pieces beyond the demand are left
    out."""
    left, layouts = list(counts), list[Layout]()
    for pattern, amount in zip(patterns, amounts, strict=True):
        for _ in range(math.floor(amount + _MOST_FRACTIONS)):
            layout = _without_surplus(pattern.layout, left)
            if layout.strips:
                layouts.append(layout)
    # The large fractions are cut once more, where nothing of them is surplus.
    for n in sorted(range(len(patterns)), key=lambda n: amounts[n] % 1, reverse=True):
        fits = all(own <= left[number] for number, own in patterns[n].counts.items())
        if amounts[n] % 1 > 0.6 and fits:
            layouts.append(_without_surplus(patterns[n].layout, left))
    return layouts, left


def _without_surplus(layout: Layout, left: list[int]) -> Layout:
    """Return a layout without the pieces that nobody has ordered; `left` is counted down."""

    def is_wanted(placed: Placed) -> bool:
        is_left = left[placed.part] > 0
        left[placed.part] -= is_left
        return is_left

    strips = [[[*filter(is_wanted, column)] for column in strip] for strip in layout.strips]
    strips = [[column for column in strip if column] for strip in strips]
    return layout._replace(strips=[strip for strip in strips if strip])


def _count(layout: Layout) -> Pattern:
    return Pattern(layout, Counter(placed.part for placed in layout.parts))


class _Program:
    """The linear program: as few plates as cover every demand."""

    def __init__(self, demands: Sequence[int]) -> None:
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.silent()
        self._highs.setOptionValue("threads", 1)
        for demand in demands:
            self._highs.addRow(float(demand), highspy.kHighsInf, 0, np.array([]), np.array([]))

    def add(self, counts: Sequence[int]) -> None:
        rows = np.array([row for row, n in enumerate(counts) if n], np.int32)
        values = np.array([float(n) for n in counts if n])
        self._highs.addCol(1.0, 0.0, highspy.kHighsInf, len(rows), rows, values)

    def solve(self) -> tuple[float, np.ndarray]:
        """Return the number of plates and the price of each part."""
        self._highs.run()
        solution: Any = self._highs.getSolution()
        self.amounts = list(solution.col_value)
        return self._highs.getInfo().objective_function_value, np.array(solution.row_dual)


class _Pricer:
    """Finds the pattern of the highest price whose first cuts divide along one axis."""

    def __init__(self, problem: Problem, plate: Plate, axis: int, demanded: Sequence[int]) -> None:
        self._problem, self._plate, self._axis = problem, plate, axis
        kerf, across = problem.kerf, 1 - axis
        self._entries = [
            (number, pose, row)
            for row, number in enumerate(demanded)
            for pose in filter(plate.holds, problem.parts[number].poses)
        ]
        # By width: a column takes whatever is no broader than it is.
        self._entries.sort(key=lambda entry: entry[1].extents[across])
        self._rows = np.array([row for _, _, row in self._entries], np.int64)
        (self._widths, self._across), (self._heights, self._along) = (
            _on_grid(
                [pose.extents[way] + kerf for _, pose, _ in self._entries], plate.usable[way] + kerf
            )
            for way in (across, axis)
        )
        self._levels = self._find_levels()

    def price(self, duals: np.ndarray) -> Pattern | None:
        """Return the best pattern; None: none is worth more than a plate."""
        columns, stacked = stack(
            duals[self._rows], self._widths, self._heights, self._along,
            self._problem.is_two_stage, self._problem.order.trimming,
        )  # fmt: skip
        by_level = np.ascontiguousarray(columns.T)
        filled = [knapsack(self._widths, by_level[n], self._across) for n in self._levels]
        best = np.array([value for value, _ in filled])
        value, chosen = knapsack(self._levels, best, self._along)
        if value <= 1 + _LEAST_GAIN:
            return None
        strips = [
            [self._read_column(stacked, entry, self._levels[n]) for entry in filled[n][1]]
            for n in chosen
        ]
        layout = Layout(self._plate, self._axis, strips)
        return _count(layout)

    def _read_column(self, stacked: np.ndarray, entry: int, level: int) -> Column:
        found = Column()
        while level > 0:
            taken = int(stacked[entry, level])
            if taken == -1:
                level -= 1
                continue
            number, pose, _ = self._entries[taken]
            found.append(Placed(number, pose))
            level = 0 if self._problem.is_two_stage else level - int(self._heights[taken])
        return found

    def _find_levels(self) -> np.ndarray:
        """Return the depths that a strip may have: those to which parts add up."""
        heights = np.unique(self._heights)
        reachable = np.zeros(self._along + 1, np.bool_)
        reachable[heights] = True
        if not self._problem.is_two_stage:
            for height in heights:
                for at in range(height, len(reachable)):
                    reachable[at] |= reachable[at - height]
        levels = np.flatnonzero(reachable)
        if len(levels) > 200:
            levels = np.unique(np.concatenate([levels[:: len(levels) // 150 + 1], heights]))
        return levels.astype(np.int64)


def _on_grid(sizes: Sequence[int], full: int) -> tuple[np.ndarray, int]:
    """Return sizes in steps, rounded up, and how many steps there are."""
    # Nothing is lost in the largest unit that all have in common.
    unit = math.gcd(*sizes)
    steps = min(full // unit, _GRID)
    if steps < _GRID:
        return np.array([size // unit for size in sizes], np.int64), steps
    return np.array([-(-size * steps // full) for size in sizes], np.int64), steps


@compiled
def stack(values, widths, heights, steps, is_two_stage, trimming):  # type: ignore[no-untyped-def]
    """Return, for columns as broad as each entry and for each depth, the highest value of a stack,
    and the entry on top of it (-1: the depth is not used). In two stages a column is one part."""
    number = values.shape[0]
    best = np.zeros((number, steps + 1))
    taken = np.full((number, steps + 1), -1, np.int64)
    for entry in range(number):
        if is_two_stage:
            last = steps if trimming else heights[entry]
            best[entry, heights[entry] : last + 1] = values[entry]
            taken[entry, heights[entry] : last + 1] = entry
            continue
        for depth in range(1, steps + 1):
            best[entry, depth] = best[entry, depth - 1]
            for other in range(number):
                if widths[other] > widths[entry]:
                    break
                if heights[other] > depth or not (trimming or widths[other] == widths[entry]):
                    continue
                value = best[entry, depth - heights[other]] + values[other]
                if value > best[entry, depth] + 1e-12:
                    best[entry, depth] = value
                    taken[entry, depth] = other
    return best, taken


@compiled
def knapsack(sizes, values, steps):  # type: ignore[no-untyped-def]
    """Return the highest value of things that together are no larger than `steps`, and which they
    are. `sizes` ascend; each thing can be taken as often as there is room."""
    best = np.zeros(steps + 1)
    taken = np.full(steps + 1, -1, np.int64)
    for at in range(1, steps + 1):
        best[at] = best[at - 1]
        for thing in range(sizes.shape[0]):
            if sizes[thing] > at:
                break
            value = best[at - sizes[thing]] + values[thing]
            if value > best[at] + 1e-12:
                best[at] = value
                taken[at] = thing
    found = []
    at = steps
    while at > 0:
        if taken[at] == -1:
            at -= 1
        else:
            found.append(taken[at])
            at -= sizes[taken[at]]
    return best[steps], found
