"""Page options: what a request may say about its printed page, read and judged in one place.

Which of them a caller may use is the template's to say (`options` of its manifest).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from ulak.services.pdf.document import Document
from ulak.services.pdf.model import BadOptions, not_allowed, read_text
from ulak.services.pdf.paper import read_paper

SMALLEST_PAPER: Final = 10 / 25.4
"""Inches: on less there is no room for a letter."""
MOST_RANGES: Final = 100
STATUSES: Final = range(400, 600)
"""Answers that may fail a job; others are what pages live on."""

_PASSED_ON: Final = (
    "ranges", "single_page", "wait_for", "wait_for_expression", "fail_on_script_error",
    "omit_background",
)  # fmt: skip
"""Options that a document has under the same name."""
_RANGE: Final = re.compile(r"\s*([1-9]\d{0,5})\s*(?:(-)\s*([1-9]\d{0,5})?\s*)?", re.ASCII)
_LAST: Final = 1_000_000
"""Behind every page that there can be."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What a request says about its printed page; the rest is as the template has it."""

    paper: str = ""
    landscape: bool = False
    header: str = ""
    """A file of the template's folder, drawn into the upper margin of every page."""
    footer: str = ""
    ranges: str = ""
    """The pages that are printed, as `1-3,5,9-`."""
    single_page: bool = False
    """The whole document on one page, as long as it needs."""
    wait_for: str = ""
    """A selector: the document is complete when an element matches it."""
    wait_for_expression: str = ""
    """A script: the document is complete when this is true."""
    fail_on_status: tuple[int, ...] = ()
    """Statuses that no resource of the page may be answered with."""
    fail_on_script_error: bool = False
    omit_background: bool = False


NAMES: Final = tuple(field.name for field in fields(PageOptions))
"""Every option, by the name that requests and manifests have for it."""
NOTHING_SAID: Final = PageOptions()


class BadPage(BadOptions):
    """Page options cannot be used."""


def read_page(said: Mapping[str, Any]) -> PageOptions:
    """Read page options, each in its one spelling.

    Raises:
        BadPage: naming every option that is unknown or cannot be used.
    """
    wrong: list[tuple[str, str]] = []
    found: dict[str, Any] = {}
    for name, value in said.items():
        read = _READERS.get(name)
        if read is None:
            wrong.append((name, "there is no such option"))
            continue
        try:
            found[name] = read(value)
        except ValueError as error:
            wrong.append((name, str(error)))
    if found.get("single_page") and found.get("ranges"):
        wrong.append(("ranges", "a single page has no ranges; say one of the two"))
    if wrong:
        raise BadPage(wrong)
    return PageOptions(**found)


def said_by(page: PageOptions) -> dict[str, Any]:
    """Return what is said and differs from saying nothing, as JSON: what is part of a job's key.

    What means the same is the same: `1-3, 5` and `5,1-2,3`, or `false` and nothing.
    """
    said = asdict(page) | {"fail_on_status": list(page.fail_on_status)}
    return {name: value for name, value in said.items() if value}


def judge_page(
    page: PageOptions, allowed: tuple[str, ...], *, files: Mapping[str, bytes], javascript: bool
) -> None:
    """Refuse what a template does not let its callers say.

    Args:
        page: What was said.
        allowed: The options that the template's manifest names.
        files: Those of the template's folder.
        javascript: Whether its scripts run.

    Raises:
        BadPage: naming every option that may not be used.
    """
    wrong: list[tuple[str, str]] = []
    for name, value in said_by(page).items():
        if name not in allowed:
            wrong.append((name, not_allowed(allowed, NAMES)))
        elif name in ("header", "footer") and not _is_part(value, files):
            wrong.append((name, "the template has no such file; name an .html file of its folder"))
        elif name == "wait_for_expression" and not javascript:
            wrong.append((name, "scripts of this template do not run; use wait_for"))
    if wrong:
        raise BadPage(wrong)


def on_page(
    document: Document, page: PageOptions, *, header: str = "", footer: str = ""
) -> Document:
    """Return a document as the page options want it.

    Args:
        document: As the template has it.
        page: What was said, and judged.
        header: The HTML of the header, '' when there is none.
        footer: That of the footer.
    """
    width, height = read_paper(page.paper) if page.paper else document.paper
    if page.landscape:
        width, height = max(width, height), min(width, height)
    said = {name: getattr(page, name) for name in _PASSED_ON}
    return replace(
        document, paper=(width, height), header=header, footer=footer,
        fail_on_status=frozenset(page.fail_on_status), **said,
    )  # fmt: skip


def read_ranges(said: Any) -> str:
    """Read pages as people write them, `1-3, 5, 9-`, and answer them in order, none twice.

    Raises:
        ValueError: it is something else.
    """
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


def _is_part(path: str, files: Mapping[str, bytes]) -> bool:
    # The page itself is no header, and nothing but HTML is judged for where its variables stand.
    return path in files and path.endswith(".html") and path != "template.html"


def _boolean(said: Any) -> bool:
    if not isinstance(said, bool):
        raise ValueError("write true or false")
    return said


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
    "landscape": _boolean,
    "header": read_text,
    "footer": read_text,
    "ranges": read_ranges,
    "single_page": _boolean,
    "wait_for": read_text,
    "wait_for_expression": read_text,
    "fail_on_status": _statuses,
    "fail_on_script_error": _boolean,
    "omit_background": _boolean,
}
