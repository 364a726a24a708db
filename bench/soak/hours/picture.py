"""The picture of a long soak, and the table below it: small multiples of every kept series.

`python -m bench.soak.hours.picture FOLDER` draws docs/pictures/soak-hours.svg and writes the table
of docs/soak.md anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import ceil, log10
from pathlib import Path
from statistics import median
from xml.etree import ElementTree as Xml

from bench.measure import ROOT
from bench.soak.hours import sampler
from bench.soak.hours.sampler import Line
from bench.soak.hours.traffic import Plan
from bench.soak.hours.verdict import Trend, Verdict, judge

PICTURE = ROOT / "docs" / "pictures" / "soak-hours.svg"
PAGE = ROOT / "docs" / "soak.md"
MARKERS = ("<!-- table -->\n", "<!-- end of the table -->\n")

PANELS = {
    "steady rss MB": "worker: memory, MB",
    "client rss MB": "client: memory, MB",
    "steady descriptors": "worker: descriptors",
    "steady threads": "worker: threads",
    "rows jobs": "jobs, rows",
    "rows events": "events, rows",
    "rows deliveries": "messages, rows",
    "rows ticks": "ticks, rows",
    "rows count_deltas": "count deltas, rows",
    "unfinished": "unfinished jobs",
    "database MB": "database, MB",
    "wal MB": "WAL, MB",
    "dead rows": "dead rows (PostgreSQL)",
    "indexes MB": "indexes, MB (PostgreSQL)",
    "ended per s": "jobs ended a second",
    "pickup p50 ms": "pickup p50, ms",
}
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

LEGEND = "x: hours | band: least to most | ticks: kills | dashed: the month's end | dotted: a gap"

COLUMNS = 4
WIDTH, HEIGHT = 250, 150
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 26, 24
HEAD = 34
# So many points of a line: the median of each span, with a band from its least to its most.
POINTS = 60

STYLE = """
    .ground { fill: #ffffff } text { fill: #24292f; font: 11px sans-serif }
    .title { font-weight: bold } .grid { stroke: #d0d7de } .mark { stroke: #6e7781 }
    .sqlite { stroke: #0969da; fill: #0969da } .postgres { stroke: #bc4c00; fill: #bc4c00 }
    .line { fill: none !important; stroke-width: 1.5 } .band { stroke: none; opacity: 0.25 }
    .line.sqlite { stroke-width: 3; opacity: 0.7 }
    @media (prefers-color-scheme: dark) {
        .ground { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d }
        .mark { stroke: #8b949e } .sqlite { stroke: #58a6ff; fill: #58a6ff }
        .postgres { stroke: #f0883e; fill: #f0883e }
    }
"""


def draw(lines: Sequence[Line], plan: Plan) -> str:
    """Return the picture as SVG: a panel for each series, both stores in each, y from nothing."""
    rows = ceil(len(PANELS) / COLUMNS)
    width, height = COLUMNS * WIDTH, HEAD + rows * HEIGHT
    svg = Xml.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}")
    Xml.SubElement(svg, "style").text = STYLE
    Xml.SubElement(svg, "rect", {"class": "ground", "width": str(width), "height": str(height)})
    for n, store in enumerate(plan.stores):
        _add_line(svg, f"line {store}", [(LEFT + n * 110, 17), (LEFT + 24 + n * 110, 17)])
        _add_text(svg, LEFT + 30 + n * 110, 21, NAMES[store])
    _add_text(svg, width - RIGHT, 21, LEGEND, "end")
    for n, (name, title) in enumerate(PANELS.items()):
        at = f"translate({n % COLUMNS * WIDTH} {HEAD + n // COLUMNS * HEIGHT})"
        panel = Xml.SubElement(svg, "g", transform=at)
        _add_text(panel, LEFT, 16, title, style="title")
        _draw_panel(panel, lines, plan, name)
    Xml.indent(svg, " ")
    return Xml.tostring(svg, encoding="unicode") + "\n"


def _draw_panel(panel: Xml.Element, lines: Sequence[Line], plan: Plan, name: str) -> None:
    series = {store: list(sampler.moments(lines, store, name)) for store in plan.stores}
    most = round_up(max((value for each in series.values() for _, value in each), default=1.0))
    longest_s = max((line.t for line in lines), default=1.0)
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def place(t: float, value: float) -> tuple[float, float]:
        return LEFT + t / longest_s * (right - LEFT), floor - value / most * (floor - TOP)

    for share in (0.0, 0.5, 1.0):
        y = place(0, most * share)[1]
        _add_line(panel, "grid", [(LEFT, y), (right, y)])
        _add_text(panel, LEFT - 5, y + 4, f"{most * share:,g}", "end")
    step = ceil(longest_s / 3600 / 6) if longest_s >= 3600 else 0.1
    for n in range(int(longest_s / 3600 / step) + 1):
        _add_text(panel, place(n * step * 3600, 0)[0], floor + 16, f"{n * step:g}", "middle")
    for t, y, dashes in _marks(lines):
        x, bottom = place(t, 0)
        _add_line(panel, "mark", [(x, bottom), (x, y)], dashes)
    for store, moments in series.items():
        spans = list(_span(moments, longest_s / POINTS))
        least, middle, greatest = ([place(t, v[i]) for t, v in spans] for i in range(3))
        points = _join([*least, *reversed(greatest)])
        Xml.SubElement(panel, "polygon", {"class": f"band {store}", "points": points})
        _add_line(panel, f"line {store}", middle)


def _marks(lines: Sequence[Line]) -> Iterator[tuple[float, float, str]]:
    """Return the moment of each mark, how high it is drawn, and its dashes."""
    for t, mark in sorted({(round(line.t), line.mark) for line in lines if line.mark}):
        if mark == "kill":
            yield t, HEIGHT - BOTTOM + 4, ""
        elif mark == "month":
            yield t, TOP, "6 3"
        elif mark == "part" and t > 1:
            yield t, TOP, "1 3"


def _span(
    moments: Sequence[tuple[float, float]], span_s: float
) -> Iterator[tuple[float, tuple[float, float, float]]]:
    spans: dict[int, list[float]] = {}
    for t, value in moments:
        spans.setdefault(int(t / span_s), []).append(value)
    for n, values in spans.items():
        yield (n + 0.5) * span_s, (min(values), median(values), max(values))


def round_up(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** int(log10(value) // 1) if value > 0 else 1.0
    steps = [1, 1.5, 2, 3, 4, 5, 6, 8, 10]
    return next((step * power for step in steps if value <= step * power), 10 * power)


def _add_line(
    to: Xml.Element, style: str, points: Sequence[tuple[float, float]], dashes: str = ""
) -> None:
    facts = {"class": style, "points": _join(points)}
    Xml.SubElement(to, "polyline", facts | ({"stroke-dasharray": dashes} if dashes else {}))


def _add_text(
    to: Xml.Element, x: float, y: float, text: str, anchor: str = "start", style: str = ""
) -> None:
    facts = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    Xml.SubElement(to, "text", facts | ({"class": style} if style else {})).text = text


def _join(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def make_table(verdict: Verdict) -> str:
    """Return the facts and the trends of the drawn series in Markdown."""
    stores = list(verdict.trends)
    rows = [["", *(NAMES[store] for store in stores)], ["---"] * (len(stores) + 1)]
    rows.append(["verdict", *("; ".join(verdict.wrong[store]) or "PASS" for store in stores)])
    for fact in verdict.facts[stores[0]]:
        cells = [f"{verdict.facts[store][fact]:,g}" for store in stores]
        rows.append([fact, *cells])
    for name, title in PANELS.items():
        cells = [_cell([t for t in verdict.trends[store] if t.name == name]) for store in stores]
        rows.append([title, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(found: Sequence[Trend]) -> str:
    if not found:
        return "-"
    (trend,) = found
    bound = "" if trend.bound is None else f" of {trend.bound:,.1f}"
    unsure = "" if trend.is_sure else ", no trend"
    said = f"{trend.middle:,.1f}; {trend.per_day:+,.1f} a day{bound}{unsure}"
    return said if trend.is_flat else f"**{said}**"


def main() -> None:
    """Draw, and write the table."""
    folder = Path(sys.argv[1])
    lines, plan = sampler.read(folder), Plan.read(folder)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(lines, plan))
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition(MARKERS[0])
        after = rest.partition(MARKERS[1])[2]
        PAGE.write_text(before + make_table(judge(lines, plan)).join(MARKERS) + after)


if __name__ == "__main__":
    main()
