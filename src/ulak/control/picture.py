"""Lines over time as SVG: how a load, a queue and the modes of adaptive control went together."""

from __future__ import annotations

import math
import xml.etree.ElementTree as Xml
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ulak.control.signals import ACCEPTING, ENFORCE

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 150, 60, 20, 30, 22
COLORS: Final = ("#0969da", "#bc4c00", "#1a7f37")
STYLE: Final = """
    .ground { fill: #ffffff } text { fill: #24292f; font: 12px sans-serif }
    .title { font-weight: bold } .grid { stroke: #d0d7de } .line { fill: none; stroke-width: 1.5 }
    .threshold { stroke: #6e7781; stroke-dasharray: 4 3 } .protected { fill: #bf8700; opacity: 0.2 }
    @media (prefers-color-scheme: dark) {
        .ground { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d }
    }
"""

Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One picture among several that share their time, in seconds."""

    title: str
    lines: Mapping[str, Sequence[Point]]
    thresholds: Sequence[float] = ()
    spans: Sequence[tuple[float, float]] = field(default_factory=tuple)
    """When something was protected."""
    most: float = 0.0
    """The axis reaches at least so far."""


def draw(panels: Sequence[Panel], heading: str) -> str:
    """Return the panels, one below the other, as an SVG document."""
    height = TOP + HEIGHT * len(panels)
    svg = Xml.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}")
    Xml.SubElement(svg, "style").text = STYLE
    Xml.SubElement(svg, "rect", {"class": "ground", "width": str(WIDTH), "height": str(height)})
    _write(svg, LEFT, 20, heading, "title")
    times = [at for panel in panels for line in panel.lines.values() for at, _ in line]
    longest = max(times, default=0.0) or 1.0
    for n, panel in enumerate(panels):
        at = f"translate(0 {TOP + n * HEIGHT})"
        _draw_panel(Xml.SubElement(svg, "g", transform=at), panel, longest)
    Xml.indent(svg, " ")
    return Xml.tostring(svg, encoding="unicode") + "\n"


def _draw_panel(group: Xml.Element, panel: Panel, longest: float) -> None:
    values = [v for line in panel.lines.values() for _, v in line if math.isfinite(v)]
    most = max([*values, *panel.thresholds, panel.most]) or 1.0
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def place(at: float, value: float) -> Point:
        return LEFT + at / longest * (right - LEFT), floor - value / most * (floor - 26)

    for begin, end in panel.spans:
        x, width = place(begin, 0)[0], place(end, 0)[0] - place(begin, 0)[0]
        box = {"x": f"{x:.1f}", "y": "26", "width": f"{width:.1f}", "height": str(floor - 26)}
        Xml.SubElement(group, "rect", {"class": "protected", **box})
    for share in (0.0, 0.5, 1.0):
        y = place(0, most * share)[1]
        _line(group, [(LEFT, y), (right, y)], {"class": "grid"})
        _write(group, LEFT - 6, y + 4, f"{most * share:.3g}", anchor="end")
    step = 60 * math.ceil(longest / 60 / 8) if longest > 60 else 10
    for second in range(0, int(longest) + 1, step):
        _write(group, place(second, 0)[0], floor + 16, f"{second} s", anchor="middle")
    for value in panel.thresholds:
        y = place(0, value)[1]
        _line(group, [(LEFT, y), (right, y)], {"class": "threshold"})
    _write(group, LEFT, 18, panel.title, "title")
    for n, (name, points) in enumerate(panel.lines.items()):
        color, x = COLORS[n % len(COLORS)], right - 170 * (len(panel.lines) - n)
        _line(group, [(x, 14), (x + 20, 14)], {"class": "line", "style": f"stroke: {color}"})
        _write(group, x + 26, 18, name)
        # A gap where nothing is known.
        part: list[Point] = []
        for at, value in [*points, (longest, math.nan)]:
            if math.isfinite(value):
                part.append(place(at, value))
            elif part:
                _line(group, part, {"class": "line", "style": f"stroke: {color}"})
                part = []


def _line(group: Xml.Element, points: Sequence[Point], attributes: dict[str, str]) -> None:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    Xml.SubElement(group, "polyline", {**attributes, "points": text})


def _write(
    group: Xml.Element, x: float, y: float, text: str, style: str = "", *, anchor: str = "start"
) -> None:
    named = {"class": style} if style else {}
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, **named}
    Xml.SubElement(group, "text", place).text = text


def make_panels(ticks: Sequence[Mapping[str, Any]], thresholds: Mapping[str, float]) -> list[Panel]:
    """Return load, p95, depth, budgets and modes of simulated ticks as panels."""

    def line(*path: str) -> list[Point]:
        return [(tick["second"], _read(tick, path)) for tick in ticks]

    modes = {name: _find_modes(ticks, name) for name in ("guard", "pdf")}
    p95 = thresholds["p95_latency_enter_threshold"], thresholds["p95_latency_exit_threshold"]
    depth = thresholds["queue_depth_enter_threshold"], thresholds["queue_depth_exit_threshold"]
    guard, pdf = (_spans(line) for line in modes.values())
    return [
        Panel("New jobs a second", {"offered": line("load")}, spans=pdf),
        Panel(
            "p95 of requests, seconds", {"p95": line("p95_seconds", "guard")}, p95, spans=guard,
        ),
        Panel("Queue depth", {"due jobs": line("queue_depth", "pdf")}, depth, spans=pdf),
        Panel(
            "Error budget left",
            {name: line("budget_remaining", name) for name in modes}, most=1.0,
        ),
        Panel("Modes: 1 is shadow or backpressure", modes, most=1.0),
    ]  # fmt: skip


def _read(tick: Mapping[str, Any], path: Sequence[str]) -> float:
    value: Any = tick
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else math.nan


def _find_modes(ticks: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """Return 1 while a subsystem is protected and 0 before and after, with upright edges."""
    points: list[Point] = []
    for tick in ticks:
        value = float(tick["modes"][name] not in (ACCEPTING, ENFORCE))
        if points and points[-1][1] != value:
            points.append((tick["second"], points[-1][1]))
        points.append((tick["second"], value))
    return points


def _spans(points: Sequence[Point]) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    begin: float | None = None
    for at, value in points:
        if value and begin is None:
            begin = at
        elif not value and begin is not None:
            spans.append((begin, at))
            begin = None
    return [*spans, (begin, points[-1][0])] if begin is not None else spans
