"""The program of mode E: packs the parts of import files onto sheets, greedily.

    python greedy.py --export FOLDER --settings JSON FILE.xlsx ...

Each file gets one plan in the folder: its own name, ending in `.xml`. A sheet is cut by full cuts
in three stages: strips, columns of a strip, cells of a column; a part that is narrower than its
column is trimmed at last. Lengths are whole numbers of 0.01 mm. The same files and settings give
the same bytes. Nothing of ulak is imported here: that would take longer than the packing.

The exit code is 0; 2 when parts are larger than a sheet; 3 when a file or the settings cannot be
used. In the last two cases no plan is left, and stderr says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as Xml
from zipfile import BadZipFile

OVERSIZE, UNUSABLE = 2, 3
MOST_PIECES: Final = 100_000
"""Of one file; its plan has 15 MB then."""
_LOOKS: Final = 1_000_000
"""Parts times pieces up to which every way is tried; beyond it one, for the sake of time."""
_MEMORY: Final = 2 << 30
_SHEET: Final = "ŞABLON"
_DESCRIPTION: Final = re.compile(r"(?:GOVDE|ARKALIK)_(.*)_TRIM_(\d+\.\d\d)", re.DOTALL)


class Refused(Exception):
    """There can be no plan; `code` is the exit code."""

    def __init__(self, message: str, code: int = UNUSABLE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Part:
    """Equal pieces, with the extents that are cut: the finished ones without the bands."""

    id: str
    description: str
    length: int
    width: int
    quantity: int
    grain: int


@dataclass(frozen=True, slots=True)
class Plate:
    """The sheets of one file, and how they are cut."""

    width: int
    height: int
    corner: tuple[int, int]
    """Where the usable area begins: the trims at the left and at the bottom."""
    usable: tuple[int, int]
    kerf: int
    grain_1_is_upright: bool
    """A part of grain 1 has its length along the height; one of grain 2 then along the width."""
    offcut: tuple[int, int]
    """The longer and the shorter side of the smallest offcut that is worth keeping."""


class Shape(NamedTuple):
    """A piece in one orientation: its extents along a strip and across it."""

    along: int
    across: int
    is_upright: bool
    """Its length lies along the height of the sheet."""


@dataclass(slots=True)
class Room:
    """What is divided in one direction: a sheet into strips, a strip into columns, a column into
    cells. A cell holds one piece."""

    start: int
    length: int
    breadth: int
    used: int = 0
    rooms: list[Room] = field(default_factory=list)
    piece: tuple[Part, Shape] | None = None

    def has_room(self, length: int, breadth: int, kerf: int) -> bool:
        return breadth <= self.breadth and self._next(kerf) + length <= self.length

    def divide(self, extent: int, length: int, kerf: int) -> Room:
        """Take the next part of it, which is divided crosswise."""
        made = Room(self._next(kerf), length, extent)
        self.used = made.start + extent
        self.rooms.append(made)
        return made

    def rests(self, kerf: int) -> Iterator[tuple[int, int]]:
        """Yield what cuts behind the last part leave, here and inside: longer and shorter side."""
        rest = self.length - self.used - kerf
        yield max(rest, self.breadth), min(rest, self.breadth)
        for room in self.rooms:
            yield from room.rests(kerf)

    def _next(self, kerf: int) -> int:
        return self.used + kerf if self.used else 0


class Piece(NamedTuple):
    """A part on a sheet, from the lower left corner of the plate."""

    part: Part
    is_upright: bool
    where: tuple[int, int, int, int]
    """x, y, width, height."""
    cuts: int
    """How many cuts of the third stage make it, trimming included."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to cut all pieces."""

    plate: Plate
    is_upright: bool
    """The strips run along the height of the sheet."""
    sheets: list[Room]

    def pieces(self, sheet: Room) -> Iterator[Piece]:
        """Yield the pieces of a sheet."""
        left, bottom = self.plate.corner
        for strip in sheet.rooms:
            for column in strip.rooms:
                for cell in column.rooms:
                    x, y, width, height = column.start, strip.start, cell.used, cell.breadth
                    y += cell.start
                    cuts = (cell.start + height < column.length) + (width < cell.length)
                    if self.is_upright:
                        x, y, width, height = y, x, height, width
                    if cell.piece is not None:
                        part, shape = cell.piece
                        where = left + x, bottom + y, width, height
                        yield Piece(part, shape.is_upright, where, cuts)

    def pattern(self, sheet: Room) -> tuple[Any, ...]:
        """Return what sheets that are cut the same way have in common."""
        return tuple(piece.where for piece in self.pieces(sheet))

    def offcuts(self, *sheets: Room) -> list[tuple[int, int]]:
        """Return the longer and the shorter side of each offcut that is worth keeping."""
        long, short = self.plate.offcut
        rests = (rest for sheet in sheets for rest in sheet.rests(self.plate.kerf))
        return [rest for rest in rests if rest[0] >= long and rest[1] >= short]


def pack(parts: Sequence[Part], plate: Plate) -> Layout:
    """Return the best of eight layouts: fewest sheets, then the largest offcut of the last sheet,
    then the fewest patterns. Raises `Refused`, which names parts that no sheet holds."""
    pieces = sum(part.quantity for part in parts)
    if not 0 < pieces <= MOST_PIECES:
        raise Refused(f"there are {pieces} pieces to cut; a file may have 1 to {MOST_PIECES}")
    if too_large := [part.id for part in parts if not _find_shapes(part, plate, True)]:
        raise Refused(f"larger than a sheet: {', '.join(too_large)}", OVERSIZE)
    ways = [*product((True, False), repeat=3)] if len(parts) * pieces <= _LOOKS else [(True,) * 3]
    return min((_pack_one_way(parts, plate, *way) for way in ways), key=_rank)


def _rank(layout: Layout) -> tuple[int, int, int]:
    offcuts = layout.offcuts(layout.sheets[-1])
    largest = max((long * short for long, short in offcuts), default=0)
    return len(layout.sheets), -largest, len({*map(layout.pattern, layout.sheets)})


def _find_shapes(part: Part, plate: Plate, is_upright: bool) -> list[Shape]:
    """Return the orientations of a part that fit an empty sheet, for strips that run upright."""
    is_free, found = part.grain not in (1, 2), []
    for length_is_upright in (True, False):
        x, y = part.width, part.length
        if not length_is_upright:
            x, y = y, x
        # Along the height lies the length of grain 1, or else that of grain 2.
        may = is_free or length_is_upright == ((part.grain == 1) == plate.grain_1_is_upright)
        if may and x <= plate.usable[0] and y <= plate.usable[1]:
            found.append(Shape(*((y, x) if is_upright else (x, y)), length_is_upright))
    return found


def _pack_one_way(
    parts: Sequence[Part], plate: Plate, is_upright: bool, high_strips: bool, by_area: bool
) -> Layout:
    """Pack by first fit, the large parts first: each piece into the first column that has room,
    else into a new column of the first strip, else a new strip of the first sheet."""
    shaped: list[tuple[Part, list[Shape]]] = []
    for part in parts:
        shapes = _find_shapes(part, plate, is_upright)
        shapes.sort(key=lambda shape: shape.across, reverse=high_strips)
        shaped.append((part, shapes))

    def size(entry: tuple[Part, list[Shape]]) -> tuple[int, int]:
        first = entry[1][0]
        return (first.along * first.across if by_area else first.across, first.along)

    kerf, (along, across) = plate.kerf, plate.usable[:: -1 if is_upright else 1]
    sheets: list[Room] = []
    strips: list[Room] = []
    columns: list[Room] = []
    for part, shapes in sorted(shaped, key=size, reverse=True):
        # Where one piece has found no room, its equals need not look again.
        sheet = strip = column = 0
        for _ in range(part.quantity):
            column, shape = _find_room(columns, column, shapes, kerf)
            if shape is None:
                strip, shape = _find_room(strips, strip, shapes, kerf, are_strips=True)
                if shape is None:
                    sheet, shape = _find_room(sheets, sheet, shapes, kerf)
                    if shape is None:
                        shape = shapes[0]
                        sheets.append(Room(0, across, along))
                    strips.append(sheets[sheet].divide(shape.across, along, kerf))
                columns.append(strips[strip].divide(shape.along, strips[strip].breadth, kerf))
            cell = columns[column].divide(shape.across, columns[column].breadth, kerf)
            cell.used, cell.piece = shape.along, (part, shape)
    return Layout(plate, is_upright, sheets)


def _find_room(
    rooms: Sequence[Room], first: int, shapes: Sequence[Shape], kerf: int, are_strips: bool = False
) -> tuple[int, Shape | None]:
    """Return the place of the first room, from `first` on, that a shape fits, and that shape."""
    for place in range(first, len(rooms)):
        for shape in shapes:
            extents = shape.across, shape.along
            if rooms[place].has_room(*(extents[::-1] if are_strips else extents), kerf):
                return place, shape
    return len(rooms), None


def read_parts(path: Path, settings: Mapping[str, Any]) -> tuple[str, list[Part], Plate]:
    """Return what a file is about: its material, its parts, and the sheets that it is cut from.
    Raises `Refused`, which names the row."""
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = load_workbook(path, read_only=True, data_only=True)
        rows = [*book[_SHEET].iter_rows(min_row=3, max_col=12, values_only=True)]
        book.close()
    except (OSError, KeyError, ValueError, BadZipFile, InvalidFileException) as error:
        raise Refused(f"it is no workbook with a sheet {_SHEET}: {error}") from error
    material, trim, parts = "", Decimal(), []
    for number, row in enumerate(rows, start=3):
        if any(cell is not None for cell in row):
            try:
                part, trim = _read_row([*row, *[None] * (12 - len(row))], settings)
            except (TypeError, ValueError, InvalidOperation) as error:
                raise Refused(f"row {number}: {error}: {row}") from error
            material = str(row[0])
            parts.append(part)
    left, right, bottom, top = (
        trim if side in settings["trimmed_sides"] else Decimal()
        for side in ("left", "right", "bottom", "top")
    )
    width, height = map(Decimal, settings["plate_mm"])
    long, short = map(Decimal, settings["offcut_mm"])
    return material, parts, Plate(
        _units(width), _units(height), (_units(left), _units(bottom)),
        (_units(width - left - right), _units(height - bottom - top)),
        _units(Decimal(settings["kerf_mm"])), (settings["grain_axis"] == "long") == (height >= width),
        (_units(long), _units(short)),
    )  # fmt: skip


def _read_row(row: Sequence[Any], settings: Mapping[str, Any]) -> tuple[Part, Decimal]:
    """Return the part of a row, and the trim of the sheets that it is cut from."""
    named = _DESCRIPTION.fullmatch(str(row[5]))
    if named is None:
        raise ValueError("P_IDESC is not of the form GOVDE_id_TRIM_10.00")
    length, width = Decimal(str(row[1])), Decimal(str(row[2]))
    if settings["deduct_bands"]:
        # The upper and the lower band run along the length, and so make the width.
        milling, bands = Decimal(settings["milling_mm"]), row[6:10]
        deducted = [Decimal(str(band)) - milling if band else Decimal() for band in bands]
        length, width = length - sum(deducted[2:]), width - sum(deducted[:2])
    part = Part(
        named[1], str(row[5]), _units(length), _units(width), int(row[3]), int(row[4])
    )  # fmt: skip
    if min(part.length, part.width, part.quantity) <= 0:
        raise ValueError("nothing is left to cut")
    return part, Decimal(named[2])


def _units(millimetres: Decimal) -> int:
    return int((millimetres * 100).to_integral_value(ROUND_HALF_UP))


def make_plan(layout: Layout, material: str) -> bytes:
    """Return the plan as XML; docs/services/cutting.md describes it."""
    plate, sheets = layout.plate, layout.sheets
    offcuts = layout.offcuts(*sheets)
    patterns: dict[tuple[Any, ...], int] = {}
    root = Xml.Element("Plan", version="1", material=material)
    solution = Xml.SubElement(root, "Solution", name="E", algo="greedy", best="1")
    third_cuts = 0
    for number, sheet in enumerate(sheets, start=1):
        pattern = patterns.setdefault(layout.pattern(sheet), len(patterns) + 1)
        element = Xml.SubElement(
            root, "Sheet", number=str(number), pattern=str(pattern), width=_mm(plate.width),
            height=_mm(plate.height),
        )  # fmt: skip
        for part, is_upright, (x, y, width, height), cuts in layout.pieces(sheet):
            third_cuts += cuts
            Xml.SubElement(
                element, "Part", id=part.id, description=part.description, x=_mm(x), y=_mm(y),
                width=_mm(width), height=_mm(height),
                length_along="height" if is_upright else "width",
            )  # fmt: skip
    solution.attrib.update(
        mqBoards=_m2(len(sheets) * plate.width * plate.height), boards=str(len(sheets)),
        patterns=str(len(patterns)), cycles=str(len(sheets)), zcuts=str(third_cuts),
        # Neither is estimated; what packing took would make two plans of one order different.
        jobTime="0", jobCost="0",
        mqDrops=_m2(sum(long * short for long, short in offcuts)), diffDrops=str(len({*offcuts})),
    )  # fmt: skip
    Xml.indent(root)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def _mm(units: int) -> str:
    return f"{units // 100}.{units % 100:02}"


def _m2(square_units: int) -> str:
    return f"{Decimal(square_units).scaleb(-10).normalize():f}"


def write_plan(path: Path, plan: bytes) -> None:
    """Write a plan so that nobody sees half of it under its name."""
    # Not by ulak.kit.files, which would have ulak imported.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(plan)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the files that are named, and return the exit code."""
    parser = argparse.ArgumentParser(prog="greedy", description="Pack parts onto sheets.")
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    plans: dict[Path, bytes] = {}
    faults: list[tuple[int, str]] = []
    for path in options.files:
        try:
            material, parts, plate = read_parts(path, options.settings)
            layout = pack(parts, plate)
        except Refused as error:
            faults.append((error.code, f"{path.name}: {error}"))
        else:
            plans[options.export / f"{path.stem}.xml"] = make_plan(layout, material)
            print(f"{path.name}: {len(layout.sheets)} sheets")  # noqa: T201 - a program prints
    try:
        for path, plan in plans.items() if not faults else ():
            write_plan(path, plan)
    except OSError as error:
        faults.append((UNUSABLE, f"a plan cannot be written: {error}"))
    for _, fault in faults:
        print(fault, file=sys.stderr)  # noqa: T201 - a program prints
    return max((code for code, _ in faults), default=0)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.exit(main())
