"""From an order to batches: what the optimiser cuts, in exact millimetres."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_HALF_UP, Decimal
from hashlib import sha256
from typing import Any, Final

from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.rules import Rules, exact, number_text

BACK_PANEL: Final = "ARKALIK"
NO_BAND: Final = "Bant Yok"
EDGES: Final = ("edge_up", "edge_lo", "edge_sx", "edge_dx")
BACK_PANEL_TRIM: Final = Decimal(5)


@dataclass(frozen=True, slots=True)
class Row:
    """One part of a batch, as its row of the import file has it."""

    part_id: str
    material_code: str
    length_mm: Decimal
    width_mm: Decimal
    quantity: int
    grain: int
    description: str
    """`P_IDESC`, with the trim in it."""
    edge_up: Decimal | None
    """The thickness of the band in mm; the upper and the lower run along the length."""
    edge_lo: Decimal | None
    edge_sx: Decimal | None
    edge_dx: Decimal | None
    iidesc: str
    desc1: str
    """`P_DESC1`: the hole code, where the part has no text of its own."""
    hole_code: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Parts that are cut from one material: they share an import file and a plan."""

    n: int
    """From 0, in order of first appearance."""
    mark: str
    """What stands behind the job's id in the name of the import file: `GOVDE_BEYAZ_18mm`; no mark
    of a job contains another, in whichever case."""
    part_type: str
    color: str
    thickness: str
    """The canonical decimal text: `18`."""
    material_code: str
    trim_mm: Decimal
    plate_width_mm: Decimal
    plate_height_mm: Decimal
    customer: str
    """The customer's name, '' when the order does not say it."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What preparing an order has found."""

    batches: tuple[Batch, ...]
    backing_edge_reset_count: int
    phone_normalized: str


def rows_json(batch: Batch) -> str:
    """Return what the table keeps of a batch beside its key: numbers as decimal text."""
    raise NotImplementedError


def read_batch(
    n: int, mark: str, part_type: str, color: str, thickness: str, material_code: str,
    rows_json: str,
) -> Batch:  # fmt: skip
    """Return a batch from its columns."""
    raise NotImplementedError


def prepare(
    payload: Mapping[str, Any], rules: Rules, *, customer_known: Callable[[str], bool],
    check_template: Callable[[], None],
) -> Prepared:  # fmt: skip
    """Return an order as batches.

    `customer_known` is asked with the normalised phone number; `check_template` raises what is
    wrong with the template. Raises `HoldCode`: the first check that fails, in the order customer,
    plate size, template, part after part; details name the parts.
    """
    raise NotImplementedError


def propose_merges(batch: Batch) -> list[dict[str, Any]]:
    """Return which rows of a batch an operator might let be cut as one: those of equal length,
    width and grain without a hole code. Nothing is merged."""
    raise NotImplementedError
