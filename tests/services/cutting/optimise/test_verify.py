"""The verifier refuses every damaged plan with the reason, and accepts right ones."""

import ast
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import pytest
from defusedxml import ElementTree as Xml

from tests.services.cutting.optimise.trees import (
    BANDS,
    make_order,
    make_part,
    make_sheet,
    make_workshop,
    mm,
    part,
    split,
)
from ulak.services.cutting.optimise import verify
from ulak.services.cutting.optimise.document import write_plan
from ulak.services.cutting.optimise.model import Order, Plan, Stock, X, Y
from ulak.services.cutting.optimise.verify import find_faults


def judge(order: Order, *grown: Any, **more: Any) -> list[str]:
    """Return the faults of the plan with these trees, each on the first plate."""
    sheets = tuple(make_sheet(order, grow) for grow in grown)
    return find_faults(order, write_plan(order, Plan(sheets, **more)))


def find(root: Element, tag: str, number: int = 0) -> Element:
    return [*root.iter(tag)][number]


def parent_of(root: Element, child: Element) -> Element:
    return next(each for each in root.iter() if child in [*each])


def turn(element: Element, **by: float) -> None:
    """Change figures of an element by so many mm."""
    for name, change in by.items():
        element.set(name, f"{mm(element.attrib[name]) + mm(change):.2f}")


def move(root: Element, tag: str, number: int = 0) -> Element:
    element = find(root, tag, number)
    parent_of(root, element).remove(element)
    return element


def into_rest(root: Element, number: int) -> None:
    element = find(root, "Part", number)
    element.tag = "Rest"
    for name in ("id", "description", "length_along"):
        del element.attrib[name]


def twice(root: Element, tag: str, number: int = 0) -> None:
    element = find(root, tag, number)
    parent = parent_of(root, element)
    parent.insert([*parent].index(element), Xml.fromstring(Xml.tostring(element)))


def shift(root: Element) -> None:
    for element in find(root, "Sheet").iter():
        if element.tag != "Sheet":
            turn(element, x=-10, y=-10)


def exchange(root: Element) -> None:
    """Give the sides of a part to each other, as if it were turned on its place."""
    element = find(root, "Part")
    width, height = element.attrib["width"], element.attrib["height"]
    element.attrib.update(width=height, height=width, length_along="width")


def rename(root: Element, **names: str) -> None:
    find(root, "Part").attrib.update(names)


def put(tag: str, number: int = 0, /, **values: str) -> Callable[[Element], None]:
    return lambda root: find(root, tag, number).attrib.update(values)


def nest(root: Element) -> None:
    deepest = find(root, "Sheet")
    box = find(root, "Cut").attrib
    deepest.clear()
    deepest.attrib.update(number="1", pattern="1", plate="1", width="2100.00", height="2800.00")
    for _ in range(150):
        deepest = SubElement(deepest, "Cut", box)
    SubElement(deepest, "Rest", {name: box[name] for name in ("x", "y", "width", "height")})


DAMAGES: dict[str, tuple[Callable[[Element], Any], str]] = {
    # (a) quantities
    "a part became a rest": (lambda r: into_rest(r, 0), r"part 'side': 4 ordered, 3 cut"),
    "a part is there twice": (lambda r: twice(r, "Part"), r"part 'side': 4 ordered, 5 cut"),
    "a sheet is missing": (lambda r: move(r, "Sheet", 2), r"part 'side': 4 ordered, 2 cut"),
    "a sheet is there twice": (lambda r: twice(r, "Sheet"), r"part 'side': 4 ordered, 6 cut"),
    "a part was never ordered": (lambda r: rename(r, id="door"), r"part 'door' .*not ordered"),
    "a part is of another row": (lambda r: rename(r, description=""), r"'side' .*not ordered"),
    # (b) inside, no overlap
    "parts overlap": (lambda r: twice(r, "Part"), r"part 'side' .* and part 'side' .* overlap"),
    "parts overlap by a hundredth": (
        lambda r: turn(find(r, "Part"), width=3.21), r"'side' .* and part 'side' .* overlap",
    ),
    "a part lies in the trim": (
        lambda r: turn(find(r, "Part"), x=-0.01), r"part 'side' .* not inside the usable area",
    ),
    "a part lies beyond the edge": (
        lambda r: turn(find(r, "Part"), x=2000), r"part 'side' .* not inside the usable area",
    ),
    "a sheet begins at its corner": (shift, r"tree does not begin with the usable area"),
    "a tree is that of a part of the plate": (
        lambda r: turn(find(r, "Cut"), height=-50), r"tree does not begin with the usable area",
    ),
    # (c) full cuts, one kerf each
    "no kerf is left": (
        lambda r: turn(find(r, "Part", 1), x=-3.2), r"'side' .* not one kerf behind its neighbour",
    ),
    "a kerf is too narrow": (
        lambda r: turn(find(r, "Part", 1), x=-0.01), r"'side' .* not one kerf behind its neighbour",
    ),
    "a kerf is too wide": (
        lambda r: turn(find(r, "Part", 1), x=0.01), r"'side' .* not one kerf behind its neighbour",
    ),
    "a cut ends halfway": (lambda r: turn(find(r, "Rest"), height=-50), r"rest .* does not span"),
    "a part is not as high as its strip": (
        lambda r: turn(find(r, "Part"), height=-0.01), r"part 'side' .* does not span",
    ),
    "a rest is forgotten": (lambda r: move(r, "Rest"), r"cut .* neither rest nor dust"),
    "a rest ends before the edge": (
        lambda r: turn(find(r, "Rest"), width=-1), r"cut .* neither rest nor dust",
    ),
    "a rest ends behind the edge": (
        lambda r: turn(find(r, "Rest"), width=1), r"cut .* divided beyond its edge",
    ),
    "pieces are in the wrong order": (
        lambda r: find(r, "Cut", 1).append(move(r, "Part")), r"'side' .* not one kerf behind",
    ),
    "a cut goes in the other direction": (put("Cut", 1, axis="y"), r"'side' .* does not span"),
    "a sheet has two trees": (lambda r: twice(r, "Cut"), r"sheet 1: it has 2 pieces, not one"),
    "a sheet has no tree": (lambda r: move(r, "Cut"), r"sheet 1: it has 0 pieces, not one"),
    "a cut has no children": (lambda r: find(r, "Cut", 1).clear(), r"a Cut has no axis"),
    "a part has children": (
        lambda r: SubElement(find(r, "Part"), "Rest"), r"'side' .* is divided into 1 pieces",
    ),
    "a sheet has no part": (lambda r: find(r, "Sheet").remove(find(r, "Cut")) or SubElement(
        find(r, "Sheet"), "Rest", x="10.00", y="10.00", width="2080.00", height="2780.00",
        reusable="1"), r"sheet 1: no part is cut from it"),
    # (e) grain and (f) sizes
    "a part is turned": (exchange, r"part 'side' .* does not span"),
    "a part lies the other way than it says": (
        put("Part", length_along="width"), r"part 'side' .* has a wrong size",
    ),
    "a part is too small": (
        lambda r: turn(find(r, "Part"), width=-0.01), r"part 'side' .* has a wrong size",
    ),
    "a part still has its bands": (
        lambda r: turn(find(r, "Part"), width=2, height=0.4), r"part 'side' .* has a wrong size",
    ),
    # (g) stock, patterns and figures
    "a counted plate is used twice": (
        lambda r: twice(r, "Sheet", 1), r"the stock has 1 of plate 2, 2 are used",
    ),
    "a plate is not in the stock": (put("Sheet", plate="3"), r"there is no plate 3 in the stock"),
    "a plate is numbered from 0": (put("Sheet", plate="0"), r"there is no plate 0 in the stock"),
    "a plate is larger": (put("Sheet", width="2200.00"), r"size is not that of its plate"),
    "a plate has another name": (put("Sheet", 1, name="rack 8"), r"name is not that of its plate"),
    "a plate has a name": (put("Sheet", name="rack 8"), r"name is not that of its plate"),
    "two patterns have one number": (put("Sheet", 1, pattern="1"), r"its pattern is 2, not 1"),
    "one pattern has two numbers": (put("Sheet", 2, pattern="3"), r"its pattern is 1, not 3"),
    "sheets are numbered wrongly": (put("Sheet", 1, number="3"), r"sheet 2: its number is 3"),
    "a small rest is reusable": (put("Rest", reusable="1"), r"rest .* is not reusable"),
    "a large rest is not reusable": (
        lambda r: find(r, "Rest", 2).attrib.pop("reusable"), r"rest .* is reusable",
    ),
    "fewer boards": (put("Solution", boards="2"), r"boards is 2, which is wrong"),
    "less area": (put("Solution", mqBoards="12.21"), r"mqBoards is 12.21, which is wrong"),
    "area of another unit": (put("Solution", mqBoards="12215000"), r"mqBoards is .* wrong"),
    "fewer drops": (put("Solution", mqDrops="9.8054336"), r"mqDrops is .*, which is wrong"),
    "digits beyond the last": (put("Solution", mqDrops="9.80543361234"), r"mqDrops is .* wrong"),
    "less waste": (put("Solution", waste="80.26"), r"waste is 80.26, which is wrong"),
    "fewer patterns": (put("Solution", patterns="1"), r"patterns is 1, which is wrong"),
    "fewer cycles": (put("Solution", cycles="1"), r"cycles is 1, which is wrong"),
    "fewer cuts": (put("Solution", zcuts="16"), r"zcuts is 16, which is wrong"),
    "shorter cuts": (put("Solution", cutLength="13.5"), r"cutLength is 13.5, which is wrong"),
    "a bound that is beaten": (put("Solution", bound="4"), r"the bound is 4, but there are 3"),
    "a smaller gap": (put("Solution", gap="49.99"), r"gap is 49.99, which is wrong"),
    "a gap without a bound": (put("Solution", bound="0"), r"there is a gap without a bound"),
    "no gap": (lambda r: find(r, "Solution").attrib.pop("gap"), r"gap of a Solution is ''"),
    "another material": (put("Plan", material="MDF19"), r"material is 'MDF19', ordered is 'MDF18'"),
    # the form
    "another version": (put("Plan", version="1"), r"its version is '1', not 2"),
    "another root": (lambda r: setattr(r, "tag", "Plans"), r"unknown element 'Plans', not a Plan"),
    "no header": (lambda r: move(r, "Solution"), r"it has no Solution"),
    "two headers": (lambda r: twice(r, "Solution"), r"unknown element 'Solution', not a Sheet"),
    "a header of another mode": (put("Solution", name="A"), r"the Solution is not that of mode E"),
    "no sheets": (lambda r: [r.remove(each) for each in r.findall("Sheet")], r"4 ordered, 0 cut"),
    "an unknown element": (lambda r: setattr(find(r, "Rest"), "tag", "Hole"), r"element 'Hole'"),
    "an unknown attribute": (put("Part", angle="45"), r"a Part has an unknown attribute 'angle'"),
    "no width": (lambda r: find(r, "Part").attrib.pop("width"), r"a Part has no width"),
    "no id": (lambda r: find(r, "Part").attrib.pop("id"), r"a Part has no id"),
    "no plate": (lambda r: find(r, "Sheet").attrib.pop("plate"), r"a Sheet has no plate"),
    "no cuts in the header": (
        lambda r: find(r, "Solution").attrib.pop("zcuts"), r"a Solution has no zcuts",
    ),
    "not a number": (put("Part", x="NaN"), r"x of a Part is 'NaN', no mm"),
    "an infinite number": (put("Solution", mqDrops="inf"), r"mqDrops of a Solution is 'inf'"),
    "a negative size": (put("Part", width="-448.00"), r"width of a Part is '-448.00', no mm"),
    "a negative place": (put("Rest", x="-1.00"), r"x of a Rest is '-1.00', no mm"),
    "no size": (put("Part", width="0.00"), r"part 'side' .* has no size"),
    "an exponent": (put("Part", x="1e1"), r"x of a Part is '1e1', no mm"),
    "a huge number": (put("Part", x="9" * 5000), r"x of a Part is '9+', no mm"),
    "a huge count": (put("Sheet", pattern="9" * 5000), r"pattern of a Sheet is '9+', no whole"),
    "digits of another script": (put("Part", x="\u0661.\u0660\u0660"), r"x of a Part .* no mm"),
    "an unknown axis": (put("Cut", axis="z"), r"a Cut has the axis 'z'"),
    "an unknown side": (put("Part", length_along="depth"), r"length_along of part .* is .depth"),
    "a flag that is no flag": (put("Rest", 2, reusable="yes"), r"rest .* is reusable"),
    "text": (lambda r: setattr(find(r, "Sheet"), "tail", "and so on"), r"it has text"),
    "a deep tree": (nest, r"is deeper than 100 levels"),
}  # fmt: skip


@pytest.mark.shows("C-88")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_plan_is_refused_with_the_reason(name: str) -> None:
    order, plan = make_workshop()
    data = write_plan(order, plan)
    assert find_faults(order, data) == []
    root = Xml.fromstring(data)
    damage, reason = DAMAGES[name]
    damage(root)
    faults = find_faults(order, Xml.tostring(root))
    assert [fault for fault in faults if re.search(reason, fault, re.DOTALL)], faults


@pytest.mark.shows("C-88")
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "no well-formed XML"),
        (lambda data: data[: len(data) // 2], "no well-formed XML"),
        (lambda data: data + data, "no well-formed XML"),
        (lambda data: b"\x00\xff" + data, "no well-formed XML"),
        (lambda data: data.replace(b"utf-8", b"utf-7"), "no well-formed XML"),
        (lambda data: data.replace(b"utf-8", b"nobody"), "no well-formed XML"),
        (lambda data: data.replace(b"<Plan", b"<!DOCTYPE Plan><Plan", 1), "DTD"),
        (lambda data: data.replace(b"<Plan", b"<!DOCTYPE Plan [<!ENTITY a 'b'>]><Plan", 1), "DTD"),
        (lambda data: data.replace(b"<Plan", b"<Plan xmlns='urn:x'"), "unknown element"),
        (lambda data: b"<Plan>" * 20_000 + b"</Plan>" * 20_000, "a Plan has no version"),
        (lambda data: b" " * 50_000_001, "larger than 50 MB"),
    ],
    ids=["empty", "half", "twice", "binary", "utf-7", "encoding", "dtd", "entity", "namespace",
         "deep", "large"],
)  # fmt: skip
def test_what_is_no_plan_is_refused(damage: Callable[[bytes], bytes], reason: str) -> None:
    order, plan = make_workshop()
    (fault,) = find_faults(order, damage(write_plan(order, plan)))
    assert reason in fault


@pytest.mark.shows("C-88")
def test_whatever_the_bytes_are_nothing_is_raised() -> None:
    order, plan = make_workshop()
    data, draw = write_plan(order, plan), random.Random(88)  # noqa: S311 - a seed that can be replayed
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(damaged))
            damaged[at : at + draw.choice((0, 1, 1, 9))] = draw.choice(
                (b"", b"0", b"9", b"-", b".", b'"', b"<", b"/>", b"&", b"\xff", b"nan")
            )
        faults = find_faults(order, bytes(damaged))
        assert all(isinstance(fault, str) for fault in faults)


@pytest.mark.shows("C-88", "C-89", "C-92")
@pytest.mark.parametrize("stages", [2, 3, 0])
@pytest.mark.parametrize("kerf", ["0", "3.2", "10"])
@pytest.mark.parametrize("first_cut", ["x", "y", ""])
def test_right_plans_are_accepted(stages: int, kerf: str, first_cut: str) -> None:
    order = make_order(
        make_part("a", "333.33", 250, 3), make_part("b", 300, 250, 1), make_part("b", 280, 250, 1),
        make_part("c", 333.33, 120, 2),
        stages=stages, kerf=mm(kerf), first_cut=first_cut, stock=[Stock(mm(1100), mm(1100), 2)],
    )  # fmt: skip
    along = Y if first_cut == "x" else X  # strips are divided along it

    def lie(number: int) -> Any:
        return part(number, is_upright=along == Y)

    def trim(extent: int, number: int) -> Any:
        return split(1 - along, (extent, lie(number)))

    first = split(1 - along, (250, split(along, ("333.33", lie(0)), ("333.33", lie(0)))))
    if stages == 2:
        rows = split(along, ("333.33", lie(0)), (300, lie(1)), (280, lie(2)))
        trimmed = split(along, ("333.33", trim(120, 3)), ("333.33", trim(120, 3)))
        second = split(1 - along, (250, rows), (130, trimmed))
    else:
        column = split(1 - along, (120, lie(3)), (120, lie(3)))
        rows = split(along, ("333.33", lie(0)), ("333.33", column))
        b = split(along, (300, lie(1)), (280, lie(2)))
        second = split(1 - along, (250, rows), (250, b))
        order = replace(order, trimming=False)
    assert judge(order, first, second) == []


@pytest.mark.shows("C-88", "C-91")
def test_six_parts_of_460_fit_with_their_kerfs_and_six_of_461_do_not() -> None:
    for length, is_right in ((460, True), (461, False)):
        order = make_order(make_part("a", 2080, length, 6), stages=2)
        faults = judge(order, split(Y, *[(length, part(0))] * 6))
        assert (faults == []) is is_right, faults
    assert "sheet 1: the cut at 10.00, 10.00 is divided beyond its edge" in faults


@pytest.mark.shows("C-91")
def test_what_is_narrower_than_the_kerf_is_dust_and_the_edge_needs_no_cut() -> None:
    order = make_order(make_part("a", 2080, "2776.80"))
    dust = split(Y, ("2776.80", part(0)))
    assert judge(order, dust) == []
    assert judge(replace(order, kerf=mm("3.19")), dust) == []  # then a rest of 0.01 mm is left
    without = write_plan(order, Plan((make_sheet(order, dust),)))
    assert "neither rest nor dust" in find_faults(replace(order, kerf=mm("3.19")), without)[0]
    whole = make_order(make_part("a", 2080, 2780))
    assert judge(whole, part(0)) == []
    assert judge(whole, split(Y, (2780, part(0)))) == []


@pytest.mark.shows("C-88")
def test_the_usable_area_is_the_plate_without_the_trims_of_its_sides() -> None:
    for sides, width, height in (
        ({"left", "right", "bottom", "top"}, 2080, 2780), ({"left", "top"}, 2090, 2790),
        (set(), 2100, 2800), ({"bottom", "top"}, 2100, 2780),
    ):  # fmt: skip
        order = make_order(make_part("a", width, height), trimmed_sides=frozenset(sides))
        assert judge(order, part(0)) == []
        data = write_plan(order, Plan((make_sheet(order, part(0)),)))
        faults = find_faults(replace(order, trim=mm("10.01")), data)
        assert any("usable area" in fault for fault in faults) is bool(sides)


@pytest.mark.shows("C-92", "C-88")
def test_stages_are_changes_of_direction() -> None:
    a, b = make_part("a", 100, 100), make_part("b", 90, 100)
    again = split(X, (100, part(0)), (100, split(X, (90, part(1)))))
    order = make_order(a, b, stages=2, trimming=False)
    assert judge(order, split(Y, (100, again))) == []
    # What only says a direction and cuts nothing is no stage.
    assert judge(order, split(X, (2080, split(Y, (100, again))))) == []
    across = split(Y, (90, split(X, (90, part(1)))))
    order = make_order(a, make_part("b", 90, 90), stages=3, trimming=False)
    deep = split(Y, (100, split(X, (100, part(0)), (100, across))))
    assert judge(replace(order, stages=4), deep) == []
    assert judge(order, deep) == [
        "sheet 1: the cut at 113.20, 10.00 is cut in stage 4; 3 are allowed"
    ]


@pytest.mark.shows("C-92", "C-88")
def test_a_cut_beyond_the_last_stage_may_trim_one_part() -> None:
    b = make_part("b", 100, 100)

    def cut(*column: tuple[int, Any]) -> Any:
        return split(Y, (100, split(X, (100, part(0)), (100, split(Y, *column)))))

    trimmed, order = cut((90, part(1))), make_order(b, make_part("a", 100, 90), stages=2)
    too_deep = ["sheet 1: the cut at 113.20, 10.00 is cut in stage 3; 2 are allowed"]
    assert judge(order, trimmed) == []
    assert judge(replace(order, trimming=False), trimmed) == too_deep
    assert judge(replace(order, trimming=False, stages=3), trimmed) == []
    assert judge(replace(order, trimming=False, stages=0), trimmed) == []

    # Only dust is trimmed off, or nothing at all.
    order = make_order(b, make_part("a", 100, 98), stages=2)
    assert judge(order, cut((98, part(1)))) == []
    assert judge(replace(order, trimming=False), cut((98, part(1)))) == too_deep
    order = make_order(b, make_part("a", 100, 100), stages=2, trimming=False)
    assert judge(order, cut((100, part(1)))) == []

    # Two parts, or a part that is trimmed twice, need a stage of their own.
    order = make_order(b, make_part("a", 100, 40, 2), stages=2)
    assert judge(order, cut((40, part(1)), (40, part(1)))) == too_deep
    order = make_order(b, make_part("a", 90, 90), stages=2)
    assert judge(order, cut((90, split(X, (90, part(1)))))) == [
        *too_deep, "sheet 1: the cut at 113.20, 10.00 is cut in stage 4; 2 are allowed",
    ]  # fmt: skip


@pytest.mark.shows("C-92", "C-88")
def test_the_first_cut_is_in_the_direction_of_the_order() -> None:
    order = make_order(make_part("a", 2080, 100, 2), stages=2, first_cut="x")
    strips = split(Y, (100, part(0)), (100, part(0)))
    assert judge(replace(order, first_cut="y"), strips) == []
    assert judge(order, strips) == ["sheet 1: its first cut is along the wrong axis, not x"]
    # A plate that needs no cut in that direction says so, and has used the stage.
    whole = split(X, (2080, strips))
    assert judge(order, whole) == []
    deeper = split(X, (2080, split(Y, (100, split(X, (500, part(0)), (500, part(0)))))))
    order = make_order(make_part("a", 500, 100, 2), stages=2, first_cut="x")
    assert "is cut in stage 3; 2 are allowed" in judge(order, deeper)[0]
    assert judge(replace(order, stages=3), deeper) == []
    assert judge(replace(order, first_cut=""), deeper) == []


@pytest.mark.shows("C-93", "C-88")
@pytest.mark.parametrize(
    ("grain", "grain_axis", "allowed"),
    [
        (0, "long", "both"), (3, "long", "both"), (1, "long", "long"), (2, "long", "short"),
        (0, "short", "both"), (3, "short", "both"), (1, "short", "short"), (2, "short", "long"),
    ],
)  # fmt: skip
def test_grain_holds_a_part_along_a_side_of_the_plate(
    grain: int, grain_axis: str, allowed: str
) -> None:
    for width, height, long_is_upright in ((2100, 2800, True), (2800, 2100, False)):
        order = make_order(
            make_part("a", 600, 400, 2, grain=grain), grain_axis=grain_axis,
            stock=[Stock(mm(width), mm(height))],
        )  # fmt: skip
        for is_upright in (True, False):
            extents = (400, 600) if is_upright else (600, 400)
            turned = (extents[0], part(0, is_upright))
            faults = judge(order, split(Y, (extents[1], split(X, turned, turned))))
            side = "long" if is_upright is long_is_upright else "short"
            wanted = (
                []
                if allowed in (side, "both")
                else [f"plan: part 'a': its grain forbids the {side} side"]
            )
            assert faults == wanted
    square = replace(order, stock=[Stock(mm(2100), mm(2100))])
    assert judge(square, split(Y, (600, split(X, *[(400, part(0, is_upright=True))] * 2)))) == []
    assert judge(square, split(Y, (400, split(X, *[(600, part(0))] * 2)))) == []


@pytest.mark.shows("C-93", "C-88")
def test_rows_that_differ_in_grain_alone_share_their_parts() -> None:
    order = make_order(
        make_part("a", 600, 400, 1), make_part("a", 600, 400, 2, grain=1),
        make_part("a", 600, 400, 1, grain=2),
    )  # fmt: skip
    faults = {}
    for upright in range(5):
        row = [(600, part(0))] * (4 - upright) + [(400, part(0, is_upright=True))] * upright
        lines = [
            split(Y, (600 if n >= 4 - upright else 400, each)) for n, (_, each) in enumerate(row)
        ]
        columns = [(extent, line) for (extent, _), line in zip(row, lines, strict=True)]
        faults[upright] = judge(order, split(X, *columns[:2]), split(X, *columns[2:]))
    short, long = (
        f"plan: part 'a': its grain forbids the {side} side" for side in ("short", "long")
    )
    assert faults == {0: [short], 1: [short], 2: [], 3: [], 4: [long]}


@pytest.mark.shows("C-94", "C-88")
def test_sizes_are_those_after_bands_and_milling() -> None:
    side = make_part("side", 720, 450, bands=BANDS)
    for more, length, width in (
        ({}, "719.6", 448), ({"deduct_bands": False}, 720, 450),
        ({"milling": mm("0.5")}, "720.1", 449),
        ({"deduct_bands": False, "milling": mm("0.5")}, 720, 450),
    ):  # fmt: skip
        settings: dict[str, Any] = more
        order = make_order(side, **settings)
        assert judge(order, split(Y, (width, split(X, (length, part(0)))))) == []
        wrong = judge(order, split(Y, (width, split(X, (mm(length) + mm("0.01"), part(0))))))
        assert "part 'side' at 10.00, 10.00 has a wrong size" in wrong[0]
        # The bands are not those of the other sides.
        length, width = mm(720) - 450 + mm(width), mm(450) - 720 + mm(length)
        if mm(length) != 720:
            turned = judge(order, split(Y, (width, split(X, (length, part(0))))))
            assert "has a wrong size" in turned[0]


@pytest.mark.shows("C-89", "C-94")
def test_sizes_are_rounded_to_a_hundredth_half_up() -> None:
    order = make_order(make_part("a", "333.335", "100.004"))
    assert judge(order, split(Y, (100, split(X, ("333.34", part(0)))))) == []


@pytest.mark.shows("C-88")
def test_what_is_ordered_twice_is_cut_twice_whatever_row_it_is_cut_for() -> None:
    order = make_order(make_part("a", 500, 400), make_part("a", 500, 400), make_part("a", 500, 300))
    right = split(
        Y, (400, split(X, (500, part(0)), (500, part(0)))), (300, split(X, (500, part(2))))
    )
    assert judge(order, right) == []
    wrong = split(
        Y, (400, split(X, (500, part(0)))), (300, split(X, (500, part(2)), (500, part(2))))
    )
    assert judge(order, wrong) == [
        "plan: part 'a': 2 ordered, 1 cut", "plan: part 'a': 1 ordered, 2 cut",
    ]  # fmt: skip


@pytest.mark.shows("C-88")
def test_overlaps_are_found_without_the_tree() -> None:
    draw, seen = random.Random(3), set()  # noqa: S311 - a seed that can be replayed
    for _ in range(300):
        boxes = [
            (draw.randrange(100), draw.randrange(100), draw.randint(1, 25), draw.randint(1, 25))
            for _ in range(draw.randint(2, 12))
        ]
        overlap = any(
            x < u + a and u < x + w and y < v + b and v < y + h
            for n, (x, y, w, h) in enumerate(boxes)
            for (u, v, a, b) in boxes[:n]
        )
        parts = "".join(
            f'<Part id="a" description="" x="{x}.00" y="{y}.00" width="{w}.00" height="{h}.00"'
            ' length_along="width" />' for x, y, w, h in boxes
        )  # fmt: skip
        data = (
            '<Plan version="2" material="MDF18"><Solution /><Sheet number="1" pattern="1" plate="1"'
            ' width="2100.00" height="2800.00"><Cut axis="x" x="10.00" y="10.00" width="2080.00"'
            f' height="2780.00">{parts}</Cut></Sheet></Plan>'
        )
        faults = find_faults(make_order(make_part("a", 1, 1)), data.encode())
        assert any(fault.endswith("overlap") for fault in faults) is overlap
        seen.add(overlap)
    assert seen == {True, False}


@pytest.mark.shows("C-88")
def test_an_order_of_3000_parts_is_judged_whole() -> None:
    order = make_order(make_part("a", 30, 20, 3000))
    rows = [split(X, *[(30, part(0))] * 50)] * 60
    data = write_plan(order, Plan((make_sheet(order, split(Y, *[(20, row) for row in rows])),)))
    assert find_faults(order, data) == []
    assert find_faults(order, data.replace(b'width="30.00"', b'width="30.01"', 1)) != []


@pytest.mark.shows("C-88")
def test_the_verifier_knows_the_order_and_nothing_else_of_the_optimiser() -> None:
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    imported = {
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    ours = {name for name in imported if name.startswith(("ulak", "."))}
    assert ours == {"ulak.services.cutting.optimise.model.Order"}
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert [name.name for node in plain for name in node.names] == ["re"]


@pytest.mark.shows("C-89")
def test_no_float_decides_whether_a_plan_is_right() -> None:
    # A figure in words is the only thing that is divided with a fraction.
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    (words,) = (f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == "_say")
    judging = [node for part in tree.body if part is not words for node in ast.walk(part)]
    assert not [n for n in judging if isinstance(n, ast.Div | ast.Constant) and is_float(n)]
    assert not [n for n in judging if isinstance(n, ast.Name) and n.id in ("float", "round")]


def is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Div) or isinstance(getattr(node, "value", None), float)
