"""Intake: the spreadsheet of an order, read to the body of `POST /jobs`."""

from __future__ import annotations

from typing import Any


def read_order_sheet(
    data: bytes, *, part_type: str = "GOVDE", material_code: str = "", band: str = "1mm"
) -> dict[str, Any]:
    """Return `parts`, and `plate_size` where the sheet has it, of an order's body.

    `order_id` and `customer_phone` are not in the sheet: the caller adds them. Raises
    `InvalidInput`, which lists every problem by its cell.
    """
    raise NotImplementedError
