"""Orders, read once and made one text, so that a repeat is known; and customers, who are known by
their telephone number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
)

from ulak.kit import canonical_json, read_json
from ulak.kit.clock import Instant
from ulak.kit.config_files import list_problems
from ulak.kit.ids import new_secret_id
from ulak.kit.texts import exact, must_be_writable
from ulak.services.cutting.codes import InvalidInput, Refused
from ulak.services.cutting.rules import Mode, Rules
from ulak.tables import Tables

NO_BAND: Final = "Bant Yok"
EDGES: Final = ("edge_up", "edge_lo", "edge_sx", "edge_dx")
LARGEST_ORDER: Final = 5 * 1024 * 1024
"""In bytes, of a request and of a payload."""
LONGEST_SIDE_MM: Final = 5000

_FIND: Final = """
    SELECT id, name, phone_normalized, created_at FROM {schema}.cutting_customers
    WHERE phone_normalized = ?
"""
_ADD: Final = """
    INSERT INTO {schema}.cutting_customers (id, name, phone_normalized, created_at)
    VALUES (?, ?, ?, ?) ON CONFLICT (phone_normalized) DO NOTHING RETURNING id
"""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _whole(value: Any) -> Any:
    """Take 18.0 as 18: JSON knows one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _side(value: float, info: ValidationInfo) -> float:
    millimetres = exact(value) * exact((info.context or {})["cm_to_mm"])
    if not 1 <= millimetres <= LONGEST_SIDE_MM:
        raise ValueError(f"a side has 1 to {LONGEST_SIDE_MM} mm, and this is {value:g} cm")
    return value


Name = Annotated[str, Field(max_length=500), AfterValidator(must_be_writable)]
# A cell of a workbook holds 32,767 characters.
Text = Annotated[str, Field(max_length=4000), AfterValidator(must_be_writable)]
Said = Annotated[Name, AfterValidator(_not_blank)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Side = Annotated[Positive, AfterValidator(_side)]
Whole = Annotated[int, BeforeValidator(_whole)]


class _Sent(BaseModel, extra="ignore", strict=True):
    """Unknown keys are dropped: nothing of them is stored or hashed."""


class Plate(_Sent):
    width_mm: Annotated[Positive, Field(le=100_000)]
    height_mm: Annotated[Positive, Field(le=100_000)]


class Part(_Sent):
    id: Name
    part_type: Literal["GOVDE", "ARKALIK"]
    material_code: Name
    length_cm: Side
    width_cm: Side
    thickness_mm: Annotated[Positive, Field(le=LONGEST_SIDE_MM)]
    quantity: Annotated[Whole, Field(ge=1, le=9999)]
    grain: Annotated[Whole, Field(ge=0, le=3)]
    color: Name
    edge_up: Name | None = None
    edge_lo: Name | None = None
    edge_sx: Name | None = None
    edge_dx: Name | None = None
    iidesc: Text | None = None
    desc1: Text | None = None
    delik_kodu: Name | None = None


class Order(_Sent):
    order_id: Said
    customer_phone: Said
    customer_snapshot_name: Name | None = None
    opti_mode: Mode | None = None
    plate_size: Plate | None = None
    parts: Annotated[list[Part], Field(min_length=1)]
    revision: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None


def parse_order(body: Any, *, rules: Rules, order_id: str | None = None) -> dict[str, Any]:
    """Return the payload of a job: what was sent without unknown keys, with `opti_mode`, and
    without what says nothing (null, and an edge without a band).

    `order_id` takes the place of the one in the body. Raises `InvalidInput`: with every problem.
    """
    if not isinstance(body, Mapping):
        raise InvalidInput('body: write an object, as {"order_id": ..., "parts": [...]}')
    if order_id is not None:
        body = {**body, "order_id": order_id}
    problems: list[str] = []
    try:
        order = Order.model_validate(body, context={"cm_to_mm": rules.cm_to_mm_multiplier})
    except ValidationError as error:
        problems = list_problems(error)
    problems += _list_repeated_ids(body)
    if problems:
        raise InvalidInput("; ".join(problems))
    payload = order.model_dump(exclude_none=True)
    payload.setdefault("opti_mode", rules.opti_mode_default)
    for part in payload["parts"]:
        for edge in EDGES:
            if part.get(edge) in ("", NO_BAND):
                del part[edge]
    return dict(read_json(canonical_json(payload)))


def payload_hash(payload: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a payload's canonical text: sorted keys, 18 for 18.0."""
    return sha256(canonical_json(payload).encode()).hexdigest()


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


def _list_repeated_ids(body: Mapping[str, Any]) -> list[str]:
    """Return a problem for each part with the id of an earlier one."""
    first: dict[str, int] = {}
    found = []
    parts = body.get("parts")
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        id = part.get("id") if isinstance(part, Mapping) else None
        if isinstance(id, str) and first.setdefault(id, place) != place:
            found.append(f"parts.{place}.id: part {first[id]} has the same id")
    return found
