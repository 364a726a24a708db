"""Intake: the spreadsheet of an order, read to the body of `POST /jobs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from ulak.kit.texts import read_number
from ulak.kit.workbooks import UnreadableWorkbook, cell_text, read_rows
from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.order import EDGES

_HEAD_ROWS: Final = 10
_THICKNESS: Final = re.compile(r"(?<![\d.,])(\d{1,2}(?:[.,]\d{1,2})?)\s*MM", re.I)
_PLATE: Final = re.compile(r"(?<![\d.,])(\d{2,5}(?:[.,]\d+)?)\s*[*xX]\s*(\d{2,5}(?:[.,]\d+)?)")
_COLOR: Final = re.compile(r"\bRENK\s*:\s*(.*)", re.I | re.S)
# Turkish has two letters i; a cell may have either, as a capital too.
_LETTERS: Final = str.maketrans({"\u0131": "i", "\u0130": "i"})
_NOT_SET: Final = {"", "0", "0.0", "0,0", "false", "no", "n", "yok", "hayir"}

Cells = Sequence[object]


def read_order_sheet(
    data: bytes, *, part_type: str = "GOVDE", material_code: str = "", band: str = "1mm"
) -> dict[str, Any]:
    """Return what a spreadsheet says of an order: `parts`, and `plate_size` where it stands there.

    `order_id` and `customer_phone` are the caller's to add. `band` is what an edge gets whose cell
    is set. An id is the number of its row. Raises `InvalidInput`: with every problem.
    """
    try:
        rows = read_rows(data, 12)
    except UnreadableWorkbook as error:
        raise InvalidInput(f"body: {error}") from error
    start = next((n for n, row in rows if None not in map(read_number, row[1:4])), 0)
    if not start:
        raise InvalidInput("body: no row has numbers in B, C and D (length, width, quantity)")
    head = {n: row for n, row in rows if n <= _HEAD_ROWS}
    thickness, color = _find_thickness(head, start), _find_color(head)
    plate = _search(_PLATE, head.values())
    problems = []
    if thickness is None:
        problems.append("body: no thickness in the first 10 rows; write it as 18MM")
    if not color:
        problems.append("body: no colour in the first 10 rows; write it as RENK: WHITE")
    shared = {
        "part_type": part_type, "material_code": material_code, "color": color,
        "thickness_mm": float(thickness or 0),
    }  # fmt: skip
    parts = []
    for n, row in rows:
        sizes = row[1:4]
        # A title or a sum between the parts has nothing where a part has its length and width.
        is_part = n >= start and any(map(cell_text, (*row[1:3], *row[4:11])))
        # Above the parts stands the head; but a part with a slip in it must not pass for that.
        is_slip = [*map(read_number, sizes)].count(None) == 1 and all(map(cell_text, sizes))
        if is_part or (n < start and is_slip):
            cells = zip("BCDE", (*sizes, cell_text(row[4]) or 0), strict=True)
            wrong = [(at, cell_text(cell)) for at, cell in cells if read_number(cell) is None]
            problems += [f"{at}{n}: {text[:40]!r} is no number" for at, text in wrong]
            parts.append(shared | _read_part(n, row, band))
    if problems:
        raise InvalidInput("; ".join(problems))
    return {"parts": parts} | ({"plate_size": _read_plate(plate)} if plate else {})


def _read_part(n: int, row: Cells, band: str) -> dict[str, Any]:
    length, width, quantity, grain = (read_number(cell) or Decimal(0) for cell in row[1:5])
    sizes = {"length_cm": length / 10, "width_cm": width / 10, "quantity": quantity, "grain": grain}
    bands = {edge: band for edge, cell in zip(EDGES, row[5:9], strict=True) if _is_set(cell)}
    holes = "+".join(filter(None, map(cell_text, row[9:11])))
    texts = {"iidesc": cell_text(row[0]), "delik_kodu": holes, "desc1": cell_text(row[11])}
    said = bands | {key: text for key, text in texts.items() if text}
    return {"id": str(n)} | {key: float(size) for key, size in sizes.items()} | said


def _find_thickness(head: Mapping[int, Cells], start: int) -> Decimal | None:
    """Return what stands above the parts, with MM before a bare number, or else in their rows."""
    above = [row for n, row in head.items() if n < start]
    bare = (number for row in above if (number := read_number(row[0])) and 1 <= number <= 60)
    found = _search(_THICKNESS, above)
    if found is None and (number := next(bare, None)):
        return number
    found = found or _search(_THICKNESS, head.values())
    return read_number(found[1]) if found else None


def _find_color(head: Mapping[int, Cells]) -> str:
    """Return what stands behind the word, or in the next cell that is not empty."""
    for row in head.values():
        for place, cell in enumerate(row, 1):
            if found := _COLOR.search(cell_text(cell)):
                return next(filter(None, map(cell_text, (found[1], *row[place:]))), "")
    return ""


def _read_plate(found: re.Match[str]) -> dict[str, float]:
    width, height = (read_number(side) or Decimal(0) for side in found.groups())
    in_mm = [float(side * 10 if side < 1000 else side) for side in (width, height)]
    return {"width_mm": in_mm[0], "height_mm": in_mm[1]}


def _search(pattern: re.Pattern[str], rows: Iterable[Cells]) -> re.Match[str] | None:
    texts = (cell for row in rows for cell in row if isinstance(cell, str))
    return next(filter(None, map(pattern.search, texts)), None)


def _is_set(cell: object) -> bool:
    return cell_text(cell).translate(_LETTERS).lower() not in _NOT_SET
