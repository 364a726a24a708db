"""Drawings of plans, labels and the page that is printed."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from xml.etree.ElementTree import Element

import pytest
from defusedxml import ElementTree as Xml

from tests.services.cutting.optimise.shelves import shelve
from tests.services.cutting.optimise.trees import (
    make_order,
    make_part,
    make_sheet,
    make_workshop,
    mm,
    part,
    split,
)
from ulak.services.cutting.optimise.document import list_patterns
from ulak.services.cutting.optimise.drawing import draw_sheet
from ulak.services.cutting.optimise.model import Order, Plan, Stock, X, Y, list_cuts
from ulak.services.cutting.optimise.report import Batch, make_labels, make_report

SVG = "{http://www.w3.org/2000/svg}"


def draw(order: Order, plan: Plan, number: int = 1) -> Element:
    drawing: Element = Xml.fromstring(draw_sheet(order, list_patterns(order, plan)[number - 1]))
    return drawing


def texts(drawing: Element, style: str = "") -> list[str]:
    found = (each for each in drawing.iter(f"{SVG}text") if style in each.attrib["class"])
    return [each.text or "" for each in found]


def boxes(drawing: Element, *styles: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of rectangles."""
    found = []
    for each in drawing.iter(f"{SVG}rect"):
        if each.attrib["class"] in styles:
            x, y, width, height = (float(each.attrib[k]) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def contains(outer: Iterable[float], inner: Iterable[float]) -> bool:
    (a, b, c, d), (e, f, g, h) = outer, inner
    return a - 0.2 <= e and b - 0.2 <= f and g <= c + 0.2 and h <= d + 0.2


@pytest.mark.shows("C-99")
def test_each_pattern_has_a_drawing_with_every_part_its_size_and_its_cuts() -> None:
    order, plan = make_workshop()
    first, second = list_patterns(order, plan)
    assert (first.sheets, first.cycles, second.sheets, second.cycles) == ((1, 3), 1, (2,), 1)
    drawing = draw(order, plan)
    inside = texts(drawing, "inside")
    assert [inside.count(id) for id in ("side", "shelf", "back")] == [2, 1, 1]
    assert inside.count("448 x 719.6") == 2, "across x up, as it is cut"
    head = " ".join(texts(drawing, "said"))
    assert "2 x: sheet 1, 3; cycles of the saw: 1" in head
    assert "2100 x 2800 mm" in head
    cuts = list_cuts(first.sheet.root)
    assert texts(drawing, "number") == [str(n) for n in range(1, len(cuts) + 1)]
    assert "rack 7 700 x 650 mm" in " ".join(texts(draw(order, plan, 2)))


def test_parts_lie_in_the_drawing_as_on_the_plate() -> None:
    order = make_order(make_part("wide", 1000, 200), make_part("high", 300, 900), trim=mm(0))
    tree = split(Y, (200, split(X, (1000, part(0)))), (900, split(X, (300, part(1)))))
    drawing = draw(order, Plan((make_sheet(order, tree),)))
    (plate,), (wide, high) = boxes(drawing, "trim"), boxes(drawing, "part")
    scale = (plate[2] - plate[0]) / 2100
    sizes = [round((end - begin) / scale) for begin, end in zip(wide[:2], wide[2:], strict=True)]
    assert sizes == pytest.approx([1000, 200], abs=1)
    # The first strip is at the bottom.
    assert (plate[3] - wide[3]) / scale == pytest.approx(0, abs=1)
    assert (wide[1] - high[3]) / scale == pytest.approx(3.2, abs=1)


def test_cuts_are_numbered_strips_first_and_then_within_each() -> None:
    order = make_order(make_part("A", 500, 300, 4), trim=mm(0))
    row = split(X, (500, part(0)), (500, part(0)))
    (first, second, *inner) = list_cuts(make_sheet(order, split(Y, (300, row), (300, row))).root)
    assert [(cut.depth, cut.axis) for cut in (first, second)] == [(0, Y), (0, Y)]
    assert [(cut.begin[X], cut.begin[Y]) for cut in inner] == [
        (50000, 0), (100320, 0), (50000, 30320), (100320, 30320),
    ]  # fmt: skip
    assert all(cut.depth == 1 for cut in inner)
    assert first.end == (210000, 30000), "through the whole plate"


def test_dust_is_cut_off_and_a_part_as_large_as_the_rest_is_not() -> None:
    order = make_order(make_part("A", 500, 300), stock=[Stock(mm(1000), mm(302))], trim=mm(0))
    dusty = split(Y, (300, split(X, (500, part(0)))))
    assert len(list_cuts(make_sheet(order, dusty).root)) == 2
    exact = replace(order, stock=[Stock(mm(500), mm(300))])
    assert list_cuts(make_sheet(exact, part(0)).root) == []
    assert texts(draw(exact, Plan((make_sheet(exact, part(0)),))), "inside") == ["A", "500 x 300"]


def test_a_reusable_rest_is_named_with_its_size_and_another_is_not() -> None:
    order = make_order(make_part("A", 500, 2700), trim=mm(0))
    tree = split(X, (500, split(Y, (2700, part(0)))))
    drawing = draw(order, Plan((make_sheet(order, tree),)))
    assert len(boxes(drawing, "offcut")) == len(boxes(drawing, "rest")) == 1
    assert texts(drawing, "inside") == ["A", "500 x 2700", "offcut", "1596.8 x 2800"]


@pytest.mark.parametrize(
    ("grain", "axis", "plate", "is_vertical"),
    [
        (1, "long", (2100, 2800), True), (2, "long", (2100, 2800), True),
        (1, "short", (2100, 2800), False), (1, "long", (2800, 2100), False),
        (0, "long", (2100, 2800), None), (3, "long", (2100, 2800), None),
    ],
)  # fmt: skip
def test_the_grain_of_the_plate_shows_on_parts_that_may_not_turn(
    grain: int, axis: str, plate: tuple[int, int], is_vertical: bool | None
) -> None:
    order = make_order(
        make_part("A", 600, 500, grain=grain), grain_axis=axis, stock=[Stock(*map(mm, plate))]
    )
    drawing = draw(order, shelve(order))
    lines = [each.attrib for each in drawing.iter(f"{SVG}line") if each.attrib["class"] == "grain"]
    assert {each["x1"] == each["x2"] for each in lines} == ({is_vertical} - {None})


@pytest.mark.parametrize("plate", [(2800, 2100), (600, 2800), (2100, 2800)])
def test_what_is_written_stays_within_its_part_and_numbers_do_not_hide_each_other(
    plate: tuple[int, int],
) -> None:
    sizes = [(590 - 7 * n, 70 + 11 * n) for n in range(40)]
    order = make_order(
        *(make_part(f"P{n}", *size) for n, size in enumerate(sizes)),
        stock=[Stock(*map(mm, plate))],
    )
    plan = shelve(order)
    for pattern in list_patterns(order, plan):
        drawing = draw(order, plan, pattern.number)
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        bubbles = boxes(drawing, "bubble")
        for box in (*bubbles, *boxes(drawing, "trim", "part", "rest", "offcut")):
            assert contains((0, 0, width, height), box)
        pairs = list(combinations(bubbles, 2))
        hidden = [(a, b) for a, b in pairs if contains(a, b) or contains(b, a)]
        assert hidden == []
        parts = boxes(drawing, "part", "offcut")
        for text in drawing.iter(f"{SVG}text"):
            if text.attrib["class"] != "inside":
                continue
            x, y, size = (float(text.attrib[key]) for key in ("x", "y", "font-size"))
            half = len(text.text or "") * 0.55 * size / 2
            upright = "transform" in text.attrib
            if upright:
                y -= size * 0.36
            reach = (x - 1, y - half, x + 1, y + half) if upright else (x - half, y, x + half, y)
            assert any(contains(box, reach) for box in parts), text.text


def test_a_part_without_room_for_its_name_has_a_number_and_a_legend() -> None:
    order = make_order(make_part("a very long name of a part", 60, 40, 3), make_part("B", 500, 400))
    drawing = draw(order, shelve(order))
    assert texts(drawing, "inside").count("#1") == 3
    assert texts(drawing, "said")[-1] == "#1: a very long name of a part, 60 x 40"


def test_a_narrow_part_has_its_name_upright() -> None:
    order = make_order(make_part("stile", 70, 2000))
    (name, size) = [
        each for each in draw(order, shelve(order)).iter(f"{SVG}text")
        if each.text in ("stile  70 x 2000", "offcut", "stile")
    ][:2]  # fmt: skip
    assert name.attrib["transform"].startswith("rotate(-90 ")
    assert "transform" not in size.attrib


@pytest.mark.shows("C-99")
def test_labels_come_in_the_order_of_the_saw() -> None:
    order, plan = make_workshop()
    labels = make_labels(order, plan)
    assert [(each.id, each.sheet, each.position) for each in labels] == [
        ("side", 1, 1), ("side", 1, 2), ("shelf", 1, 3), ("back", 1, 4), ("shelf", 2, 1),
        ("shelf", 2, 2), ("side", 3, 1), ("side", 3, 2), ("shelf", 3, 3), ("back", 3, 4),
    ]  # fmt: skip
    side = labels[0]
    assert side.description == "GOVDE_side"
    assert side.finished == (720, 450)
    assert side.cut == (mm("719.6"), 448), "length and width, however it lies"
    assert side.bands == {"upper": 1, "lower": 1, "left": mm("0.4")}


@pytest.mark.shows("C-100")
def test_the_page_has_figures_drawings_and_labels() -> None:
    order, plan = make_workshop()
    page = make_report([Batch("", order, plan)], "Order 7")
    assert page.startswith("<!doctype html>\n<html")
    assert page.count("<svg") == page.count("</svg>") == 2
    assert page.count('class="label"') == 10
    figures = dict(re.findall(r"<th>(.*?)</th><td>(.*?)</td>", page))
    assert figures["Sheets"] == "3; no plan needs fewer than 2"
    assert figures["Gap to the bound"] == "50.00 %"
    assert figures["Waste"].endswith(" % of the plates")
    assert (figures["Patterns"], figures["Cycles of the saw"]) == ("2", "2")
    assert re.fullmatch(r"\d+, \d+\.\d m", figures["Cuts"])
    assert (figures["Cost of the plates"], figures["Computed by"]) == ("not known", "hand, 1.2 s")
    assert "finished 720 x 450<br>cut 719.6 x 448<br>bands: upper 1, lower 1, left 0.4" in page
    assert "src=" not in page, "nothing is fetched"
    assert "href=" not in page


def test_the_cost_of_plates_is_added_up_where_each_has_one() -> None:
    order, plan = make_workshop()
    stock = [plate._replace(cost=cost) for plate, cost in zip(order.stock, (70, 5), strict=True)]
    page = make_report([Batch("", replace(order, stock=stock), plan)], "Order 7")
    assert "<th>Cost of the plates</th><td>145</td>" in page
    some = replace(order, stock=[stock[0], order.stock[1]])
    unknown = make_report([Batch("", some, plan)], "Order 7")
    assert "<th>Cost of the plates</th><td>not known</td>" in unknown


def test_every_text_is_escaped_and_none_breaks_the_document() -> None:
    evil = "<script>alert(1)</script>\x00\x1b\u202e\"'&"
    order = make_order(
        make_part(evil, 1200, 500, description=evil), material=evil,
        stock=[Stock(mm(2100), mm(2800), name=evil)],
    )  # fmt: skip
    plan = shelve(order)
    drawing = draw(order, plan)
    assert any("<script>alert(1)</script>" in text for text in texts(drawing))
    page = make_report([Batch(evil, order, plan)], evil)
    for text in (page, draw_sheet(order, list_patterns(order, plan)[0])):
        assert "<script" not in text
        assert not {"\x00", "\x1b", "\u202e"} & set(text)
    assert page.count("&lt;script&gt;") >= 5
