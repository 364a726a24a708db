"""Customers: one way to write a number, and one record for it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import ulak
from ulak.services.cutting import SCHEMA
from ulak.services.cutting.codes import InvalidInput, Refused
from ulak.services.cutting.order import Customers, normalise_phone
from ulak.tables import Tables


@pytest.fixture
def customers(url: str) -> Iterator[Customers]:
    engine = ulak.connect(url)
    yield Customers(Tables(engine, SCHEMA))
    engine.close()


@pytest.mark.shows("C-16")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0555 123 45 67", "+905551234567"), ("5551234567", "+905551234567"),
        ("+90 555 1234567", "+905551234567"), ("(0555) 123-45-67", "+905551234567"),
        ("", ""), ("none", ""), ("  - ", ""), ("\u0660", ""),
        ("90555123456", "+90555123456"), ("9055512345", "+909055512345"),
        ("905551234567890", "+905551234567890"), ("0555123456", "+900555123456"),
        ("00905551234567", "+900905551234567"), ("02121234567", "+902121234567"),
        ("112", "+112"), ("4915112345678", "+4915112345678"),
    ],
)  # fmt: skip
def test_a_number_has_one_way_of_writing(text, number):
    assert normalise_phone(text) == number


@pytest.mark.shows("C-17")
def test_a_customer_has_a_number_that_nobody_else_has(customers):
    made, created = customers.add("Ayşe", "0555 123 45 67")
    assert created
    assert (made.name, made.phone_normalized) == ("Ayşe", "+905551234567")
    assert made.id
    assert made.created_at > 0
    again, created = customers.add("Fatma", "+90 555 1234567")
    assert not created
    assert again == made
    assert customers.find("+905551234567") == made
    assert customers.look_up("5551234567") == ("+905551234567", made)


@pytest.mark.shows("C-17")
def test_of_many_that_add_one_number_at_once_one_makes_the_record(customers):
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: customers.add(f"Ada {n}", "5551234567"), range(6)))
    assert sum(created for _, created in found) == 1
    assert len({customer for customer, _ in found}) == 1


@pytest.mark.shows("C-17")
def test_a_look_up_is_exact(customers):
    customers.add("Ayşe", "0555 123 45 67")
    for phone in ("0555 123 45 68", "555123456", "55512345670", "%", "_"):
        assert customers.look_up(phone) == (normalise_phone(phone), None)


def test_a_look_up_needs_a_number(customers):
    for phone in ("", "  "):
        with pytest.raises(Refused) as caught:
            customers.look_up(phone)
        assert caught.value.code == "e_phone_required"


def test_a_customer_that_cannot_be_kept_is_refused_with_every_problem(customers):
    for name, phone, wrong in (
        ("", "", "name: it is empty; phone: .*pattern"),
        ("a\x00", "none", r"name: it holds the character U\+0000.*; phone: .*pattern"),
        ("x" * 501, "5" * 41, "name: .* at most 500 characters; phone: .*pattern"),
    ):
        with pytest.raises(InvalidInput, match=wrong):
            customers.add(name, phone)
