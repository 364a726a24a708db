"""Whether a plan is right, by arithmetic of its own, without a line of the search or the writer.

A plan is judged as the XML that leaves the optimiser, against the order. All arithmetic is in whole
numbers of 0.01 mm.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from ulak.services.cutting.optimise.model import Order

LARGEST: Final = 50_000_000  # bytes, as everywhere in cutting
DEEPEST: Final = 100  # levels; a guess, far beyond what a saw can do
_BOX: Final = ("x", "y", "width", "height")
# What each element must have, and what it may have.
_ATTRIBUTES: Final = {
    "Plan": (("version", "material"), ()),
    "Solution": (
        ("name", "algo", "best", "boards", "mqBoards", "mqDrops", "waste", "bound", "patterns",
         "cycles", "zcuts", "cutLength", "jobTime"), ("gap",),
    ),
    "Sheet": (("number", "pattern", "plate", "width", "height"), ("name",)),
    "Cut": (("axis", *_BOX), ()),
    "Part": (("id", "description", *_BOX, "length_along"), ()),
    "Rest": (_BOX, ("reusable",)),
}  # fmt: skip
# Of the figures of a Solution: digits behind the point.
_DIGITS: Final = {
    "boards": 0, "mqBoards": 10, "mqDrops": 10, "waste": 2, "patterns": 0, "cycles": 0, "zcuts": 0,
    "cutLength": 5, "jobTime": 12, "gap": 2,
}  # fmt: skip
_NUMBER: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,12}))?")
_MM: Final = re.compile(r"[0-9]{1,7}\.[0-9]{2}")
_COUNT: Final = re.compile(r"[0-9]{1,9}")

Pair = tuple[int, int]
Name = tuple[str, str, int, int]
"""Of equal parts: id, description, length and width as they are cut."""


class BadPlan(ValueError):
    """It is no plan of version 2, and why."""


class Node(NamedTuple):
    """An element of a cut tree."""

    tag: str
    place: Pair
    size: Pair
    axis: int = 0
    children: tuple[Node, ...] = ()
    facts: tuple[str, ...] = ()
    """Of a part: id, description, `length_along`. Of a rest: `reusable`."""

    def find_leaves(self) -> Iterator[Node]:
        if self.tag != "Cut":
            yield self
        for child in self.children:
            yield from child.find_leaves()


class StoredSheet(NamedTuple):
    """A sheet as its plan says it; sheets, patterns and plates are numbered from 1."""

    number: int
    pattern: int
    plate: int
    name: str
    size: Pair
    root: Node

    def list_offcuts(self) -> list[Pair]:
        """Return the sizes of the rests that can be used again."""
        rests = (leaf for leaf in self.root.find_leaves() if leaf.tag == "Rest")
        return [rest.size for rest in rests if rest.facts]


def find_faults(order: Order, data: bytes) -> list[str]:
    """Return what is wrong with a plan, in words; nothing when it is right.

    It is right when it cuts exactly what is ordered, in the right sizes and with the right grain,
    within the usable area of plates that the stock has, by full cuts with a kerf each, in no more
    stages than are allowed; and when every figure in it is true. Whatever the bytes are, nothing is
    raised.
    """
    try:
        root = parse_plan(data)
    except BadPlan as damage:
        return [str(damage)]
    judge = _Judge(order)
    if root.get("material") != order.material:
        judge.blame(f"the material is {root.get('material')!r}, ordered is {order.material!r}")
    for number, element in enumerate(root[1:], start=1):
        judge.where = f"sheet {number}"
        try:
            judge.take_sheet(read_sheet(element, number), number)
        except BadPlan as damage:
            judge.faults.append(str(damage))
    judge.where = "plan"
    judge.check_quantities()
    judge.check_stock()
    try:
        judge.check_totals(root[0], len(root) - 1)
    except BadPlan as damage:
        judge.blame(str(damage))
    return judge.faults


class _Judge:
    """What has been seen of a plan so far."""

    def __init__(self, order: Order) -> None:
        self.order, self.where = order, "plan"
        self.faults: list[str] = []
        self.kerf = _units(order.kerf)
        self.first_axis = "xy".index(order.first_cut) if order.first_cut else None
        trim = _units(order.trim)
        self.left, self.right, self.bottom, self.top = (
            trim * (side in order.trimmed_sides) for side in ("left", "right", "bottom", "top")
        )
        self.offcut = sorted(_units(side) for side in order.offcut)
        self.needs = _find_needs(order)
        self.placed: dict[Name, Counter[str]] = {name: Counter() for name in self.needs}
        self.names = {name[:2] for name in self.needs}
        self.used: Counter[int] = Counter()
        self.patterns: dict[tuple[int, Node], int] = {}
        self.counts: Counter[int] = Counter()
        self.plate_area = self.part_area = self.cuts = self.cut_length = 0

    def blame(self, fault: str) -> None:
        self.faults.append(f"{self.where}: {fault}")

    def take_sheet(self, sheet: StoredSheet, number: int) -> None:
        """Check one sheet, and count what is on it."""
        if sheet.number != number:
            self.blame(f"its number is {sheet.number}")
        if not 1 <= sheet.plate <= len(self.order.stock):
            self.blame(f"there is no plate {sheet.plate} in the stock")
            return
        stock, root = self.order.stock[sheet.plate - 1], sheet.root
        width, height = _units(stock.width), _units(stock.height)
        self.used[sheet.plate] += 1
        self.plate_area += width * height
        if sheet.size != (width, height):
            self.blame("its size is not that of its plate")
        if sheet.name != stock.name:
            self.blame("its name is not that of its plate")
        usable = width - self.left - self.right, height - self.bottom - self.top
        if (root.place, root.size) != ((self.left, self.bottom), usable):
            self.blame("its cut tree does not begin with the usable area")
        if self.first_axis is not None and root.tag == "Cut" and root.axis != self.first_axis:
            self.blame(f"its first cut is along the wrong axis, not {self.order.first_cut}")
        # A sheet that is not divided in the ordered direction has used that stage all the same.
        self._check_cuts(root, self.first_axis, 0 if self.first_axis is None else 1)
        self._check_leaves(root, (width, height))
        pattern = self.patterns.setdefault((sheet.plate, root), len(self.patterns) + 1)
        self.counts[pattern] += 1
        if sheet.pattern != pattern:
            self.blame(f"its pattern is {pattern}, not {sheet.pattern}")

    def _check_cuts(self, node: Node, direction: int | None, stage: int) -> None:
        """Check that full cuts divide a piece into its children, and theirs into theirs.
        `direction` is that of the cuts before, and `stage` says how often it has changed."""
        if node.tag != "Cut":
            return
        axis, across = node.axis, 1 - node.axis
        place = last = node.place[axis]
        for child in node.children:
            if child.place[axis] != place:
                self.blame(f"{_say(child)} is not one kerf behind its neighbour")
            span = (node.place[across], node.size[across])
            if (child.place[across], child.size[across]) != span:
                self.blame(f"{_say(child)} does not span the {_say(node)} that it is cut from")
            last = child.place[axis] + child.size[axis]
            place = last + self.kerf
        left = node.place[axis] + node.size[axis] - last
        if left < 0:
            self.blame(f"the {_say(node)} is divided beyond its edge")
        elif left > self.kerf or (left and node.children[-1].tag == "Rest"):
            self.blame(f"the {_say(node)} has {left} units left that are neither rest nor dust")
        cuts = len(node.children) - 1 + (left > 0)
        self.cuts += cuts
        self.cut_length += cuts * node.size[across]
        if cuts:
            stage += axis != direction
            direction = axis
            self._check_stage(node, stage)
        for child in node.children:
            self._check_cuts(child, direction, stage)

    def _check_stage(self, node: Node, stage: int) -> None:
        limit = self.order.stages
        if not limit or stage <= limit:
            return
        tags = [child.tag for child in node.children]
        is_trimming = tags in (["Part"], ["Part", "Rest"]) and stage == limit + 1
        if not (is_trimming and self.order.trimming):
            self.blame(f"the {_say(node)} is cut in stage {stage}; {limit} are allowed")

    def _check_leaves(self, root: Node, plate: Pair) -> None:
        parts = []
        for leaf in root.find_leaves():
            (x, y), (width, height) = leaf.place, leaf.size
            if not (
                self.left <= x and x + width <= plate[0] - self.right
                and self.bottom <= y and y + height <= plate[1] - self.top
            ):  # fmt: skip
                self.blame(f"{_say(leaf)} is not inside the usable area")
            if leaf.tag == "Part":
                parts.append(leaf)
                self._take_part(leaf, plate)
            else:
                large = all(map(int.__ge__, sorted(leaf.size), self.offcut))
                if leaf.facts != (("1",) if large else ()):
                    self.blame(f"{_say(leaf)} is {'' if large else 'not '}reusable")
        if not parts:
            self.blame("no part is cut from it")
        for one, other in _find_overlaps(parts):
            self.blame(f"{_say(one)} and {_say(other)} overlap")

    def _take_part(self, part: Node, plate: Pair) -> None:
        id, description, along = part.facts
        length, width = part.size[::-1] if along == "height" else part.size
        self.part_area += length * width
        name = (id, description, length, width)
        if name in self.needs:
            is_long = (along == "height") == (plate[1] > plate[0])
            side = "either" if plate[0] == plate[1] else "long" if is_long else "short"
            self.placed[name][side] += 1
        elif name[:2] in self.names:
            self.blame(f"{_say(part)} has a wrong size")
        else:
            self.blame(f"{_say(part)} was not ordered")

    def check_quantities(self) -> None:
        for name, need in self.needs.items():
            placed = self.placed[name]
            if placed.total() != need["all"]:
                self.blame(f"part {name[0]!r}: {need['all']} ordered, {placed.total()} cut")
                continue
            # As many as need the other side cannot lie along this one.
            for side, other in (("long", "short"), ("short", "long")):
                if placed[side] > need["all"] - need[other]:
                    self.blame(f"part {name[0]!r}: its grain forbids the {side} side")

    def check_stock(self) -> None:
        for plate, count in sorted(self.used.items()):
            most = self.order.stock[plate - 1].quantity
            if most is not None and count > most:
                self.blame(f"the stock has {most} of plate {plate}, {count} are used")

    def check_totals(self, solution: Element, boards: int) -> None:
        """Compare every figure of the header with what was counted."""
        figures, order = read_figures(solution), self.order
        stack = max(int(order.stack_height // order.thickness), 1) if order.thickness > 0 else 1
        cycles = sum(-(-count // stack) for count in self.counts.values())
        drops, bound = self.plate_area - self.part_area, figures["bound"]
        truth = {
            "boards": boards, "mqBoards": self.plate_area, "mqDrops": drops,
            "waste": _hundredths(drops, self.plate_area), "patterns": len(self.patterns),
            "cycles": cycles, "zcuts": self.cuts, "cutLength": self.cut_length,
        }  # fmt: skip
        if bound:
            truth["gap"] = _hundredths(boards - bound, bound)
        for name, figure in truth.items():
            if figures[name] != figure:
                self.blame(f"{name} is {solution.get(name)}, which is wrong")
        if bound > boards:
            self.blame(f"the bound is {bound}, but there are {boards} boards")
        if not bound and "gap" in solution.attrib:
            self.blame("there is a gap without a bound")


def _find_needs(order: Order) -> dict[Name, Counter[str]]:
    """Return how many of each part are ordered, by sizes as they are cut: all of them, and those
    that need their length along a side."""
    needs: dict[Name, Counter[str]] = {}
    for part in order.parts:
        length, width = part.length, part.width
        if order.deduct_bands:
            # The upper and the lower band run along the length, so they make the width smaller.
            upper, lower, left, right = (band - order.milling if band else 0 for band in part.bands)
            length, width = length - left - right, width - upper - lower
        name = (part.id, part.description, _units(length), _units(width))
        need = needs.setdefault(name, Counter())
        need["all"] += part.quantity
        if part.grain in (1, 2):
            is_long = (part.grain == 1) == (order.grain_axis == "long")
            need["long" if is_long else "short"] += part.quantity
    return needs


def _find_overlaps(parts: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Yield parts that overlap, by a line that sweeps along x and knows the parts it is in."""
    events = [(part.place[0], True, n) for n, part in enumerate(parts)]
    events += [(part.place[0] + part.size[0], False, n) for n, part in enumerate(parts)]
    active: list[tuple[int, int]] = []  # what is under the line, by its place along y
    refused = set()
    for _, begins, n in sorted(events):  # what ends is before what begins at the same place
        part = parts[n]
        at = bisect(active, (part.place[1], n))
        if not begins:
            if n not in refused:
                del active[at - 1]
            continue
        below = parts[active[at - 1][1]] if at else None
        above = parts[active[at][1]] if at < len(active) else None
        if below and below.place[1] + below.size[1] > part.place[1]:
            yield below, part
        elif above and above.place[1] < part.place[1] + part.size[1]:
            yield part, above
        else:
            active.insert(at, (part.place[1], n))
            continue
        refused.add(n)


def parse_plan(data: bytes) -> Element:
    """Return the root of a plan whose outermost form is right. Raises `BadPlan`."""
    if len(data) > LARGEST:
        raise BadPlan(f"it is larger than {LARGEST // 1_000_000} MB")
    try:
        root: Element = fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise BadPlan(f"it has a DTD or an entity, which is refused: {error}") from error
    except (SyntaxError, LookupError, ValueError) as error:  # also of an unknown encoding
        raise BadPlan(f"it is no well-formed XML: {error}") from error
    _check_form(root, "Plan")
    if root.get("version") != "2":
        raise BadPlan(f"its version is {root.get('version')!r}, not 2")
    if not len(root) or root[0].tag != "Solution":
        raise BadPlan("it has no Solution")
    if any((element.text or "").strip() or (element.tail or "").strip() for element in root.iter()):
        raise BadPlan("it has text between its elements")
    return root


def read_figures(solution: Element) -> dict[str, int]:
    """Return the figures of a header, each without its point: as many digits behind it as
    `_DIGITS` says. Raises `BadPlan`."""
    _check_form(solution, "Solution")
    if len(solution) or (solution.get("name"), solution.get("best")) != ("E", "1"):
        raise BadPlan("the Solution is not that of mode E")
    figures = {"bound": _count(solution, "bound")}
    names = [name for name in _DIGITS if figures["bound"] or name != "gap"]
    return figures | {name: _scaled(solution, name, _DIGITS[name]) for name in names}


def read_sheet(element: Element, number: int) -> StoredSheet:
    """Return the sheet that is this one of its plan. Raises `BadPlan`."""
    try:
        _check_form(element, "Sheet")
        if len(element) != 1:
            raise BadPlan(f"it has {len(element)} pieces, not one")
        return StoredSheet(
            _count(element, "number"), _count(element, "pattern"), _count(element, "plate"),
            element.get("name", ""), (_mm(element, "width"), _mm(element, "height")),
            _read_node(element[0], 1),
        )  # fmt: skip
    except BadPlan as damage:
        raise BadPlan(f"sheet {number}: {damage}") from None


def _check_form(element: Element, tag: str) -> None:
    """Raises `BadPlan` unless this is such an element, with the attributes of one."""
    if element.tag != tag:
        raise BadPlan(f"there is an unknown element {element.tag[:40]!r}, not a {tag}")
    required, optional = _ATTRIBUTES[tag]
    if missing := [name for name in required if name not in element.attrib]:
        raise BadPlan(f"a {tag} has no {missing[0]}")
    if unknown := element.attrib.keys() - {*required, *optional}:
        raise BadPlan(f"a {tag} has an unknown attribute {min(unknown)[:40]!r}")


def _read_node(element: Element, depth: int) -> Node:
    tag = element.tag
    _check_form(element, tag if tag in ("Part", "Rest") else "Cut")
    # A Cut has no facts, a Rest at most one.
    names = ("id", "description", "length_along") if tag == "Part" else ("reusable",)
    facts = tuple(element.attrib[name] for name in names if name in element.attrib)
    x, y, width, height = (_mm(element, name) for name in _BOX)
    node = Node(tag, (x, y), (width, height), facts=facts)
    if not width * height:
        raise BadPlan(f"{_say(node)} has no size")
    if (len(element) > 0) != (tag == "Cut"):
        raise BadPlan(f"{_say(node)} is divided into {len(element)} pieces")
    if tag == "Part" and facts[2] not in ("height", "width"):
        raise BadPlan(f"length_along of {_say(node)} is {facts[2][:40]!r}")
    if tag != "Cut":
        return node
    axis = element.attrib["axis"]
    if axis not in ("x", "y") or depth > DEEPEST:
        raise BadPlan(f"a Cut has the axis {axis[:40]!r}, or is deeper than {DEEPEST} levels")
    children = tuple(_read_node(child, depth + 1) for child in element)
    return node._replace(axis="xy".index(axis), children=children)


def _mm(element: Element, name: str) -> int:
    text = element.attrib[name]
    if _MM.fullmatch(text) is None:
        raise BadPlan(f"{name} of a {element.tag} is {text[:40]!r}, no mm with two decimals")
    return int(text.replace(".", ""))


def _count(element: Element, name: str) -> int:
    text = element.attrib[name]
    if _COUNT.fullmatch(text) is None:
        raise BadPlan(f"{name} of a {element.tag} is {text[:40]!r}, no whole number")
    return int(text)


def _scaled(element: Element, name: str, digits: int) -> int:
    """Return a number that has this many digits behind the point, or fewer, without the point."""
    text = element.get(name, "")
    matched = _NUMBER.fullmatch(text)
    if matched is None:
        raise BadPlan(f"{name} of a {element.tag} is {text[:40]!r}, no number")
    return int(matched[1] + (matched[2] or "").ljust(digits, "0"))


def _hundredths(share: int, whole: int) -> int:
    """Return a share in hundredths of a percent, half up."""
    return (20_000 * share + whole) // (2 * whole) if whole else 0


def _units(millimetres: Decimal) -> int:
    return int((millimetres * 100).quantize(Decimal(1), ROUND_HALF_UP))


def _say(node: Node) -> str:
    what = f"part {node.facts[0]!r}" if len(node.facts) == 3 else node.tag.lower()
    return f"{what} at {node.place[0] / 100:.2f}, {node.place[1] / 100:.2f}"
