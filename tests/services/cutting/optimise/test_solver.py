"""Plans that the portfolio makes, each judged by the verifier, which shares no code with it."""

import os
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from bench.cutting.plans import draw_workshop_order
from ulak.services.cutting.optimise import layout
from ulak.services.cutting.optimise.document import summarize, write_plan
from ulak.services.cutting.optimise.layout import (
    Layout,
    Placed,
    build_sheets,
    find_bound,
    read_problem,
)
from ulak.services.cutting.optimise.model import (
    Order,
    OrderPart,
    Oversize,
    Plan,
    Stock,
    Unsolvable,
    Y,
)
from ulak.services.cutting.optimise.solver import rank, solve
from ulak.services.cutting.optimise.verify import find_faults

SHEET = Stock(Decimal(2100), Decimal(2800))


def make_order(*parts: OrderPart, stock: Any = (SHEET,), **options: Any) -> Order:
    return Order(parts, stock, **{"trim": Decimal(10), **options})


def make_part(length: Any, width: Any, quantity: int = 1, **options: Any) -> OrderPart:
    number = options.pop("id", "P")
    return OrderPart(number, "", Decimal(str(length)), Decimal(str(width)), quantity, **options)


def plan(order: Order, iterations: int = 0, **options: Any) -> Plan:
    """Solve an order, and have the plan judged."""
    found = solve(order, seconds=10 if iterations else 0, iterations=iterations, **options)
    assert find_faults(order, write_plan(order, found)) == []
    return found


def draw_order(seed: int, most_parts: int = 12, **options: Any) -> Order:
    """Return an order as a workshop has it, drawn from a seed."""
    draw = random.Random(seed)  # noqa: S311 - a case that can be drawn again
    width, height = draw.choice([(2100, 2800), (1830, 3660), (2800, 2070)])
    bands = [Decimal(text) for text in ("0", "0.4", "1", "2")]
    parts = [
        OrderPart(
            f"P{n}", "", Decimal(draw.randint(60, 1200)), Decimal(draw.randint(60, 600)),
            draw.choice([1, 1, 2, 4, 8]), draw.choice([0, 0, 1, 2, 3]),
            (draw.choice(bands), draw.choice(bands), draw.choice(bands), draw.choice(bands)),
        )
        for n in range(draw.randint(1, most_parts))
    ]  # fmt: skip
    usual = {
        "stock": (Stock(Decimal(width), Decimal(height)),),
        "kerf": draw.choice([Decimal(0), Decimal("3.2"), Decimal(10)]),
        "trim": draw.choice([Decimal(0), Decimal(5), Decimal(10)]),
        "stages": draw.choice([2, 3, 0]), "first_cut": draw.choice(["", "x", "y"]),
        "trimming": draw.random() < 0.7, "grain_axis": draw.choice(["long", "short"]),
    }  # fmt: skip
    return Order(parts, **{**usual, **options})


@pytest.mark.shows("C-90")
@pytest.mark.parametrize(("length", "sides"), [(2780, 4), (2790, 3)])
def test_a_plate_is_usable_up_to_its_trim(length: int, sides: int) -> None:
    trimmed = frozenset(["left", "right", "bottom", "top"][:sides])
    order = make_order(make_part(length, 2080, grain=1), trimmed_sides=trimmed)
    assert len(plan(order).sheets) == 1
    with pytest.raises(Oversize, match="larger than a sheet: P"):
        solve(make_order(make_part(length + 0.01, 2080, grain=1), trimmed_sides=trimmed))


@pytest.mark.shows("C-89", "C-91")
@pytest.mark.parametrize(("side", "sheets"), [("460.00", 1), ("461.00", 2)])
@pytest.mark.parametrize("iterations", [0, 2000])
def test_the_blade_takes_its_width_at_each_cut(side: str, sheets: int, iterations: int) -> None:
    # 2,780 mm are usable; 6 x 460 and 5 cuts of 3.2 take 2,776, 6 x 461 take 2,782.
    order = make_order(make_part(side, side, 6), stock=(Stock(Decimal(490), Decimal(2800)),))
    assert len(plan(order, iterations).sheets) == sheets


@pytest.mark.shows("C-89")
def test_a_hundredth_of_a_millimetre_decides() -> None:
    stock = (Stock(Decimal("0.30"), Decimal("0.10")),)
    for size, sheets in (("0.10", 1), ("0.11", 2)):
        order = make_order(
            make_part(size, "0.10", 3, grain=1), stock=stock, trim=Decimal(0), kerf=Decimal(0)
        )
        assert len(plan(order, 500).sheets) == sheets


@pytest.mark.shows("C-93")
@pytest.mark.parametrize("high", [True, False])
@pytest.mark.parametrize("axis", ["long", "short"])
def test_the_grain_decides_how_a_part_lies(axis: str, high: bool) -> None:
    stock = SHEET if high else Stock(SHEET.height, SHEET.width)
    parts = [make_part(700, 300, grain=n, id=f"P{n}") for n in range(4)]
    found = plan(make_order(*parts, stock=(stock,), grain_axis=axis), 200)
    upright = {
        piece.part: piece.is_upright
        for sheet in found.sheets for piece in sheet.root.walk() if piece.part in (1, 2)
    }  # fmt: skip
    first = (axis == "long") == high
    assert upright == {1: first, 2: not first}


@pytest.mark.shows("C-94")
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, (71960, 44800)), ({"milling": Decimal("0.5")}, (72010, 44900)),
        ({"deduct_bands": False}, (72000, 45000)),
    ],
)  # fmt: skip
def test_bands_and_milling_change_what_is_cut(
    options: dict[str, Any], size: tuple[int, int]
) -> None:
    bands = tuple(Decimal(text) for text in ("1", "1", "0.4", "0"))
    found = plan(make_order(make_part(720, 450, bands=bands), **options))
    (piece,) = (p for sheet in found.sheets for p in sheet.root.walk() if p.part is not None)
    assert (piece.size[::-1] if piece.is_upright else piece.size) == size


@pytest.mark.shows("C-92")
def test_stages_first_cut_and_trimming_are_kept() -> None:
    """Fewer are allowed, more sheets are needed; each plan is judged by its own rules."""
    sheets = {}
    for stages in (2, 3, 0):
        for trimming in (True, False):
            for first_cut in ("x", "y", ""):
                order = draw_order(
                    3, stages=stages, trimming=trimming, first_cut=first_cut, kerf=Decimal(3)
                )
                sheets[stages, trimming, first_cut] = len(plan(order, 400).sheets)
    for (stages, trimming, first_cut), number in sheets.items():
        assert number >= sheets[0, True, ""], (stages, trimming, first_cut)
    assert sheets[2, False, "x"] > sheets[3, True, "x"]


@pytest.mark.shows("C-95")
def test_offcuts_are_taken_first_and_no_more_than_there_are() -> None:
    offcut = Stock(Decimal(600), Decimal(600), quantity=2, cost=1, name="rack 4")
    # A plate holds 20 of them, and an offcut one.
    for quantity, plates in ((20, [0]), (21, [0, 1]), (22, [0, 1, 1]), (23, [0, 0])):
        found = plan(make_order(make_part(500, 500, quantity), stock=(SHEET, offcut)), 20_000)
        assert sorted(sheet.plate for sheet in found.sheets) == plates
    alone = make_order(make_part(500, 500, 3), stock=(offcut,))
    with pytest.raises(Unsolvable, match="1 pieces have no place"):
        solve(alone)


@pytest.mark.shows("C-95")
def test_rests_that_can_be_used_are_listed() -> None:
    order = make_order(make_part(2780, 1700, grain=1))
    ((number, rest),) = summarize(order, plan(order)).rests
    assert (number, sorted(rest.size)) == (1, [37680, 278000])
    small = make_order(make_part(2780, 1990, grain=1))
    assert summarize(small, plan(small)).rests == ()


@pytest.mark.shows("C-96")
def test_of_as_many_sheets_the_one_with_the_larger_rest_wins() -> None:
    order = draw_order(11, 16, stages=3, first_cut="", trimming=True)
    seen: list[tuple[int, int]] = []

    def look(found: Plan) -> None:
        rests = [piece.size[0] * piece.size[1] for _, piece in summarize(order, found).rests]
        seen.append((len(found.sheets), -max(rests, default=0)))

    plan(order, 60_000, on_better=look)
    assert len(seen) >= 2
    assert seen == sorted(seen, reverse=True)


@pytest.mark.shows("C-96")
def test_of_equal_sheets_and_rests_patterns_cycles_and_cuts_decide() -> None:
    order = make_order(
        *(make_part(1000, 900, 2, grain=1, id=f"P{n}") for n in range(2)),
        stack_height=Decimal(54), stages=3,
    )  # fmt: skip
    problem = read_problem(order)

    def lay(*sheets: tuple[int, int], is_apart: bool = False) -> tuple[int, ...]:
        layouts = []
        for numbers in sheets:
            one, other = (Placed(n, problem.parts[n].poses[0]) for n in numbers)
            strips = [[[one]], [[other]]] if is_apart else [[[one], [other]]]
            layouts.append(Layout(problem.plates[0], Y, strips))
        return rank(build_sheets(layouts, problem), problem)

    equal, different = lay((0, 1), (0, 1)), lay((0, 0), (1, 1))
    assert equal < different
    assert equal[:3] == different[:3]
    assert (equal[3:5], different[3:5]) == ((1, 1), (2, 2)), "patterns and cycles"
    assert lay((0, 1), (0, 1), is_apart=True)[:2] == equal[:2]
    assert len({equal[5], lay((0, 1), (0, 1), is_apart=True)[5]}) == 2, "cuts of another length"


@pytest.mark.shows("C-102")
@pytest.mark.parametrize("seed", range(3))
def test_plates_of_several_sizes_take_no_more_area_than_the_best_one(seed: int) -> None:
    stock = [Stock(Decimal(w), Decimal(h)) for w, h in ((2100, 2800), (1830, 3660), (1220, 2440))]
    usual = {"stages": 2, "first_cut": "", "trimming": True, "kerf": Decimal(0), "trim": Decimal(0)}

    def measure(stock: list[Stock]) -> Decimal:
        order = draw_order(20 + seed, 14, stock=stock, **usual)
        free = [part._replace(grain=0) for part in order.parts]
        order = replace(order, parts=free)
        found = plan(order, 30_000)
        area = sum(p.size[0] * p.size[1] for s in found.sheets for p in [s.root])
        assert area >= sum(
            p.size[0] * p.size[1] for s in found.sheets for p in s.root.walk() if p.part is not None
        )
        return sum((stock[s.plate].width * stock[s.plate].height for s in found.sheets), Decimal(0))

    assert measure(stock) <= min(measure([each]) for each in stock)


@pytest.mark.shows("C-97")
def test_the_same_seed_gives_the_same_bytes_and_more_time_no_worse_plan() -> None:
    order = draw_order(5, 25, stages=3, first_cut="")
    plans = [plan(order, 3000, seed=7) for _ in range(2)]
    assert len({write_plan(order, each) for each in plans}) == 1
    assert len(plan(order, 12_000, seed=7).sheets) <= len(plans[0].sheets)
    assert len(plans[0].sheets) <= len(plan(order).sheets)
    assert plans[0].bound <= len(plans[0].sheets)


@pytest.mark.shows("C-97")
def test_200_parts_have_a_plan_within_a_second() -> None:
    draw = random.Random(1)  # noqa: S311 - a case that can be drawn again
    order = make_order(
        *(make_part(draw.randint(50, 1500), draw.randint(50, 800), id=f"P{n}") for n in range(200))
    )
    began = os.times().user
    plan(order)
    assert os.times().user - began < 1


def test_many_equal_parts_are_cut_by_few_patterns() -> None:
    """Column generation: greedy layouts need a tenth more."""
    parts = [make_part(700 + 90 * n, 300 + 37 * n, 40, grain=1, id=f"P{n}") for n in range(8)]
    order = make_order(*parts, stages=3)
    greedy, better = plan(order), plan(order, 20_000)
    assert better.algorithm in ("columns", "search")
    assert len(better.sheets) < len(greedy.sheets)
    assert len(better.sheets) <= 1.1 * find_bound(read_problem(order))


def test_a_plate_that_holds_parts_in_one_pose_only_is_cut_by_columns_too() -> None:
    """The first pose of each does not fit on the narrow plate."""
    narrow = Stock(Decimal(520), Decimal(2800))
    parts = [make_part(300 + 20 * n, 900 + 30 * n, 40, id=f"P{n}") for n in range(5)]
    both = plan(make_order(*parts, stock=(narrow, SHEET)), 20_000)
    alone = plan(make_order(*parts, stock=(narrow,)), 20_000)
    assert alone.algorithm != "greedy"

    def cost(found: Plan) -> Decimal:
        areas = (narrow.width * narrow.height, SHEET.width * SHEET.height)
        return sum((areas[sheet.plate] for sheet in found.sheets), Decimal(0))

    assert cost(both) <= cost(alone)


@pytest.mark.parametrize("parts", [20, 4000])
def test_the_bound_of_many_different_parts_is_found_at_once(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def grow(size: int, full: int, least: int) -> int:
        nonlocal looks
        looks += 1
        return usual(size, full, least)

    usual = layout._grow
    monkeypatch.setattr(layout, "_grow", grow)
    draw = random.Random(1)  # noqa: S311 - a case that can be drawn again
    order = make_order(
        *(
            make_part(draw.randint(50, 1500), draw.randint(50, 800), id=f"P{n}")
            for n in range(parts)
        )
    )
    assert find_bound(read_problem(order)) > parts // 40
    assert looks < 2_000_000


@pytest.mark.shows("C-103")
def test_orders_of_a_workshop_are_cut_near_their_bound() -> None:
    """Some of the forty that `bench` measures."""
    above = []
    for number in (8, 10, 12, 13):
        order = draw_workshop_order(number)
        greedy, better = plan(order), plan(order, 5_000)
        assert len(better.sheets) <= len(greedy.sheets)
        assert better.bound >= 5
        above.append([len(found.sheets) / better.bound - 1 for found in (greedy, better)])
    by_greedy, by_search = (sum(each) / len(above) for each in zip(*above, strict=True))
    assert by_search <= 0.06 < by_greedy


@pytest.mark.shows("C-104")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stock": ()}, "there are no plates"), ({"parts": ()}, "there are 0 pieces"),
        ({"stages": 4}, "stages must be 2, 3 or 0"), ({"first_cut": "z"}, "must be x, y or free"),
        ({"kerf": Decimal(11)}, "0 to 10 mm"), ({"trim": Decimal(1500)}, "nothing of a plate"),
        ({"parts": (make_part(100, 100, 100_001),)}, "100001 pieces"),
        ({"parts": (make_part(1, 100, bands=(Decimal(1),) * 4),)}, "P: nothing is left to cut"),
        ({"parts": (make_part(3000, 100),)}, "larger than a sheet: P"),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_cut_is_named(change: dict[str, Any], why: str) -> None:
    facts = {"parts": (make_part(100, 100),), "stock": (SHEET,), "trim": Decimal(10), **change}
    with pytest.raises(Unsolvable, match=why):
        solve(Order(**facts))
