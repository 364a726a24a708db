"""Ruin and recreate towards one sheet less, on the tables of `kernel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ulak.services.cutting.optimise import kernel
from ulak.services.cutting.optimise.layout import Layout, Placed, Problem, Strip
from ulak.services.cutting.optimise.model import Plate, Pose

ROUNDS: Final = 2_000
"""Of one call of the kernel: it can be stopped between two."""
HOT: Final = 0.02
COLD: Final = 0.0005
"""The temperature at the start and at the end, in plates."""
MOST_RUINED: Final = 10
WEIGHT: Final = 0.1
BLINKS: Final = 20


class Search:
    """Pieces on a number of plates, the first cuts along one axis; some may find no place."""

    def __init__(
        self, problem: Problem, counts: Sequence[int], plates: Sequence[Plate], axis: int, seed: int
    ) -> None:
        self._problem, self.axis = problem, axis
        self._parts = [part for part in problem.parts for _ in range(counts[part.number])]
        number, kerf = len(self._parts), problem.kerf
        self._widths = np.zeros((number, 2), np.int64)
        self._heights = np.zeros((number, 2), np.int64)
        self._poses = np.array([len(part.poses) for part in self._parts], np.int64)
        for row, part in enumerate(self._parts):
            for n, pose in enumerate(part.poses):
                self._widths[row, n] = pose.extents[1 - axis] + kerf
                self._heights[row, n] = pose.extents[axis] + kerf
        self._areas = self._widths[:, 0] * self._heights[:, 0]
        self._random = np.array([(seed * 2_654_435_761) % 0xFFFFFFFF or 1], np.int64)
        self._rules = kernel.TWO_STAGES * problem.is_two_stage + kernel.EXACT * (
            not problem.trimming
        )
        self._pieces = np.full((number, 3), kernel.NONE, np.int64)
        self._columns = np.full((number, 5), kernel.FREE, np.int64)
        self._strips = np.full((number, 5), kernel.FREE, np.int64)
        self.plates: list[Plate] = []
        self._full = self._sheets = np.zeros((0, 2), np.int64)
        self._set_plates(plates)

    @property
    def is_complete(self) -> bool:
        """Whether every piece has a place."""
        return bool((self._pieces[:, kernel.COLUMN] != kernel.NONE).all())

    def fill(self) -> None:
        """Give a place to every piece that has none, the largest first."""
        for piece in np.argsort(-self._areas, kind="stable"):
            if self._pieces[piece, kernel.COLUMN] == kernel.NONE:
                kernel.insert(
                    piece, *self._tables, self._widths, self._heights, self._poses, self._full,
                    self._rules, self._random, 0, 100, 100,
                )  # fmt: skip

    def anneal(self, temperature: float, rounds: int = ROUNDS) -> int:
        """Ruin and recreate for some rounds, or until it is complete; return the rounds."""
        done: int = kernel.anneal(
            *self._tables, self._widths, self._heights, self._poses, self._areas, self._full,
            self._rules, self._random, rounds, temperature, MOST_RUINED, WEIGHT, BLINKS,
        )  # fmt: skip
        return done

    def take_away(self, sheet: int) -> None:
        """Take a plate away, with what lies on it."""
        self._clear(sheet)
        self._strips[:, kernel.OUTER][self._strips[:, kernel.OUTER] > sheet] -= 1
        used = np.delete(self._sheets, sheet, axis=0)
        self._set_plates([*self.plates[:sheet], *self.plates[sheet + 1 :]])
        self._sheets = used

    def add(self, plate: Plate) -> None:
        """Add an empty plate."""
        before = self._sheets
        self._set_plates([*self.plates, plate])
        self._sheets[: len(before)] = before

    def narrow(self, sheet: int, height: int) -> None:
        """Let a sheet be used only so far along the axis of its strips; what lies behind is taken
        off."""
        if self._sheets[sheet, kernel.USED] > height:
            self._clear(sheet)
        self._full[sheet, 1] = height

    def used(self, sheet: int) -> int:
        """Return how far a sheet is used along the axis of its strips."""
        return int(self._sheets[sheet, kernel.USED])

    def find_emptiest(self) -> int:
        """Return the sheet on which the least area lies."""
        areas = np.zeros(len(self.plates), np.int64)
        for piece, row in enumerate(self._pieces):
            if row[kernel.COLUMN] != kernel.NONE:
                strip = self._columns[row[kernel.COLUMN], kernel.OUTER]
                areas[self._strips[strip, kernel.OUTER]] += self._areas[piece]
        return int(areas.argmin())

    def save(self) -> tuple[np.ndarray, ...]:
        """Return everything that `restore` needs."""
        return tuple(table.copy() for table in (*self._tables, self._full))

    def restore(self, saved: tuple[np.ndarray, ...]) -> None:
        """Go back to what was saved, with the same plates."""
        self._pieces, self._columns, self._strips, self._sheets, self._full = (
            table.copy() for table in saved
        )

    def read_layouts(self) -> list[Layout]:
        """Return what lies on each plate."""
        layouts = []
        for sheet, plate in enumerate(self.plates):
            strips: list[Strip] = []
            for strip in self._chain(self._sheets[sheet, kernel.FIRST_STRIP], self._strips):
                columns = self._chain(self._strips[strip, kernel.FIRST], self._columns)
                strips.append([self._read_column(column) for column in columns])
            layouts.append(Layout(plate, self.axis, strips))
        return layouts

    def place(self, layouts: Sequence[Layout]) -> None:
        """Begin with layouts of the same axis, one for each of the first plates."""
        rows: dict[int, list[int]] = {}
        for row, part in enumerate(self._parts):
            rows.setdefault(part.number, []).append(row)
        for sheet, layout in enumerate(layouts):
            for columns in layout.strips:
                strip = kernel.begin(self._strips, self._sheets, sheet, kernel.FIRST_STRIP)
                for pieces in columns:
                    column = kernel.begin(self._columns, self._strips, strip, kernel.FIRST)
                    for placed in pieces:
                        self._put(rows[placed.part].pop(), placed, column)

    def _put(self, row: int, placed: Placed, column: int) -> None:
        pose = self._parts[row].poses.index(placed.pose)
        size = self._widths[row, pose], self._heights[row, pose]
        kernel.put(row, pose, column, *self._tables, *size)

    def _read_column(self, column: int) -> list[Placed]:
        found = []
        piece = self._columns[column, kernel.FIRST]
        while piece != kernel.NONE:
            part, pose = self._parts[piece], int(self._pieces[piece, kernel.POSE])
            chosen: Pose = part.poses[pose]
            found.append(Placed(part.number, chosen))
            piece = self._pieces[piece, kernel.BESIDE]
        return found

    @staticmethod
    def _chain(first: int, table: np.ndarray) -> list[int]:
        found = []
        while first != kernel.NONE:
            found.append(int(first))
            first = table[first, kernel.NEXT]
        return found

    @property
    def _tables(self) -> tuple[np.ndarray, ...]:
        return self._pieces, self._columns, self._strips, self._sheets

    def _clear(self, sheet: int) -> None:
        for piece, row in enumerate(self._pieces):
            if row[kernel.COLUMN] != kernel.NONE:
                strip = self._columns[row[kernel.COLUMN], kernel.OUTER]
                if self._strips[strip, kernel.OUTER] == sheet:
                    kernel.remove(piece, *self._tables, self._widths, self._heights)

    def _set_plates(self, plates: Sequence[Plate]) -> None:
        axis, kerf = self.axis, self._problem.kerf
        self.plates = list(plates)
        self._full = np.array(
            [[p.usable[1 - axis] + kerf, p.usable[axis] + kerf] for p in plates], np.int64
        ).reshape(-1, 2)
        self._sheets = np.zeros((len(plates), 2), np.int64)
        self._sheets[:, kernel.FIRST_STRIP] = kernel.NONE
