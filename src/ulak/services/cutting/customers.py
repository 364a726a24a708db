"""Customers: who may order, known by the telephone number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, Field, ValidationError

from ulak.kit.clock import Instant
from ulak.kit.config_files import list_problems
from ulak.kit.ids import new_secret_id
from ulak.services.cutting.codes import InvalidInput, Refused
from ulak.services.cutting.order import Said
from ulak.tables import Tables

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
    """Return `+905551234567` of `0555 123 45 67`, '' of a text without a digit."""
    digits = "".join(letter for letter in text if letter in "0123456789")
    if digits.startswith("0") and len(digits) >= 11:
        return f"+9{digits}"
    if len(digits) == 10:
        return f"+90{digits}"
    return f"+{digits}" if digits else ""


class _New(BaseModel):
    name: Said
    phone: Annotated[str, Field(pattern=r"^\+[0-9]{1,39}$")]


class Customers:
    """Finds and adds customers; their number is theirs alone."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def look_up(self, phone: str) -> tuple[str, Customer | None]:
        """Return a number as it is stored, and who has it. Raises `Refused`: it is blank."""
        if not phone.strip():
            raise Refused("E_PHONE_REQUIRED", "phone: it is empty; write a customer's number")
        number = normalise_phone(phone)
        return number, self.find(number)

    def find(self, phone_normalized: str) -> Customer | None:
        """Return the customer with exactly this number."""
        rows = self._tables.read(_FIND, phone_normalized)
        return Customer(*rows[0]) if rows else None

    def add(self, name: str, phone: str) -> tuple[Customer, bool]:
        """Return the customer of a number, and whether this call has made the record: one that is
        there stays as it is. Raises `InvalidInput`, with every problem."""
        try:
            new = _New(name=name, phone=normalise_phone(phone))
        except ValidationError as error:
            raise InvalidInput("; ".join(list_problems(error))) from None
        with self._tables.writing() as connection:
            row = (new_secret_id(), new.name, new.phone, self._tables.now)
            is_new = bool(self._tables.execute(connection, _ADD, *row))
            found = self._tables.execute(connection, _FIND, new.phone)
        return Customer(*found[0]), is_new
