"""Orders: what is taken, what is refused with which words, and what is the same order."""

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services.cutting.orders import RULES, make_back, make_order, make_part, make_rules
from ulak.kit import read_json
from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.order import LARGEST_ORDER, parse_order, payload_hash

NAN, INFINITY = float("nan"), float("inf")


def parse(order: Any, **options: Any) -> dict[str, Any]:
    return parse_order(order, rules=RULES, **options)


def problems(order: Any) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse(order)
    return str(caught.value).split("; ")


@pytest.mark.shows("C-1", "C-2")
def test_every_field_of_an_order_is_kept():
    part = make_part(
        edge_up="1mm", edge_lo="2mm", edge_sx="040", edge_dx="1mm", iidesc="door", desc1="left",
        delik_kodu="H-7", grain=3, length_cm=72.5,
    )  # fmt: skip
    order = make_order(
        part, make_back(), customer_snapshot_name="Ayşe", opti_mode="B", revision=2,
        plate_size={"width_mm": 1830, "height_mm": 3660},
    )  # fmt: skip
    assert parse(order) == order


@pytest.mark.shows("C-1")
def test_the_mode_of_the_rules_is_that_of_an_order_without_one():
    assert parse(make_order())["opti_mode"] == "E"
    rules = make_rules(optiModeDefault="C")
    assert parse_order(make_order(), rules=rules)["opti_mode"] == "C"
    assert [parse(make_order(opti_mode=mode))["opti_mode"] for mode in "ABCE"] == list("ABCE")


@pytest.mark.shows("C-1")
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"order_id": ""}, "order_id"), ({"order_id": "  "}, "order_id"),
        ({"order_id": 7}, "order_id"), ({"order_id": None}, "order_id"),
        ({"customer_phone": ""}, "customer_phone"), ({"customer_phone": None}, "customer_phone"),
        ({"customer_snapshot_name": 5}, "customer_snapshot_name"),
        ({"opti_mode": "D"}, "opti_mode"), ({"opti_mode": "a"}, "opti_mode"),
        ({"plate_size": {"width_mm": 0, "height_mm": 2800}}, "plate_size.width_mm"),
        ({"plate_size": {"width_mm": 2100}}, "plate_size.height_mm"),
        ({"plate_size": {"width_mm": 2100, "height_mm": "2800"}}, "plate_size.height_mm"),
        ({"plate_size": {"width_mm": INFINITY, "height_mm": 2800}}, "plate_size.width_mm"),
        ({"plate_size": [2100, 2800]}, "plate_size"), ({"parts": []}, "parts"),
        ({"parts": None}, "parts"), ({"parts": {"0": {}}}, "parts"), ({"parts": ["a"]}, "parts.0"),
        ({"revision": 0}, "revision"), ({"revision": 1.5}, "revision"),
        ({"revision": True}, "revision"), ({"order_id": "a\x00b"}, "order_id"),
        ({"customer_phone": "5" * 501}, "customer_phone"),
    ],
)  # fmt: skip
def test_a_bad_field_of_an_order_is_named(changes, where):
    assert [each.partition(": ")[0] for each in problems(make_order(**changes))] == [where]


@pytest.mark.shows("C-2", "C-4")
@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("id", (None, 7)), ("part_type", ("KAPAK", "govde", None)), ("material_code", (None, 1)),
        ("length_cm", (0, -1, "72", None, True, NAN, INFINITY, 0.09, 500.1, 10**400)),
        ("width_cm", (0, 500.001, NAN)), ("thickness_mm", (0, -18, "18", INFINITY, 5001)),
        ("quantity", (0, -1, 1.5, "2", True, 10_000)), ("grain", (-1, 4, 1.5, "1", None)),
        ("color", (None, 3, "a\ud800", "a\x01")), ("edge_up", (1, [])), ("edge_dx", (0.4,)),
        ("iidesc", (1, "\uffff", "x" * 4001)), ("desc1", (1,)), ("delik_kodu", (1,)),
    ],
)  # fmt: skip
def test_a_bad_field_of_a_part_is_named(field, bad):
    for value in bad:
        order = make_order(make_part(), make_part(id="P2") | {field: value})
        assert [each.partition(": ")[0] for each in problems(order)] == [f"parts.1.{field}"], value


@pytest.mark.shows("C-2")
def test_every_field_of_a_part_that_must_be_there_is_asked_for():
    for field in make_part():
        part = make_part()
        del part[field]
        assert problems(make_order(part)) == [f"parts.0.{field}: Field required"]


@pytest.mark.shows("C-4")
def test_sides_and_quantities_at_the_limits_are_taken():
    low = make_part(id="low", length_cm=0.1, width_cm=500, quantity=1)
    high = make_part(id="high", length_cm=500.0, width_cm=0.1, quantity=9999)
    assert len(parse(make_order(low, high))["parts"]) == 2
    # The limits are of millimetres: another multiplier moves them.
    metres = make_rules(cm_to_mm_multiplier=1)
    assert parse_order(make_order(make_part(length_cm=5000)), rules=metres)
    with pytest.raises(InvalidInput, match=r"parts\.0\.width_cm: a side has 1 to 5000 mm"):
        parse_order(make_order(make_part(width_cm=0.5)), rules=metres)


@pytest.mark.shows("C-4")
def test_an_id_is_there_once_in_an_order():
    order = make_order(make_part(), make_part(id="P2"), make_part(), make_part())
    assert problems(order) == [
        "parts.2.id: part 0 has the same id", "parts.3.id: part 0 has the same id",
    ]  # fmt: skip


@pytest.mark.shows("C-8")
def test_every_problem_is_listed_with_its_path():
    order = {
        "customer_phone": "", "opti_mode": "Z", "parts": [
            make_part(length_cm=-1, grain=9), make_part(quantity=0, color=None),
        ],
    }  # fmt: skip
    found = problems(order)
    assert [each.partition(": ")[0] for each in found] == [
        "order_id", "customer_phone", "opti_mode", "parts.0.length_cm", "parts.0.grain",
        "parts.1.quantity", "parts.1.color", "parts.1.id",
    ]  # fmt: skip
    assert all(each.partition(": ")[2] for each in found)


@pytest.mark.shows("C-8")
@pytest.mark.parametrize("body", [None, [], "order", 7, [make_order()]])
def test_a_body_that_is_no_object_says_so(body):
    (problem,) = problems(body)
    assert problem.startswith("body: write an object")


@pytest.mark.shows("C-3")
def test_unknown_keys_are_neither_kept_nor_hashed():
    plain = parse(make_order(plate_size={"width_mm": 2100, "height_mm": 2800}))
    order = make_order(
        make_part(colour="red", price=7), note="soon", priority="high",
        plate_size={"width_mm": 2100, "height_mm": 2800, "depth": 3},
    )  # fmt: skip
    assert parse(order) == plain
    assert payload_hash(parse(order)) == payload_hash(plain)


def test_the_order_of_a_path_takes_the_place_of_that_in_the_body():
    assert parse(make_order(), order_id="S-9")["order_id"] == "S-9"
    order = make_order()
    del order["order_id"]
    assert parse(order, order_id="S-9")["order_id"] == "S-9"


@pytest.mark.shows("C-77")
def test_what_says_the_same_has_one_hash():
    same = [
        make_order(),
        make_order(opti_mode="E"),
        make_order(opti_mode=None, plate_size=None, revision=None, customer_snapshot_name=None),
        make_order(make_part(thickness_mm=18.0, quantity=2.0, length_cm=72.0)),
        make_order(make_part(edge_up=None, edge_lo="", edge_sx="Bant Yok", delik_kodu=None)),
        dict(reversed(make_order(dict(reversed(make_part().items()))).items())),
        read_json(json.dumps(make_order()).replace(": 18", ": 1.8e1")),
    ]
    digests = {payload_hash(parse(order)) for order in same}
    assert len(digests) == 1
    (digest,) = digests
    assert len(digest) == 64
    int(digest, 16)


@pytest.mark.shows("C-77")
def test_what_says_something_else_has_another_hash():
    others = [
        make_order(), make_order(opti_mode="C"), make_order(revision=1), make_order(revision=2),
        make_order(order_id="S-2"), make_order(customer_phone="5551234567"),
        make_order(customer_snapshot_name="Ada"), make_order(make_part(), make_part(id="P2")),
        make_order(make_part(id="P2"), make_part()), make_order(make_part(edge_up="1mm")),
        make_order(make_part(thickness_mm=18.5)), make_order(make_part(delik_kodu="H1")),
        make_order(plate_size={"width_mm": 2100, "height_mm": 2800}),
    ]  # fmt: skip
    assert len({payload_hash(parse(order)) for order in others}) == len(others)


@pytest.mark.shows("C-77")
def test_the_hash_is_that_of_the_canonical_text_of_what_is_stored():
    payload = {"b": 18.0, "a": [1, 2.50, "ğ"]}
    assert payload_hash(payload) == sha256('{"a":[1,2.5,"ğ"],"b":18}'.encode()).hexdigest()


def test_a_payload_survives_its_storing():
    payload = parse(make_order(make_part(length_cm=33.3335, color="Ceviz ğ")))
    assert parse(payload) == payload
    assert payload_hash(json.loads(json.dumps(payload))) == payload_hash(payload)


@pytest.mark.shows("C-5")
def test_an_order_has_five_megabytes():
    assert LARGEST_ORDER == 5 * 1024 * 1024


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(field=st.sampled_from([*make_order(), "plate_size", "opti_mode"]), value=ANYTHING)
def test_no_value_of_an_order_is_more_than_refused(field, value):
    with suppress(InvalidInput):
        parse_order(make_order() | {field: value}, rules=RULES)


@given(field=st.sampled_from([*make_part(), "edge_up", "desc1"]), value=ANYTHING)
def test_no_value_of_a_part_is_more_than_refused(field, value):
    with suppress(InvalidInput):
        parse_order(make_order(make_part() | {field: value}), rules=RULES)
