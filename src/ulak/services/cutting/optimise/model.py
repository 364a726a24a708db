"""Orders and plans in whole numbers of 0.01 mm.

A pair is an extent or a place along x and along y, from the lower left corner of a plate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple

Pair = tuple[int, int]
X: Final = 0
Y: Final = 1
CHECKPOINT: Final = ".best"
"""How the file ends in which a run keeps the best plan so far."""


class Unsolvable(Exception):
    """There can be no plan, and why."""


class Oversize(Unsolvable):
    """No plate holds these parts."""


class OrderPart(NamedTuple):
    """Equal parts as they were ordered, in mm."""

    id: str
    description: str
    length: Decimal
    width: Decimal
    quantity: int
    grain: int = 0
    bands: tuple[Decimal, Decimal, Decimal, Decimal] = (Decimal(0),) * 4
    """The thickness of the upper, lower, left and right band; 0 is none."""


class Stock(NamedTuple):
    """Equal plates or offcuts, in mm."""

    width: Decimal
    height: Decimal
    quantity: int | None = None
    """None: as many as are needed."""
    cost: int | None = None
    """The cheapest are taken first; None: its area."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be cut, and by which rules. Everything in mm is a `Decimal`."""

    parts: Sequence[OrderPart]
    stock: Sequence[Stock]
    material: str = ""
    trim: Decimal = Decimal(0)
    """Lost on each of `trimmed_sides`."""
    trimmed_sides: frozenset[str] = frozenset({"left", "right", "bottom", "top"})
    kerf: Decimal = Decimal("3.2")
    stages: int = 3
    """2 or 3; 0: as many as the search likes, which uses three."""
    first_cut: str = ""
    """`x` divides a plate along x first, by vertical cuts; `y` by horizontal ones; "" is free."""
    trimming: bool = True
    """Whether a last cut may trim a part that is smaller than what was cut for it."""
    grain_axis: str = "long"
    """The side of the plate that grain 1 is parallel to: `long` or `short`."""
    deduct_bands: bool = True
    milling: Decimal = Decimal(0)
    """What is added for each band."""
    thickness: Decimal = Decimal(18)
    stack_height: Decimal = Decimal(18)
    """So high a stack of identical sheets is cut in one cycle."""
    offcut: tuple[Decimal, Decimal] = (Decimal(300), Decimal(100))
    """A rest is reusable from these sizes on."""

    @property
    def least_rest(self) -> Pair:
        """`offcut` in units."""
        return to_units(self.offcut[0]), to_units(self.offcut[1])


class Pose(NamedTuple):
    """An orientation that a part may have, with its extents as they are cut."""

    extents: Pair
    is_upright: bool
    """The length of the part lies along the height of the plate."""


class Plate(NamedTuple):
    """Equal plates as they are cut; `number` is their place in the stock."""

    number: int
    size: Pair
    corner: Pair
    """The trims at the left and at the bottom."""
    usable: Pair
    quantity: int | None
    cost: int

    @property
    def area(self) -> int:
        """What is usable of it."""
        return self.usable[X] * self.usable[Y]

    def holds(self, pose: Pose) -> bool:
        return pose.extents[X] <= self.usable[X] and pose.extents[Y] <= self.usable[Y]


class Part(NamedTuple):
    """Equal parts as they are cut; `number` is their place in the order."""

    number: int
    quantity: int
    poses: tuple[Pose, ...]

    def fits_on(self, plate: Plate) -> bool:
        return any(map(plate.holds, self.poses))


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle in the cut tree of a sheet.

    One that is divided has an `axis`: full cuts across it leave the children, in order, with a kerf
    between two of them. What is left behind the last one is a child without a part, unless it is
    narrower than the kerf: then it is dust.
    """

    place: Pair
    size: Pair
    axis: int | None = None
    children: tuple[Piece, ...] = ()
    part: int | None = None
    """The number of the part that this is; None for what is divided, and for rests."""
    is_upright: bool = False

    def walk(self) -> Iterator[Piece]:
        """Return this piece and everything that is cut from it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Cut(NamedTuple):
    """A full cut through a piece; cuts of depth 0 go through the whole plate."""

    number: int
    depth: int
    axis: int
    begin: Pair
    end: Pair

    @property
    def length(self) -> int:
        return self.end[1 - self.axis] - self.begin[1 - self.axis]


class Sheet(NamedTuple):
    """One plate and how it is cut; `plate` is its place in the stock."""

    plate: int
    root: Piece


@dataclass(frozen=True, slots=True)
class Plan:
    """How an order is cut."""

    sheets: tuple[Sheet, ...]
    algorithm: str = ""
    bound: int = 0
    """No plan needs fewer sheets."""
    seconds: float = 0.0


def to_units(millimetres: Decimal) -> int:
    """Return a length in whole numbers of 0.01 mm."""
    return int((millimetres * 100).to_integral_value(ROUND_HALF_UP))


def find_cut_size(part: OrderPart, order: Order) -> Pair:
    """Return length and width as they are cut. The upper and the lower band run along the length,
    and so make the width."""
    length, width = part.length, part.width
    if order.deduct_bands:
        bands = [band - order.milling if band else Decimal(0) for band in part.bands]
        length, width = length - sum(bands[2:]), width - sum(bands[:2])
    return to_units(length), to_units(width)


def is_reusable(piece: Piece, least: Pair) -> bool:
    """Tell whether a piece is a rest that is worth keeping, in either orientation."""
    is_rest = piece.part is None and not piece.children
    return is_rest and max(piece.size) >= max(least) and min(piece.size) >= min(least)


def count_stacked(order: Order) -> int:
    """Return how many identical sheets are cut in one cycle."""
    return max(int(order.stack_height // order.thickness), 1) if order.thickness > 0 else 1


def list_cuts(root: Piece) -> list[Cut]:
    """Return the cuts of a sheet in their order: those of a piece, then those of its children, one
    child after the other. A piece that ends at the edge needs none, and dust is cut off."""
    cuts: list[Cut] = []

    def divide(piece: Piece, depth: int) -> None:
        if (axis := piece.axis) is None:
            return
        far = piece.place[axis] + piece.size[axis]
        across = piece.place[1 - axis], piece.place[1 - axis] + piece.size[1 - axis]
        for child in piece.children:
            at = child.place[axis] + child.size[axis]
            if at < far:
                begin, end = ((at, side) if axis == X else (side, at) for side in across)
                cuts.append(Cut(len(cuts) + 1, depth, axis, begin, end))
        for child in piece.children:
            divide(child, depth + 1)

    divide(root, 0)
    return cuts
