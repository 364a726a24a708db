"""Intake: the spreadsheet of an order, read to the body of `POST /jobs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ulak.kit.texts import number_text
from ulak.kit.workbooks import UnreadableWorkbook, read_rows
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
    start = next((n for n, row in rows if None not in map(_number, row[1:4])), 0)
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
        # A title or a sum between the parts has nothing where a part has its length and width.
        is_part = n >= start and any(map(_text, (*row[1:3], *row[4:11])))
        # Above the parts stands the head; but a part with a slip in it must not pass for that.
        is_slip = list(map(_number, row[1:4])).count(None) == 1 and all(map(_text, row[1:4]))
        if is_part or (n < start and is_slip):
            cells = dict(zip("BCDE", (*row[1:4], row[4] if _text(row[4]) else 0), strict=True))
            wrong = [letter for letter, cell in cells.items() if _number(cell) is None]
            problems += [f"{each}{n}: {_text(cells[each])[:40]!r} is no number" for each in wrong]
            parts.append(shared | _read_part(n, row, band))
    if problems:
        raise InvalidInput("; ".join(problems))
    return {"parts": parts} | ({"plate_size": _read_plate(plate)} if plate else {})


def _read_part(n: int, row: Cells, band: str) -> dict[str, Any]:
    length, width, quantity, grain = (_number(cell) or Decimal(0) for cell in row[1:5])
    sizes = {"length_cm": length / 10, "width_cm": width / 10, "quantity": quantity, "grain": grain}
    bands = {edge: band for edge, cell in zip(EDGES, row[5:9], strict=True) if _is_set(cell)}
    holes = "+".join(filter(None, map(_text, row[9:11])))
    texts = {"iidesc": _text(row[0]), "delik_kodu": holes, "desc1": _text(row[11])}
    said = bands | {key: text for key, text in texts.items() if text}
    return {"id": str(n)} | {key: float(size) for key, size in sizes.items()} | said


def _find_thickness(head: Mapping[int, Cells], start: int) -> Decimal | None:
    """Return what stands above the parts, with MM before a bare number, or else in their rows."""
    above = [row for n, row in head.items() if n < start]
    bare = (number for row in above if (number := _number(row[0])) and 1 <= number <= 60)
    found = _search(_THICKNESS, above)
    if found is None and (number := next(bare, None)):
        return number
    found = found or _search(_THICKNESS, head.values())
    return _number(found[1]) if found else None


def _find_color(head: Mapping[int, Cells]) -> str:
    """Return what stands behind the word, or in the next cell that is not empty."""
    for row in head.values():
        for place, cell in enumerate(row, 1):
            if found := _COLOR.search(_text(cell)):
                return next(filter(None, map(_text, (found[1], *row[place:]))), "")
    return ""


def _read_plate(found: re.Match[str]) -> dict[str, float]:
    width, height = (_number(side) or Decimal(0) for side in found.groups())
    in_mm = [float(side * 10 if side < 1000 else side) for side in (width, height)]
    return {"width_mm": in_mm[0], "height_mm": in_mm[1]}


def _search(pattern: re.Pattern[str], rows: Iterable[Cells]) -> re.Match[str] | None:
    texts = (cell for row in rows for cell in row if isinstance(cell, str))
    return next(filter(None, map(pattern.search, texts)), None)


def _number(cell: object) -> Decimal | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        number = Decimal(str(cell).strip().replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**9 else None


def _text(cell: object) -> str:
    """Return a cell as people write it: a whole number without a point."""
    return "" if cell is None else number_text(cell) if type(cell) is float else str(cell).strip()


def _is_set(cell: object) -> bool:
    return _text(cell).translate(_LETTERS).lower() not in _NOT_SET
