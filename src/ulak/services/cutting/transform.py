"""From an order to batches: what the optimiser cuts, in exact millimetres."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import msgspec

from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.customers import normalise_phone
from ulak.services.cutting.order import EDGES, NO_BAND
from ulak.services.cutting.rules import Rules, canonical_json, exact, number_text
from ulak.services.cutting.workbook import make_marks

BACK_PANEL: Final = "ARKALIK"
BACK_PANEL_TRIM: Final = Decimal(5)

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


def read_batch(*columns: Any) -> Batch:
    """Return a batch from what `rows_json` has made of it."""
    return msgspec.json.decode(columns[-1], type=Batch)


def import_note(batch: Batch) -> str:
    """Return, as JSON, what the columns of an import file have no place for."""
    plate = [float(batch.plate_width_mm), float(batch.plate_height_mm)]
    holes = {row.part_id: row.hole_code for row in batch.rows if row.hole_code}
    return canonical_json({"customer": batch.customer, "plate_mm": plate, "hole_codes": holes})


def to_mm(centimetres: float, rules: Rules) -> Decimal:
    """Return centimetres as millimetres with two decimals, half up."""
    return (exact(centimetres) * exact(rules.cm_to_mm_multiplier)).quantize(_CENT, ROUND_HALF_UP)


def usable_plate(
    width_mm: Decimal, height_mm: Decimal, trim_mm: Decimal, rules: Rules
) -> tuple[Decimal, Decimal]:
    """Return what is left of a plate's width and height without the trimmed sides."""
    sides = rules.machine_config.trim_mm
    across = bool(sides.left) + bool(sides.right)
    return width_mm - across * trim_mm, height_mm - (bool(sides.top) + bool(sides.bottom)) * trim_mm


def cut_size(row: Row, rules: Rules) -> tuple[Decimal, Decimal]:
    """Return the length and the width that are cut: the finished part without its bands."""
    if not rules.deduct_bands:
        return row.length_mm, row.width_mm
    extra = exact(rules.milling_allowance_mm)
    up, lo, sx, dx = (band - extra if (band := getattr(row, edge)) else 0 for edge in EDGES)
    return row.length_mm - sx - dx, row.width_mm - up - lo


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
        raise HoldCode(
            "E_CRM_NO_MATCH",
            f"no customer has the number {phone}; add the customer, then approve"
            if phone
            else "customer_phone has no digit; cancel, and order with a number",
            {"phone_normalized": phone},
        )
    default = rules.default_plate_size
    plate = payload.get("plate_size") or (default and default.model_dump())
    if plate is None:
        raise HoldCode(
            "E_PLATE_SIZE_MISSING",
            "the order has no plate_size and the rules have no defaultPlateSize; add one to the "
            "rules, then approve",
        )
    check_template()
    made = _Batches(payload, plate, rules)
    for part in payload["parts"]:
        if part["quantity"] > 0:
            made.add(part)
    return Prepared(made.finish(), made.backing_edge_resets)


def propose_merges(batch: Batch) -> list[dict[str, Any]]:
    """Return which rows of a batch an operator might let be cut as one: those of equal length,
    width and grain without a hole code. Nothing is merged."""
    alike: dict[tuple[Decimal, Decimal, int], list[int]] = {}
    for place, row in enumerate(batch.rows):
        if not row.hole_code:
            alike.setdefault((row.length_mm, row.width_mm, row.grain), []).append(place)
    found = []
    for (length, width, grain), places in alike.items():
        rows = [batch.rows[place] for place in places]
        bands = {tuple(getattr(row, edge) for edge in EDGES) for row in rows}
        if len(rows) > 1:
            found.append(
                {
                    "batch": batch.n, "rows": places, "part_ids": [row.part_id for row in rows],
                    "length_mm": float(length), "width_mm": float(width), "grain": grain,
                    "quantity": sum(row.quantity for row in rows),
                    "edge_bands_agree": len(bands) == 1,
                }
            )  # fmt: skip
    return found


class _Batches:
    """The batches of one order while they are made, part after part."""

    def __init__(
        self, payload: Mapping[str, Any], plate: Mapping[str, float], rules: Rules
    ) -> None:
        self.backing_edge_resets = 0
        self._rules = rules
        self._grains: Mapping[str, int] = {**rules.grain_mapping}
        self._plate = exact(plate["width_mm"]), exact(plate["height_mm"])
        self._customer = payload.get("customer_snapshot_name", "")
        self._rows: dict[tuple[str, str, str, str], list[Row]] = {}
        self._trims: dict[tuple[str, str], Decimal] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the row of a part; raises `HoldCode`."""
        thickness = number_text(part["thickness_mm"])
        trim = self._trims[part["part_type"], thickness] = self._find_trim(part, thickness)
        bands = self._find_bands(part)
        if (grain := self._grains.get(str(part["grain"]))) is None:
            raise _hold("E_INVALID_GRAIN", part, f"grainMapping has no grain {part['grain']}")
        hole_code = part.get("delik_kodu", "")
        row = Row(
            part["id"], part["material_code"], to_mm(part["length_cm"], self._rules),
            to_mm(part["width_cm"], self._rules), part["quantity"], grain,
            f"{part['part_type']}_{part['id']}_TRIM_{trim:.2f}", *bands, part.get("iidesc", ""),
            part.get("desc1") or hole_code, hole_code,
        )  # fmt: skip
        key = (part["part_type"], part["color"], thickness, part["material_code"])
        self._rows.setdefault(key, []).append(row)

    def finish(self) -> tuple[Batch, ...]:
        """Return the batches; raises `HoldCode`: there is no part, or one that no plate holds."""
        if not self._rows:
            raise HoldCode("E_NO_PARTS", "no part of the order is left to cut; cancel it")
        marks = make_marks(list(self._rows))
        batches = tuple(
            Batch(
                n, mark, *key, self._trims[key[0], key[2]], *self._plate,
                self._customer, tuple(rows),
            )
            for n, (mark, (key, rows)) in enumerate(zip(marks, self._rows.items(), strict=True))
        )  # fmt: skip
        lost = [
            row.part_id for batch in batches for row in batch.rows if not self._fits(row, batch)
        ]
        if lost:
            width, height = map(number_text, self._plate)
            named = ", ".join(lost[:10]) + (f" and {len(lost) - 10} more" if lost[10:] else "")
            raise HoldCode(
                "E_PART_OVERSIZE",
                f"a plate of {width} x {height} mm cannot hold {named}; enlarge defaultPlateSize "
                "if the order names no plate_size, then approve; or cancel, and order again",
                {"part_ids": lost[:_MOST_NAMED], "parts": len(lost)},
            )
        return batches

    def _find_trim(self, part: Mapping[str, Any], thickness: str) -> Decimal:
        if part["part_type"] == BACK_PANEL:
            known = list(map(number_text, self._rules.backing_thicknesses))
            if thickness not in known:
                raise _hold(
                    "E_BACKING_THICKNESS_UNKNOWN", part,
                    f"a back panel has {', '.join(known)} mm (backingThicknesses), not {thickness}",
                )  # fmt: skip
            return BACK_PANEL_TRIM
        if (trim := self._rules.trim_by_thickness.get(thickness)) is None:
            raise _hold(
                "E_TRIM_RULE_MISSING", part, f"trimByThickness has no rule for {thickness} mm"
            )
        return exact(trim)

    def _find_bands(self, part: Mapping[str, Any]) -> list[Decimal | None]:
        names = [part.get(edge) or NO_BAND for edge in EDGES]
        if part["part_type"] == BACK_PANEL:
            self.backing_edge_resets += any(name != NO_BAND for name in names)
            return [None] * len(EDGES)
        known: Mapping[str, float | None] = {**self._rules.edge_mapping, NO_BAND: None}
        for edge, name in zip(EDGES, names, strict=True):
            if name not in known:
                raise _hold(
                    "E_EDGE_MAPPING_UNKNOWN", part, f"{edge}: edgeMapping has no band {name!r}"
                )
        return [exact(band) if (band := known[name]) else None for name in names]

    def _fits(self, row: Row, batch: Batch) -> bool:
        width, height = usable_plate(*self._plate, batch.trim_mm, self._rules)
        length, across = cut_size(row, self._rules)
        if min(length, across) <= 0:  # its bands are wider than the part
            return False
        ways = [(length, across), (across, length)]
        if row.grain in (1, 2):
            is_long = (row.grain == 1) == (self._rules.grain_axis == "long")
            ways = ways[:1] if is_long == (self._plate[0] >= self._plate[1]) else ways[1:]
        return any(x <= width and y <= height for x, y in ways)


def _hold(code: str, part: Mapping[str, Any], why: str) -> HoldCode:
    text = f"part {part['id']}: {why}; add it to the rules, then approve"
    return HoldCode(code, text, {"part_ids": [part["id"]]})
