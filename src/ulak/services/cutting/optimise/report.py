"""The page of a job, to be printed: the figures of its plans, drawings, and labels for parts."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from ulak.kit.texts import number_text, printable
from ulak.services.cutting.optimise.document import list_patterns, read_plan, summarize
from ulak.services.cutting.optimise.drawing import draw_pattern
from ulak.services.cutting.optimise.model import Order, Piece, Plan
from ulak.services.cutting.optimise.reading import read_import

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


class Batch(NamedTuple):
    """An order that is cut from one material, with its plan."""

    title: str
    order: Order
    plan: Plan


def read_batch(title: str, plan: Path, file: Path, settings: Mapping[str, Any]) -> Batch:
    """Return a batch by its plan and its import file. Raises `BadPlan`, `Unsolvable`, `OSError`."""
    order = read_import(file, settings)
    return Batch(title, order, read_plan(order, plan.read_bytes()))


def make_labels(order: Order, plan: Plan) -> list[Label]:
    """Return a label for each part that is cut, in the order in which they come from the saw."""
    labels = []
    for number, sheet in enumerate(plan.sheets, 1):
        pieces = [piece for piece in sheet.root.walk() if piece.part is not None]
        labels += [_make_label(order, piece, number, n) for n, piece in enumerate(pieces, 1)]
    return labels


def make_report(batches: Sequence[Batch], title: str) -> str:
    """Return a page of HTML about all batches of a job: figures, drawings, labels."""
    page = Xml.Element("html", lang="en")
    head = Xml.SubElement(page, "head")
    Xml.SubElement(head, "meta", charset="utf-8")
    Xml.SubElement(head, "title").text = printable(title)
    Xml.SubElement(head, "style").text = PAGE_STYLE
    body = Xml.SubElement(page, "body")
    Xml.SubElement(body, "h1").text = printable(title)
    for name, order, plan in batches:
        Xml.SubElement(body, "h2").text = printable(name or order.material)
        table = Xml.SubElement(body, "table")
        for fact, value in list_facts(order, plan).items():
            row = Xml.SubElement(table, "tr")
            Xml.SubElement(row, "th").text, Xml.SubElement(row, "td").text = fact, value
    for name, order, plan in batches:
        for pattern in list_patterns(order, plan):
            Xml.SubElement(body, "figure").append(draw_pattern(order, pattern, name))
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
    has_cost = known and len(known) == len(costs)
    return {
        "Sheets": f"{found.sheets}; no plan needs fewer than {found.bound}",
        "Gap to the bound": "not known" if found.gap_percent is None else f"{found.gap_percent} %",
        "Waste": f"{found.waste_percent} % of the plates",
        "Patterns": str(found.patterns),
        "Cycles of the saw": str(found.cycles),
        "Cuts": f"{found.cuts}, {found.cut_length_m:.1f} m",
        "Cost of the plates": str(sum(known)) if has_cost else "not known",
        "Computed by": f"{plan.algorithm or 'hand'}, {plan.seconds:.1f} s",
    }


def _make_label(order: Order, piece: Piece, sheet: int, position: int) -> Label:
    part = order.parts[piece.part or 0]
    along, across = (Decimal(size) / 100 for size in piece.size)
    bands = {side: band for side, band in zip(BANDS, part.bands, strict=True) if band}
    cut = (across, along) if piece.is_upright else (along, across)
    finished = part.length, part.width
    return Label(part.id, part.description, finished, cut, sheet, position, bands)


def _write_label(div: Xml.Element, label: Label, title: str) -> None:
    Xml.SubElement(div, "b").text = printable(label.id)
    finished, cut = (" x ".join(map(number_text, size)) for size in (label.finished, label.cut))
    bands = ", ".join(f"{side} {number_text(band)}" for side, band in label.bands.items())
    lines = (
        title, label.description, f"finished {finished}", f"cut {cut}",
        f"bands: {bands or 'none'}", f"sheet {label.sheet}, part {label.position}",
    )  # fmt: skip
    for line in filter(None, lines):
        Xml.SubElement(div, "br").tail = printable(line)
