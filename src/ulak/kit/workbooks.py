"""Workbooks (.xlsx) of other people, opened within bounds; and ours, where a repeat is the same and
no text becomes a formula."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from openpyxl import Workbook, load_workbook
from openpyxl.worksheet.worksheet import Worksheet
from openpyxl.writer.excel import ExcelWriter

from ulak.kit.texts import number_text

__all__ = [
    "UnreadableWorkbook", "cell_text", "open_workbook", "read_rows", "replace_rows",
    "save_workbook",
]  # fmt: skip

# Of a workbook when it is unpacked. A guess: ten times what people send.
LARGEST: Final = 10_000_000
_MOST_MEMBERS: Final = 1000
# 5,000 rows of 12 cells take 2.5 s. What is beyond the last is a slip, or no good will.
_MOST_ROWS, _LAST_ROW = 5000, 100_000
_ANY_DAY: Final = datetime(2026, 1, 1)  # noqa: DTZ001 - openpyxl takes times without a zone
# What spreadsheet programs take for a formula when a person edits the cell.
_FORMULA: Final = ("=", "+", "-", "@")


class UnreadableWorkbook(Exception):
    """The bytes are no workbook that may be read; the message says why."""


def open_workbook(data: bytes, *, streaming: bool = False) -> Workbook:
    """Return a workbook. `streaming` reads rows when they are asked for, and the results of
    formulas instead of them. Raises `UnreadableWorkbook`."""
    try:
        with ZipFile(BytesIO(data)) as archive:
            _must_be_bounded(archive.infolist())
        return load_workbook(BytesIO(data), read_only=streaming, data_only=streaming)
    except UnreadableWorkbook:
        raise
    except Exception as error:  # openpyxl's faults are of any class
        raise UnreadableWorkbook(f"it is no .xlsx workbook ({_first_cause(error)})") from error


def read_rows(data: bytes, columns: int) -> list[tuple[int, tuple[object, ...]]]:
    """Return the rows of a workbook's first sheet that are not empty: the number of each, and the
    values of the first columns. Raises `UnreadableWorkbook`."""
    found: list[tuple[int, tuple[object, ...]]] = []
    try:
        sheet = open_workbook(data, streaming=True).worksheets[0]
        sheet.reset_dimensions()  # a file may say that it is smaller than it is
        for number, row in enumerate(sheet.iter_rows(max_col=columns, values_only=True), 1):
            if any(value is not None for value in row):
                found.append((number, row))
            if number > _LAST_ROW or len(found) > _MOST_ROWS:
                why = f"it has more than {_MOST_ROWS} rows, or one beyond {_LAST_ROW}"
                raise UnreadableWorkbook(why)
    except UnreadableWorkbook:
        raise
    except Exception as error:  # openpyxl's faults are of any class
        raise UnreadableWorkbook(f"it is damaged ({_first_cause(error)})") from error
    return found


def cell_text(value: object) -> str:
    """Return a cell as people write it: a whole number without a point, of an empty cell ''."""
    if value is None:
        return ""
    return number_text(value) if type(value) is float else str(value).strip()


def replace_rows(
    sheet: Worksheet, rows: Iterable[Sequence[Decimal | int | str | None]], *, first: int,
    columns: int,
) -> None:  # fmt: skip
    """Write rows from the row `first` on, in the place of everything that is there.

    A text is never a formula, an error or a number. None and '' make no cell. Raises `ValueError`:
    a row has another number of values than `columns`.
    """
    for area in list(sheet.merged_cells.ranges):
        if area.max_row >= first:
            sheet.unmerge_cells(area.coord)
    for place in [place for place in sheet._cells if place[0] >= first]:
        del sheet._cells[place]  # `delete_rows` would ask for each cell of the largest rectangle
    for number, row in enumerate(rows, first):
        for column, value in zip(range(1, columns + 1), row, strict=True):
            if value in (None, ""):
                continue
            cell = sheet.cell(number, column)
            if isinstance(value, Decimal):
                cell.value = int(value) if value == value.to_integral_value() else float(value)
            else:
                cell.value = value
            if isinstance(value, str):
                cell.data_type = "s"  # also of what openpyxl takes for a formula or an error
                if value.startswith(_FORMULA):
                    cell.quotePrefix = True  # it stays a text when a person edits it


def save_workbook(workbook: Workbook) -> bytes:
    """Return a workbook as bytes without a time in them: the same cells make the same bytes."""
    workbook.properties.created = workbook.properties.modified = _ANY_DAY
    plain, packed = BytesIO(), BytesIO()
    ExcelWriter(workbook, ZipFile(plain, "w")).save()
    with ZipFile(plain) as source, ZipFile(packed, "w") as target:
        for name in source.namelist():
            target.writestr(ZipInfo(name), source.read(name), ZIP_DEFLATED)
    return packed.getvalue()


def _must_be_bounded(members: Sequence[ZipInfo]) -> None:
    """Refuse what would fill the memory. What unpacks a member stops at the size that it says."""
    if len(members) > _MOST_MEMBERS or sum(each.file_size for each in members) > LARGEST:
        raise UnreadableWorkbook(f"it is larger than {LARGEST // 1_000_000} MB when unpacked")
    if any(each.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for each in members):
        raise UnreadableWorkbook("it is packed as no workbook is")


def _first_cause(error: BaseException) -> str:
    """Return what was wrong in truth: openpyxl wraps it in an advice of several lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[:200]}"
