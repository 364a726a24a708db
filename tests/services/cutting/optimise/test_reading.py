"""Orders of the optimiser, from import files and from whole orders."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.services.cutting.optimise.test_program import make_row, write_rows
from tests.services.cutting.optimise.trees import mm
from tests.services.cutting.orders import (
    RULES,
    make_back,
    make_batches,
    make_order,
    make_part,
    make_rules,
)
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.optimise.model import Order, OrderPart, Stock, Unsolvable
from ulak.services.cutting.optimise.reading import read_import, read_orders, read_stock
from ulak.services.cutting.order import parse_order
from ulak.services.cutting.plans import make_settings
from ulak.services.cutting.rules import Rules
from ulak.services.cutting.transform import import_note
from ulak.services.cutting.workbook import make_template, write_import

SETTINGS = make_settings({}, RULES)


def read(*parts: dict[str, Any], rules: Rules = RULES, **more: Any) -> dict[str, Order]:
    return read_orders(parse_order(make_order(*parts, **more), rules=rules), rules)


def test_an_order_has_a_batch_for_each_material_with_the_rules_in_force() -> None:
    rules = make_rules(
        machineConfig={"kerf_mm": 4.4, "trim_mm": {"left": 0}}, grainAxis="short",
        deductBands=False, millingAllowance_mm=0.5, maxStackHeight_mm=54,
        offcutMinimum={"length_mm": 500, "width_mm": 80},
    )  # fmt: skip
    orders = read(make_part(grain=1, edge_up="1mm", edge_dx="040"), make_back(), rules=rules)
    body, back = orders["GOVDE_BEYAZ_18mm"], orders["ARKALIK_BEYAZ_3mm"]
    assert body.parts == [
        OrderPart(
            "P1", "GOVDE_P1_TRIM_10.00", mm(720), mm(450), 2, 1, (mm(1), mm(0), mm(0), mm("0.4"))
        )
    ]
    assert body.stock == (Stock(mm(2100), mm(2800)),)
    assert (body.material, body.trim, body.kerf) == ("MDF18", 10, mm("4.4"))
    assert body.trimmed_sides == {"right", "bottom", "top"}
    assert (body.grain_axis, body.deduct_bands, body.milling) == ("short", False, mm("0.5"))
    assert (body.thickness, body.stack_height, body.offcut) == (18, 54, (500, 80))
    assert (back.material, back.trim, back.thickness) == ("HDF", 5, 3)


def test_the_plate_of_an_order_comes_before_that_of_the_rules() -> None:
    (order,) = read(plate_size={"width_mm": 1830.5, "height_mm": 3660}).values()
    assert order.stock == (Stock(mm("1830.5"), mm(3660)),)
    with pytest.raises(Unsolvable, match="name no plate size"):
        read(rules=make_rules(defaultPlateSize=None))


def test_a_part_that_is_too_large_is_left_to_the_search() -> None:
    (order,) = read(make_part(length_cm=400)).values()
    assert order.parts[0].length == 4000


def test_what_the_rules_do_not_know_is_said() -> None:
    with pytest.raises(HoldCode, match="trimByThickness has no rule for 16 mm"):
        read(make_part(thickness_mm=16))


def test_an_import_file_makes_the_same_order_as_the_order_that_it_was_written_from(
    tmp_path: Path,
) -> None:
    parts = make_part(grain=2, edge_up="1mm", edge_sx="040"), make_part(id="P2", width_cm=33.335)
    rules = make_rules(maxStackHeight_mm=54)
    (batch,) = make_batches(*parts, rules=rules).batches
    make_template(tmp_path / "template.xlsx")
    path = tmp_path / "import.xlsx"
    cells = [row.cells for row in batch.rows]
    write_import(tmp_path / "template.xlsx", cells, path, note=import_note(batch))
    (order,) = read(*parts, rules=rules).values()
    assert read_import(path, make_settings({}, rules)) == order
    assert order.thickness == 18


def test_a_file_of_another_program_is_cut_sheet_by_sheet(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.xlsx", make_row("A", 720, 450), make_row("B", 10.5, 20, 3))
    old = {key: value for key, value in SETTINGS.items() if key not in ("stack_mm", "offcut_mm")}
    order = read_import(path, old)
    assert [(part.id, part.quantity) for part in order.parts] == [("A", 1), ("B", 3)]
    assert order.parts[1].length == Decimal("10.5")
    assert order.stack_height < order.thickness
    assert order.offcut == (300, 100)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (make_row("A", "x", 450), "row 3: "),
        (make_row("A", 720, -1), "row 3: -1 is no size in mm"),
        (make_row("A", 720, float("inf")), "row 3: "),
        (make_row("A", 720, 450, 0), "row 3: a quantity is a whole number from 1"),
        (make_row("A", 720, 450, 2.5), "row 3: a quantity is a whole number from 1"),
        (make_row("A", 720, 450, None), "row 3: a quantity is a whole number from 1"),
        (make_row("A", 720, 450, grain=4), "row 3: .* a grain 0, 1, 2 or 3"),
        (make_row("A", 720, 450, trim="x"), "row 3: P_IDESC is not of the form"),
        (make_row("A", 720, 450, bands=["x", None, None, None]), "row 3: "),
        (make_row("A", None, 450), "row 3: None is no size in mm"),
        ([None] * 12, "there are no parts in it"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: list[Any], told: str) -> None:
    with pytest.raises(Unsolvable, match=told):
        read_import(write_rows(tmp_path / "a.xlsx", row), SETTINGS)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04", b"no workbook"])
def test_what_is_no_import_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.xlsx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Unsolvable, match="no workbook with a sheet ŞABLON"):
        read_import(path, SETTINGS)


def test_plates_are_read_from_a_text() -> None:
    assert read_stock("2100x2800") == Stock(mm(2100), mm(2800))
    assert read_stock("900.5X600:3") == Stock(mm("900.5"), mm(600), 3)


@pytest.mark.parametrize(
    "text", ["", "2100", "2100x", "x2", "ax5", "1x2:0", "1x2:x", "-1x5", "1x2x3"]
)
def test_what_is_no_plate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no plate; write 2100x2800"):
        read_stock(text)
