"""Cut trees built by hand, and the order of a workshop with a plan of it."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ulak.services.cutting.optimise.model import (
    Order,
    OrderPart,
    Pair,
    Piece,
    Plan,
    Sheet,
    Stock,
    X,
    Y,
    to_units,
)

Grow = Callable[[Pair, Pair, int], Piece]
"""Makes a piece of a place, a size and the kerf."""

BANDS = (Decimal(1), Decimal(1), Decimal("0.4"), Decimal(0))


def mm(text: float | str) -> Decimal:
    return Decimal(str(text))


def part(number: int, is_upright: bool = False) -> Grow:
    return lambda place, size, kerf: Piece(place, size, part=number, is_upright=is_upright)


def split(axis: int, *children: tuple[float | str, Grow]) -> Grow:
    """Divide along an axis by extents in mm; what is left behind is a rest, or dust."""

    def grow(place: Pair, size: Pair, kerf: int) -> Piece:
        def make(at: int, extent: int, child: Grow) -> Piece:
            moved = (at, place[1]) if axis == X else (place[0], at)
            sized = (extent, size[1]) if axis == X else (size[0], extent)
            return child(moved, sized, kerf)

        at, end, made = place[axis], place[axis] + size[axis], []
        for text, child in children:
            extent = to_units(mm(text))
            made.append(make(at, extent, child))
            at += extent + kerf
        if at < end:
            made.append(make(at, end - at, lambda place, size, kerf: Piece(place, size)))
        return Piece(place, size, axis, tuple(made))

    return grow


def make_sheet(order: Order, grow: Grow, plate: int = 0) -> Sheet:
    trim = to_units(order.trim)
    left, right, bottom, top = (
        trim * (side in order.trimmed_sides) for side in ("left", "right", "bottom", "top")
    )
    stock = order.stock[plate]
    usable = to_units(stock.width) - left - right, to_units(stock.height) - bottom - top
    return Sheet(plate, grow((left, bottom), usable, to_units(order.kerf)))


def make_part(
    id: str, length: float | str, width: float | str, quantity: int = 1, **more: Any
) -> OrderPart:
    description = more.pop("description", f"GOVDE_{id}")
    return OrderPart(id, description, mm(length), mm(width), quantity, **more)


def make_order(*parts: OrderPart, **more: Any) -> Order:
    settings: dict[str, Any] = {
        "stock": [Stock(mm(2100), mm(2800))], "material": "MDF18", "trim": mm(10),
    }  # fmt: skip
    return Order(parts, **settings | more)


def make_workshop(**more: Any) -> tuple[Order, Plan]:
    """Return an order with bands, grain, trimming and a counted offcut; and a plan of it: two equal
    plates, cut together, and the offcut, whose long side lies along x."""
    order = make_order(
        make_part("side", 720, 450, 4, grain=1, bands=BANDS),
        make_part("shelf", 600, 300, 4, grain=2),
        make_part("back", 500, 400, 2),
        **{
            "stock": [Stock(mm(2100), mm(2800)), Stock(mm(700), mm(650), 1, name="rack 7")],
            "first_cut": "y", "stack_height": mm(40),
        } | more,
    )  # fmt: skip
    column = split(Y, (300, part(1)), (400, split(X, (500, part(2)))))
    side = part(0, is_upright=True)
    plate = split(Y, ("719.6", split(X, (448, side), (448, side), (600, column))))
    shelf = part(1, is_upright=True)
    offcut = split(Y, (600, split(X, (300, shelf), (300, shelf))))
    sheets = (
        make_sheet(order, plate), make_sheet(order, offcut, plate=1), make_sheet(order, plate),
    )  # fmt: skip
    return order, Plan(sheets, algorithm="hand", bound=2, seconds=1.25)
