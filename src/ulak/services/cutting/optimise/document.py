"""Plans as XML, version 2: written, read back and summed up.

docs/services/cutting.md describes the form. Places and sizes are in mm with two decimals, from the
lower left corner of the plate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple
from xml.etree import ElementTree as Xml

from ulak.kit.texts import must_be_writable, number_text
from ulak.services.cutting.optimise.model import (
    Order,
    Piece,
    Plan,
    Sheet,
    X,
    Y,
    count_stacked,
    find_cut_size,
    is_reusable,
    list_cuts,
    to_units,
)
from ulak.services.cutting.optimise.verify import (
    BadPlan,
    Node,
    StoredSheet,
    parse_plan,
    read_figures,
    read_sheet,
)

VERSION: Final = "2"
_AXES: Final = "xy"
_BOX: Final = ("x", "y", "width", "height")


@dataclass(frozen=True, slots=True)
class Report:
    """A plan in figures."""

    sheets: int
    plate_area_m2: Decimal
    drop_area_m2: Decimal
    """All that is no part: rests, dust, kerfs and trims."""
    waste_percent: Decimal
    """`drop_area_m2` in percent of `plate_area_m2`."""
    bound: int
    """No plan needs fewer sheets; 0 when nothing is known."""
    gap_percent: Decimal | None
    """The sheets above the bound, in percent of the bound; None without a bound."""
    patterns: int
    cycles: int
    """How often the saw is loaded: identical sheets are cut together, as high as a stack may be."""
    cuts: int
    """On all sheets together, without those that trim the plates."""
    cut_length_m: Decimal
    seconds: float
    rests: tuple[tuple[int, Piece], ...]
    """The reusable rests, each with the number of its sheet, from 1."""


class Pattern(NamedTuple):
    """Sheets that are cut alike."""

    number: int
    sheet: Sheet
    sheets: tuple[int, ...]
    """Their numbers, from 1."""
    cycles: int
    """How often the saw is loaded with them."""


def list_patterns(order: Order, plan: Plan) -> list[Pattern]:
    """Return the patterns of a plan, numbered from 1 in order of appearance. Sheets of the same
    plate with the same cut tree have the same pattern."""
    alike: dict[object, list[int]] = {}
    for number, sheet in enumerate(plan.sheets, 1):
        alike.setdefault((sheet.plate, *_describe(order, sheet.root)), []).append(number)
    stack = count_stacked(order)
    return [
        Pattern(n, plan.sheets[own[0] - 1], tuple(own), -(-len(own) // stack))
        for n, own in enumerate(alike.values(), 1)
    ]


def summarize(order: Order, plan: Plan) -> Report:
    """Return the figures of a plan."""
    gross = net = cuts = cut_length = 0
    rests = []
    for number, sheet in enumerate(plan.sheets, start=1):
        stock = order.stock[sheet.plate]
        gross += to_units(stock.width) * to_units(stock.height)
        for piece in sheet.root.walk():
            if piece.part is not None:
                net += piece.size[X] * piece.size[Y]
            elif is_reusable(piece, order.least_rest):
                rests.append((number, piece))
        own = list_cuts(sheet.root)
        cuts += len(own)
        cut_length += sum(cut.length for cut in own)
    boards, bound, patterns = len(plan.sheets), plan.bound, list_patterns(order, plan)
    return Report(
        sheets=boards, plate_area_m2=Decimal(gross).scaleb(-10),
        drop_area_m2=Decimal(gross - net).scaleb(-10), waste_percent=_percent(gross - net, gross),
        bound=bound, gap_percent=_percent(boards - bound, bound) if bound else None,
        patterns=len(patterns), cycles=sum(pattern.cycles for pattern in patterns),
        cuts=cuts, cut_length_m=Decimal(cut_length).scaleb(-5), seconds=plan.seconds,
        rests=tuple(rests),
    )  # fmt: skip


def write_plan(order: Order, plan: Plan) -> bytes:
    """Return the plan as XML; the same order and plan give the same bytes.

    Raises `ValueError`: an id, a description or a name has a character that XML cannot hold.
    """
    report = summarize(order, plan)
    root = Xml.Element("Plan", version=VERSION, material=must_be_writable(order.material))
    solution = Xml.SubElement(
        root, "Solution", name="E", algo=must_be_writable(plan.algorithm), best="1",
        boards=str(report.sheets), mqBoards=number_text(report.plate_area_m2),
        mqDrops=number_text(report.drop_area_m2), waste=str(report.waste_percent),
        patterns=str(report.patterns), cycles=str(report.cycles), zcuts=str(report.cuts),
        cutLength=number_text(report.cut_length_m), jobTime=f"{report.seconds:.2f}",
        bound=str(report.bound),
    )  # fmt: skip
    if report.gap_percent is not None:
        solution.set("gap", str(report.gap_percent))
    patterns = {n: each.number for each in list_patterns(order, plan) for n in each.sheets}
    for number, sheet in enumerate(plan.sheets, start=1):
        stock = order.stock[sheet.plate]
        element = Xml.SubElement(
            root, "Sheet", number=str(number), pattern=str(patterns[number]),
            plate=str(sheet.plate + 1), width=_mm(to_units(stock.width)),
            height=_mm(to_units(stock.height)),
        )  # fmt: skip
        if stock.name:
            element.set("name", must_be_writable(stock.name))
        _write_piece(element, sheet.root, order)
    Xml.indent(root)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def read_sheets(data: bytes) -> list[StoredSheet]:
    """Return the sheets of a plan as it says them, without its order. Raises `BadPlan`."""
    return _list_sheets(parse_plan(data))


def read_plan(order: Order, data: bytes) -> Plan:
    """Return the plan of an order that `write_plan` wrote. Only the form is checked here; `verify`
    judges the plan. Of parts that are called the same a piece is the first of its size.

    Raises `BadPlan`: it is not of this form, or of another order.
    """
    numbers: dict[tuple[object, ...], int] = {}
    for n, part in enumerate(order.parts):
        numbers.setdefault((part.id, part.description, *sorted(find_cut_size(part, order))), n)

    def read(node: Node) -> Piece:
        place, size = node.place, node.size
        if node.tag == "Rest":
            return Piece(place, size)
        if node.tag == "Cut":
            return Piece(place, size, node.axis, tuple(map(read, node.children)))
        id, description, along = node.facts
        if (part := numbers.get((id, description, *sorted(size)))) is None:
            raise BadPlan(f"part {id!r} was not ordered in this size")
        return Piece(place, size, part=part, is_upright=along == "height")

    root, sheets = parse_plan(data), list[Sheet]()
    figures = read_figures(root[0])
    for sheet in _list_sheets(root):
        if not 1 <= sheet.plate <= len(order.stock):
            raise BadPlan(f"there is no plate {sheet.plate} in the stock")
        sheets.append(Sheet(sheet.plate - 1, read(sheet.root)))
    return Plan(
        tuple(sheets), root[0].attrib["algo"], figures["bound"], figures["jobTime"] / 10**12
    )


def _list_sheets(root: Xml.Element) -> list[StoredSheet]:
    sheets = [read_sheet(element, n) for n, element in enumerate(root[1:], 1)]
    for n, sheet in enumerate(sheets, 1):
        if sheet.number != n:
            raise BadPlan(f"sheet {n}: its number is {sheet.number}")
    return sheets


def _describe(order: Order, root: Piece) -> Iterable[object]:
    """Yield what makes a cut tree what it is: two trees that are described alike look alike."""
    for piece in root.walk():
        yield piece.place, piece.size
        if piece.part is not None:
            yield *order.parts[piece.part][:2], piece.is_upright
        elif piece.children:
            yield piece.axis, len(piece.children)


def _write_piece(parent: Xml.Element, piece: Piece, order: Order) -> None:
    box = dict(zip(_BOX, map(_mm, (*piece.place, *piece.size)), strict=True))
    if piece.part is not None:
        part = order.parts[piece.part]
        label = {"id": must_be_writable(part.id), "description": must_be_writable(part.description)}
        along = {"length_along": "height" if piece.is_upright else "width"}
        Xml.SubElement(parent, "Part", {**label, **box, **along})
    elif piece.axis is not None and piece.children:
        element = Xml.SubElement(parent, "Cut", {"axis": _AXES[piece.axis], **box})
        for child in piece.children:
            _write_piece(element, child, order)
    else:
        reusable = {"reusable": "1"} if is_reusable(piece, order.least_rest) else {}
        Xml.SubElement(parent, "Rest", {**box, **reusable})


def _percent(share: int, whole: int) -> Decimal:
    """Return a share in percent, two decimals, half up."""
    hundredths = (20_000 * share + whole) // (2 * whole) if whole else 0
    return Decimal(hundredths).scaleb(-2)


def _mm(units: int) -> str:
    return f"{units // 100}.{units % 100:02}"
