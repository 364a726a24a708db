"""Layouts: sheets of strips, strips of columns, columns of parts; and the cut trees they come to.

The search works on extents that are larger by the kerf, on plates that are too: then a kerf is lost
behind each part and none before it, and the last one has its kerf behind the edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
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
Content = Sequence[Strip] | Sequence[Column] | Sequence[Placed] | Placed


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

    order: Order
    parts: tuple[Part, ...]
    plates: tuple[Plate, ...]
    kerf: int
    axes: tuple[int, ...]
    """The axes along which the first cuts may divide a plate."""

    @property
    def is_two_stage(self) -> bool:
        return self.order.stages == 2


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
    return Problem(order, parts, plates, to_units(order.kerf), axes)


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
    sheets = []
    for plate, axis, strips in layouts:
        root = _build(strips, plate.corner, plate.usable, axis, problem.kerf)
        if root.children and root.axis != axis:
            # One strip takes the whole plate: the stage of the first cuts is used all the same.
            root = Piece(plate.corner, plate.usable, axis, (root,))
        sheets.append(Sheet(plate.number, root))
    sheets.sort(key=lambda sheet: (find_best_rest(sheet, problem.order.least_rest), sheet.plate))
    return tuple(sheets)


def find_best_rest(sheet: Sheet, least: Pair) -> int:
    """Return the area of the largest rest that is worth keeping; 0: there is none."""
    rests = (piece.size for piece in sheet.root.walk() if is_reusable(piece, least))
    return max((size[X] * size[Y] for size in rests), default=0)


def _build(content: Content, place: Pair, size: Pair, axis: int, kerf: int) -> Piece:
    """Return the piece that holds strips, columns, parts or a part, divided along an axis: the
    largest first, then the rest. An only child that fills it is the piece itself."""
    if isinstance(content, Placed):
        (extents, is_upright), at = content.pose, place[axis] + content.pose.extents[axis] + kerf
        children = [Piece(place, extents, part=content.part, is_upright=is_upright)]
    else:
        children, at = [], place[axis]
        measured = [(_measure(each, 1 - axis, kerf), each) for each in content]
        for extents, each in sorted(
            measured, key=lambda entry: (entry[0][axis], entry[0][1 - axis]), reverse=True
        ):
            corner = _pair(axis, at, place[1 - axis])
            room = _pair(axis, extents[axis], size[1 - axis])
            children.append(_build(each, corner, room, 1 - axis, kerf))
            at += extents[axis] + kerf
    if children[0].size == size:
        return children[0]
    if (left := place[axis] + size[axis] - at) > 0:
        rest = _pair(axis, left, size[1 - axis])
        children.append(Piece(_pair(axis, at, place[1 - axis]), rest))
    return Piece(place, size, axis, tuple(children))


def _measure(content: Content, axis: int, kerf: int) -> Pair:
    """Return the extents of what is laid side by side along an axis."""
    if isinstance(content, Placed):
        return content.pose.extents
    inner = [_measure(each, 1 - axis, kerf) for each in content]
    along = sum(extents[axis] + kerf for extents in inner) - kerf
    return _pair(axis, along, max(extents[1 - axis] for extents in inner))


def find_depth(layout: Layout, kerf: int) -> int:
    """Return how far the strips of a layout reach, with a kerf behind each."""
    return _measure(layout.strips, layout.axis, kerf)[layout.axis] + kerf


def _pair(axis: int, along: int, across: int) -> Pair:
    return (along, across) if axis == X else (across, along)


def find_bound(problem: Problem) -> int:
    """Return how many sheets every plan needs: by area; and where all plates are equal, by parts of
    which no two, or only few, fit beside each other (dual feasible functions)."""

    def grow(size: Pair) -> Pair:
        return size[X] + problem.kerf, size[Y] + problem.kerf

    full = [grow(plate.usable) for plate in problem.plates]
    width, height = max(full, key=lambda size: size[X] * size[Y])
    poses = [(part.quantity, [grow(p.extents) for p in part.poses]) for part in problem.parts]
    # Fewer are tried where there are many parts: it comes before the first plan.
    most = min(24, max(1, isqrt(_GROWN // len(poses)))) if len(problem.plates) == 1 else 0
    wide = _sample({w for _, own in poses for w, _ in own if 2 * w <= width}, most)
    high = _sample({h for _, own in poses for _, h in own if 2 * h <= height}, most)
    totals = (
        sum(n * min(_grow(w, width, v) * _grow(h, height, u) for w, h in own) for n, own in poses)
        for v, u in product((0, *wide), (0, *high))
    )
    return max(-(-total // (width * height)) for total in totals)


def _grow(size: int, full: int, least: int) -> int:
    """Return a size that may stand for another one: what leaves less than `least` beside it takes
    everything, what is smaller than `least` nothing."""
    if least and size > full - least:
        return full
    return 0 if size < least else size


def _sample(sizes: set[int], most: int) -> list[int]:
    return sorted(sizes)[:: max(1, -(-len(sizes) // most))] if most else []
