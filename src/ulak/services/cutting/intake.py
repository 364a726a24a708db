"""Intake: the spreadsheet of an order, read to the body of `POST /jobs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.transform import EDGES
from ulak.services.cutting.workbook import Unreadable, read_rows

_COLUMNS: Final = 12
_HEAD_ROWS: Final = 10
_MOST_PROBLEMS: Final = 50
_THICKNESS: Final = re.compile(r"(?<![\d.,])(\d{1,2}(?:[.,]\d{1,2})?)\s*MM", re.I)
_PLATE: Final = re.compile(r"(?<![\d.,])(\d{2,5}(?:[.,]\d+)?)\s*[*xX]\s*(\d{2,5}(?:[.,]\d+)?)")
_COLOR: Final = re.compile(r"\bRENK\s*:\s*(.*)", re.I | re.S)
# Turkish has two letters i; a cell may have either, as a capital too.
_LETTERS: Final = str.maketrans({"ı": "i", "İ": "i"})  # noqa: RUF001
_NOT_SET: Final = {"", "0", "0.0", "0,0", "false", "no", "n", "yok", "hayir"}

Numbered = tuple[int, tuple[object, ...]]


def read_order_sheet(
    data: bytes, *, part_type: str = "GOVDE", material_code: str = "", band: str = "1mm"
) -> dict[str, Any]:
    """Return what a spreadsheet says of an order: `parts`, and `plate_size` where it stands there.

    `order_id` and `customer_phone` are the caller's to add. `band` is what an edge gets whose cell
    is set. An id is the number of its row. Raises `InvalidInput`: with every problem.
    """
    try:
        rows = read_rows(data, _COLUMNS)
    except Unreadable as error:
        raise InvalidInput(f"body: {error}") from error
    start = next((n for n, row in rows if all(_number(cell) is not None for cell in row[1:4])), 0)
    if not start:
        raise InvalidInput("body: no row has numbers in B, C and D (length, width, quantity)")
    head = [(n, row) for n, row in rows if n <= _HEAD_ROWS]
    thickness, plate, color = _find_thickness(head, start), _find_plate(head), _find_color(head)
    # Above the parts stands the head; but a part with a slip in it must not pass for that.
    slips = [(n, row) for n, row in rows if n < start and _has_slip(row)]
    problems = [each for n, row in slips for each in _list_problems(n, row)]
    if thickness is None:
        problems.append("body: no thickness in the first 10 rows; write it as 18MM")
    if not color:
        problems.append("body: no colour in the first 10 rows; write it as RENK: WHITE")
    shared = {
        "part_type": part_type,
        "material_code": material_code,
        "thickness_mm": _plain(thickness or Decimal(0)),
        "color": color,
    }
    parts = []
    for number, row in rows:
        # A title or a sum between the parts has nothing where a part has its length and width.
        if number >= start and any(_text(row[place]) for place in (1, 2, *range(4, 11))):
            problems += _list_problems(number, row)
            parts.append(shared | _read_part(number, row, band))
    if problems:
        raise InvalidInput("; ".join(problems[:_MOST_PROBLEMS]))
    return {"parts": parts} | ({"plate_size": plate} if plate else {})


def _has_slip(row: Sequence[object]) -> bool:
    """Tell whether two of length, width and quantity are numbers, and one is a text."""
    sizes = row[1:4]
    return all(map(_text, sizes)) and [_number(cell) for cell in sizes].count(None) == 1


def _list_problems(number: int, row: Sequence[object]) -> list[str]:
    wanted = [(place, row[place]) for place in (1, 2, 3)] + [(4, row[4] if _text(row[4]) else 0)]
    return [
        f"{'ABCDE'[place]}{number}: {_text(cell)[:40]!r} is no number"
        for place, cell in wanted
        if _number(cell) is None
    ]


def _read_part(number: int, row: Sequence[object], band: str) -> dict[str, Any]:
    length, width, quantity, grain = (_number(cell) or Decimal(0) for cell in row[1:5])
    part: dict[str, Any] = {
        "id": str(number),
        "length_cm": _plain(length / 10),
        "width_cm": _plain(width / 10),
        "quantity": _plain(quantity),
        "grain": _plain(grain),
    }
    edges = (edge for edge, cell in zip(EDGES, row[5:9], strict=True) if _is_set(cell))
    holes = "+".join(filter(None, map(_text, row[9:11])))
    texts = {"iidesc": _text(row[0]), "delik_kodu": holes, "desc1": _text(row[11])}
    return part | dict.fromkeys(edges, band) | {name: text for name, text in texts.items() if text}


def _find_thickness(head: Sequence[Numbered], start: int) -> Decimal | None:
    """Return what stands above the parts, with MM before a bare number, or else in their rows."""
    above = [row for number, row in head if number < start]
    bare = (number for row in above if (number := _number(row[0])) and 1 <= number <= 60)
    found = _search(_THICKNESS, above)
    if found is None and (number := next(bare, None)):
        return number
    found = found or _search(_THICKNESS, [row for _, row in head])
    return _number(found[1]) if found else None


def _find_plate(head: Sequence[Numbered]) -> dict[str, Any] | None:
    found = _search(_PLATE, [row for _, row in head])
    if found is None:
        return None
    sides = (Decimal(side.replace(",", ".")) for side in found.groups())
    width, height = (side * 10 if side < 1000 else side for side in sides)
    return {"width_mm": _plain(width), "height_mm": _plain(height)}


def _search(pattern: re.Pattern[str], rows: Sequence[Sequence[object]]) -> re.Match[str] | None:
    texts = (cell for row in rows for cell in row if isinstance(cell, str))
    return next(filter(None, map(pattern.search, texts)), None)


def _find_color(head: Sequence[Numbered]) -> str:
    for _, row in head:
        for place, cell in enumerate(row):
            if isinstance(cell, str) and (found := _COLOR.search(cell)):
                return found[1].strip() or next(filter(None, map(_text, row[place + 1 :])), "")
    return ""


def _number(cell: object) -> Decimal | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        number = Decimal(str(cell).strip().replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**9 else None


def _text(cell: object) -> str:
    """Return a cell as text; a number as people write it."""
    if cell is None:
        return ""
    number = _number(cell) if isinstance(cell, float) else None
    return str(cell).strip() if number is None else str(_plain(number))


def _is_set(cell: object) -> bool:
    text = _text(cell).translate(_LETTERS).lower()
    return text not in _NOT_SET


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
