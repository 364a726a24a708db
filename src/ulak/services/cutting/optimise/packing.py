"""The greedy start: pieces go one after the other into the first column that has room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

from ulak.services.cutting.optimise.layout import Layout, Placed, Problem, Strip
from ulak.services.cutting.optimise.model import Pair, Plate

_OPEN: Final = 300
"""Of so many strips, columns and sheets, the last ones, a part may still use the room: 30,000
parts that are all different take 20 s, a guess."""
_LOOKS: Final = 20_000
"""Looks at columns up to which every way is tried; beyond it one, for the sake of time."""


Grown = tuple[Pair, Placed]
"""A part in a pose, and its extents, greater by the kerf."""


class _Room:
    """What is filled along one axis: a sheet by strips, a strip by columns, a column by parts. All
    extents are greater by the kerf."""

    __slots__ = ("axis", "content", "is_exact", "size", "used")

    def __init__(self, axis: int, size: Pair, content: list, *, is_exact: bool) -> None:  # type: ignore[type-arg]
        self.axis, self.size, self.content, self.is_exact = axis, size, content, is_exact
        self.used = 0

    def has_room(self, extents: Pair, *, is_last: bool) -> bool:
        """Tell whether a part fits; where nothing may be trimmed it must be as broad as a column,
        and the last one of a strip that is cut in two stages as high."""
        breadth, own = self.size[1 - self.axis], extents[1 - self.axis]
        if extents[self.axis] > self.size[self.axis] - self.used or own > breadth:
            return False
        return not (is_last and self.is_exact) or own == breadth

    def cut(self, extents: Pair) -> _Room:
        """Return the next part of it, which is filled along the other axis."""
        self.used += extents[self.axis]
        size = (extents[0], self.size[1]) if self.axis == 0 else (self.size[0], extents[1])
        content: list = []  # type: ignore[type-arg]
        self.content.append(content)
        return _Room(1 - self.axis, size, content, is_exact=self.is_exact)


def pack(counts: Sequence[int], problem: Problem, plate: Plate) -> list[Layout]:
    """Return the best of some greedy layouts: fewest sheets, then the largest rest of the last one.
    `counts` has how many pieces of each part there are; each must fit on the plate."""
    ways = list(product(problem.axes, (True, False), (True, False)))
    if len(counts) * min(sum(counts), _OPEN) > _LOOKS:
        del ways[1:]
    made = (_pack_one_way(counts, problem, plate, *way) for way in ways)
    return min(made, key=lambda found: (len(found[1]), -found[0]))[1]


def _pack_one_way(
    counts: Sequence[int], problem: Problem, plate: Plate, axis: int, high_strips: bool,
    by_area: bool,
) -> tuple[int, list[Layout]]:  # fmt: skip
    """Pack by first fit, the large parts first: each piece into the first column that has room,
    else into a new column of the first strip, else a new strip of the first sheet. Return the area
    that the last sheet has left, and the layouts."""
    kerf, across = problem.kerf, 1 - axis
    full = plate.usable[0] + kerf, plate.usable[1] + kerf
    sized: list[tuple[Pair, int, list[Grown]]] = []
    for part in problem.parts:
        if counts[part.number]:
            poses = [
                ((pose.extents[0] + kerf, pose.extents[1] + kerf), Placed(part.number, pose))
                for pose in filter(plate.holds, part.poses)
            ]
            poses.sort(key=lambda grown: grown[0][axis], reverse=high_strips)
            (x, y), _ = poses[0]
            size = (x * y if by_area else (x, y)[axis]), (x, y)[across]
            sized.append((size, counts[part.number], poses))
    columns, strips, sheets = list[_Room](), list[_Room](), list[_Room]()
    # In two stages a column has one part.
    levels = (strips, sheets) if problem.is_two_stage else (columns, strips, sheets)
    for _, count, poses in sorted(sized, key=lambda entry: entry[0], reverse=True):
        # Where one piece has found no room, its equals need not look again.
        places = [0, 0, 0]
        for _ in range(count):
            for level, rooms in enumerate(levels):
                places[level], found = _find_room(rooms, places[level], poses, is_last=level == 0)
                if found is not None:
                    break
            else:
                found = poses[0]
                sheets.append(_Room(axis, full, list[Strip](), is_exact=not problem.order.trimming))
            room, (extents, placed) = rooms[places[level]], found
            for deeper in reversed(levels[:level]):
                room = room.cut(extents)
                deeper.append(room)
            if problem.is_two_stage:
                room = room.cut(extents)
            else:
                room.used += extents[room.axis]
            room.content.append(placed)
    last = sheets[-1]
    layouts = [Layout(plate, axis, room.content) for room in sheets]
    return (last.size[axis] - last.used) * last.size[across], layouts


def _find_room(
    rooms: Sequence[_Room], first: int, poses: Sequence[Grown], *, is_last: bool
) -> tuple[int, Grown | None]:
    """Return the place of the first room, from `first` on, that has room, and the pose for it."""
    for place in range(max(first, len(rooms) - _OPEN), len(rooms)):
        for grown in poses:
            if rooms[place].has_room(grown[0], is_last=is_last):
                return place, grown
    return len(rooms), None
