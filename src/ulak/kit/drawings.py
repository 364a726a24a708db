"""Drawings as SVG: boxes, lines, and texts that stay within the room they have.

    drawing = Drawing(".drawing .room { fill: #fff; stroke: #000 }")
    drawing.box((10, 10, 190, 90), "room")
    drawing.write_inside((10, 10, 190, 90), [("kitchen", "3 x 2 m"), ("kitchen 3 x 2 m",)])
    svg = drawing.finish(200, 100)

Places are in units of the drawing, and y goes down. What anything looks like is said by classes of
CSS. There is no script, and every text is escaped.
"""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Sequence
from typing import Final

from ulak.kit.texts import printable

__all__ = ["Box", "Drawing", "Point", "measure_bubble"]

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

LARGEST, PLEASANT, SMALLEST = 20.0, 14.0, 10.5
"""Sizes of a font: inside a box none is larger, a smaller one is worth another way, or a number."""
LINE: Final = 15
STYLE: Final = """
.drawing text { font-family: sans-serif; fill: #000; text-anchor: middle }
.drawing .said { text-anchor: start; font-size: 15px } .drawing .title { font-weight: bold }
.drawing .inside { stroke: #fff; stroke-width: 3px; paint-order: stroke }
.drawing .bubble { fill: #fff; stroke: #000 }
"""


class Drawing:
    """A drawing in the making, which knows where there is text."""

    def __init__(self, style: str) -> None:
        """`style` is CSS; the class of the whole is `drawing`."""
        self._svg = Xml.Element("svg", {"class": "drawing", "xmlns": "http://www.w3.org/2000/svg"})
        Xml.SubElement(self._svg, "style").text = STYLE + style.lstrip()
        self._taken: list[Box] = []
        self._legend: dict[str, str] = {}

    def box(self, box: Box, style: str, *, radius: float = 0) -> None:
        """Draw a rectangle; `radius` rounds its corners."""
        left, top, right, bottom = box
        sizes = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        self._add("rect", style, sizes | ({"rx": radius} if radius else {}))

    def line(self, begin: Point, end: Point, style: str, *, width: float) -> None:
        """Draw a line."""
        ends = {"x1": begin[0], "y1": begin[1], "x2": end[0], "y2": end[1]}
        self._add("line", style, ends).set("stroke-width", str(width))

    def text(
        self, x: float, y: float, text: str, *, style: str = "inside", size: float = LINE,
        is_upright: bool = False,
    ) -> None:  # fmt: skip
        """Write a text, its middle at a place."""
        written = self._add("text", style, {"x": x, "y": y + size * 0.36})
        written.set("font-size", f"{size:.1f}")
        if is_upright:
            written.set("transform", f"rotate(-90 {x:.1f} {y:.1f})")
        written.text = printable(text)

    def write_line(self, x: float, y: float, text: str, *, room: float, style: str = "") -> None:
        """Write a line from the left, as far as there is room."""
        text = printable(text)
        while _measure(text) * LINE > room:
            text = text[: min(len(text) - 2, int(len(text) * 0.98))] + "\u2026"
        self._add("text", f"said {style}".strip(), {"x": x, "y": y}).text = text

    def write_inside(self, box: Box, ways: Iterable[Sequence[str]]) -> None:
        """Write lines into the middle of a box, in the best of several ways, upright if that is
        much larger. Where there is no room for any, a number stands for the text, and a line of
        the legend says what it is."""
        left, top, right, bottom = box
        x, y, room = (left + right) / 2, (top + bottom) / 2, (right - left, bottom - top)
        ways = [tuple(map(printable, lines)) for lines in ways]
        lines, font, is_upright = max(
            ((lines, *_fit(lines, room)) for lines in ways), key=lambda way: min(way[1], PLEASANT)
        )
        if font < SMALLEST:
            key = self._legend.setdefault(", ".join(ways[0]), f"#{len(self._legend) + 1}")
            lines, (font, is_upright) = (key,), _fit((key,), room)
            font = min(max(font, 6.0), SMALLEST)
        for n, line in enumerate(lines):
            shift = (n - (len(lines) - 1) / 2) * font * 1.15
            at = (x + shift, y) if is_upright else (x, y + shift)
            self.text(*at, line, size=font, is_upright=is_upright)
        half = max(map(_measure, lines)) * font / 2, len(lines) * font * 0.58
        across, up = half[::-1] if is_upright else half
        self._taken.append((x - across, y - up, x + across, y + up))

    def mark(self, text: str, places: Iterable[Point], *, size: float) -> None:
        """Write a text into a bubble around the first of some places where it hides no other text,
        or else where it hides least."""
        half, high = measure_bubble(text, size), size * 0.68
        boxes: list[tuple[float, int, Box]] = []
        for n, (x, y) in enumerate(places):
            box = x - half, y - high, x + half, y + high
            boxes.append((sum(_find_shared(box, other) for other in self._taken), n, box))
            if not boxes[-1][0]:
                break
        box = min(boxes)[2]
        self._taken.append(box)
        self.box(box, "bubble", radius=high)
        self.text((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, text, style="number", size=size)

    def write_legend(self, top: float, width: float) -> float:
        """Write what the numbers in small boxes mean, and return where the legend ends."""
        lines = [f"{key}: {text}" for text, key in self._legend.items()]
        if not lines:
            return top
        widest = min(max(map(_measure, lines)) * LINE + 24, width - 20)
        columns = max(1, int((width - 20) / widest))
        for n, line in enumerate(lines):
            x, y = 10 + n % columns * widest, top + 14 + n // columns * 20
            self.write_line(x, y, line, room=widest)
        return top + 8 + -(-len(lines) // columns) * 20

    def finish(self, width: float, height: float) -> Xml.Element:
        """Return the drawing as an element, for a page or for a file."""
        self._svg.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
        return self._svg

    def _add(self, tag: str, style: str, numbers: dict[str, float]) -> Xml.Element:
        said = {name: f"{number:.1f}" for name, number in numbers.items()}
        return Xml.SubElement(self._svg, tag, {"class": style, **said})


def _measure(text: str) -> float:
    """Return about how wide a text is, by the size of its font."""
    return sum(_measure_letter(letter) for letter in text)


def measure_bubble(text: str, size: float) -> float:
    """Return half of the width of the bubble around a text."""
    return size * (0.36 + 0.29 * len(text))


def _measure_letter(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF" or letter in "MW@%mw":
        return 1.0
    return 0.75 if letter.isupper() else 0.64


def _fit(lines: Sequence[str], room: tuple[float, float]) -> tuple[float, bool]:
    """Return the font size at which lines have room, and whether they are turned upright."""
    width, height = max(map(_measure, lines)), len(lines) * 1.15
    lying, upright = (
        min(LARGEST, (along - 6) / width, (across - 3) / height)
        for along, across in (room, room[::-1])
    )
    # Turning the head must be worth it.
    is_upright = lying < PLEASANT and upright > lying * 1.25
    return (upright if is_upright else lying), is_upright


def _find_shared(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0)
