"""The portfolio: a greedy start, columns where quantities are high, and a search for the rest of
the time. The best plan so far is handed out whenever there is a better one."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ulak.services.cutting.optimise.layout import (
    Layout,
    Problem,
    build_sheets,
    find_best_rest,
    find_bound,
    read_problem,
)
from ulak.services.cutting.optimise.model import (
    Order,
    Plan,
    Sheet,
    Unsolvable,
    count_stacked,
    list_cuts,
)
from ulak.services.cutting.optimise.packing import pack

log = logging.getLogger("ulak.cutting")


class Clock:
    """How much of a budget is spent, in seconds or in rounds."""

    def __init__(self, seconds: float, rounds: int | None) -> None:
        self._seconds, self._rounds, self.done = seconds, rounds, 0
        self.begin()

    def begin(self) -> None:
        """Begin to count anew."""
        self._began = time.monotonic()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began if self._rounds is None else 0.0

    @property
    def share(self) -> float:
        """The share of the budget that is spent: 1 at its end, or a little more."""
        if self._rounds is None:
            return self.passed_s / max(self._seconds, 1e-9)
        return self.done / self._rounds if self._rounds else 1.0


def solve(
    order: Order, *, seconds: float = 10.0, seed: int = 1, iterations: int | None = None,
    on_better: Callable[[Plan], None] | None = None, start: Plan | None = None,
) -> Plan:  # fmt: skip
    """Return the best plan found within the time, or within so many iterations: then the same seed
    gives the same plan. Without any time it is the greedy one. `on_better` gets each better plan;
    `start` is one of an earlier run.

    Raises `Unsolvable`, and `Oversize`: no plate holds some parts.
    """
    problem = read_problem(order)
    clock = Clock(seconds, iterations if seconds > 0 else 0)
    best = Plan((), bound=find_bound(problem))

    def keep(plan: Plan) -> None:
        nonlocal best
        if not best.sheets or rank(plan.sheets, problem) < rank(best.sheets, problem):
            best = replace(plan, bound=best.bound, seconds=round(clock.passed_s, 2))
            if on_better is not None:
                on_better(best)

    def offer(layouts: Sequence[Layout], algorithm: str) -> None:
        keep(Plan(build_sheets(layouts, problem), algorithm))

    layouts = pack_stock(problem)
    offer(layouts, "greedy")
    if start is not None:
        keep(start)
    if clock.share < 1 and _has_search(problem):
        from ulak.services.cutting.optimise.improvement import Improvement

        clock.begin()
        Improvement(problem, clock, seed, offer, layouts).run()
    return best


def pack_stock(problem: Problem) -> list[Layout]:
    """Return a greedy layout of everything: the counted plates that are cheaper than the others
    first. Raises `Unsolvable`: there are too few plates."""
    left, layouts = [part.quantity for part in problem.parts], list[Layout]()
    for plate in sorted(problem.plates, key=lambda p: (p.quantity is None, p.cost / p.area)):
        own = [n * part.fits_on(plate) for n, part in zip(left, problem.parts, strict=True)]
        if not any(own):
            continue
        found = pack(own, problem, plate)
        if plate.quantity is not None:
            found.sort(key=lambda layout: -layout.area)
            found = found[: plate.quantity]
        for layout in found:
            for placed in layout.parts:
                left[placed.part] -= 1
        layouts += found
    if any(left):
        raise Unsolvable(f"the plates do not do: {sum(left)} pieces have no place")
    return layouts


def _has_search(problem: Problem) -> bool:
    """Compile the search, and tell whether it can be used."""
    # Not before the greedy start: the import takes longer than that, and the first time on a
    # machine what is compiled takes some 20 s.
    try:
        from ulak.services.cutting.optimise.improvement import warm_up

        warm_up(problem)
    except ImportError:
        log.warning("plans are greedy: pip install 'ulak[cutting]' brings the search")
        return False
    except OSError as error:  # nowhere to keep what was compiled
        log.warning("plans are greedy: no search can be compiled", extra={"error": str(error)})
        return False
    return True


def rank(sheets: Sequence[Sheet], problem: Problem) -> tuple[int, ...]:
    """Return what makes a plan better, the smaller the better: cost of the plates and their
    number, the reusable rest of the last one, patterns, cycles of the saw, length of cuts."""
    patterns = Counter(sheets)
    cost = sum(problem.plates[sheet.plate].cost for sheet in sheets)
    stack = count_stacked(problem.order)
    cycles = sum(-(-n // stack) for n in patterns.values())
    length = sum(cut.length for sheet in sheets for cut in list_cuts(sheet.root))
    rest = find_best_rest(sheets[-1], problem.order.least_rest) if sheets else 0
    return cost, len(sheets), -rest, len(patterns), cycles, length
