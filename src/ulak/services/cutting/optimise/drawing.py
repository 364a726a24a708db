"""Plans for people: a drawing of each pattern as SVG, readable in black and white."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from decimal import Decimal
from typing import Final

from ulak.kit.drawings import Box, Drawing, Point, measure_bubble
from ulak.kit.texts import number_text, range_text
from ulak.services.cutting.optimise.document import Pattern
from ulak.services.cutting.optimise.model import (
    Cut,
    Order,
    Pair,
    Piece,
    X,
    Y,
    is_reusable,
    list_cuts,
    to_units,
)

# The plate is drawn at most so large; on paper of 190 x 250 mm 1 is 0.19 mm then.
WIDEST, HIGHEST, NARROWEST = 1000, 1250, 640
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 62, 36
GRAIN_SPACING: Final = 22
STYLE: Final = """
.drawing .trim { fill: #b8b8b8; stroke: #000 } .drawing .waste { fill: #8c8c8c }
.drawing .part { fill: #fff; stroke: #000; stroke-width: .8 } .drawing .grain { stroke: #bdbdbd }
.drawing .rest { fill: #dcdcdc } .drawing .cut { stroke: #000 }
.drawing .offcut { fill: #f1f1f1; stroke: #000; stroke-dasharray: 6 4 }
"""


def draw_sheet(order: Order, pattern: Pattern, *, title: str = "") -> str:
    """Return the SVG document of a pattern."""
    return Xml.tostring(draw_pattern(order, pattern, title), encoding="unicode") + "\n"


def draw_pattern(order: Order, pattern: Pattern, title: str) -> Xml.Element:
    """Return the drawing of a pattern as an element of a page."""
    return _Sheet(order, pattern).draw(title)


class _Sheet:
    """The drawing of one sheet."""

    def __init__(self, order: Order, pattern: Pattern) -> None:
        self._order, self._pattern, self._drawing = order, pattern, Drawing(STYLE)
        self._stock = order.stock[pattern.sheet.plate]
        self._size = to_units(self._stock.width), to_units(self._stock.height)
        self._scale = min(WIDEST / self._size[X], HIGHEST / self._size[Y])

    def draw(self, title: str) -> Xml.Element:
        root, size, drawing = self._pattern.sheet.root, self._size, self._drawing
        drawing.box(self._find_box((0, 0), size), "trim")
        drawing.box(self._find_box(root.place, root.size), "waste")
        pieces, cuts = [piece for piece in root.walk() if not piece.children], list_cuts(root)
        for piece in pieces:
            self._draw_piece(piece)
        half_kerf = to_units(self._order.kerf) / 2
        for cut in cuts:
            shift = (half_kerf, 0.0) if cut.axis == X else (0.0, half_kerf)
            begin, end = (self._place(x + shift[X], y + shift[Y]) for x, y in (cut.begin, cut.end))
            drawing.line(begin, end, "cut", width=(3.5, 2.2, 1.2)[min(cut.depth, 2)])
        for piece in pieces:
            self._name_piece(piece)
        for cut in cuts:
            self._number_cut(cut)
        width = max(NARROWEST, LEFT + size[X] * self._scale + RIGHT)
        self._write_head(title, width)
        return drawing.finish(
            width, drawing.write_legend(TOP + size[Y] * self._scale + BOTTOM, width)
        )

    def _place(self, x: float, y: float) -> Point:
        """Return a place of the plate on the drawing: there y goes down."""
        return LEFT + x * self._scale, TOP + (self._size[Y] - y) * self._scale

    def _find_box(self, place: Pair, size: Pair) -> Box:
        left, bottom = self._place(*place)
        right, top = self._place(place[X] + size[X], place[Y] + size[Y])
        return left, top, right, bottom

    def _draw_piece(self, piece: Piece) -> None:
        order, drawing, box = self._order, self._drawing, self._find_box(piece.place, piece.size)
        if piece.part is None:
            drawing.box(box, "offcut" if is_reusable(piece, order.least_rest) else "rest")
            return
        drawing.box(box, "part")
        if order.parts[piece.part].grain not in (1, 2):
            return
        # The grain of the plate: parts with grain 1 lie along it, parts with grain 2 across.
        left, top, right, bottom = box
        is_upright = (order.grain_axis == "long") == (self._size[Y] >= self._size[X])
        breadth = right - left if is_upright else bottom - top
        count = max(1, int(breadth / GRAIN_SPACING))
        for n in range(1, count + 1):
            at = breadth * n / (count + 1)
            if is_upright:
                begin, end = (left + at, top + 3), (left + at, bottom - 3)
            else:
                begin, end = (left + 3, top + at), (right - 3, top + at)
            drawing.line(begin, end, "grain", width=0.9)

    def _name_piece(self, piece: Piece) -> None:
        if piece.part is None and not is_reusable(piece, self._order.least_rest):
            return
        name = "offcut" if piece.part is None else self._order.parts[piece.part].id
        size = " x ".join(number_text(Decimal(side) / 100) for side in piece.size)
        box = self._find_box(piece.place, piece.size)
        self._drawing.write_inside(box, [(name, size), (f"{name}  {size}",)])

    def _number_cut(self, cut: Cut) -> None:
        """Write the number of a cut: of one through the plate beside it, of others where they
        begin, or a little further where there is text."""
        text, (x, y) = str(cut.number), self._place(*cut.begin)
        length = cut.length * self._scale
        size = 11.0 if length > 36 or cut.depth == 0 else max(6.0, length * 0.3)
        half = measure_bubble(text, size)
        if cut.depth == 0:
            steps = [-half - 8, -3 * half - 10]
        else:
            first = min(half + 4, length / 2)
            steps = [first + 9 * n for n in range(max(1, min(40, int((length - first) / 9))))]
        places = [(x, y - along) if cut.axis == X else (x + along, y) for along in steps]
        self._drawing.mark(text, places, size=size)

    def _write_head(self, title: str, width: float) -> None:
        order, pattern, stock = self._order, self._pattern, self._stock
        plate = f"{number_text(stock.width)} x {number_text(stock.height)} mm"
        what = " ".join(filter(None, (stock.name, plate, title or order.material)))
        sheets = f"{len(pattern.sheets)} x: sheet {range_text(pattern.sheets)}"
        line = f"Pattern {pattern.number}, {sheets}; cycles of the saw: {pattern.cycles}"
        self._drawing.write_line(10, 20, line, room=width - 20, style="title")
        line = f"{what}; sizes: across x up, kerf {number_text(order.kerf)} mm"
        self._drawing.write_line(10, 41, line, room=width - 20)
