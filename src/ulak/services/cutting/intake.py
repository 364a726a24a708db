"""Intake: the spreadsheet of an order, read to the body of `POST /jobs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

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
    head = [row for n, row in rows if n <= _HEAD_ROWS]
    thickness = _find_thickness([row for n, row in rows if n < start and n <= _HEAD_ROWS], head)
    color, plate = _find_color(head), _search(_PLATE, head)
    problems = []
    if thickness is None:
        problems.append("body: no thickness in the first 10 rows; write it as 18MM")
    if not color:
        problems.append("body: no colour in the first 10 rows; write it as RENK: WHITE")
    shared = {
        "part_type": part_type, "material_code": material_code, "color": color,
        "thickness_mm": _plain(thickness or Decimal(0)),
    }  # fmt: skip
    parts = []
    for n, row in rows:
        # A title or a sum between the parts has nothing where a part has its length and width.
        is_part = n >= start and any(map(_text, (*row[1:3], *row[4:11])))
        # Above the parts stands the head; but a part with a slip in it must not pass for that.
        if is_part or (n < start and _has_slip(row)):
            problems += _list_problems(n, row)
            parts.append(shared | _read_part(n, row, band))
    if problems:
        raise InvalidInput("; ".join(problems))
    return {"parts": parts} | ({"plate_size": _read_plate(plate)} if plate else {})


def _has_slip(row: Cells) -> bool:
    """Tell whether two of length, width and quantity are numbers, and one is a text."""
    return all(map(_text, row[1:4])) and list(map(_number, row[1:4])).count(None) == 1


def _list_problems(n: int, row: Cells) -> list[str]:
    cells = zip("BCDE", (*row[1:4], row[4] if _text(row[4]) else 0), strict=True)
    wrong = [(letter, _text(cell)[:40]) for letter, cell in cells if _number(cell) is None]
    return [f"{letter}{n}: {text!r} is no number" for letter, text in wrong]


def _read_part(n: int, row: Cells, band: str) -> dict[str, Any]:
    length, width, quantity, grain = (_number(cell) or Decimal(0) for cell in row[1:5])
    sizes = {"length_cm": length / 10, "width_cm": width / 10, "quantity": quantity, "grain": grain}
    bands = {edge: band for edge, cell in zip(EDGES, row[5:9], strict=True) if _is_set(cell)}
    holes = "+".join(filter(None, map(_text, row[9:11])))
    texts = {"iidesc": _text(row[0]), "delik_kodu": holes, "desc1": _text(row[11])}
    said = bands | {key: text for key, text in texts.items() if text}
    return {"id": str(n)} | {key: _plain(size) for key, size in sizes.items()} | said


def _find_thickness(above: Sequence[Cells], head: Sequence[Cells]) -> Decimal | None:
    """Return what stands above the parts, with MM before a bare number, or else in their rows."""
    bare = (number for row in above if (number := _number(row[0])) and 1 <= number <= 60)
    if found := _search(_THICKNESS, above):
        return _number(found[1])
    if (number := next(bare, None)) or not (found := _search(_THICKNESS, head)):
        return number
    return _number(found[1])


def _find_color(head: Sequence[Cells]) -> str:
    """Return what stands behind the word, or in the next cell that is not empty."""
    for row in head:
        for place, cell in enumerate(row, 1):
            if found := _COLOR.search(_text(cell)):
                return next(filter(None, map(_text, (found[1], *row[place:]))), "")
    return ""


def _read_plate(found: re.Match[str]) -> dict[str, Any]:
    sides = (_number(side) or Decimal(0) for side in found.groups())
    in_mm = (_plain(side * 10 if side < 1000 else side) for side in sides)
    return dict(zip(("width_mm", "height_mm"), in_mm, strict=True))


def _search(pattern: re.Pattern[str], rows: Sequence[Cells]) -> re.Match[str] | None:
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
    number = _number(cell) if isinstance(cell, float) else None
    return "" if cell is None else str(cell if number is None else _plain(number)).strip()


def _is_set(cell: object) -> bool:
    return _text(cell).translate(_LETTERS).lower() not in _NOT_SET


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
