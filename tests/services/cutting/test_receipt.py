"""Receipts: sheets, metres of band, and what they cost."""

import pytest

from tests.services.cutting.orders import RULES, make_back, make_batches, make_part, make_rules
from ulak.services.cutting.transform import make_receipt

BANDED = make_part(edge_up="1mm", edge_lo="1mm", edge_sx="040", quantity=3)


def receipt(*solutions, parts=(BANDED,), rules=RULES):
    return make_receipt(make_batches(*parts).batches, solutions, rules)


@pytest.mark.shows("C-87")
@pytest.mark.parametrize(
    ("boards", "sheets"),
    [("5.88", 1), ("5.89", 2), ("11.76", 2), (17.64, 3), ("0", 1), ("0.1", 1), (29.41, 6)],
)
def test_sheets_are_the_area_of_the_boards_by_that_of_a_plate(boards, sheets):
    assert receipt({"mqBoards": boards})["sheets"] == sheets


@pytest.mark.shows("C-87")
def test_an_order_whose_plan_says_nothing_has_one_sheet():
    for solution in (None, {}, {"mqBoards": ""}, {"mqBoards": "NaN"}, {"mqBoards": "many"},
                     {"mqBoards": "-3"}, {"mqBoards": "1e999"}):  # fmt: skip
        assert receipt(solution)["sheets"] == 1


@pytest.mark.shows("C-87")
def test_the_sheets_that_a_plan_counts_are_true():
    assert receipt({"mqBoards": "5.88", "boards": "2"})["sheets"] == 2


@pytest.mark.shows("C-87")
def test_band_runs_along_the_length_above_and_below_and_along_the_width_at_the_sides():
    # 3 x (720 + 720 + 450) mm
    assert receipt({"mqBoards": 1})["band_metres"] == 5.67
    right = make_part(edge_dx="2mm", quantity=10)
    assert receipt({"mqBoards": 1}, parts=(right,))["band_metres"] == 4.5
    plain = make_part(edge_up="Bant Yok", edge_lo=None)
    assert receipt({"mqBoards": 1}, parts=(plain, make_part(id="P2")))["band_metres"] == 0


@pytest.mark.shows("C-87")
def test_an_order_has_one_receipt_for_all_its_batches():
    parts = (BANDED, make_part(id="P2", color="CEVIZ", edge_up="1mm", quantity=1), make_back())
    found = receipt({"mqBoards": "5.88"}, {"mqBoards": "6"}, {"boards": "4"}, parts=parts)
    assert found == {
        "sheets": 7, "band_metres": 6.39, "sheet_price": 3500.0, "band_price": 95.85,
        "net": 3595.85, "vat_percent": 20, "vat": 719.17, "total": 4315.02,
    }  # fmt: skip


@pytest.mark.shows("C-87")
def test_prices_are_those_of_the_rules():
    rules = make_rules(prices={"perSheet": 10.5, "perMetre": 0.333, "vatPercent": 0})
    found = receipt({"mqBoards": 1}, rules=rules)
    assert (found["sheet_price"], found["band_price"], found["total"]) == (10.5, 1.89, 12.39)


@pytest.mark.shows("C-87")
def test_the_plate_of_the_order_counts_its_sheets():
    parts = make_batches(BANDED, plate_size={"width_mm": 1830, "height_mm": 3660}).batches
    assert make_receipt(parts, [{"mqBoards": "6.70"}], RULES)["sheets"] == 2
    assert make_receipt(parts, [{"mqBoards": "6.69"}], RULES)["sheets"] == 1
