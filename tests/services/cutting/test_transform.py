"""From an order to batches: exact millimetres, the rules of the workshop, and every hold."""

from dataclasses import fields
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services.cutting.orders import (
    PHONE_NORMALIZED,
    RULES,
    make_back,
    make_batches,
    make_order,
    make_part,
    make_rules,
)
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.order import parse_order
from ulak.services.cutting.transform import (
    import_note,
    prepare,
    propose_merges,
    read_batch,
    rows_json,
    to_mm,
)


def held(*parts, rules=RULES, **changes):
    """Return the code, the message and the details of the hold of an order."""
    with pytest.raises(HoldCode) as caught:
        make_batches(*parts, rules=rules, **changes)
    return caught.value.code, caught.value.message, caught.value.details


def row(part, **options):
    (batch,) = make_batches(part, **options).batches
    return batch.rows[0]


@pytest.mark.shows("C-20")
@pytest.mark.parametrize(
    ("cm", "mm"),
    [
        (120.5, "1205.00"), (33.3335, "333.34"), (33.33349, "333.33"), (1.0005, "10.01"),
        (2.0015, "20.02"), (0.1, "1.00"), (500, "5000.00"), (72, "720.00"), (1.00049999, "10.00"),
    ],
)  # fmt: skip
def test_centimetres_are_millimetres_with_two_decimals_half_up(cm, mm):
    assert str(to_mm(cm, RULES)) == mm
    part = row(make_part(length_cm=cm, width_cm=1), plate_size={"width_mm": 6000, "height_mm": 900})
    assert str(part.length_mm) == mm


@pytest.mark.shows("C-20")
def test_the_multiplier_of_the_rules_converts():
    assert str(to_mm(33.335, make_rules(cm_to_mm_multiplier=25.4))) == "846.71"
    assert str(to_mm(720.125, make_rules(cm_to_mm_multiplier=1))) == "720.13"


@pytest.mark.shows("C-18", "C-19")
def test_an_unknown_customer_holds_with_the_normalised_number():
    payload = parse_order(make_order(), rules=RULES)
    known = set()

    def prepared():
        return prepare(
            payload, RULES, customer_known=known.__contains__, check_template=lambda: None
        )

    with pytest.raises(HoldCode) as caught:
        prepared()
    assert caught.value.code == "E_CRM_NO_MATCH"
    assert caught.value.details == {"phone_normalized": PHONE_NORMALIZED}
    known.add(PHONE_NORMALIZED)
    assert len(prepared().batches) == 1


@pytest.mark.shows("C-19")
def test_the_first_check_that_fails_wins():
    """Customer, plate size, template, part after part: each is mended in turn."""
    bad = make_part(id="bad", thickness_mm=16, grain=1)
    worse = make_part(id="worse", grain=1, edge_up="3mm")
    payload = parse_order(make_order(bad, worse), rules=RULES)
    known, template, values = set(), ["torn"], {"defaultPlateSize": None, "grainMapping": {}}

    def check_template():
        if template:
            raise HoldCode("E_TEMPLATE_INVALID", "row 1 is torn")

    def code():
        with pytest.raises(HoldCode) as caught:
            prepare(
                payload, make_rules(**values), customer_known=known.__contains__,
                check_template=check_template,
            )  # fmt: skip
        return caught.value.code, caught.value.details.get("part_ids")

    assert code() == ("E_CRM_NO_MATCH", None)
    known.add(PHONE_NORMALIZED)
    assert code() == ("E_PLATE_SIZE_MISSING", None)
    del values["defaultPlateSize"]
    assert code() == ("E_TEMPLATE_INVALID", None)
    template.clear()
    assert code() == ("E_TRIM_RULE_MISSING", ["bad"])
    values["trimByThickness"] = {"16": 10, "18": 10}
    assert code() == ("E_INVALID_GRAIN", ["bad"])
    values["grainMapping"] = {"1": 1}
    assert code() == ("E_EDGE_MAPPING_UNKNOWN", ["worse"])


@pytest.mark.shows("C-21")
def test_the_plate_of_the_order_goes_before_that_of_the_rules():
    def plate(**options):
        (batch,) = make_batches(**options).batches
        return batch.plate_width_mm, batch.plate_height_mm

    assert plate() == (2100, 2800)
    own = {"width_mm": 1830, "height_mm": 3660.5}
    assert plate(plate_size=own) == (1830, Decimal("3660.5"))
    without = make_rules(defaultPlateSize=None)
    assert plate(plate_size=own, rules=without) == (1830, Decimal("3660.5"))
    code, message, _ = held(rules=without)
    assert code == "E_PLATE_SIZE_MISSING"
    assert "defaultPlateSize" in message


@pytest.mark.shows("C-22")
def test_a_back_panel_has_one_of_the_thicknesses_of_back_panels():
    for thickness in (3, 4, 5, 8):
        assert make_batches(make_back(thickness_mm=thickness)).batches[0].trim_mm == 5
    for thickness in (12, 18, 3.5, 10):
        code, message, details = held(make_back(thickness_mm=thickness))
        assert code == "E_BACKING_THICKNESS_UNKNOWN"
        assert details == {"part_ids": ["B1"]}
        assert "3, 4, 5, 8" in message
    assert make_batches(make_back(thickness_mm=12), rules=make_rules(backingThicknesses=[12.0]))


@pytest.mark.shows("C-23")
def test_the_trim_is_that_of_the_thickness():
    known = {18: 10, 25: 10, 3: 5, 4: 5, 5: 5, 8: 5, 10: 5}
    for thickness, trim in known.items():
        (batch,) = make_batches(make_part(thickness_mm=thickness)).batches
        assert (batch.trim_mm, batch.thickness) == (trim, str(thickness))
    code, message, details = held(make_part(thickness_mm=16))
    assert code == "E_TRIM_RULE_MISSING"
    assert "16" in message
    assert details == {"part_ids": ["P1"]}


@pytest.mark.shows("C-23")
def test_the_key_of_a_trim_is_the_canonical_text_of_the_thickness():
    assert make_batches(make_part(thickness_mm=18.0)).batches[0].thickness == "18"
    rules = make_rules(trimByThickness={"18.5": 7, "100": 1})
    (batch,) = make_batches(make_part(thickness_mm=18.50), rules=rules).batches
    assert (batch.thickness, batch.trim_mm) == ("18.5", 7)
    assert make_batches(make_part(thickness_mm=1e2), rules=rules).batches[0].thickness == "100"


@pytest.mark.shows("C-23")
def test_a_back_panel_has_the_trim_5_whatever_the_rules_say():
    rules = make_rules(trimByThickness={"3": 9})
    (batch,) = make_batches(make_back(), rules=rules).batches
    assert (batch.trim_mm, batch.rows[0].description) == (5, "ARKALIK_B1_TRIM_5.00")
    assert make_batches(make_back(thickness_mm=4), rules=rules).batches[0].trim_mm == 5


@pytest.mark.shows("C-24")
def test_a_band_has_the_thickness_of_the_rules():
    part = row(make_part(edge_up="040", edge_lo="1mm", edge_sx="2mm", edge_dx="Bant Yok"))
    bands = (part.edge_up, part.edge_lo, part.edge_sx, part.edge_dx)
    assert bands == (Decimal("0.4"), 1, 2, None)
    part = row(make_part(edge_up=None, edge_lo="", edge_sx="Bant Yok"))
    assert (part.edge_up, part.edge_lo, part.edge_sx, part.edge_dx) == (None,) * 4
    # Also of a payload that nobody has read as an order.
    raw = make_order(make_part(edge_up=None, edge_lo="", edge_sx="Bant Yok"))
    found = prepare(raw, RULES, customer_known=lambda phone: True, check_template=lambda: None)
    assert found.batches[0].rows[0] == part


@pytest.mark.shows("C-24")
@pytest.mark.parametrize("edge", ["edge_up", "edge_lo", "edge_sx", "edge_dx"])
def test_an_unknown_band_holds(edge):
    for text in ("3mm", "bant yok", " ", "1MM"):
        code, message, details = held(make_part(), make_part(id="P2") | {edge: text})
        assert code == "E_EDGE_MAPPING_UNKNOWN"
        assert edge in message
        assert repr(text) in message
        assert details == {"part_ids": ["P2"]}


@pytest.mark.shows("C-25")
def test_a_back_panel_has_no_band_and_those_that_were_sent_are_counted():
    found = make_batches(
        make_back(edge_up="1mm", edge_dx="2mm"), make_back(id="B2", edge_lo="a thing unknown"),
        make_back(id="B3", edge_up="", edge_lo=None, edge_sx="Bant Yok"), make_back(id="B4"),
        make_part(edge_up="1mm"),
    )  # fmt: skip
    backs, bodies = found.batches
    assert found.backing_edge_reset_count == 2
    for part in backs.rows:
        assert (part.edge_up, part.edge_lo, part.edge_sx, part.edge_dx) == (None,) * 4
    assert bodies.rows[0].edge_up == 1
    assert make_batches(make_back(), make_part()).backing_edge_reset_count == 0


@pytest.mark.shows("C-26")
def test_a_grain_without_a_rule_holds():
    rules = make_rules(grainMapping={"0": 0, "1": 2})
    assert row(make_part(grain=1), rules=rules).grain == 2
    assert [row(make_part(grain=grain)).grain for grain in range(4)] == [0, 1, 2, 3]
    code, message, details = held(make_part(grain=3), rules=rules)
    assert code == "E_INVALID_GRAIN"
    assert "3" in message
    assert details == {"part_ids": ["P1"]}


@pytest.mark.shows("C-27")
def test_the_description_has_the_trim_with_two_decimals():
    assert row(make_part(id="kapak-1")).description == "GOVDE_kapak-1_TRIM_10.00"
    rules = make_rules(trimByThickness={"18": 7.125})
    assert row(make_part(), rules=rules).description == "GOVDE_P1_TRIM_7.12"
    assert row(make_back()).description == "ARKALIK_B1_TRIM_5.00"


@pytest.mark.shows("C-28")
def test_equal_rows_are_proposed_and_stay_apart():
    parts = [
        make_part(id="a", edge_up="1mm"), make_part(id="b", edge_up="1mm", quantity=3),
        make_part(id="c", length_cm=45, width_cm=72), make_part(id="d", grain=1),
        make_part(id="e", edge_up="1mm", delik_kodu="H1"), make_part(id="f", length_cm=72.00001),
        make_part(id="g", width_cm=45.01), make_part(id="h", grain=1, edge_dx="2mm"),
    ]  # fmt: skip
    (batch,) = make_batches(*parts).batches
    assert len(batch.rows) == len(parts)
    first, second = propose_merges(batch)
    assert first == {
        "batch": 0, "part_ids": ["a", "b", "f"], "length_mm": 720.0,
        "width_mm": 450.0, "grain": 0, "quantity": 7, "edge_bands_agree": False,
    }  # fmt: skip
    assert (second["part_ids"], second["edge_bands_agree"]) == (["d", "h"], False)
    alike = make_batches(make_part(edge_up="1mm"), make_part(id="P2", edge_up="1mm"))
    (proposal,) = propose_merges(alike.batches[0])
    assert proposal["edge_bands_agree"]
    assert propose_merges(make_batches().batches[0]) == []


@pytest.mark.shows("C-28")
def test_merging_is_off_and_asks_an_operator_by_default():
    assert RULES.merge_policy == {"defaultDisabled": True, "requiresOperatorApproval": True}


@pytest.mark.shows("C-29")
def test_the_hole_code_stands_where_the_part_has_no_text():
    assert row(make_part(delik_kodu="H1")).desc1 == "H1"
    assert row(make_part(delik_kodu="H1", desc1="")).desc1 == "H1"
    part = row(make_part(delik_kodu="H1", desc1="left", iidesc="door"))
    assert (part.desc1, part.iidesc, part.hole_code) == ("left", "door", "H1")


@pytest.mark.shows("C-29")
def test_customer_plate_and_hole_codes_reach_the_import_file():
    parts = make_part(delik_kodu="H1", desc1="left"), make_part(id="P2")
    (batch,) = make_batches(
        *parts, customer_snapshot_name="Ayşe", plate_size={"width_mm": 1830, "height_mm": 3660}
    ).batches
    assert import_note(batch) == (
        '{"customer":"Ayşe","hole_codes":{"P1":"H1"},"plate_mm":[1830,3660],"thickness_mm":18}'
    )


@pytest.mark.shows("C-30")
@pytest.mark.parametrize(
    ("length", "width", "grain", "fits"),
    [
        (278, 208, 0, True), (208, 278, 0, True), (278.01, 10, 0, False), (278, 208.01, 3, False),
        (278, 10, 1, True), (208.01, 10, 2, False), (208, 278, 2, True), (208, 278, 1, False),
        (278, 208, 2, False), (278, 208, 1, True), (10, 208.01, 1, False),
    ],
)  # fmt: skip
def test_a_part_fits_the_usable_plate_in_an_orientation_that_its_grain_permits(
    length, width, grain, fits
):
    """A plate of 2100 x 2800 mm with a trim of 10 has 2080 x 2780."""
    part = make_part(length_cm=length, width_cm=width, grain=grain)
    if fits:
        assert make_batches(part)
        # A plate has the same long side, whichever of its sides is named first.
        assert make_batches(part, plate_size={"width_mm": 2800, "height_mm": 2100})
    else:
        code, _, details = held(part)
        assert (code, details["part_ids"]) == ("E_PART_OVERSIZE", ["P1"])


@pytest.mark.shows("C-30")
def test_every_part_that_no_plate_holds_is_named():
    parts = [make_part(id=f"P{n}", length_cm=300 if n % 2 else 10) for n in range(6)]
    back = make_back(length_cm=279.5, color="x")
    code, message, details = held(*parts, back)
    assert code == "E_PART_OVERSIZE"
    assert details == {"part_ids": ["P1", "P3", "P5", "B1"], "parts": 4}
    assert "P1" in message
    # The trim of a back panel is 5.
    assert make_batches(make_back(length_cm=279))


@pytest.mark.shows("C-30")
def test_the_grain_axis_of_the_rules_turns_parts():
    short = make_rules(grainAxis="short")
    long_part = make_part(length_cm=270, grain=2)
    assert make_batches(long_part, rules=short)
    assert held(long_part)[0] == "E_PART_OVERSIZE"
    assert held(make_part(length_cm=270, grain=1), rules=short)[0] == "E_PART_OVERSIZE"


@pytest.mark.shows("C-30")
def test_bands_are_no_part_of_what_is_cut():
    part = make_part(length_cm=278.2, width_cm=208.1, edge_sx="1mm", edge_dx="1mm", edge_up="1mm")
    assert make_batches(part)
    assert held(part, rules=make_rules(deductBands=False))[0] == "E_PART_OVERSIZE"
    milled = make_rules(millingAllowance_mm=0.2)
    assert held(part, rules=milled)[0] == "E_PART_OVERSIZE"
    banded = make_part(length_cm=278.16, edge_sx="1mm", edge_dx="1mm", grain=1)
    assert make_batches(banded, rules=milled)
    assert held(banded | {"length_cm": 278.17}, rules=milled)[0] == "E_PART_OVERSIZE"
    wide = make_part(length_cm=278, width_cm=208.2, edge_up="1mm", edge_lo="1mm", grain=1)
    assert make_batches(wide)
    assert held(wide | {"width_cm": 208.21})[0] == "E_PART_OVERSIZE"
    # Its bands are wider than the part: nothing is left to cut.
    assert held(make_part(width_cm=0.2, edge_up="1mm", edge_lo="1mm"))[0] == "E_PART_OVERSIZE"


@pytest.mark.shows("C-30")
def test_a_side_that_is_not_trimmed_belongs_to_the_plate():
    trims = {"left": 0, "right": 10, "top": 0, "bottom": 0}
    rules = make_rules(machineConfig={"trim_mm": trims})
    assert make_batches(make_part(length_cm=280, width_cm=209), rules=rules)
    assert held(make_part(length_cm=280, width_cm=209.01), rules=rules)[0] == "E_PART_OVERSIZE"


@pytest.mark.shows("C-30")
def test_an_order_without_a_part_to_cut_holds():
    payload = parse_order(make_order(), rules=RULES)
    for parts in ([], [make_part(quantity=0)]):
        with pytest.raises(HoldCode) as caught:
            prepare(
                payload | {"parts": parts}, RULES, customer_known=lambda phone: True,
                check_template=lambda: None,
            )  # fmt: skip
        assert caught.value.code == "E_NO_PARTS"


@pytest.mark.shows("C-31")
def test_a_batch_has_one_type_colour_thickness_and_material():
    parts = [
        make_part(id="1"), make_back(id="2"), make_part(id="3", color="CEVIZ"),
        make_part(id="4", thickness_mm=25), make_part(id="5", material_code="MDF-2"),
        make_part(id="6", thickness_mm=18.0), make_back(id="7"), make_back(id="8", thickness_mm=4),
        make_part(id="9", part_type="GOVDE", thickness_mm=3, material_code="HDF"),
        make_part(id="10", color="Beyaz"),
    ]  # fmt: skip
    batches = make_batches(*parts).batches
    assert [[row.part_id for row in batch.rows] for batch in batches] == [
        ["1", "6"], ["2", "7"], ["3"], ["4"], ["5"], ["8"], ["9"], ["10"],
    ]  # fmt: skip
    assert [batch.n for batch in batches] == list(range(8))
    keys = [(b.part_type, b.color, b.thickness, b.material_code) for b in batches]
    assert keys[:3] == [
        ("GOVDE", "BEYAZ", "18", "MDF18"), ("ARKALIK", "BEYAZ", "3", "HDF"),
        ("GOVDE", "CEVIZ", "18", "MDF18"),
    ]  # fmt: skip
    assert len(set(keys)) == 8
    assert len({batch.mark.lower() for batch in batches}) == 8


def test_a_row_has_the_cells_of_its_import_file():
    part = make_part(edge_up="1mm", iidesc="door", desc1="left", grain=3)
    assert row(part).cells == (
        "MDF18", 720, 450, 2, 3, "GOVDE_P1_TRIM_10.00", 1, None, None, None, "door", "left",
    )  # fmt: skip


def test_a_batch_comes_back_from_the_text_that_is_kept():
    part = make_part(edge_up="040", delik_kodu="H1", length_cm=33.3335, iidesc='"ş"\n')
    for batch in make_batches(part, make_back(), customer_snapshot_name="Ayşe").batches:
        again = read_batch(rows_json(batch))
        assert again == batch
        for field in fields(batch):
            assert type(getattr(again, field.name)) is type(getattr(batch, field.name))


PART = st.fixed_dictionaries(
    {
        "length_cm": st.floats(0.1, 500), "width_cm": st.floats(0.1, 500),
        "thickness_mm": st.sampled_from([3, 4, 18, 18.0, 25, 16, 12]),
        "quantity": st.integers(1, 9999), "grain": st.integers(0, 3),
        "part_type": st.sampled_from(["GOVDE", "ARKALIK"]), "color": st.text("aBğş ./", max_size=3),
        "edge_up": st.sampled_from([None, "", "1mm", "040", "?"]),
    }
)  # fmt: skip


@given(st.lists(PART, min_size=1, max_size=6))
def test_an_order_is_held_by_a_known_code_or_whole_in_its_batches(parts):
    sent = [make_part(id=str(n)) | part for n, part in enumerate(parts)]
    try:
        order = parse_order(make_order(*sent), rules=RULES)
        found = prepare(
            order, RULES, customer_known=lambda phone: True, check_template=lambda: None
        )
    except HoldCode:
        return
    rows = [row for batch in found.batches for row in batch.rows]
    assert sorted(int(row.part_id) for row in rows) == list(range(len(parts)))
    assert sum(row.quantity for row in rows) == sum(part["quantity"] for part in parts)
    for batch in found.batches:
        assert read_batch(rows_json(batch)) == batch
        assert [int(row.part_id) for row in batch.rows] == sorted(
            int(row.part_id) for row in batch.rows
        )
