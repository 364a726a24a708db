"""Plans as XML, version 2: written, read back and summed up.

docs/services/cutting.md describes the form. Places and sizes are in mm with two decimals, from the
lower left corner of the plate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, NamedTuple
from xml.etree import ElementTree as Xml

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from ulak.services.cutting.optimise.model import (
    Order,
    Pair,
    Piece,
    Plan,
    Sheet,
    X,
    Y,
    count_cuts,
    count_stacked,
    find_cut_size,
    is_reusable,
    to_units,
)

VERSION: Final = "2"
DEEPEST: Final = 100
"""Levels of a cut tree; a guess, far beyond what a saw can do."""
_AXES: Final = "xy"
_BOX: Final = ("x", "y", "width", "height")
_MM: Final = re.compile(r"[0-9]{1,7}\.[0-9]{2}")
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold."""


class BadPlan(ValueError):
    """It is no plan of version 2, and why."""


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


class StoredSheet(NamedTuple):
    """A sheet as its plan says it; `plate` is its place in the stock, from 0."""

    number: int
    pattern: int
    plate: int
    name: str
    size: Pair
    root: Piece


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan that was read back. It does not know its order."""

    material: str
    solution: Mapping[str, str]
    """The attributes of the `Solution`, as texts."""
    labels: tuple[tuple[str, str], ...]
    """Id and description of the parts, in order of appearance. A piece's `part` is a place here."""
    sheets: tuple[StoredSheet, ...]

    @property
    def plan(self) -> Plan:
        return Plan(
            tuple(Sheet(sheet.plate, sheet.root) for sheet in self.sheets),
            algorithm=self.solution["algo"], bound=int(self.solution["bound"]),
            seconds=float(self.solution["jobTime"]),
        )  # fmt: skip


def number_patterns(order: Order, plan: Plan) -> list[int]:
    """Return the pattern of each sheet, numbered from 1 in order of appearance. Sheets of the same
    plate with the same cut tree have the same pattern."""
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault((sheet.plate, *_describe(order, sheet.root)), len(numbers) + 1)
        for sheet in plan.sheets
    ]


def summarize(order: Order, plan: Plan) -> Report:
    """Return the figures of a plan."""
    return _summarize(order, plan, number_patterns(order, plan))


def write_plan(order: Order, plan: Plan) -> bytes:
    """Return the plan as XML; the same order and plan give the same bytes.

    Raises:
        BadPlan: an id, a description or a name has a character that XML cannot hold.
    """
    patterns = number_patterns(order, plan)
    report = _summarize(order, plan, patterns)
    root = Xml.Element("Plan", version=VERSION, material=_text(order.material))
    solution = Xml.SubElement(
        root, "Solution", name="E", algo=_text(plan.algorithm), best="1",
        boards=str(report.sheets), mqBoards=_plain(report.plate_area_m2),
        mqDrops=_plain(report.drop_area_m2), waste=str(report.waste_percent),
        patterns=str(report.patterns), cycles=str(report.cycles), zcuts=str(report.cuts),
        cutLength=_plain(report.cut_length_m), jobTime=f"{report.seconds:.2f}",
        bound=str(report.bound),
    )  # fmt: skip
    if report.gap_percent is not None:
        solution.set("gap", str(report.gap_percent))
    for number, (sheet, pattern) in enumerate(zip(plan.sheets, patterns, strict=True), start=1):
        stock = order.stock[sheet.plate]
        element = Xml.SubElement(
            root, "Sheet", number=str(number), pattern=str(pattern), plate=str(sheet.plate + 1),
            width=_mm(to_units(stock.width)), height=_mm(to_units(stock.height)),
        )  # fmt: skip
        if stock.name:
            element.set("name", _text(stock.name))
        _write_piece(element, sheet.root, order)
    Xml.indent(root)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def read_plan(data: bytes) -> StoredPlan:
    """Return what `write_plan` wrote. Only the form is checked here; `verify` judges the plan.

    Raises:
        BadPlan: it is not of this form.
    """
    try:
        root: Xml.Element = fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise BadPlan(f"it has a DTD or an entity, which is refused: {error}") from error
    except (SyntaxError, LookupError, ValueError) as error:  # also of an unknown encoding
        raise BadPlan(f"it is no well-formed XML: {error}") from error
    if root.tag != "Plan" or root.get("version") != VERSION:
        raise BadPlan(f"it is no Plan of version {VERSION}")
    if len(root) < 2 or root[0].tag != "Solution":
        raise BadPlan("a Plan has a Solution, then Sheets")
    solution, labels = dict(root[0].attrib), dict[tuple[str, str], int]()
    for name, form in (("bound", _COUNT), ("jobTime", _NUMBER), ("algo", re.compile(".*", re.S))):
        _match(root[0], name, form)
    sheets = tuple(_read_sheet(each, number, labels) for number, each in enumerate(root[1:], 1))
    return StoredPlan(_get(root, "material"), solution, tuple(labels), sheets)


def number_parts(order: Order, stored: StoredPlan) -> Plan:
    """Return a plan that was read with the numbers of its order's parts; of parts that are called
    the same the one of this size. Raises `BadPlan`: a part is not of the order."""
    numbers: dict[tuple[object, ...], int] = {}
    for n, part in enumerate(order.parts):
        numbers.setdefault((part.id, part.description, *sorted(find_cut_size(part, order))), n)

    def number(piece: Piece) -> Piece:
        if piece.part is None:
            return replace(piece, children=tuple(map(number, piece.children)))
        label = stored.labels[piece.part]
        found = numbers.get((*label, *sorted(piece.size)))
        if found is None:
            raise BadPlan(f"part {label[0]!r} was not ordered in this size")
        return replace(piece, part=found)

    plan = stored.plan
    sheets = tuple(Sheet(each.plate, number(each.root)) for each in plan.sheets)
    return replace(plan, sheets=sheets)


def _summarize(order: Order, plan: Plan, patterns: Sequence[int]) -> Report:
    gross = net = cuts = cut_length = 0
    rests = []
    for number, sheet in enumerate(plan.sheets, start=1):
        stock = order.stock[sheet.plate]
        gross += to_units(stock.width) * to_units(stock.height)
        for piece in sheet.root.walk():
            if piece.part is not None:
                net += piece.size[X] * piece.size[Y]
            elif piece.children:
                own, length = count_cuts(piece)
                cuts += own
                cut_length += length
            elif is_reusable(piece, order.least_rest):
                rests.append((number, piece))
    counts = Counter(patterns)
    stack = count_stacked(order)
    boards, bound = len(plan.sheets), plan.bound
    return Report(
        sheets=boards, plate_area_m2=Decimal(gross).scaleb(-10),
        drop_area_m2=Decimal(gross - net).scaleb(-10), waste_percent=_percent(gross - net, gross),
        bound=bound, gap_percent=_percent(boards - bound, bound) if bound else None,
        patterns=len(counts), cycles=sum(-(-count // stack) for count in counts.values()),
        cuts=cuts, cut_length_m=Decimal(cut_length).scaleb(-5), seconds=plan.seconds,
        rests=tuple(rests),
    )  # fmt: skip


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
        label = {"id": _text(part.id), "description": _text(part.description)}
        along = {"length_along": "height" if piece.is_upright else "width"}
        Xml.SubElement(parent, "Part", {**label, **box, **along})
    elif piece.axis is not None and piece.children:
        element = Xml.SubElement(parent, "Cut", {"axis": _AXES[piece.axis], **box})
        for child in piece.children:
            _write_piece(element, child, order)
    else:
        reusable = {"reusable": "1"} if is_reusable(piece, order.least_rest) else {}
        Xml.SubElement(parent, "Rest", {**box, **reusable})


def _read_sheet(
    element: Xml.Element, number: int, labels: dict[tuple[str, str], int]
) -> StoredSheet:
    if element.tag != "Sheet" or len(element) != 1:
        raise BadPlan(f"sheet {number}: it is a {element.tag} with {len(element)} pieces, not one")
    if _match(element, "number", _COUNT) != str(number):
        raise BadPlan(f"sheet {number}: its number is {element.get('number')}")
    pattern, plate = (int(_match(element, name, _COUNT)) for name in ("pattern", "plate"))
    if not plate:
        raise BadPlan(f"sheet {number}: plates are numbered from 1")
    size = _read_mm(element, "width"), _read_mm(element, "height")
    root = _read_piece(element[0], labels, 1)
    return StoredSheet(number, pattern, plate - 1, element.get("name", ""), size, root)


def _read_piece(element: Xml.Element, labels: dict[tuple[str, str], int], depth: int) -> Piece:
    x, y, width, height = (_read_mm(element, name) for name in _BOX)
    place, size = (x, y), (width, height)
    if not width * height or (len(element) > 0) != (element.tag == "Cut"):
        raise BadPlan(f"a {element.tag} at {x / 100}, {y / 100} has no size, or wrong children")
    if element.tag == "Cut":
        if depth > DEEPEST:
            raise BadPlan(f"its pieces are nested more than {DEEPEST} deep")
        axis = _AXES.index(_match(element, "axis", re.compile("[xy]")))
        children = tuple(_read_piece(child, labels, depth + 1) for child in element)
        return Piece(place, size, axis, children)
    if element.tag == "Part":
        part = labels.setdefault((_get(element, "id"), _get(element, "description")), len(labels))
        along = _match(element, "length_along", re.compile("height|width"))
        return Piece(place, size, part=part, is_upright=along == "height")
    if element.tag == "Rest":
        return Piece(place, size)
    raise BadPlan(f"a piece is a Cut, a Part or a Rest, not a {element.tag}")


def _get(element: Xml.Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise BadPlan(f"a {element.tag} has no {name}")
    return value


def _match(element: Xml.Element, name: str, form: re.Pattern[str]) -> str:
    value = _get(element, name)
    if form.fullmatch(value) is None:
        raise BadPlan(f"{name} of a {element.tag} cannot be {value[:40]!r}")
    return value


def _read_mm(element: Xml.Element, name: str) -> int:
    return int(_match(element, name, _MM).replace(".", ""))


def _text(value: str) -> str:
    if _FORBIDDEN.search(value):
        raise BadPlan(f"XML cannot hold a character of {value!r}")
    return value


def _percent(share: int, whole: int) -> Decimal:
    """Return a share in percent, two decimals, half up."""
    hundredths = (20_000 * share + whole) // (2 * whole) if whole else 0
    return Decimal(hundredths).scaleb(-2)


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _mm(units: int) -> str:
    return f"{units // 100}.{units % 100:02}"
