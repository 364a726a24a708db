"""Page options of a request, and sizes of paper.

Which options a caller may use is said by `options` of a template's manifest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from ulak.services.pdf.document import Document
from ulak.services.pdf.model import BadOptions, not_allowed, read_boolean, read_text

PAPERS: Final = {
    "A3": (11.69, 16.54),
    "A4": (8.27, 11.69),
    "A5": (5.83, 8.27),
    "A6": (4.13, 5.83),
    "B5": (6.93, 9.84),
    "Letter": (8.5, 11.0),
    "Legal": (8.5, 14.0),
}
"""Width and height in inches, upright."""
LARGEST_PAPER: Final = 200.0
"""Inches: a PDF page has no more."""

_CUSTOM: Final = re.compile(
    r"(\d{1,4}(?:\.\d{1,6})?)\s*x\s*(\d{1,4}(?:\.\d{1,6})?)\s*(mm|cm|in)", re.ASCII
)
_PER_INCH: Final = {"mm": 25.4, "cm": 2.54, "in": 1.0}


def read_paper(said: Any) -> tuple[float, float]:
    """Read `A4`, `A4 landscape` or `100 x 150 mm` as width and height in inches. Raises ValueError:
    it is none of these."""
    text = str(said).strip()
    size, _, way = text.partition(" ")
    if size in PAPERS and way in ("", "portrait", "landscape"):
        width, height = PAPERS[size]
        return (height, width) if way == "landscape" else (width, height)
    if found := _CUSTOM.fullmatch(text):
        inches = _PER_INCH[found[3]]
        width, height = (float(found[place]) / inches for place in (1, 2))
        if 0 < width <= LARGEST_PAPER and 0 < height <= LARGEST_PAPER:
            return width, height
    raise ValueError(f"write one of {', '.join(PAPERS)}, with landscape or not, or 100 x 150 mm")


SMALLEST_PAPER: Final = 10 / 25.4
"""Inches: on less there is no room for a letter."""
MOST_RANGES: Final = 100
STATUSES: Final = range(400, 600)
"""Answers that may fail a job; others are what pages live on."""

_PASSED_ON: Final = (
    "ranges", "single_page", "wait_for", "wait_for_expression", "fail_on_script_error",
    "omit_background",
)  # fmt: skip
_RANGE: Final = re.compile(r"\s*([1-9]\d{0,5})\s*(?:(-)\s*([1-9]\d{0,5})?\s*)?", re.ASCII)
_LAST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What a request says about its printed page; the rest is as the template has it."""

    paper: str = ""
    landscape: bool = False
    header: str = ""
    footer: str = ""
    ranges: str = ""
    single_page: bool = False
    wait_for: str = ""
    wait_for_expression: str = ""
    fail_on_status: tuple[int, ...] = ()
    fail_on_script_error: bool = False
    omit_background: bool = False


NAMES: Final = tuple(field.name for field in fields(PageOptions))
NOTHING_SAID: Final = PageOptions()


class BadPage(BadOptions):
    """Page options cannot be used."""

    part = "page"


def read_page(said: Mapping[str, Any]) -> PageOptions:
    """Read page options, each in its one spelling. Raises BadPage: naming every option that is
    unknown or cannot be used."""
    wrong: list[tuple[str, str]] = []
    found: dict[str, Any] = {}
    for name, value in said.items():
        try:
            if name not in _READERS:
                raise ValueError("there is no such option")
            found[name] = _READERS[name](value)
        except ValueError as error:
            wrong.append((name, str(error)))
    if found.get("single_page") and found.get("ranges"):
        wrong.append(("ranges", "a single page has no ranges; say one of the two"))
    if wrong:
        raise BadPage(wrong)
    return PageOptions(**found)


def said_by(page: PageOptions) -> dict[str, Any]:
    """Return what differs from saying nothing, as JSON: what is part of a job's key."""
    said = asdict(page) | {"fail_on_status": list(page.fail_on_status)}
    return {name: value for name, value in said.items() if value}


def judge_page(
    page: PageOptions, allowed: tuple[str, ...], *, files: Mapping[str, bytes], javascript: bool
) -> None:
    """Refuse page options that a template, with these files, does not let its callers say. Raises
    BadPage: naming every option that may not be used."""
    wrong: list[tuple[str, str]] = []
    for name, value in said_by(page).items():
        if name not in allowed:
            wrong.append((name, not_allowed(allowed, NAMES)))
        elif name in ("header", "footer") and (
            # The page itself is no header, and only HTML is judged for where its variables stand.
            value not in files or not value.endswith(".html") or value == "template.html"
        ):
            wrong.append((name, "the template has no such file; name an .html file of its folder"))
        elif name == "wait_for_expression" and not javascript:
            wrong.append((name, "scripts of this template do not run; use wait_for"))
    if wrong:
        raise BadPage(wrong)


def on_page(
    document: Document, page: PageOptions, *, header: str = "", footer: str = ""
) -> Document:
    """Return a document as judged page options want it; `header` and `footer` are HTML."""
    width, height = read_paper(page.paper) if page.paper else document.paper
    if page.landscape:
        width, height = max(width, height), min(width, height)
    said = {name: getattr(page, name) for name in _PASSED_ON}
    return replace(
        document, paper=(width, height), header=header, footer=footer,
        fail_on_status=frozenset(page.fail_on_status), **said,
    )  # fmt: skip


def read_ranges(said: Any) -> str:
    """Read pages as people write them, `1-3, 5, 9-`; return them in order, none twice. Raises
    ValueError: it is something else."""
    advice = "write pages as 1-3, 5, 9-"
    pieces = read_text(said).split(",")
    if len(pieces) > MOST_RANGES:
        raise ValueError(f"there are more than {MOST_RANGES} ranges; {advice}")
    found: list[tuple[int, int]] = []
    for piece in pieces:
        matched = _RANGE.fullmatch(piece)
        if matched is None:
            raise ValueError(advice)
        first = int(matched[1])
        last = int(matched[3]) if matched[3] else _LAST if matched[2] else first
        if last < first:
            raise ValueError(f"a range ends before it begins; {advice}")
        found.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    # From the first page on is what is printed anyway.
    return "" if merged == [(1, _LAST)] else ",".join(_spelled(*one) for one in merged)


def _spelled(first: int, last: int) -> str:
    if last == _LAST:
        return f"{first}-"
    return str(first) if first == last else f"{first}-{last}"


def _paper(said: Any) -> str:
    text = read_text(said)
    if min(read_paper(text)) < SMALLEST_PAPER:
        raise ValueError("paper has edges of 10 mm or more")
    # One spelling, since it is part of the key: `210 x 297 mm` and `210x297mm` are one paper.
    return text.replace(" ", "") if text[0].isdigit() else text.removesuffix(" portrait")


def _statuses(said: Any) -> tuple[int, ...]:
    is_list = isinstance(said, list | tuple)
    if not is_list or any(isinstance(one, bool) or one not in STATUSES for one in said):
        raise ValueError("write a list of statuses from 400 to 599, as [404, 500]")
    return tuple(sorted(set(said)))


_READERS: Final = {
    "paper": _paper,
    "landscape": read_boolean,
    "header": read_text,
    "footer": read_text,
    "ranges": read_ranges,
    "single_page": read_boolean,
    "wait_for": read_text,
    "wait_for_expression": read_text,
    "fail_on_status": _statuses,
    "fail_on_script_error": read_boolean,
    "omit_background": read_boolean,
}
