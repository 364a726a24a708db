"""Workbooks of the optimiser: the template, the names of import files, and their rows."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

from ulak.kit.files import open_file, sha256_of, write_atomically
from ulak.kit.workbooks import UnreadableWorkbook, open_workbook, replace_rows, save_workbook
from ulak.services.cutting.codes import HoldCode

SHEET: Final = "ŞABLON"
TAGS: Final = (
    "[P_CODE_MAT]", "[P_LENGTH]", "[P_WIDTH]", "[P_MINQ]", "[P_GRAIN]", "[P_IDESC]",
    "[P_EDGE_MAT_UP]", "[P_EGDE_MAT_LO]", "[P_EDGE_MAT_SX]", "[P_EDGE_MAT_DX]", "[P_IIDESC]",
    "[P_DESC1]",
)  # fmt: skip
"""Row 1, to the letter: the optimiser knows the eighth by its misspelling."""
FIRST_DATA_ROW: Final = 3

_HEADINGS: Final = (
    "Material", "Length", "Width", "Quantity", "Grain", "Description", "Upper band", "Lower band",
    "Left band", "Right band", "Information", "Note",
)  # fmt: skip
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
# Characters of a colour, and of the rest, in the name of a file that may have 255.
_LONGEST_COLOR, _LONGEST_WORD = 60, 20

Cell = Decimal | int | str | None
Key = tuple[str, str, str, str]
"""What the parts of a batch share: part type, colour, thickness as text, material code."""


class Written(NamedTuple):
    """An import file as it lies in the folder."""

    sha256: str
    mtime_ns: int


def make_template(path: Path) -> None:
    """Write the template that is shipped, unless there is a file."""
    workbook = Workbook()
    sheet = workbook.worksheets[0]
    sheet.title = SHEET
    sheet.append(TAGS)
    sheet.append(_HEADINGS)
    for column in range(1, len(TAGS) + 1):
        sheet.cell(2, column).font = Font(bold=True)
        sheet.column_dimensions[get_column_letter(column)].width = 18
    sheet.freeze_panes = f"A{FIRST_DATA_ROW}"
    with suppress(FileExistsError):
        write_atomically(path, save_workbook(workbook), replace=False)


def check_template(path: Path) -> None:
    """Raises `HoldCode` E_TEMPLATE_INVALID, whose message says what differs."""
    _open_template(path)


def make_marks(keys: Sequence[Key]) -> tuple[str, ...]:
    """Return the mark of each batch of a job, `{part_type}_{color}_{thickness}mm`.

    No two are the same, also where case does not count: those that would be get a digest behind.
    """
    marks = [
        f"{_word(part_type)}_{_word(color, _LONGEST_COLOR)}_{_word(thickness)}mm"
        for part_type, color, thickness, _ in keys
    ]
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for place, mark in enumerate(marks):
        alike[mark.lower()].append(place)
    for places in (places for places in alike.values() if len(places) > 1):
        digests = [sha256(json.dumps(keys[place]).encode()).hexdigest() for place in places]
        length = 8
        while len({digest[:length] for digest in digests}) < len(places) and length < 64:
            length += 8
        for place, digest in zip(places, digests, strict=True):
            marks[place] += f"_{digest[:length]}"
    return tuple(marks)


def import_name(job_id: str, mark: str, revision: int | None = None) -> str:
    """Return the name of a batch's import file."""
    return f"{job_id}_{mark}{'' if revision is None else f'_r{revision:02}'}.xlsx"


def write_import(
    template: Path, rows: Iterable[Sequence[Cell]], target: Path, *, note: str = "",
    recorded: str = "",
) -> Written:  # fmt: skip
    """Write an import file, and return its SHA-256 and time; rows have the 12 values of `TAGS`.

    The same rows make the same bytes. A file that is there with these, or with the SHA-256 that
    was `recorded`, stays as it is. `note` is the description in the properties of the workbook.
    Raises `HoldCode` as `check_template`, and `OSError`.
    """
    digest = ""
    with suppress(FileNotFoundError):
        digest = sha256_of(target)
    if not digest or digest != recorded:
        workbook, sheet = _open_template(template)
        replace_rows(sheet, rows, first=FIRST_DATA_ROW, columns=len(TAGS))
        workbook.properties.description = note or None
        data = save_workbook(workbook)
        if digest != sha256(data).hexdigest():
            digest = write_atomically(target, data)
    return Written(digest, os.stat(target).st_mtime_ns)


def _open_template(path: Path) -> tuple[Workbook, Worksheet]:
    """Return the template and its sheet; raises as `check_template`."""
    try:
        with open_file(path) as file:
            data = file.read(50_000_000)
        workbook = open_workbook(data)
    except FileNotFoundError:
        raise _invalid(path, "there is no such file; put the template there") from None
    except (OSError, UnreadableWorkbook) as error:
        raise _invalid(path, f"it cannot be read: {error}") from error
    sheet = next((each for each in workbook.worksheets if each.title == SHEET), None)
    if sheet is None:
        names = ", ".join(repr(name) for name in workbook.sheetnames[:10])
        raise _invalid(path, f"it has no sheet {SHEET!r}, but {names}")
    tags = ["" if cell.value is None else str(cell.value).strip() for cell in sheet[1]]
    while tags and not tags[-1]:
        tags.pop()
    wrong = [
        f"{get_column_letter(column)}1 is {found!r} instead of {tag!r}"
        for column, (found, tag) in enumerate(zip(tags, TAGS, strict=False), 1)
        if found != tag
    ]
    if len(tags) != len(TAGS):
        wrong.append(f"row 1 has {len(tags)} tags instead of {len(TAGS)}")
    if wrong:
        raise _invalid(path, "; ".join(wrong))
    return workbook, sheet


def _invalid(path: Path, why: str) -> HoldCode:
    return HoldCode("E_TEMPLATE_INVALID", f"the template {path}: {why}")


def _word(text: str, longest: int = _LONGEST_WORD) -> str:
    return _UNSAFE.sub("_", text)[:longest]
