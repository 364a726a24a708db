"""Orders and rules for tests: as small as they may be, changed by what a test is about."""

from typing import Any

from ulak.services.cutting.order import parse_order
from ulak.services.cutting.rules import DEFAULT_RULES, Rules
from ulak.services.cutting.transform import Prepared, prepare

PHONE = "0555 123 45 67"
PHONE_NORMALIZED = "+905551234567"


def make_part(**changes: Any) -> dict[str, Any]:
    """Return a body part as it is sent."""
    return {
        "id": "P1", "part_type": "GOVDE", "material_code": "MDF18", "length_cm": 72,
        "width_cm": 45, "thickness_mm": 18, "quantity": 2, "grain": 0, "color": "BEYAZ",
    } | changes  # fmt: skip


def make_back(**changes: Any) -> dict[str, Any]:
    """Return a back panel as it is sent."""
    return make_part(id="B1", part_type="ARKALIK", material_code="HDF", thickness_mm=3) | changes


def make_order(*parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return an order as it is sent, by default of one part."""
    order = {"order_id": "S-1", "customer_phone": PHONE, "parts": list(parts) or [make_part()]}
    return order | changes


def make_rules(**changes: Any) -> Rules:
    """Return the default rules with changes by their literal keys; None leaves a key out."""
    values = DEFAULT_RULES | changes
    return Rules.model_validate({key: value for key, value in values.items() if value is not None})


RULES = make_rules()


def make_batches(*parts: dict[str, Any], rules: Rules = RULES, **changes: Any) -> Prepared:
    """Return the batches of an order of a known customer, with a good template."""
    payload = parse_order(make_order(*parts, **changes), rules=rules)
    return prepare(payload, rules, customer_known=lambda phone: True, check_template=lambda: None)
