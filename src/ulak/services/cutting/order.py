"""Orders: what a customer sends, read once and made one text, so that a repeat is known."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from ulak.kit import canonical_json, read_json
from ulak.kit.config_files import list_problems
from ulak.kit.texts import exact, must_be_writable
from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.rules import Mode, Rules

NO_BAND: Final = "Bant Yok"
EDGES: Final = ("edge_up", "edge_lo", "edge_sx", "edge_dx")
LARGEST_ORDER: Final = 5 * 1024 * 1024
"""In bytes, of a request and of a payload."""
LONGEST_SIDE_MM: Final = 5000


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


class _Sent(BaseModel):
    """Unknown keys are dropped: nothing of them is stored or hashed."""

    model_config = ConfigDict(extra="ignore", strict=True)


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
