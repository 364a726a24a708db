"""What is done with the time after the greedy start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from ulak.services.cutting.optimise.columns import cover
from ulak.services.cutting.optimise.layout import Layout, Problem, find_bound, find_depth
from ulak.services.cutting.optimise.model import Plate
from ulak.services.cutting.optimise.packing import pack
from ulak.services.cutting.optimise.search import Search

if TYPE_CHECKING:
    from ulak.services.cutting.optimise.solver import Clock

HOT: Final = 0.02
COLD: Final = 0.0005
"""The temperature at the start and at the end, in plates."""
MANY: Final = 5
"""From so many equal pieces on in the mean, and `MANY_PIECES` in all, columns pay."""
MANY_PIECES: Final = 150
MOST_SEARCHED: Final = 400
"""More pieces at once are searched a window after the other."""
WINDOW: Final = 140
"""Pieces of one window."""
WINDOW_ROUNDS: Final = 20_000
FOR_REST: Final = 0.1
"""The share of the time in which the rest of the last sheet is made larger."""

Passed = Callable[[], float]
"""Return how much of its time a search has spent, from 0 to 1."""


def warm_up(problem: Problem) -> None:
    """Have everything compiled that a search calls."""
    counts = [min(part.quantity, 2) for part in problem.parts[:2]]
    counts += [0] * (len(problem.parts) - len(counts))
    search = Search(problem, counts, problem.plates[:1] * 2, problem.axes[0], 1)
    search.fill()
    search.anneal(HOT, 1)


class Improvement:
    """Improves the layouts of one order until its time is over, or nothing can be better."""

    def __init__(
        self, problem: Problem, clock: Clock, seed: int,
        offer: Callable[[Sequence[Layout], str], None], start: Sequence[Layout],
    ) -> None:  # fmt: skip
        self._problem, self._clock, self._offer = problem, clock, offer
        self._counts = [part.quantity for part in problem.parts]
        self._random = random.Random(seed)  # noqa: S311 - drawn from a seed
        self._seeds = count(seed * 1000 + 1)
        self._best = list(start)

    def run(self) -> None:
        """Use fewer sheets, or cheaper ones; then use one of them as little as can be."""
        plates = self._problem.plates
        if len(plates) == 1:
            self._use_fewer(plates[0], 1 - FOR_REST)
        else:
            self._try_plates()
            self._use_cheaper_plates()
        self._enlarge_rest()

    def _use_fewer(self, plate: Plate, until: float) -> None:
        """Use fewer sheets, where all of them are equal."""
        bound = find_bound(replace(self._problem, plates=(plate,)))
        pieces = sum(self._counts)
        if pieces >= max(MANY_PIECES, MANY * len(self._counts)):
            self._use_columns(plate, until)
        if pieces <= MOST_SEARCHED:
            self._search([], self._counts, plate, until, bound)
        else:
            self._search_windows(plate, until, bound)

    def _use_columns(self, plate: Plate, until: float) -> None:
        """Cut patterns that a linear program chooses, and search for what they leave."""
        begin = self._clock.share
        ends = begin + (until - begin) / 2
        whole, left, bound = cover(
            self._counts, self._problem, self._best, lambda: self._clock.share >= ends
        )
        rest = pack(left, self._problem, plate) if any(left) else []
        self._take([*whole, *rest], "columns")
        if 0 < sum(left) <= MOST_SEARCHED:
            self._search(whole, left, plate, ends + (until - ends) / 2, bound - len(whole))

    def _search(
        self, kept: Sequence[Layout], counts: Sequence[int], plate: Plate, until: float, least: int
    ) -> None:
        """Beside what is kept, put pieces on one plate less than the best layouts need, and on one
        less again, down to the least number or until time is over."""
        while (sheets := len(self._best) - len(kept) - 1) >= max(least, 1):
            plates, passed = [plate] * sheets, self._count_until(until)
            found = self._place(counts, plates, self._problem.axes, passed)
            if found is None:
                return
            self._take([*kept, *found], "search")

    def _search_windows(self, plate: Plate, until: float, bound: int) -> None:
        """Put the content of some sheets on one sheet less, again and again."""
        while self._clock.share < until and len(self._best) > bound:
            chosen = self._choose_window(self._random.randrange(len(self._best)))
            if len(chosen) < 2:
                return
            kept, counts = self._set_aside(chosen)
            axis = self._random.choice(self._problem.axes)
            plates, passed = [plate] * (len(chosen) - 1), self._count_rounds(WINDOW_ROUNDS)
            if found := self._place(counts, plates, [axis], passed):
                self._take([*kept, *found], "search")

    def _choose_window(self, first: int) -> list[int]:
        """Return sheets with a window of pieces: one, the emptiest ones, and others."""
        plate = self._best[first].plate
        own = [n for n, each in enumerate(self._best) if each.plate is plate and n != first]
        self._random.shuffle(own)
        by_area = sorted(own, key=lambda n: self._best[n].area)
        chosen, pieces = [first], sum(1 for _ in self._best[first].parts)
        for n in dict.fromkeys([*by_area[:2], *own]):
            pieces += sum(1 for _ in self._best[n].parts)
            if pieces > WINDOW:
                break
            chosen.append(n)
        return chosen

    def _try_plates(self) -> None:
        """Use each endless plate alone, in turn, if it holds everything."""
        able = [
            plate for plate in self._problem.plates
            if plate.quantity is None and all(part.fits_on(plate) for part in self._problem.parts)
        ]  # fmt: skip
        for number, plate in enumerate(able):
            begin, kept, self._best = self._clock.share, self._best, []
            self._take(pack(self._counts, self._problem, plate), "greedy")
            self._use_fewer(plate, begin + (0.7 - begin) / (len(able) - number))
            self._best = min(kept, self._best, key=_cost)

    def _use_cheaper_plates(self) -> None:
        """Put the content of single sheets on cheaper plates, and of two on one."""
        has_gained = True
        while has_gained:
            order = sorted(range(len(self._best)), key=lambda n: self._best[n].area)
            has_gained = any(
                self._clock.share < 1 - FOR_REST and self._replace({n, m})
                for n in order for m in (n, *order[:3])
            )  # fmt: skip

    def _replace(self, chosen: Iterable[int]) -> bool:
        """Put the content of sheets on one cheaper plate; tell whether there is one."""
        layouts = [self._best[n] for n in chosen]
        (cost, _), area = _cost(layouts), sum(each.area for each in layouts)
        kept, counts = self._set_aside(chosen)
        parts = [part for part in self._problem.parts if counts[part.number]]
        for plate in sorted(self._problem.plates, key=lambda plate: plate.cost):
            used = sum(each.plate is plate for each in kept)
            is_left = plate.quantity is None or used < plate.quantity
            if plate.cost >= cost or area > plate.area or not is_left:
                continue
            if not all(part.fits_on(plate) for part in parts):
                continue
            passed = self._count_rounds(WINDOW_ROUNDS // 2)
            if found := self._place(counts, [plate], self._problem.axes, passed):
                self._take([*kept, *found], "search")
                return True
        return False

    def _enlarge_rest(self) -> None:
        """Use one sheet as little as can be, so that its rest is worth keeping."""
        least = min(range(len(self._best)), key=lambda n: self._best[n].area)
        axis = self._best[least].axis
        same = [n for n in self._choose_window(least) if self._best[n].axis == axis and n != least]
        kept, counts = self._set_aside([*same, least])
        layouts, share = [self._best[n] for n in (*same, least)], 0.25
        ends = min(1.0, self._clock.share + FOR_REST)
        while self._clock.share < ends and share > 0.005:
            plates = [each.plate for each in layouts]
            search = Search(self._problem, counts, plates, axis, next(self._seeds))
            used = find_depth(layouts[-1], self._problem.kerf)
            search.narrow_last(used - max(1, int(used * share)))
            if found := self._cool([search], self._count_rounds(WINDOW_ROUNDS // 4)):
                layouts = found
                self._take([*kept, *layouts], "search")
            else:
                share /= 2

    def _place(
        self, counts: Sequence[int], plates: Sequence[Plate], axes: Sequence[int], passed: Passed
    ) -> list[Layout] | None:
        """Return layouts of pieces on some plates, the first cuts along one of the axes. None:
        there was no place for everything in time."""
        return self._cool(
            [Search(self._problem, counts, plates, axis, next(self._seeds)) for axis in axes],
            passed,
        )

    def _cool(self, searches: Sequence[Search], passed: Passed) -> list[Layout] | None:
        """Return what the first of some searches finds, as `_place` does."""
        for search in searches:
            search.fill()
        while (share := passed()) < 1 and self._clock.share < 1:
            for search in searches:
                self._clock.done += search.anneal(HOT * (COLD / HOT) ** share)
                if search.is_complete:
                    return search.read_layouts()
        return None

    def _count_until(self, share: float) -> Passed:
        begin = self._clock.share
        return lambda: (self._clock.share - begin) / max(share - begin, 1e-9)

    def _count_rounds(self, rounds: int) -> Passed:
        begin = self._clock.done
        return lambda: (self._clock.done - begin) / rounds

    def _set_aside(self, chosen: Iterable[int]) -> tuple[list[Layout], list[int]]:
        """Return all other sheets, and how many pieces of each part are on those chosen."""
        counts = [0] * len(self._problem.parts)
        for n in chosen:
            for placed in self._best[n].parts:
                counts[placed.part] += 1
        return [each for n, each in enumerate(self._best) if n not in chosen], counts

    def _take(self, layouts: Sequence[Layout], algorithm: str) -> None:
        self._offer(layouts, algorithm)
        if not self._best or _cost(layouts) <= _cost(self._best):
            self._best = list(layouts)


def _cost(layouts: Iterable[Layout]) -> tuple[int, int]:
    """Return what the plates of layouts cost, and how many there are."""
    costs = [each.plate.cost for each in layouts]
    return sum(costs), len(costs)
