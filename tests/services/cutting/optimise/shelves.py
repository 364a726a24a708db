"""The simplest plans, for tests that need one: parts on shelves, the high ones first."""

from collections.abc import Sequence
from decimal import Decimal

from ulak.services.cutting.optimise.model import (
    Order,
    Oversize,
    Pair,
    Piece,
    Plan,
    Sheet,
    X,
    Y,
    to_units,
)

Placed = tuple[int, Pair, bool]
"""The number of a part, its extents, whether it is upright."""


def shelve(order: Order, **more: object) -> Plan:
    """Return a plan on the first plates of the stock. Raises `Oversize`."""
    stock, kerf, trim = order.stock[0], to_units(order.kerf), to_units(order.trim)
    left, right, bottom, top = (
        trim * (side in order.trimmed_sides) for side in ("left", "right", "bottom", "top")
    )
    width, height = to_units(stock.width) - left - right, to_units(stock.height) - bottom - top
    sheets = list[list[list[Placed]]]()
    used, filled = 0, 0
    for number, extents, is_upright in sorted(
        _list_pieces(order, (width, height)), key=lambda piece: -piece[1][Y]
    ):
        if sheets and filled + extents[X] <= width:
            sheets[-1][-1].append((number, extents, is_upright))
        else:
            if not sheets or used + extents[Y] > height:
                sheets.append([])
                used = 0
            sheets[-1].append([(number, extents, is_upright)])
            used, filled = used + extents[Y] + kerf, 0
        filled += extents[X] + kerf
    made = tuple(
        Sheet(0, _divide((left, bottom), (width, height), shelves, kerf)) for shelves in sheets
    )
    return Plan(made, **({"algorithm": "shelves", "bound": 1} | more))  # type: ignore[arg-type]


def _list_pieces(order: Order, usable: Pair) -> list[Placed]:
    found = []
    is_high = order.stock[0].height >= order.stock[0].width
    for number, part in enumerate(order.parts):
        up, lo, sx, dx = (
            band - order.milling if band and order.deduct_bands else Decimal(0)
            for band in part.bands
        )
        length, width = to_units(part.length - sx - dx), to_units(part.width - up - lo)
        is_upright = length > usable[X]
        if part.grain in (1, 2):
            is_upright = ((part.grain == 1) == (order.grain_axis == "long")) == is_high
        extents = (width, length) if is_upright else (length, width)
        if extents[X] > usable[X] or extents[Y] > usable[Y]:
            raise Oversize(f"no plate holds {part.id}")
        found += [(number, extents, is_upright)] * part.quantity
    return found


def _divide(place: Pair, size: Pair, shelves: Sequence[Sequence[Placed]], kerf: int) -> Piece:
    children, y, far = list[Piece](), place[Y], place[Y] + size[Y]
    for shelf in shelves:
        high, x, pieces = shelf[0][1][Y], place[X], list[Piece]()
        for number, extents, is_upright in shelf:
            part = Piece((x, y), extents, part=number, is_upright=is_upright)
            if extents[Y] < high:
                rest = _rest((x, y + extents[Y] + kerf), (extents[X], high - extents[Y] - kerf))
                part = Piece((x, y), (extents[X], high), Y, (part, *rest))
            pieces.append(part)
            x += extents[X] + kerf
        pieces += _rest((x, y), (place[X] + size[X] - x, high))
        children.append(_whole((place[X], y), (size[X], high), X, pieces))
        y += high + kerf
    children += _rest((place[X], y), (size[X], far - y))
    return _whole(place, size, Y, children)


def _rest(place: Pair, size: Pair) -> tuple[Piece, ...]:
    return (Piece(place, size),) if min(size) > 0 else ()


def _whole(place: Pair, size: Pair, axis: int, children: Sequence[Piece]) -> Piece:
    is_whole = len(children) == 1 and children[0].size == size
    return children[0] if is_whole else Piece(place, size, axis, tuple(children))
