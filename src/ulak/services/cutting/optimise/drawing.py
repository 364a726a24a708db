"""Plans for people: a drawing of each pattern as SVG, and a page with drawings and labels.

Everything is readable in black and white. There is no script, and every text is escaped.
"""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from ulak.kit.texts import number_text
from ulak.services.cutting.optimise.document import (
    number_parts,
    number_patterns,
    read_plan,
    summarize,
)
from ulak.services.cutting.optimise.model import (
    Order,
    Pair,
    Piece,
    Plan,
    Sheet,
    X,
    Y,
    count_stacked,
    is_reusable,
    to_units,
)
from ulak.services.cutting.optimise.reading import read_import

# The plate is drawn at most so large; on paper of 190 x 250 mm 1 is 0.19 mm then.
WIDEST, HIGHEST, NARROWEST = 1000, 1250, 640
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 62, 36
LARGEST_FONT, PLEASANT_FONT, SMALLEST_FONT = 20.0, 14.0, 10.5
GRAIN_SPACING: Final = 22
STYLE: Final = """
.plan text { font-family: sans-serif; fill: #000; text-anchor: middle }
.plan .said { text-anchor: start; font-size: 15px } .plan .title { font-weight: bold }
.plan .trim { fill: #b8b8b8; stroke: #000 } .plan .waste { fill: #8c8c8c }
.plan .part { fill: #fff; stroke: #000; stroke-width: .8 } .plan .grain { stroke: #bdbdbd }
.plan .rest { fill: #dcdcdc } .plan .cut { stroke: #000 } .plan .bubble { fill: #fff; stroke: #000 }
.plan .offcut { fill: #f1f1f1; stroke: #000; stroke-dasharray: 6 4 }
.plan .inside { stroke: #fff; stroke-width: 3px; paint-order: stroke }
"""
PAGE_STYLE: Final = """
@page { size: A4; margin: 10mm }
body { font: 15px/1.4 sans-serif; margin: 1rem auto; max-width: 62rem; color: #000 }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem 1.2rem .15rem 0 }
figure { margin: 1.5rem 0 } figure svg { width: 100%; max-height: 268mm }
.labels { display: grid; grid-template-columns: repeat(3, 1fr) }
.label { border: 1px dashed #000; padding: 2mm 3mm; min-height: 31mm; overflow-wrap: anywhere;
         break-inside: avoid; font-size: 12px; box-sizing: border-box }
.label b { font-size: 17px }
@media print { body { margin: 0; max-width: none }
  figure, .labels { break-before: page; margin: 0 } figure { break-inside: avoid } }
"""
BANDS: Final = ("upper", "lower", "left", "right")

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class Pattern(NamedTuple):
    """Sheets that are cut alike."""

    number: int
    sheet: Sheet
    sheets: tuple[int, ...]
    """Their numbers, from 1."""
    cycles: int


class Label(NamedTuple):
    """What is stuck on one part; sizes are length and width in mm."""

    id: str
    description: str
    finished: tuple[Decimal, Decimal]
    cut: tuple[Decimal, Decimal]
    sheet: int
    position: int
    """Which part of its sheet it is, in the order in which they come from the saw; from 1."""
    bands: Mapping[str, Decimal]


class Cut(NamedTuple):
    """A full cut through a piece; cuts of depth 0 go through the whole plate."""

    number: int
    depth: int
    axis: int
    begin: Pair
    end: Pair


class Batch(NamedTuple):
    """An order that is cut from one material, with its plan."""

    title: str
    order: Order
    plan: Plan


def read_batch(title: str, plan: Path, file: Path, settings: Mapping[str, Any]) -> Batch:
    """Return a batch by its plan and its import file. Raises `BadPlan`, `Unsolvable`, `OSError`."""
    order = read_import(file, settings)
    return Batch(title, order, number_parts(order, read_plan(plan.read_bytes())))


def list_patterns(order: Order, plan: Plan) -> list[Pattern]:
    """Return what the sheets of a plan have in common, in the order of the first sheet of each."""
    alike: dict[int, list[int]] = {}
    for number, pattern in enumerate(number_patterns(order, plan), 1):
        alike.setdefault(pattern, []).append(number)
    stack = count_stacked(order)
    return [
        Pattern(pattern, plan.sheets[numbers[0] - 1], tuple(numbers), -(-len(numbers) // stack))
        for pattern, numbers in alike.items()
    ]


def list_cuts(root: Piece) -> list[Cut]:
    """Return the cuts of a sheet in their order: those of a piece, then those of its children, one
    child after the other."""
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


def make_labels(order: Order, plan: Plan) -> list[Label]:
    """Return a label for each part that is cut, in the order in which they come from the saw."""
    return [
        _make_label(order, piece, number, position)
        for number, sheet in enumerate(plan.sheets, 1)
        for position, piece in enumerate(
            (piece for piece in sheet.root.walk() if piece.part is not None), 1
        )
    ]


def draw_sheet(order: Order, pattern: Pattern, *, title: str = "") -> str:
    """Return the SVG document of a pattern."""
    return Xml.tostring(_draw(order, pattern, title), encoding="unicode") + "\n"


def make_report(order: Order, plan: Plan, title: str) -> str:
    """Return a page of HTML with the figures of a plan, its drawings and its labels."""
    return make_job_report([Batch("", order, plan)], title)


def make_job_report(batches: Sequence[Batch], title: str) -> str:
    """Return a page of HTML as `make_report`, about all batches of a job."""
    page = Xml.Element("html", lang="en")
    head = Xml.SubElement(page, "head")
    Xml.SubElement(head, "meta", charset="utf-8")
    Xml.SubElement(head, "title").text = _clean(title)
    Xml.SubElement(head, "style").text = PAGE_STYLE
    body = Xml.SubElement(page, "body")
    Xml.SubElement(body, "h1").text = _clean(title)
    for name, order, plan in batches:
        Xml.SubElement(body, "h2").text = _clean(name or order.material)
        table = Xml.SubElement(body, "table")
        for fact, value in list_facts(order, plan).items():
            row = Xml.SubElement(table, "tr")
            Xml.SubElement(row, "th").text, Xml.SubElement(row, "td").text = fact, value
    for name, order, plan in batches:
        for pattern in list_patterns(order, plan):
            Xml.SubElement(body, "figure").append(_draw(order, pattern, name))
    grid = Xml.SubElement(body, "div", {"class": "labels"})
    for name, order, plan in batches:
        for label in make_labels(order, plan):
            _write_label(Xml.SubElement(grid, "div", {"class": "label"}), label, name)
    return "<!doctype html>\n" + Xml.tostring(page, encoding="unicode", method="html") + "\n"


def list_facts(order: Order, plan: Plan) -> dict[str, str]:
    """Return the figures of a plan as texts, by their names."""
    found = summarize(order, plan)
    costs = [order.stock[sheet.plate].cost for sheet in plan.sheets]
    known = [cost for cost in costs if cost is not None]
    return {
        "Sheets": f"{found.sheets}; no plan needs fewer than {found.bound}",
        "Gap to the bound": "not known" if found.gap_percent is None else f"{found.gap_percent} %",
        "Waste": f"{found.waste_percent} % of the plates",
        "Patterns": str(found.patterns),
        "Cycles of the saw": str(found.cycles),
        "Cuts": f"{found.cuts}, {found.cut_length_m:.1f} m",
        "Cost of the plates": str(sum(known))
        if known and len(known) == len(costs)
        else "not known",
        "Computed by": f"{plan.algorithm or 'hand'}, {plan.seconds:.1f} s",
    }


@dataclass
class _Canvas:
    """A drawing in the making: it places plates, and remembers where there is text."""

    svg: Xml.Element
    scale: float
    height: int
    """Of the plate, in units."""
    taken: list[Box] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    """The number on the drawing of each text that had no room there."""

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a place of the plate on the drawing: there y goes down."""
        return LEFT + x * self.scale, TOP + (self.height - y) * self.scale

    def box(self, piece: Piece) -> Box:
        left, bottom = self.place(*piece.place)
        right, top = self.place(piece.place[X] + piece.size[X], piece.place[Y] + piece.size[Y])
        return left, top, right, bottom

    def rectangle(self, box: Box, style: str, radius: float = 0) -> None:
        left, top, right, bottom = box
        sizes = {"x": left, "y": top, "width": right - left, "height": bottom - top, "rx": radius}
        said = {name: f"{size:.1f}" for name, size in sizes.items() if name != "rx" or size}
        Xml.SubElement(self.svg, "rect", {"class": style, **said})

    def line(self, ends: tuple[float, float, float, float], style: str, width: float) -> None:
        at = {
            name: f"{each:.1f}" for name, each in zip(("x1", "y1", "x2", "y2"), ends, strict=True)
        }
        Xml.SubElement(self.svg, "line", {"class": style, **at, "stroke-width": str(width)})

    def text(
        self, x: float, y: float, text: str, *, style: str = "inside", size: float = 15,
        is_upright: bool = False,
    ) -> None:  # fmt: skip
        """Write a text, its middle at a place."""
        at = {"class": style, "x": f"{x:.1f}", "y": f"{y + size * 0.36:.1f}"}
        if is_upright:
            at["transform"] = f"rotate(-90 {x:.1f} {y:.1f})"
        Xml.SubElement(self.svg, "text", {**at, "font-size": f"{size:.1f}"}).text = text


def _draw(order: Order, pattern: Pattern, title: str) -> Xml.Element:
    stock, root = order.stock[pattern.sheet.plate], pattern.sheet.root
    size = to_units(stock.width), to_units(stock.height)
    scale = min(WIDEST / size[X], HIGHEST / size[Y])
    svg = Xml.Element("svg", {"class": "plan", "xmlns": "http://www.w3.org/2000/svg"})
    Xml.SubElement(svg, "style").text = STYLE
    canvas = _Canvas(svg, scale, size[Y])
    canvas.rectangle((*canvas.place(0, size[Y]), *canvas.place(size[X], 0)), "trim")
    canvas.rectangle(canvas.box(root), "waste")
    pieces = [piece for piece in root.walk() if not piece.children]
    for piece in pieces:
        _draw_piece(canvas, order, piece, size)
    cuts, half_kerf = list_cuts(root), to_units(order.kerf) / 2
    for cut in cuts:
        (x, y), (x2, y2) = cut.begin, cut.end
        ends = (x + half_kerf, y, x2 + half_kerf, y2) if cut.axis == X else (
            x, y + half_kerf, x2, y2 + half_kerf
        )  # fmt: skip
        canvas.line((*canvas.place(*ends[:2]), *canvas.place(*ends[2:])), "cut", _stroke(cut.depth))
    for piece in pieces:
        _name_piece(canvas, order, piece)
    for cut in cuts:
        _number_cut(canvas, cut)
    width = max(NARROWEST, LEFT + size[X] * scale + RIGHT)
    _write_head(canvas, order, pattern, title, width)
    height = _write_legend(canvas, TOP + size[Y] * scale + BOTTOM, width)
    svg.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
    return svg


def _stroke(depth: int) -> float:
    return (3.5, 2.2, 1.2)[min(depth, 2)]


def _draw_piece(canvas: _Canvas, order: Order, piece: Piece, plate: Pair) -> None:
    box = canvas.box(piece)
    if piece.part is None:
        canvas.rectangle(box, "offcut" if is_reusable(piece, order.least_rest) else "rest")
        return
    canvas.rectangle(box, "part")
    if order.parts[piece.part].grain not in (1, 2):
        return
    # The grain of the plate: parts with grain 1 lie along it, parts with grain 2 across.
    left, top, right, bottom = box
    is_upright = (order.grain_axis == "long") == (plate[Y] >= plate[X])
    breadth = right - left if is_upright else bottom - top
    count = max(1, int(breadth / GRAIN_SPACING))
    for n in range(1, count + 1):
        at = breadth * n / (count + 1)
        ends = (left + at, top + 3, left + at, bottom - 3) if is_upright else (
            left + 3, top + at, right - 3, top + at
        )  # fmt: skip
        canvas.line(ends, "grain", 0.9)


def _name_piece(canvas: _Canvas, order: Order, piece: Piece) -> None:
    """Write the name and the size of a piece into it, or else a number for the legend."""
    size = f"{_mm(piece.size[X])} x {_mm(piece.size[Y])}"
    if piece.part is not None:
        name = _clean(order.parts[piece.part].id)
    elif is_reusable(piece, order.least_rest):
        name = "offcut"
    else:
        return
    left, top, right, bottom = canvas.box(piece)
    x, y, room = (left + right) / 2, (top + bottom) / 2, (right - left, bottom - top)
    lines, font, is_upright = max(
        ((lines, *_fit(lines, room)) for lines in ((name, size), (f"{name}  {size}",))),
        key=lambda way: min(way[1], PLEASANT_FONT),
    )
    if font < SMALLEST_FONT:
        key = canvas.legend.setdefault(f"{name}, {size}", f"#{len(canvas.legend) + 1}")
        lines, (font, is_upright) = (key,), _fit((key,), room)
        font = min(max(font, 6.0), SMALLEST_FONT)
    for n, line in enumerate(lines):
        shift = (n - (len(lines) - 1) / 2) * font * 1.15
        at = (x + shift, y) if is_upright else (x, y + shift)
        canvas.text(*at, line, size=font, is_upright=is_upright)
    half = max(map(_measure, lines)) * font / 2, len(lines) * font * 0.58
    across, up = reversed(half) if is_upright else half
    canvas.taken.append((x - across, y - up, x + across, y + up))


def _fit(lines: Sequence[str], room: tuple[float, float]) -> tuple[float, bool]:
    """Return the font size at which lines have room, and whether they are turned upright."""
    width, height = max(map(_measure, lines)), len(lines) * 1.15
    lying, upright = (
        min(LARGEST_FONT, (along - 6) / width, (across - 3) / height)
        for along, across in (room, room[::-1])
    )
    # Turning the head must be worth it.
    is_upright = lying < PLEASANT_FONT and upright > lying * 1.25
    return (upright if is_upright else lying), is_upright


def _measure(text: str) -> float:
    """Return about how wide a text is, by the size of its font."""
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF" or letter in "MW@%mw":
        return 1.0
    return 0.75 if letter.isupper() else 0.64


def _number_cut(canvas: _Canvas, cut: Cut) -> None:
    """Write the number of a cut: of one through the plate beside it, of others where they begin,
    or a little further where there is text."""
    text, (x, y) = str(cut.number), canvas.place(*cut.begin)
    far_x, far_y = canvas.place(*cut.end)
    length = (far_x - x) + (y - far_y)
    size = 11.0 if length > 36 or cut.depth == 0 else max(6.0, length * 0.3)
    half, high = size * (0.36 + 0.29 * len(text)), size * 0.68
    if cut.depth == 0:
        places = [-half - 8, -3 * half - 10]
    else:
        first = min(half + 4, length / 2)
        places = [first + 9 * n for n in range(max(1, min(40, int((length - first) / 9))))]
    boxes: list[tuple[float, int, Box]] = []
    for along in places:
        middle = (x, y - along) if cut.axis == X else (x + along, y)
        box = middle[0] - half, middle[1] - high, middle[0] + half, middle[1] + high
        boxes.append((sum(_shared(box, other) for other in canvas.taken), len(boxes), box))
        if not boxes[-1][0]:
            break
    box = min(boxes)[2]
    canvas.taken.append(box)
    canvas.rectangle(box, "bubble", high)
    canvas.text((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, text, style="number", size=size)


def _shared(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    width, height = (
        min(one[2], other[2]) - max(one[0], other[0]),
        min(one[3], other[3]) - max(one[1], other[1]),
    )
    return max(width, 0) * max(height, 0)


def _write_head(canvas: _Canvas, order: Order, pattern: Pattern, title: str, width: float) -> None:
    stock = order.stock[pattern.sheet.plate]
    plate = f"{number_text(stock.width)} x {number_text(stock.height)} mm"
    what = " ".join(filter(None, (stock.name, plate, title or order.material)))
    sheets = f"{len(pattern.sheets)} x: sheet {', '.join(_ranges(pattern.sheets))}"
    lines = (
        f"Pattern {pattern.number}, {sheets}; cycles of the saw: {pattern.cycles}",
        f"{_clean(what)}; sizes: across x up, kerf {number_text(order.kerf)} mm",
    )
    for n, line in enumerate(lines):
        style = "said title" if n == 0 else "said"
        _write_line(canvas, line, 10, 20 + 21 * n, width - 20, style)


def _write_legend(canvas: _Canvas, top: float, width: float) -> float:
    """Write what the numbers on small pieces mean, and return where the drawing ends."""
    lines = [f"{key}: {text}" for text, key in canvas.legend.items()]
    if not lines:
        return top
    widest = min(max(map(_measure, lines)) * 15 + 24, width - 20)
    columns = max(1, int((width - 20) / widest))
    for n, line in enumerate(lines):
        x, y = 10 + n % columns * widest, top + 14 + n // columns * 20
        _write_line(canvas, line, x, y, widest, "said")
    return top + 8 + -(-len(lines) // columns) * 20


def _write_line(canvas: _Canvas, text: str, x: float, y: float, room: float, style: str) -> None:
    """Write a line from the left, as far as there is room."""
    while _measure(text) * 15 > room:
        text = text[: min(len(text) - 2, int(len(text) * 0.98))] + "\u2026"
    at = {"class": style, "x": f"{x:.1f}", "y": f"{y:.1f}"}
    Xml.SubElement(canvas.svg, "text", at).text = text


def _make_label(order: Order, piece: Piece, sheet: int, position: int) -> Label:
    part = order.parts[piece.part or 0]
    along, across = (Decimal(size) / 100 for size in piece.size)
    bands = {side: band for side, band in zip(BANDS, part.bands, strict=True) if band}
    cut = (across, along) if piece.is_upright else (along, across)
    finished = part.length, part.width
    return Label(part.id, part.description, finished, cut, sheet, position, bands)


def _write_label(div: Xml.Element, label: Label, title: str) -> None:
    Xml.SubElement(div, "b").text = _clean(label.id)
    finished, cut = (" x ".join(map(number_text, size)) for size in (label.finished, label.cut))
    bands = ", ".join(f"{side} {number_text(band)}" for side, band in label.bands.items())
    where = f"sheet {label.sheet}, part {label.position}"
    lines = (
        title, label.description, f"finished {finished}", f"cut {cut}",
        f"bands: {bands or 'none'}", where,
    )  # fmt: skip
    for line in filter(None, lines):
        Xml.SubElement(div, "br").tail = _clean(line)


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Return ascending numbers as texts: 1-3, 7."""
    begin = last = 0
    for number in (*numbers, 0):
        if number != last + 1 or not last:
            if last:
                yield str(begin) if begin == last else f"{begin}-{last}"
            begin = number
        last = number


def _mm(units: int) -> str:
    return number_text(Decimal(units) / 100)


def _clean(text: str) -> str:
    """Return a text without characters that are not to be seen: XML has no place for some."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
