"""What is done with the time after the greedy start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ulak.services.cutting.optimise.layout import Layout, Problem
from ulak.services.cutting.optimise.model import Plate
from ulak.services.cutting.optimise.packing import pack
from ulak.services.cutting.optimise.search import COLD, HOT, Search

if TYPE_CHECKING:
    from ulak.services.cutting.optimise.solver import Clock

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


def warm_up(problem: Problem) -> None:
    """Have everything compiled that a search calls."""
    counts = [min(part.quantity, 2) for part in problem.parts[:2]]
    counts += [0] * (len(problem.parts) - len(counts))
    search = Search(problem, counts, problem.plates[:1] * 2, problem.axes[0], 1)
    search.fill()
    search.anneal(HOT, 1)
    search.take_away(0)


class Improvement:
    """Improves the layouts of one order until its time is over, or nothing can be better."""

    def __init__(
        self, problem: Problem, clock: Clock, seed: int,
        offer: Callable[[Sequence[Layout], str], None], bound: int,
    ) -> None:  # fmt: skip
        self._problem, self._clock, self._seed, self._offer = problem, clock, seed, offer
        self._bound = bound
        self._random = random.Random(seed)  # noqa: S311 - drawn from a seed
        self._seeds = 0
        self._best: list[Layout] = []

    def run(self, counts: Sequence[int], start: Sequence[Layout]) -> None:
        """Improve layouts of everything."""
        self._best = list(start)
        if len(self._problem.plates) > 1:
            self._try_plates(counts)
            self._try_cheaper_plates()
        else:
            self._use_one_plate(counts, self._problem.plates[0])
        self._enlarge_rest()

    # --- fewer sheets ------------------------------------------------------------------

    def _use_one_plate(
        self, counts: Sequence[int], plate: Plate, until: float = 1 - FOR_REST
    ) -> None:
        pieces = sum(counts)
        if _are_many(counts):
            self._use_columns(counts, plate, until)
        if pieces <= MOST_SEARCHED:
            found = self._search(counts, plate, len(self._best) - 1, until, self._bound)
            if found is not None:
                self._take(found, "search")
        else:
            self._search_windows(until)

    def _use_columns(self, counts: Sequence[int], plate: Plate, until: float) -> None:
        try:
            from ulak.services.cutting.optimise.columns import cover
        except ImportError:  # highspy is not installed
            return
        begin = self._clock.share
        ends = begin + (until - begin) / 2
        whole, left, bound = cover(counts, self._problem, plate, lambda: self._clock.share >= ends)
        rest = self._finish(left, plate, bound - len(whole), ends + (until - ends) / 2)
        self._take([*whole, *rest], "columns")

    def _finish(
        self, counts: Sequence[int], plate: Plate, wanted: int, until: float
    ) -> list[Layout]:
        """Return layouts of what columns have left."""
        if not any(counts):
            return []
        found = pack(counts, self._problem, plate)
        if sum(counts) > MOST_SEARCHED or len(found) <= max(wanted, 1):
            return found
        return self._search(counts, plate, len(found) - 1, until, wanted) or found

    def _search(
        self, counts: Sequence[int], plate: Plate, sheets: int, until: float, least: int
    ) -> list[Layout] | None:
        """Return layouts on `sheets` plates, or on as few as are found in time, down to `least`.
        None: everything has found no place."""
        clock, best = self._clock, None
        searches = [
            Search(self._problem, counts, [plate] * max(sheets, 0), axis, self._next_seed())
            for axis in self._problem.axes
            if sheets >= max(least, 1)
        ]
        for search in searches:
            search.fill()
        begin = clock.share
        while searches and clock.share < until:
            passed = (clock.share - begin) / max(until - begin, 1e-9)
            temperature = HOT * (COLD / HOT) ** min(1.0, max(0.0, passed))
            for search in searches:
                clock.done += search.anneal(temperature)
                if search.is_complete:
                    best = search.read_layouts()
                    if sum(counts) == self._problem.pieces:
                        self._take(best, "search")
                    sheets = len(best) - 1
                    if sheets < max(least, 1):
                        return best
                    for each in searches:
                        while len(each.plates) > sheets:
                            each.take_away(each.find_emptiest())
                        each.fill()
                    begin = clock.share
                    break
        return best

    def _search_windows(self, until: float) -> None:
        """Put the content of some sheets on one sheet less, again and again."""
        while self._clock.share < until and len(self._best) > self._bound:
            chosen = self._choose_window(self._random.randrange(len(self._best)))
            if len(chosen) < 2:
                return
            found = self._search_window(chosen, self._best[chosen[0]].plate, WINDOW_ROUNDS)
            if found is not None:
                kept = [each for n, each in enumerate(self._best) if n not in set(chosen)]
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

    def _search_window(
        self, chosen: Sequence[int], plate: Plate, rounds: int
    ) -> list[Layout] | None:
        counts = self._count(self._best[n] for n in chosen)
        axis = self._random.choice(self._problem.axes)
        plates = [plate] * (len(chosen) - 1)
        search = Search(self._problem, counts, plates, axis, self._next_seed())
        search.fill()
        return search.read_layouts() if self._complete(search, rounds) else None

    def _complete(self, search: Search, rounds: int) -> bool:
        """Tell whether a search finds a place for everything in so many rounds."""
        passed = 0
        while not search.is_complete and passed < rounds and not self._clock.is_over:
            done = search.anneal(HOT * (COLD / HOT) ** (passed / rounds))
            passed += max(done, 1)
            self._clock.done += done
        return search.is_complete

    # --- several plates ----------------------------------------------------------------

    def _try_plates(self, counts: Sequence[int]) -> None:
        """Use each endless plate alone, in turn, if it holds everything."""
        able = [
            plate for plate in self._problem.plates
            if plate.quantity is None and all(part.fits_on(plate) for part in self._problem.parts)
        ]  # fmt: skip
        for number, plate in enumerate(able):
            began = self._clock.share
            until = began + (0.7 - began) / (len(able) - number)
            found = pack(counts, self._problem, plate)
            kept, self._best = self._best, found
            self._take(found, "greedy")
            if _are_many(counts):
                self._use_columns(counts, plate, until)
            elif sum(counts) <= MOST_SEARCHED:
                area = sum(each.area for each in found)
                least = -(-area // plate.area)
                better = self._search(counts, plate, len(found) - 1, until, least)
                if better is not None:
                    self._take(better, "search")
            if self._cost(kept) <= self._cost(self._best):
                self._best = kept

    def _try_cheaper_plates(self) -> None:
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
        cost = sum(self._best[n].plate.cost for n in chosen)
        area = sum(self._best[n].area for n in chosen)
        kept = [each for n, each in enumerate(self._best) if n not in chosen]
        counts, parts = self._count(self._best[n] for n in chosen), self._problem.parts
        for plate in sorted(self._problem.plates, key=lambda plate: plate.cost):
            used = sum(each.plate is plate for each in kept)
            is_left = plate.quantity is None or used < plate.quantity
            if plate.cost >= cost or area > plate.area or not is_left:
                continue
            if not all(part.fits_on(plate) for n, part in zip(counts, parts, strict=True) if n):
                continue
            for axis in self._problem.axes:
                search = Search(self._problem, counts, [plate], axis, self._next_seed())
                search.fill()
                if self._complete(search, WINDOW_ROUNDS // 4):
                    self._take([*kept, *search.read_layouts()], "search")
                    return True
        return False

    # --- the rest of the last sheet ----------------------------------------------------

    def _enlarge_rest(self) -> None:
        """Use one sheet as little as can be, so that its rest is worth keeping."""
        if not self._best:
            return
        least = min(range(len(self._best)), key=lambda n: self._best[n].area)
        same = [
            n for n in self._choose_window(least)
            if self._best[n].axis == self._best[least].axis and n != least
        ]  # fmt: skip
        chosen = [*same, least]
        kept = [each for n, each in enumerate(self._best) if n not in set(chosen)]
        layouts = [self._best[n] for n in chosen]
        search = Search(
            self._problem, self._count(layouts), [each.plate for each in layouts],
            layouts[0].axis, self._next_seed(),
        )  # fmt: skip
        search.place(layouts)
        last, step, ends = len(layouts) - 1, 4, min(1.0, self._clock.share + FOR_REST)
        while self._clock.share < ends and step < 200:
            saved, used = search.save(), search.used(last)
            search.narrow(last, used - max(1, used // step))
            search.fill()
            if self._complete(search, WINDOW_ROUNDS // 4):
                self._take([*kept, *search.read_layouts()], "search")
            else:
                search.restore(saved)
                step *= 2

    # --- what is best ------------------------------------------------------------------

    def _take(self, layouts: Sequence[Layout], algorithm: str) -> None:
        layouts = [each for each in layouts if each.strips]
        self._offer(layouts, algorithm)
        if self._cost(layouts) <= self._cost(self._best):
            self._best = list(layouts)

    def _cost(self, layouts: Sequence[Layout]) -> tuple[int, int]:
        return sum(each.plate.cost for each in layouts), len(layouts)

    def _count(self, layouts: Iterable[Layout]) -> list[int]:
        counts = [0] * len(self._problem.parts)
        for layout in layouts:
            for placed in layout.parts:
                counts[placed.part] += 1
        return counts

    def _next_seed(self) -> int:
        self._seeds += 1
        return self._seed * 1000 + self._seeds


def _are_many(counts: Sequence[int]) -> bool:
    """Tell whether there are so many equal pieces that columns pay."""
    pieces = sum(counts)
    return pieces >= MANY_PIECES and pieces >= MANY * sum(n > 0 for n in counts)
