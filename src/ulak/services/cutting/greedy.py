"""The program of mode E: packs the parts of import files onto sheets, greedily.

    python greedy.py --export FOLDER --settings JSON FILE.xlsx ...

Each file gets one plan in the folder: its own name, ending in `.xml`. A sheet is cut by full cuts
in three stages: strips, columns of a strip, pieces of a column; a piece that is narrower than its
column is trimmed at last. Lengths are whole numbers of 0.01 mm. The same files and settings give
the same bytes. Nothing of ulak is imported here: that would take longer than the packing.

The exit code is 0; 2 when parts are larger than a sheet; 3 when a file cannot be used. Then nothing
is written, and stderr says why; it is 3 too when a plan cannot be written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as Xml
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

OVERSIZE, UNUSABLE = 2, 3
MOST_PIECES: Final = 100_000
"""Of one file; its plan has 15 MB then."""
_OPEN: Final = 500
"""Of so many strips, columns and sheets, the last ones, a part may still use the room: 30,000
parts that are all different take 20 s, a guess."""
_LOOKS: Final = 100_000
"""Looks at columns up to which every way is tried; beyond it one, for the sake of time."""
_MEMORY: Final = 2 << 30
_SHEET: Final = "ŞABLON"
_DESCRIPTION: Final = re.compile(r"(?:GOVDE|ARKALIK)_(.*)_TRIM_(\d+\.\d\d)", re.DOTALL)

Pair = tuple[int, int]  # along x, along y


class Refused(Exception):
    """There can be no plan."""


class Oversize(Refused):
    """No sheet holds these parts."""


class Pose(NamedTuple):
    """An orientation that a part may have, with its extents as they are cut."""

    extents: Pair
    is_upright: bool
    """The length of the part lies along the height of the sheet."""


class Part(NamedTuple):
    """Equal pieces, and the poses in which an empty sheet holds one."""

    id: str
    description: str
    quantity: int
    poses: Sequence[Pose]


Piece = tuple[Part, Pose, Pair]
"""A part on a sheet, and its place from the lower left corner of what is usable of it."""


class Plate(NamedTuple):
    """The sheets of one file."""

    size: Pair
    corner: Pair
    """The trims at the left and at the bottom."""
    usable: Pair
    kerf: int


@dataclass(slots=True)
class Room:
    """What is filled along one axis (0 is x, 1 is y): a sheet by strips, a strip by columns, a
    column by pieces. All extents are greater by the kerf: it is lost behind each piece, but for the
    last one, which has the kerf behind the edge of the sheet."""

    sheet: int
    axis: int
    corner: Pair
    size: Pair
    used: int = 0

    def cut(self, extents: Pair) -> Room:
        """Return the next part of it, which is filled along the other axis."""
        (x, y), (width, height), used = self.corner, self.size, self.used
        self.used += extents[self.axis]
        if self.axis == 0:
            return Room(self.sheet, 1, (x + used, y), (extents[0], height))
        return Room(self.sheet, 0, (x, y + used), (width, extents[1]))


def pack(parts: Sequence[Part], usable: Pair, kerf: int) -> list[list[Piece]]:
    """Return the pieces of each sheet, in the best of eight ways: fewest sheets, then the largest
    rest of the last one. Raises `Refused`, which names parts that no sheet holds."""
    pieces = sum(part.quantity for part in parts)
    if not 0 < pieces <= MOST_PIECES:
        raise Refused(f"there are {pieces} pieces to cut; a file may have 1 to {MOST_PIECES}")
    if too_large := [part.id for part in parts if not part.poses]:
        raise Oversize(f"larger than a sheet: {', '.join(too_large)}")
    ways = list(product((1, 0), (True, False), (True, False)))
    if len(parts) * min(pieces, _OPEN) > _LOOKS:
        del ways[1:]
    made = (_pack_one_way(parts, usable, kerf, *way) for way in ways)
    return min(made, key=lambda layout: (len(layout[1]), -layout[0]))[1]


def _pack_one_way(
    parts: Sequence[Part], usable: Pair, kerf: int,
    along: int, high_strips: bool, by_area: bool,
) -> tuple[int, list[list[Piece]]]:  # fmt: skip
    """Pack by first fit, the large parts first: each piece into the first column that has room,
    else into a new column of the first strip, else a new strip of the first sheet. Strips run
    along an axis. Return the area that the last sheet has left, and the pieces of each sheet."""
    across, full = 1 - along, (usable[0] + kerf, usable[1] + kerf)
    sized = []
    for part in parts:
        poses = [Pose((x + kerf, y + kerf), is_upright) for (x, y), is_upright in part.poses]
        poses.sort(key=lambda pose: pose.extents[across], reverse=high_strips)
        first = poses[0].extents
        size = first[0] * first[1] if by_area else first[across], first[along]
        sized.append((size, part, poses))
    columns, strips, sheets = list[Room](), list[Room](), list[Room]()
    levels = columns, strips, sheets
    pieces: list[list[Piece]] = []
    for _, part, poses in sorted(sized, key=lambda entry: entry[0], reverse=True):
        # Where one piece has found no room, its equals need not look again.
        places = [0, 0, 0]
        for _ in range(part.quantity):
            for level, rooms in enumerate(levels):
                places[level], pose = _find_room(rooms, places[level], poses)
                if pose is not None:
                    break
            else:
                pose = poses[0]
                sheets.append(Room(len(sheets), across, (0, 0), full))
                pieces.append([])
            room = rooms[places[level]]
            for deeper in reversed(levels[:level]):
                room = room.cut(pose.extents)
                deeper.append(room)
            width, height = pose.extents
            placed = Pose((width - kerf, height - kerf), pose.is_upright)
            pieces[room.sheet].append((part, placed, room.cut(pose.extents).corner))
    last = sheets[-1]
    return (last.size[across] - last.used) * last.size[along], pieces


def _find_room(rooms: Sequence[Room], first: int, poses: Sequence[Pose]) -> tuple[int, Pose | None]:
    """Return the place of the first room, from `first` on, that has room, and the pose for it."""
    for place in range(max(first, len(rooms) - _OPEN), len(rooms)):
        room = rooms[place]
        axis, size = room.axis, room.size
        rest, breadth = size[axis] - room.used, size[1 - axis]
        for pose in poses:
            if pose.extents[axis] <= rest and pose.extents[1 - axis] <= breadth:
                return place, pose
    return len(rooms), None


def read_file(path: Path, settings: Mapping[str, Any]) -> tuple[str, list[Part], Plate]:
    """Return what a file is about: its material, its parts, and the sheets that it is cut from.
    Raises `Refused`, which names the row."""
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        rows = [*book[_SHEET].iter_rows(min_row=3, max_col=12, values_only=True)]
        book.close()
    except (OSError, KeyError, ValueError, BadZipFile, InvalidFileException) as error:
        raise Refused(f"it is no workbook with a sheet {_SHEET}: {error}") from error
    found = []
    for number, row in enumerate(rows, start=3):
        if any(cell is not None for cell in row):
            try:
                found.append(_read_row(row, settings))
            except (TypeError, ValueError, ArithmeticError) as error:
                raise Refused(f"row {number}: {error}: {row}") from error
    if not found:
        raise Refused("there are no parts in it")
    return str(rows[0][0]), [part for part, _ in found], found[0][1]


def _read_row(row: Sequence[Any], settings: Mapping[str, Any]) -> tuple[Part, Plate]:
    """Return the part of a row, and the sheets that it is cut from: the trim of its description
    is theirs."""
    named = _DESCRIPTION.fullmatch(str(row[5]))
    if named is None:
        raise ValueError("P_IDESC is not of the form GOVDE_id_TRIM_10.00")
    trim, sides = _units(Decimal(named[2])), settings["trimmed_sides"]
    left, right, bottom, top = (trim * (s in sides) for s in ("left", "right", "bottom", "top"))
    width, height = (_units(Decimal(side)) for side in settings["plate_mm"])
    usable = width - left - right, height - bottom - top
    plate = Plate((width, height), (left, bottom), usable, _units(Decimal(settings["kerf_mm"])))
    length, across = Decimal(str(row[1])), Decimal(str(row[2]))
    if settings["deduct_bands"]:
        # The upper and the lower band run along the length, and so make the width.
        milling = Decimal(settings["milling_mm"])
        bands = [Decimal(str(band)) - milling if band else 0 for band in row[6:10]]
        length, across = length - sum(bands[2:]), across - sum(bands[:2])
    x, y, quantity, grain = _units(length), _units(across), int(row[3]), int(row[4])
    if min(x, y, quantity) <= 0:
        raise ValueError("nothing is left to cut")
    poses = [Pose((y, x), True), Pose((x, y), False)]
    if grain in (1, 2):
        # The length of grain 1 is parallel to the axis that the rules name, of 2 to the other one.
        is_along_long = (grain == 1) == (settings["grain_axis"] == "long")
        poses = poses[:1] if is_along_long == (height >= width) else poses[1:]
    fitting = [p for p in poses if p.extents[0] <= usable[0] and p.extents[1] <= usable[1]]
    return Part(named[1], named[0], quantity, fitting), plate


def _units(millimetres: Decimal) -> int:
    return int((millimetres * 100).to_integral_value(ROUND_HALF_UP))


def make_plan(sheets: Sequence[Sequence[Piece]], plate: Plate, material: str) -> bytes:
    """Return the plan as XML; docs/services/cutting.md describes it."""
    root = Xml.Element("Plan", version="1", material=material)
    solution = Xml.SubElement(root, "Solution", name="E", algo="greedy", best="1")
    patterns: dict[tuple[tuple[Pair, Pair], ...], int] = {}
    (width, height), (left, bottom) = plate.size, plate.corner
    drops = boards = len(sheets) * width * height
    for number, sheet in enumerate(sheets, start=1):
        cut = tuple(sorted((pose.extents, place) for _, pose, place in sheet))
        drops -= sum(x * y for (x, y), _ in cut)
        pattern = str(patterns.setdefault(cut, len(patterns) + 1))
        facts = {"number": str(number), "pattern": pattern}
        element = Xml.SubElement(root, "Sheet", facts, width=_mm(width), height=_mm(height))
        for part, pose, (x, y) in sheet:
            Xml.SubElement(
                element, "Part", id=part.id, description=part.description, x=_mm(left + x),
                y=_mm(bottom + y), width=_mm(pose.extents[0]), height=_mm(pose.extents[1]),
                length_along="height" if pose.is_upright else "width",
            )  # fmt: skip
    solution.attrib.update(
        boards=str(len(sheets)), mqBoards=_m2(boards), mqDrops=_m2(drops),
        patterns=str(len(patterns)), cycles=str(len(sheets)),
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack the files that are named, and return the exit code."""
    parser = argparse.ArgumentParser(prog="greedy", description="Pack parts onto sheets.")
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    plans: dict[Path, bytes] = {}
    try:
        for path in options.files:
            material, parts, plate = read_file(path, options.settings)
            sheets = pack(parts, plate.usable, plate.kerf)
            plans[options.export / f"{path.stem}.xml"] = make_plan(sheets, plate, material)
            print(f"{path.name}: {len(sheets)} sheets")  # noqa: T201 - a program prints
        for path, plan in plans.items():
            write_plan(path, plan)
    except (Refused, OSError) as error:
        print(f"{path.name}: {error}", file=sys.stderr)  # noqa: T201 - a program prints
        return OVERSIZE if isinstance(error, Oversize) else UNUSABLE
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.exit(main())
