"""Plans of mode E as XML: what is written, read back and summed up."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from defusedxml import ElementTree as Xml

from tests.docs.pages import DOCS
from tests.services.cutting.optimise.trees import (
    make_order,
    make_part,
    make_sheet,
    make_workshop,
    mm,
    part,
    split,
)
from ulak.services.cutting.optimise.document import (
    list_patterns,
    read_plan,
    read_sheets,
    summarize,
    write_plan,
)
from ulak.services.cutting.optimise.model import Piece, Plan, Sheet, Stock, X, Y
from ulak.services.cutting.optimise.verify import BadPlan, find_faults


@pytest.mark.shows("C-99", "C-100")
def test_the_header_says_what_receipt_and_page_want_to_know() -> None:
    order, plan = make_workshop()
    root = Xml.fromstring(write_plan(order, plan))
    assert (root.tag, root.attrib) == ("Plan", {"version": "2", "material": "MDF18"})
    gross = 2 * 2100 * 2800 + 700 * 650
    drops = gross - (4 * Decimal("719.6") * 448 + 4 * 600 * 300 + 2 * 500 * 400)
    # On each plate a cut behind the strip and three in it, two in its column and one that trims;
    # on the offcut one behind the strip and two in it.
    length = 2 * (2080 + 3 * Decimal("719.6") + 2 * 600 + 400) + 680 + 2 * 600
    assert root[0].attrib == {
        "name": "E", "algo": "hand", "best": "1", "boards": "3", "jobTime": "1.25",
        "mqBoards": "12.215", "mqDrops": f"{(drops / 1_000_000).normalize()}",
        "waste": f"{drops / gross * 100:.2f}", "bound": "2", "gap": "50.00",
        "patterns": "2", "cycles": "2", "zcuts": "17",
        "cutLength": f"{(length / 1000).normalize():f}",
    }  # fmt: skip


@pytest.mark.shows("C-99")
def test_a_sheet_holds_its_cut_tree_and_parts_as_version_1_had_them() -> None:
    order, plan = make_workshop()
    root = Xml.fromstring(write_plan(order, plan))
    first, second, third = root.iter("Sheet")
    assert [sheet.attrib for sheet in (first, second)] == [
        {"number": "1", "pattern": "1", "plate": "1", "width": "2100.00", "height": "2800.00"},
        {"number": "2", "pattern": "2", "plate": "2", "name": "rack 7", "width": "700.00",
         "height": "650.00"},
    ]  # fmt: skip
    assert third.get("pattern") == "1"
    assert first[0].attrib == {
        "axis": "y", "x": "10.00", "y": "10.00", "width": "2080.00", "height": "2780.00",
    }  # fmt: skip
    assert [element.tag for element in first.iter()] == [
        "Sheet", "Cut", "Cut", "Part", "Part", "Cut", "Part", "Cut", "Part", "Rest", "Rest", "Rest",
        "Rest",
    ]  # fmt: skip
    assert next(first.iter("Part")).attrib == {
        "id": "side", "description": "GOVDE_side", "x": "10.00", "y": "10.00", "width": "448.00",
        "height": "719.60", "length_along": "height",
    }  # fmt: skip
    assert [rest.get("reusable") for rest in first.iter("Rest")] == [None, None, "1", "1"]


@pytest.mark.shows("C-100")
def test_a_report_counts_cycles_by_the_height_of_a_stack() -> None:
    cycles = {}
    for height in (0, 18, 35, 36, 54, 540):
        order, plan = make_workshop(stack_height=mm(height))
        five = replace(plan, sheets=(*plan.sheets, *plan.sheets[::2], plan.sheets[0]))
        cycles[height] = summarize(order, five).cycles
    assert cycles == {0: 6, 18: 6, 35: 6, 36: 4, 54: 3, 540: 2}


@pytest.mark.shows("C-100", "C-91")
def test_a_report_counts_no_cut_at_the_edge_and_one_before_dust() -> None:
    counted = {}
    for width in ("100", "98.5", "90"):
        order = make_order(
            make_part("a", width, 50), stock=[Stock(mm(100), mm(50))], trim=mm(0), kerf=mm(3)
        )
        report = summarize(order, Plan((make_sheet(order, split(X, (width, part(0)))),)))
        counted[width] = report.cuts, report.cut_length_m, len(report.rests), report.waste_percent
    assert counted == {
        "100": (0, 0, 0, 0), "98.5": (1, Decimal("0.05"), 0, Decimal("1.50")),
        "90": (1, Decimal("0.05"), 0, Decimal("10.00")),
    }  # fmt: skip


@pytest.mark.shows("C-100")
def test_a_report_without_a_bound_has_no_gap() -> None:
    order, plan = make_workshop()
    assert summarize(order, plan).gap_percent == 50
    assert summarize(order, replace(plan, bound=3)).gap_percent == 0
    assert summarize(order, replace(plan, bound=0)).gap_percent is None
    assert "gap" not in Xml.fromstring(write_plan(order, replace(plan, bound=0)))[0].attrib


@pytest.mark.shows("C-100")
def test_reusable_rests_are_listed_with_their_sheet() -> None:
    order, plan = make_workshop()
    rests = [(number, piece.size) for number, piece in summarize(order, plan).rests]
    plate = [(57_440, 71_960), (208_000, 205_720)]
    assert rests == [(1, size) for size in plate] + [(3, size) for size in plate]
    small = replace(order, offcut=(mm(20), mm(680)))  # in whichever direction
    assert (2, (68_000, 2_680)) in [(n, piece.size) for n, piece in summarize(small, plan).rests]


@pytest.mark.shows("C-99")
def test_sheets_are_of_one_pattern_when_plate_tree_and_labels_are_the_same() -> None:
    order = make_order(
        make_part("a", 500, 400), make_part("b", 500, 400), make_part("a", 500, 400),
        stock=[Stock(mm(2100), mm(2800)), Stock(mm(2100), mm(2800))],
    )  # fmt: skip

    def cut(number: int, plate: int = 0, *, is_upright: bool = False) -> Sheet:
        grow = split(Y, (400, split(X, (500, part(number, is_upright)))))
        return make_sheet(order, grow, plate)

    sheets = cut(0), cut(1), cut(0, 1), cut(2), cut(0, is_upright=True), cut(1)
    found = {each.number: each.sheets for each in list_patterns(order, Plan(sheets))}
    assert found == {1: (1, 4), 2: (2, 6), 3: (3,), 4: (5,)}


@pytest.mark.shows("C-99")
def test_a_plan_is_read_back_as_it_was_written() -> None:
    order, plan = make_workshop()
    data = write_plan(order, plan)
    assert read_plan(order, data) == plan
    assert write_plan(order, read_plan(order, data)) == data


@pytest.mark.shows("C-99")
def test_the_sheets_of_a_plan_are_known_without_its_order() -> None:
    sheets = read_sheets(write_plan(*make_workshop()))
    assert [sheet[:5] for sheet in sheets] == [
        (1, 1, 1, "", (210_000, 280_000)), (2, 2, 2, "rack 7", (70_000, 65_000)),
        (3, 1, 1, "", (210_000, 280_000)),
    ]  # fmt: skip
    plate = [(57_440, 71_960), (208_000, 205_720)]
    assert [sheet.list_offcuts() for sheet in sheets] == [plate, [], plate]


def test_texts_are_written_whatever_is_in_them() -> None:
    id = "<a> & \"b\"\n'ş' \U0001f600"
    order = make_order(make_part(id, 2080, 2780, description="\t<!--"), material="a&b")
    plan = Plan((make_sheet(order, part(0)),), algorithm="ü")
    data = write_plan(order, plan)
    assert read_plan(order, data) == plan
    assert Xml.fromstring(data).get("material") == "a&b"
    with pytest.raises(BadPlan, match="was not ordered in this size"):
        read_plan(make_order(make_part("a", 2080, 2780)), data)


def test_a_text_that_xml_cannot_hold_is_refused() -> None:
    for bad in ("\x00", "\x1b", "\ud800", "\ufffe"):
        order = make_order(make_part(bad, 2080, 2780))
        with pytest.raises(ValueError, match="no file can keep"):
            write_plan(order, Plan((make_sheet(order, part(0)),)))


def test_a_plan_that_is_not_of_this_form_is_refused_with_the_reason() -> None:
    order, plan = make_workshop()
    text = write_plan(order, plan).decode()
    entity = '<!DOCTYPE Plan [<!ENTITY a "b">]>'
    deep = '<Cut axis="x" x="0.00" y="0.00" width="1.00" height="1.00">'
    for old, new, why in (
        ("</Plan>", "", "no well-formed XML"),
        ("<Plan", entity + "<Plan", "has a DTD"),
        ("encoding='utf-8'", "encoding='nobody-knows'", "no well-formed XML"),
        ('version="2"', 'version="1"', "its version is '1', not 2"),
        ('material="MDF18"', "", "a Plan has no material"),
        ("<Solution ", "<Answer ", "it has no Solution"),
        ('bound="2"', 'bound="-2"', "bound of a Solution is '-2', no whole number"),
        ('jobTime="1.25"', 'jobTime="NaN"', "jobTime of a Solution is 'NaN', no number"),
        ('<Sheet number="1"', '<Sheet number="2"', "sheet 1: its number is 2"),
        ('plate="1"', 'plate="0"', "there is no plate 0 in the stock"),
        ('width="2080.00"', 'width="2080"', "width of a Cut is '2080', no mm"),
        ('width="2080.00"', 'width="-2080.00"', "width of a Cut is '-2080.00', no mm"),
        ('width="448.00"', 'width="0.00"', "part 'side' at 10.00, 10.00 has no size"),
        ('axis="y"', 'axis="z"', "a Cut has the axis 'z'"),
        ('length_along="height"', 'length_along="up"', "length_along of part 'side' at"),
        ('id="side"', "", "a Part has no id"),
        ("<Part", "<Piece", "unknown element 'Piece'"),
        (re.search(r"<Part[^>]*>", text)[0], deep * 150 + "<Rest/>" + "</Cut>" * 150,  # type: ignore[index]
         "deeper than 100 levels"),
    ):  # fmt: skip
        assert old in text
        damaged = text.replace(old, new, 1)
        with pytest.raises(BadPlan, match=re.escape(why)):
            read_plan(order, damaged.encode())
    with pytest.raises(BadPlan, match="it has no Solution"):
        read_plan(order, b'<Plan version="2" material=""/>')


def test_a_rest_is_what_has_neither_part_nor_children() -> None:
    order, _ = make_workshop(offcut=(mm(5000), mm(5000)))
    sheet = make_sheet(order, lambda place, size, kerf: Piece(place, size, axis=X))
    assert [each.tag for each in Xml.fromstring(write_plan(order, Plan((sheet,)))).iter()] == [
        "Plan", "Solution", "Sheet", "Rest",
    ]  # fmt: skip


@pytest.mark.shows("C-99")
def test_the_page_shows_a_plan_as_it_is_written() -> None:
    page = (DOCS / "services" / "cutting.md").read_text(encoding="utf-8")
    shown = page.partition("### Plans of mode E")[2].partition("```xml\n")[2].partition("```")[0]
    side = make_part("side", 720, 450, 2, grain=1, description="GOVDE_side_TRIM_10.00")
    order = make_order(side._replace(bands=(mm(1), mm(0), mm(0), mm(0))))
    upright = part(0, is_upright=True)
    sheet = make_sheet(order, split(Y, (720, split(X, (449, upright), (449, upright)))))
    data = write_plan(order, Plan((sheet,), algorithm="greedy", bound=1, seconds=0.02))
    assert find_faults(order, data) == []
    assert Xml.tostring(Xml.fromstring(shown), encoding="unicode") == Xml.tostring(
        Xml.fromstring(data), encoding="unicode"
    )
