"""Receipts: what an order costs, by its sheets and its metres of edge band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from typing import Any, Final

from ulak.kit.texts import exact
from ulak.services.cutting.rules import Rules
from ulak.services.cutting.transform import Batch

_CENT: Final = Decimal("0.01")


def make_receipt(
    batches: Iterable[Batch], solutions: Iterable[Mapping[str, Any] | None], rules: Rules
) -> dict[str, Any]:
    """Return the receipt of an order whose plans are there, JSON-ready.

    Each batch is cut from sheets of its own: the number of them that its solution names, else the
    area of its boards by that of its plate, and at least one.
    """
    sheets, metres = 0, Decimal()
    for batch, solution in zip(batches, solutions, strict=True):
        sheets += _count_sheets(batch, solution or {})
        for row in batch.rows:
            up, lo, sx, dx = map(bool, row.bands)
            banded = row.length_mm * (up + lo) + row.width_mm * (sx + dx)
            metres += row.quantity * banded / 1000
    prices = rules.prices
    of_sheets, of_band = sheets * exact(prices.per_sheet), metres * exact(prices.per_metre)
    net = _rounded(of_sheets) + _rounded(of_band)
    vat = _rounded(net * exact(prices.vat_percent) / 100)
    return {
        "sheets": sheets, "band_metres": float(metres), "sheet_price": float(_rounded(of_sheets)),
        "band_price": float(_rounded(of_band)), "net": float(net),
        "vat_percent": prices.vat_percent, "vat": float(vat), "total": float(net + vat),
    }  # fmt: skip


def _count_sheets(batch: Batch, solution: Mapping[str, Any]) -> int:
    if (boards := _number(solution.get("boards"))) is not None:
        return max(1, int(boards))
    area = batch.plate_width_mm * batch.plate_height_mm / 1_000_000
    needed = (_number(solution.get("mqBoards")) or Decimal()) / area
    return max(1, int(needed.to_integral_value(ROUND_CEILING)))


def _number(text: object) -> Decimal | None:
    """Return what a plan says as a number; None if it is none: others have written it."""
    try:
        found = Decimal(str(text).strip())
    except ArithmeticError:
        return None
    return found if found.is_finite() and 0 <= found < 1_000_000_000 else None


def _rounded(amount: Decimal) -> Decimal:
    return amount.quantize(_CENT, ROUND_HALF_UP)
