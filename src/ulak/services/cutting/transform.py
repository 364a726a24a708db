"""From an order to batches: what the optimiser cuts, in exact millimetres, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from typing import Any, Final

import msgspec

from ulak.kit import canonical_json
from ulak.kit.texts import exact, number_text, read_number
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.order import EDGES, NO_BAND, normalise_phone
from ulak.services.cutting.rules import Rules
from ulak.services.cutting.workbook import Key, make_marks

BACK_PANEL: Final = "ARKALIK"
BACK_PANEL_TRIM: Final = Decimal(5)

_NO_BANDS: Final = (None, "", NO_BAND)
_MOST_NAMED: Final = 200
"""Ids in a line of the trail, which holds 256 KB."""
_CENT: Final = Decimal("0.01")


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

    @property
    def bands(self) -> tuple[Decimal | None, ...]:
        """Above, below, left, right."""
        return self.edge_up, self.edge_lo, self.edge_sx, self.edge_dx

    @property
    def cells(self) -> tuple[str | Decimal | int | None, ...]:
        """The twelve columns of the import file."""
        return astuple(self)[1:13]


@dataclass(frozen=True, slots=True)
class Batch:
    """Parts that are cut from one material: they share an import file and a plan."""

    n: int
    """From 0, in order of first appearance."""
    mark: str
    """What stands behind the job's id in the name of the import file: `GOVDE_BEYAZ_18mm`."""
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


def rows_json(batch: Batch) -> str:
    """Return what the table keeps of a batch; numbers are decimal text in it."""
    return msgspec.json.encode(batch).decode()


def read_batch(text: str) -> Batch:
    """Return a batch from what `rows_json` has made of it."""
    return msgspec.json.decode(text, type=Batch)


def import_note(batch: Batch) -> str:
    """Return, as JSON, what the columns of an import file have no place for."""
    plate = [float(batch.plate_width_mm), float(batch.plate_height_mm)]
    holes = {row.part_id: row.hole_code for row in batch.rows if row.hole_code}
    said = {"plate_mm": plate, "thickness_mm": float(batch.thickness)}
    return canonical_json({"customer": batch.customer, "hole_codes": holes} | said)


def to_mm(centimetres: float, rules: Rules) -> Decimal:
    """Return centimetres as millimetres with two decimals, half up."""
    return _rounded(exact(centimetres) * exact(rules.cm_to_mm_multiplier))


def prepare(
    payload: Mapping[str, Any], rules: Rules, *, customer_known: Callable[[str], bool],
    check_template: Callable[[], None],
) -> Prepared:  # fmt: skip
    """Return an order as batches.

    `customer_known` is asked with the normalised phone number; `check_template` raises what is
    wrong with the template. Raises `HoldCode`: the first check that fails, in the order customer,
    plate size, template, part after part; details name the parts.
    """
    phone = normalise_phone(payload["customer_phone"])
    if not customer_known(phone):
        text = f"no customer has the number {phone!r}; add the customer, then approve"
        raise HoldCode("E_CRM_NO_MATCH", text, {"phone_normalized": phone})
    default = rules.default_plate_size
    size = payload.get("plate_size") or (default and default.model_dump())
    if not size:
        text = "order and rules name no plate size; add defaultPlateSize to the rules, then approve"
        raise HoldCode("E_PLATE_SIZE_MISSING", text)
    check_template()

    plate = exact(size["width_mm"]), exact(size["height_mm"])
    found: dict[Key, tuple[Decimal, list[Row]]] = {}
    for part in (part for part in payload["parts"] if part["quantity"] > 0):
        thickness = number_text(part["thickness_mm"])
        key = (part["part_type"], part["color"], thickness, part["material_code"])
        trim = _find_trim(part, thickness, rules)
        found.setdefault(key, (trim, []))[1].append(_make_row(part, trim, rules))
    if not found:
        raise HoldCode("E_NO_PARTS", "no part of the order is left to cut; cancel it")
    every = ((row, trim) for trim, rows in found.values() for row in rows)
    if lost := [row.part_id for row, trim in every if not _fits(row, plate, trim, rules)]:
        named = ", ".join(lost[:10]) + (f" and {len(lost) - 10} more" if lost[10:] else "")
        raise HoldCode(
            "E_PART_OVERSIZE",
            f"a plate of {number_text(plate[0])} x {number_text(plate[1])} mm cannot hold {named}; "
            "enlarge defaultPlateSize if the order names no plate_size, then approve; or cancel",
            {"part_ids": lost[:_MOST_NAMED], "parts": len(lost)},
        )
    customer = payload.get("customer_snapshot_name", "")
    marked = zip(make_marks(list(found)), found.items(), strict=True)
    batches = tuple(
        Batch(n, mark, *key, trim, *plate, customer, tuple(rows))
        for n, (mark, (key, (trim, rows))) in enumerate(marked)
    )
    backs = [part for part in payload["parts"] if part["part_type"] == BACK_PANEL]
    resets = [part for part in backs if any(part.get(edge) not in _NO_BANDS for edge in EDGES)]
    return Prepared(batches, len(resets))


def propose_merges(batch: Batch) -> list[dict[str, Any]]:
    """Return which rows of a batch an operator might let be cut as one: those of equal length,
    width and grain without a hole code. Nothing is merged."""
    alike: dict[tuple[Decimal, Decimal, int], list[Row]] = {}
    for row in batch.rows:
        if not row.hole_code:
            alike.setdefault((row.length_mm, row.width_mm, row.grain), []).append(row)
    return [
        {
            "batch": batch.n, "part_ids": [row.part_id for row in rows], "grain": grain,
            "length_mm": float(length), "width_mm": float(width),
            "quantity": sum(row.quantity for row in rows),
            "edge_bands_agree": len({row.bands for row in rows}) == 1,
        }
        for (length, width, grain), rows in alike.items()
        if len(rows) > 1
    ]  # fmt: skip


def make_receipt(
    batches: Iterable[Batch], solutions: Iterable[Mapping[str, Any] | None], rules: Rules
) -> dict[str, Any]:
    """Return the receipt of an order whose plans are there, JSON-ready.

    Each batch is cut from sheets of its own: the number of them that its solution names, else the
    area of its boards by that of its plate, and at least one.
    """
    sheets, metres, prices = 0, Decimal(), rules.prices
    for batch, solution in zip(batches, solutions, strict=True):
        sheets += _count_sheets(batch, solution or {})
        for row in batch.rows:
            up, lo, sx, dx = map(bool, row.bands)
            banded = row.length_mm * (up + lo) + row.width_mm * (sx + dx)
            metres += row.quantity * banded / 1000
    of_sheets = _rounded(sheets * exact(prices.per_sheet))
    of_band = _rounded(metres * exact(prices.per_metre))
    net = of_sheets + of_band
    vat = _rounded(net * exact(prices.vat_percent) / 100)
    return {
        "sheets": sheets, "band_metres": float(metres), "sheet_price": float(of_sheets),
        "band_price": float(of_band), "net": float(net), "vat_percent": prices.vat_percent,
        "vat": float(vat), "total": float(net + vat),
    }  # fmt: skip


def _make_row(part: Mapping[str, Any], trim: Decimal, rules: Rules) -> Row:
    up, lo, sx, dx = _find_bands(part, rules)
    grain = rules.grain_mapping.get(str(part["grain"]))
    if grain is None:
        raise _hold("E_INVALID_GRAIN", part, f"grainMapping has no grain {part['grain']}")
    hole_code = part.get("delik_kodu", "")
    return Row(
        part["id"], part["material_code"], to_mm(part["length_cm"], rules),
        to_mm(part["width_cm"], rules), part["quantity"], grain,
        f"{part['part_type']}_{part['id']}_TRIM_{trim:.2f}", up, lo, sx, dx,
        part.get("iidesc", ""), part.get("desc1") or hole_code, hole_code,
    )  # fmt: skip


def _find_trim(part: Mapping[str, Any], thickness: str, rules: Rules) -> Decimal:
    if part["part_type"] == BACK_PANEL:
        known = [number_text(each) for each in rules.backing_thicknesses]
        if thickness not in known:
            why = f"backingThicknesses has {', '.join(known)} mm, not {thickness}"
            raise _hold("E_BACKING_THICKNESS_UNKNOWN", part, why)
        return BACK_PANEL_TRIM
    if (trim := rules.trim_by_thickness.get(thickness)) is None:
        why = f"trimByThickness has no rule for {thickness} mm"
        raise _hold("E_TRIM_RULE_MISSING", part, why)
    return exact(trim)


def _find_bands(part: Mapping[str, Any], rules: Rules) -> list[Decimal | None]:
    if part["part_type"] == BACK_PANEL:
        return [None] * len(EDGES)
    bands: list[Decimal | None] = []
    for edge in EDGES:
        name = part.get(edge) or NO_BAND
        if name not in rules.edge_mapping and name != NO_BAND:
            why = f"{edge}: edgeMapping has no band {name!r}"
            raise _hold("E_EDGE_MAPPING_UNKNOWN", part, why)
        band = rules.edge_mapping.get(name)
        bands.append(exact(band) if band else None)
    return bands


def _fits(row: Row, plate: tuple[Decimal, Decimal], trim: Decimal, rules: Rules) -> bool:
    """Tell whether a plate without its trims holds a part, without its bands, in a way that its
    grain permits."""
    sides, length, width = rules.machine_config.trim_mm, row.length_mm, row.width_mm
    across = plate[0] - trim * (bool(sides.left) + bool(sides.right))
    upright = plate[1] - trim * (bool(sides.top) + bool(sides.bottom))
    if rules.deduct_bands:
        extra = exact(rules.milling_allowance_mm)
        up, lo, sx, dx = (band - extra if band else 0 for band in row.bands)
        length, width = length - sx - dx, width - up - lo
    ways = [(length, width), (width, length)]
    if row.grain in (1, 2):
        is_long = (row.grain == 1) == (rules.grain_axis == "long")
        ways = [ways[is_long != (plate[0] >= plate[1])]]
    return min(length, width) > 0 and any(x <= across and y <= upright for x, y in ways)


def _hold(code: str, part: Mapping[str, Any], why: str) -> HoldCode:
    text = f"part {part['id']}: {why}; add it to the rules, then approve"
    return HoldCode(code, text, {"part_ids": [part["id"]]})


def _count_sheets(batch: Batch, solution: Mapping[str, Any]) -> int:
    boards, square_metres = (read_number(solution.get(name)) for name in ("boards", "mqBoards"))
    if boards is None:
        area = batch.plate_width_mm * batch.plate_height_mm
        boards = (square_metres or 0) * 1_000_000 / area
    return max(1, int(boards.to_integral_value(ROUND_CEILING)))


def _rounded(amount: Decimal) -> Decimal:
    return amount.quantize(_CENT, ROUND_HALF_UP)
