"""What is true of every order (C-104), drawn from seeds: 2,000 with `--whole`, else a tenth."""

import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.services.cutting.optimise.test_solver import draw_order, plan
from ulak.services.cutting.optimise.layout import find_bound, read_problem
from ulak.services.cutting.optimise.model import Order, Stock, Unsolvable

CHUNKS = 10
ITERATIONS = 300

Sized = Callable[[int, int], int]


def find_bound_of(order: Order) -> int:
    return find_bound(read_problem(order))


def scale(order: Order) -> Order:
    """Return an order twice as large."""
    parts = [
        part._replace(
            length=2 * part.length, width=2 * part.width,
            bands=tuple(2 * band for band in part.bands),
        )
        for part in order.parts
    ]  # fmt: skip
    stock = [Stock(2 * each.width, 2 * each.height) for each in order.stock]
    return replace(
        order, parts=parts, stock=stock, trim=2 * order.trim, kerf=2 * order.kerf,
        milling=2 * order.milling, offcut=(2 * order.offcut[0], 2 * order.offcut[1]),
    )  # fmt: skip


@pytest.mark.shows("C-88", "C-104")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_plan_is_right_and_bounds_scales_and_orders_hold(chunk: int, sized: Sized) -> None:
    for seed in range(chunk, sized(2000, 200), CHUNKS):
        order = draw_order(seed, kerf=Decimal(random.Random(seed).choice([0, 1, 3, 5])))  # noqa: S311
        iterations = ITERATIONS if seed % 5 == 0 else 0
        try:
            found = plan(order, iterations)
        except Unsolvable as error:
            assert "larger than a sheet" in str(error), seed  # noqa: PT017 - most have plans
            continue
        sheets = len(found.sheets)
        assert sheets >= find_bound_of(order), seed
        # An easier case never has a proven bound above what the harder one needs.
        free = [part._replace(grain=0) for part in order.parts]
        for easier in (
            replace(order, kerf=Decimal(0)), replace(order, trim=Decimal(0)),
            replace(order, parts=free),
        ):  # fmt: skip
            assert sheets >= find_bound_of(easier), seed
        assert len(plan(scale(order), iterations).sheets) == sheets, seed
        shuffled = random.Random(seed).sample(list(order.parts), len(order.parts))  # noqa: S311
        others = len(plan(replace(order, parts=shuffled), iterations).sheets)
        assert abs(others - sheets) <= 1, seed
