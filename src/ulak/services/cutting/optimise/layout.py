"""Layouts: sheets of strips, strips of columns, columns of parts; and the cut trees they come to.

The search works on extents that are larger by the kerf, on plates that are too: then a kerf is lost
behind each part and none before it, and the last one has its kerf behind the edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Final, NamedTuple

from ulak.services.cutting.optimise.model import (
    Order,
    OrderPart,
    Oversize,
    Pair,
    Part,
    Piece,
    Plate,
    Pose,
    Sheet,
    Stock,
    Unsolvable,
    X,
    Y,
    count_stacked,
    find_cut_size,
    is_reusable,
    to_units,
)

MOST_PIECES: Final = 100_000
"""Of one order; its plan has 15 MB then."""
_GROWN: Final = 200_000
"""Sizes that are looked at for a bound."""


class Placed(NamedTuple):
    """A part in a column."""

    part: int
    pose: Pose


Column = list[Placed]
Strip = list[Column]


class Layout(NamedTuple):
    """How one plate is filled: its strips lie one behind the other along `axis`."""

    plate: Plate
    axis: int
    strips: list[Strip]

    @property
    def parts(self) -> Iterable[Placed]:
        return (placed for strip in self.strips for column in strip for placed in column)

    @property
    def area(self) -> int:
        """What the parts take."""
        return sum(p.pose.extents[X] * p.pose.extents[Y] for p in self.parts)


@dataclass(frozen=True, slots=True)
class Problem:
    """An order as the search sees it: cut sizes, and plates without their trim."""

    parts: tuple[Part, ...]
    plates: tuple[Plate, ...]
    kerf: int
    is_two_stage: bool
    trimming: bool
    axes: tuple[int, ...]
    """The axes along which the first cuts may divide a plate."""
    offcut: Pair
    stack: int
    """So many identical sheets are cut in one cycle."""

    @property
    def pieces(self) -> int:
        return sum(part.quantity for part in self.parts)


def read_problem(order: Order) -> Problem:
    """Return what there is to search. Raises `Unsolvable`, and `Oversize`: naming the parts that no
    plate holds."""
    pieces = sum(part.quantity for part in order.parts)
    if not 0 < pieces <= MOST_PIECES:
        raise Unsolvable(f"there are {pieces} pieces to cut; an order may have 1 to {MOST_PIECES}")
    if order.stages not in (0, 2, 3):
        raise Unsolvable(f"stages must be 2, 3 or 0 for any number, and not {order.stages}")
    if order.first_cut not in ("", "x", "y"):
        raise Unsolvable(f"the first cut must be x, y or free, and not {order.first_cut!r}")
    if not 0 <= order.kerf <= 10:
        raise Unsolvable(f"the kerf must be 0 to 10 mm, and not {order.kerf}")
    plates = tuple(_read_plate(n, stock, order) for n, stock in enumerate(order.stock))
    if not plates:
        raise Unsolvable("there are no plates to cut from")
    parts = tuple(_read_part(n, part, order, plates) for n, part in enumerate(order.parts))
    too_large = [order.parts[part.number].id for part in parts if not part.poses]
    if too_large:
        raise Oversize(f"larger than a sheet: {', '.join(dict.fromkeys(too_large))}")
    axes = {"x": (X,), "y": (Y,), "": (Y, X)}[order.first_cut]
    return Problem(
        parts, plates, to_units(order.kerf), order.stages == 2, order.trimming, axes,
        order.least_rest, count_stacked(order),
    )  # fmt: skip


def _read_plate(number: int, stock: Stock, order: Order) -> Plate:
    trim, sides = to_units(order.trim), order.trimmed_sides
    left, right, bottom, top = (trim * (s in sides) for s in ("left", "right", "bottom", "top"))
    width, height = to_units(stock.width), to_units(stock.height)
    usable = width - left - right, height - bottom - top
    if min(usable) <= 0:
        raise Unsolvable(f"nothing of a plate of {stock.width} x {stock.height} is usable")
    cost = width * height if stock.cost is None else stock.cost
    return Plate(number, (width, height), (left, bottom), usable, stock.quantity, cost)


def _read_part(number: int, part: OrderPart, order: Order, plates: Sequence[Plate]) -> Part:
    length, width = find_cut_size(part, order)
    if min(length, width, part.quantity) <= 0:
        raise Unsolvable(f"{part.id}: nothing is left to cut")
    poses = [Pose((width, length), True), Pose((length, width), False)]
    if part.grain in (1, 2):
        # The length of grain 1 is parallel to the axis that the rules name, of 2 to the other one.
        is_along_long = (part.grain == 1) == (order.grain_axis == "long")
        stands = {is_along_long == (p.size[Y] >= p.size[X]) for p in plates}
        if len(stands) > 1:
            raise Unsolvable("plates of one order must all be high, or all be wide, for grain")
        poses = poses[:1] if stands == {True} else poses[1:]
    elif length == width:
        poses = poses[1:]
    fitting = [pose for pose in poses if any(plate.holds(pose) for plate in plates)]
    return Part(number, part.quantity, tuple(fitting))


def build_sheets(layouts: Iterable[Layout], problem: Problem) -> tuple[Sheet, ...]:
    """Return the cut trees of layouts; the sheet with the largest reusable rest is the last one."""
    sheets = [_build(layout, problem.kerf) for layout in layouts]
    sheets.sort(key=lambda sheet: (find_best_rest(sheet, problem.offcut), sheet.plate))
    return tuple(sheets)


def find_best_rest(sheet: Sheet, least: Pair) -> int:
    """Return the area of the largest rest that is worth keeping; 0: there is none."""
    return max(
        (piece.size[X] * piece.size[Y] for piece in sheet.root.walk()
         if is_reusable(piece, least)), default=0,
    )  # fmt: skip


def _build(layout: Layout, kerf: int) -> Sheet:
    plate, axis = layout.plate, layout.axis
    strips = sorted(layout.strips, key=lambda strip: _strip_size(strip, axis, kerf), reverse=True)
    children: list[Piece] = []
    place = list(plate.corner)
    for strip in strips:
        depth = _strip_size(strip, axis, kerf)
        size = _pair(axis, depth, plate.usable[1 - axis])
        children.append(_build_strip(strip, (place[X], place[Y]), size, axis, kerf))
        place[axis] += depth + kerf
    root = _divided(plate.corner, plate.usable, axis, children, kerf)
    if root.children and root.axis != axis:
        # One strip takes the whole plate: the stage of the first cuts is used all the same.
        root = Piece(plate.corner, plate.usable, axis, (root,))
    return Sheet(plate.number, root)


def _build_strip(strip: Strip, place: Pair, size: Pair, axis: int, kerf: int) -> Piece:
    across, at = 1 - axis, list(place)
    children: list[Piece] = []
    for column in sorted(strip, key=lambda column: _column_size(column, axis, kerf), reverse=True):
        _, breadth = _column_size(column, axis, kerf)
        room = _pair(across, breadth, size[axis])
        children.append(_build_column(column, (at[X], at[Y]), room, axis, kerf))
        at[across] += breadth + kerf
    return _divided(place, size, across, children, kerf)


def _build_column(column: Column, place: Pair, size: Pair, axis: int, kerf: int) -> Piece:
    across, at = 1 - axis, list(place)
    children: list[Piece] = []
    for placed in sorted(column, key=lambda placed: placed.pose.extents[across], reverse=True):
        extents, here = placed.pose.extents, (at[X], at[Y])
        part = Piece(here, extents, part=placed.part, is_upright=placed.pose.is_upright)
        room = _pair(axis, extents[axis], size[across])
        children.append(_divided(here, room, across, [part], kerf))
        at[axis] += extents[axis] + kerf
    return _divided(place, size, axis, children, kerf)


def _divided(place: Pair, size: Pair, axis: int, children: list[Piece], kerf: int) -> Piece:
    """Return a piece with its children, and with the rest behind them; an only child that fills it
    is the piece itself."""
    last = children[-1]
    if last.size == size:
        return last
    begin = last.place[axis] + last.size[axis] + kerf
    left = place[axis] + size[axis] - begin
    if left > 0:
        corner = _pair(axis, begin, place[1 - axis])
        children = [*children, Piece(corner, _pair(axis, left, size[1 - axis]))]
    return Piece(place, size, axis, tuple(children))


def _pair(axis: int, along: int, across: int) -> Pair:
    return (along, across) if axis == X else (across, along)


def _column_size(column: Column, axis: int, kerf: int) -> Pair:
    """Return how far a column reaches along the axis of its sheet, and how broad it is."""
    along = sum(placed.pose.extents[axis] + kerf for placed in column) - kerf
    return along, max(placed.pose.extents[1 - axis] for placed in column)


def _strip_size(strip: Strip, axis: int, kerf: int) -> int:
    return max(_column_size(column, axis, kerf)[0] for column in strip)


def find_bound(problem: Problem) -> int:
    """Return how many sheets every plan needs: by area, and by parts of which no two, or only few,
    fit beside each other (dual feasible functions)."""
    if len(problem.plates) > 1:
        largest = max(_area(plate.usable, problem.kerf) for plate in problem.plates)
        return max(1, -(-_total_area(problem) // largest))
    plate, kerf = problem.plates[0], problem.kerf
    width, height = plate.usable[X] + kerf, plate.usable[Y] + kerf
    poses = [
        (part.quantity, [(p.extents[X] + kerf, p.extents[Y] + kerf) for p in part.poses])
        for part in problem.parts
    ]
    best = -(-_total_area(problem) // (width * height))
    # Fewer are tried where there are many parts: it comes before the first plan.
    most = min(24, max(1, isqrt(_GROWN // len(poses))))
    wide = _sample({w for _, own in poses for w, _ in own if 2 * w <= width}, most)
    high = _sample({h for _, own in poses for _, h in own if 2 * h <= height}, most)
    for least_w in (0, *wide):
        for least_h in (0, *high):
            total = sum(
                n * min(_grow(w, width, least_w) * _grow(h, height, least_h) for w, h in own)
                for n, own in poses
            )
            best = max(best, -(-total // (width * height)))
    return max(1, best)


def _grow(size: int, full: int, least: int) -> int:
    """Return a size that may stand for another one: what leaves less than `least` beside it takes
    everything, what is smaller than `least` nothing."""
    if least and size > full - least:
        return full
    return 0 if size < least else size


def _sample(sizes: set[int], most: int) -> list[int]:
    ordered = sorted(sizes)
    step = max(1, -(-len(ordered) // most))
    return ordered[::step]


def _total_area(problem: Problem) -> int:
    return sum(part.quantity * _area(part.poses[0].extents, problem.kerf) for part in problem.parts)


def _area(size: Pair, kerf: int) -> int:
    return (size[X] + kerf) * (size[Y] + kerf)
