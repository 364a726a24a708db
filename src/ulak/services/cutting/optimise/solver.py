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
    Plate,
    Sheet,
    Unsolvable,
    count_cuts,
)
from ulak.services.cutting.optimise.packing import pack

log = logging.getLogger("ulak.cutting")


class Clock:
    """How much of a budget is spent, in seconds or in rounds."""

    def __init__(self, seconds: float, rounds: int | None) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self._rounds, self.done = rounds, 0

    def begin(self) -> None:
        """Begin to count anew."""
        self._began = time.monotonic()

    @property
    def share(self) -> float:
        """The share of the budget that is spent, 1 at its end."""
        if self._rounds is not None:
            return min(1.0, self.done / self._rounds) if self._rounds else 1.0
        return min(1.0, (time.monotonic() - self._began) / max(self._seconds, 1e-9))

    @property
    def is_over(self) -> bool:
        return self.share >= 1.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began if self._rounds is None else 0.0


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
    run = _Run(problem, clock, seed, on_better)
    counts = [part.quantity for part in problem.parts]
    layouts = pack_stock(counts, problem)
    run.offer(layouts, "greedy")
    if start is not None:
        run.keep(start)
    if not clock.is_over:
        run.improve(counts, layouts)
    return run.plan


def pack_stock(counts: Sequence[int], problem: Problem) -> list[Layout]:
    """Return a greedy layout of everything: the counted plates that are cheaper than the others
    first. Raises `Unsolvable`: there are too few plates."""
    left, layouts = list(counts), list[Layout]()
    for plate in sorted(problem.plates, key=_dearness):
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


def _dearness(plate: Plate) -> tuple[bool, float]:
    return plate.quantity is None, plate.cost / plate.area


class _Run:
    """One order being solved."""

    def __init__(
        self, problem: Problem, clock: Clock, seed: int, on_better: Callable[[Plan], None] | None
    ) -> None:
        self._problem, self._clock, self._seed = problem, clock, seed
        self._on_better = on_better
        self.bound = find_bound(problem)
        self.plan = Plan((), bound=self.bound)

    def offer(self, layouts: Sequence[Layout], algorithm: str) -> None:
        """Keep layouts of everything if they are better."""
        self.keep(Plan(build_sheets(layouts, self._problem), algorithm))

    def keep(self, plan: Plan) -> None:
        """Keep a plan if it is better."""
        new, old = rank(plan.sheets, self._problem), rank(self.plan.sheets, self._problem)
        if self.plan.sheets and new >= old:
            return
        self.plan = replace(plan, bound=self.bound, seconds=round(self._clock.seconds, 2))
        if self._on_better is not None:
            self._on_better(self.plan)

    def improve(self, counts: Sequence[int], start: Sequence[Layout]) -> None:
        """Use the rest of the time, from layouts of everything on."""
        # Not before: to import them takes longer than the greedy start.
        try:
            from ulak.services.cutting.optimise.improvement import Improvement, warm_up

            # The first time on a machine the search is compiled, which takes some 20 s.
            warm_up(self._problem)
        except ImportError:
            log.warning("plans are greedy: pip install 'ulak[cutting]' brings the search")
            return
        except OSError as error:  # nowhere to keep what was compiled
            log.warning("plans are greedy: no search can be compiled", extra={"error": str(error)})
            return
        self._clock.begin()
        Improvement(self._problem, self._clock, self._seed, self.offer, self.bound).run(
            counts, start
        )


def rank(sheets: Sequence[Sheet], problem: Problem) -> tuple[int, ...]:
    """Return what makes a plan better, the smaller the better: cost of the plates and their
    number, the reusable rest of the last one, patterns, cycles of the saw, length of cuts."""
    patterns = Counter(sheets)
    cost = sum(problem.plates[sheet.plate].cost for sheet in sheets)
    cycles = sum(-(-n // problem.stack) for n in patterns.values())
    length = sum(count_cuts(piece)[1] for sheet in sheets for piece in sheet.root.walk())
    rest = find_best_rest(sheets[-1], problem.offcut) if sheets else 0
    return cost, len(sheets), -rest, len(patterns), cycles, length
