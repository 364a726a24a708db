"""Customers: who may order, known by the telephone number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ulak.kit.clock import Instant
from ulak.kit.ids import new_secret_id
from ulak.services.cutting.codes import InvalidInput, PhoneRequired
from ulak.services.cutting.rules import must_be_writable
from ulak.tables import Tables

LONGEST_NAME: Final = 500
LONGEST_PHONE: Final = 40

_FIND: Final = """
    SELECT id, name, phone_normalized, created_at FROM {schema}.cutting_customers
    WHERE phone_normalized = ?
"""
_ADD: Final = """
    INSERT INTO {schema}.cutting_customers (id, name, phone_normalized, created_at)
    VALUES (?, ?, ?, ?) ON CONFLICT (phone_normalized) DO NOTHING RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Customer:
    id: str
    name: str
    phone_normalized: str
    created_at: Instant


def normalise_phone(text: str) -> str:
    """Return a number in its one way of writing, '' when there is no digit in it: `+905551234567`
    of `0555 123 45 67`."""
    digits = "".join(letter for letter in text if letter in "0123456789")
    if digits.startswith("0") and len(digits) >= 11:
        return f"+9{digits}"
    if len(digits) == 10:
        return f"+90{digits}"
    return f"+{digits}" if digits else ""


class Customers:
    """Finds and adds customers; their number is theirs alone."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def look_up(self, phone: str) -> tuple[str, Customer | None]:
        """Return a number as it is stored, and the customer who has it. Raises `PhoneRequired`: it
        is blank; `StoreError`."""
        if not phone.strip():
            raise PhoneRequired("phone: it is empty; write the number of the customer")
        number = normalise_phone(phone)
        return number, self.find(number)

    def find(self, phone_normalized: str) -> Customer | None:
        """Return the customer with exactly this number. Raises `StoreError`."""
        rows = self._tables.read(_FIND, phone_normalized)
        return Customer(*rows[0]) if rows else None

    def add(self, name: str, phone: str) -> tuple[Customer, bool]:
        """Return the customer of a number, and whether this call has made the record: one that is
        there stays as it is. Raises `InvalidInput`, with every problem; `StoreError`."""
        problems = _list_problems(name)
        if not (number := normalise_phone(phone)):
            problems.append("phone: it has no digit")
        elif len(number) > LONGEST_PHONE:
            problems.append(f"phone: it has more than {LONGEST_PHONE} digits")
        if problems:
            raise InvalidInput("; ".join(problems))
        with self._tables.writing() as connection:
            row = (new_secret_id(), name, number, self._tables.now)
            is_new = bool(self._tables.execute(connection, _ADD, *row))
            found = self._tables.execute(connection, _FIND, number)
        return Customer(*found[0]), is_new


def _list_problems(name: str) -> list[str]:
    if not name.strip():
        return ["name: it is empty"]
    if len(name) > LONGEST_NAME:
        return [f"name: it has more than {LONGEST_NAME} characters"]
    try:
        must_be_writable(name)
    except ValueError as error:
        return [f"name: {error}"]
    return []
