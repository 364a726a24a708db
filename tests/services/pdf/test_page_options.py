"""Page options: read in one spelling, allowed by the template alone, and part of the job's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.pdf.desk import A_PDF, Desk
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.flow import PdfPayload, compute_job_key, payload_of
from ulak.services.pdf.model import PdfError, PdfErrorCode, PermanentPdfError
from ulak.services.pdf.page import (
    NAMES,
    NOTHING_SAID,
    BadPage,
    PageOptions,
    read_page,
    read_ranges,
    said_by,
)
from ulak.services.pdf.templates import Templates

Write = Callable[..., Templates]

PAGES = st.integers(1, 40)
RANGES = st.lists(st.tuples(PAGES, PAGES).map(sorted), min_size=1, max_size=8)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a template called `invoice` whose callers may use some options."""

    def made(*options: str, manifest: str = "", **files: str) -> Templates:
        folder = tmp_path / "templates" / "invoice"
        folder.mkdir(parents=True)
        (folder / "manifest.toml").write_text(
            f'version = "1"\ntitle = "One"\noptions = {list(options)}\n{manifest}'
        )
        (folder / "template.html").write_text("<p>{{ name }}</p>")
        (folder / "sample.json").write_text('{"name": "Ada"}')
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return Templates([folder.parent])

    return made


def refused(said: dict[str, Any]) -> list[str]:
    with pytest.raises(BadPage) as caught:
        read_page(said)
    return [name for name, _ in caught.value.wrong]


def pages_of(ranges: str, last: int = 50) -> set[int]:
    """What a text of ranges means, by another reading of it."""
    found: set[int] = set()
    for piece in ranges.split(","):
        first, dash, end = piece.partition("-")
        found |= set(range(int(first), (int(end) if end else last if dash else int(first)) + 1))
    return found


@pytest.mark.shows("P-54")
@settings(max_examples=200, deadline=None)
@given(ranges=RANGES, space=st.sampled_from(["", " ", "  "]), is_open=st.booleans())
def test_ranges_keep_their_pages_however_they_are_written(
    ranges: list[list[int]], space: str, is_open: bool
) -> None:
    pieces = [
        str(first) if first == last else f"{first}{space}-{space}{last}" for first, last in ranges
    ]
    if is_open:
        pieces.append(f"{max(last for _, last in ranges)}-")
    text = f"{space},{space}".join(pieces)
    wanted = pages_of(text.replace(" ", ""))
    read = read_ranges(text)
    assert (pages_of(read) if read else set(range(1, 51))) == wanted
    if read:
        assert read_ranges(read) == read, "the one spelling is read as itself"
        assert read_ranges(",".join(reversed(pieces))) == read, "the order does not matter"


@pytest.mark.shows("P-54")
@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="0123456789-, x१", max_size=12))
def test_what_are_no_ranges_is_refused_and_nothing_else_happens(text: str) -> None:
    try:
        read = read_ranges(text)
    except ValueError:
        return
    assert set(read) <= set("0123456789-,")
    assert all(int(number) >= 1 for number in read.replace("-", ",").split(",") if number)


@pytest.mark.parametrize(
    "ranges", ["", " ", "0", "3-1", "1,,2", "-3", "1-2-3", "a", "1;2", "1\n2", "9" * 9, "1," * 101]
)
def test_ranges_that_mean_nothing_are_refused(ranges: str) -> None:
    assert refused({"ranges": ranges}) == ["ranges"]


@pytest.mark.shows("P-54")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("paper", "A9"), ("paper", "5 x 297 mm"), ("paper", "9999 x 9999 mm"), ("paper", 4),
        ("landscape", "true"), ("landscape", 1), ("header", ""), ("header", ["a"]),
        ("wait_for", "x" * 1001), ("wait_for", "a\x00b"), ("fail_on_status", [200]),
        ("fail_on_status", [True]), ("fail_on_status", 404), ("fail_on_status", ["404"]),
        ("scale", 2), ("margin", 1), ("media", "screen"), ("prefer_css_page_size", False),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_named(name: str, value: Any) -> None:
    assert refused({name: value}) == [name]


def test_everything_that_is_wrong_is_named_at_once_and_no_value_is_told() -> None:
    with pytest.raises(BadPage) as caught:
        read_page({"paper": "tell-nobody", "ranges": "tell-nobody", "single_page": True})
    assert {name for name, _ in caught.value.wrong} == {"paper", "ranges"}
    assert "tell-nobody" not in str(caught.value)
    assert refused({"single_page": True, "ranges": "1"}) == ["ranges"]


EACH: dict[str, Any] = {
    "paper": "A5", "landscape": True, "header": "top.html", "footer": "low.html",
    "ranges": "1-2", "single_page": True, "wait_for": "#a", "wait_for_expression": "a",
    "fail_on_status": [404], "fail_on_script_error": True, "omit_background": True,
}  # fmt: skip


def key_of(**said: Any) -> str:
    options = {"page": said_by(read_page(said))} if said else {}
    return compute_job_key("one", payload_of({}, template_version="1", options=options))


@pytest.mark.shows("P-12", "P-54")
def test_every_option_changes_the_key_and_what_means_the_same_does_not() -> None:
    assert set(EACH) == set(NAMES)
    keys = [key_of(), *(key_of(**{name: value}) for name, value in EACH.items())]
    assert len(set(keys)) == len(keys)
    assert key_of(ranges="1-3, 5") == key_of(ranges="5,1-2,3")
    assert key_of(paper="210 x 297 mm") == key_of(paper="210x297mm")
    assert key_of(fail_on_status=[500, 404]) == key_of(fail_on_status=[404, 500, 404])
    assert said_by(read_page({"landscape": False, "ranges": "1-"})) == {}


@pytest.mark.shows("P-54")
@pytest.mark.parametrize("name", NAMES)
def test_an_option_is_refused_unless_the_manifest_names_it(write: Write, name: str) -> None:
    others = [other for other in NAMES if other != name]
    templates = write(*others, manifest="javascript = true", top__html="t", low__html="l")
    page = read_page({name: EACH[name]})
    with pytest.raises(BadPage) as caught:
        templates.judge("invoice", {"name": "Ada"}, page)
    assert [option for option, _ in caught.value.wrong] == [name]
    with pytest.raises(BadPage):
        templates.render("invoice", {"name": "Ada"}, page)


@pytest.mark.shows("P-54")
def test_what_the_manifest_names_is_in_the_document(write: Write) -> None:
    templates = write(
        *NAMES, manifest="javascript = true", top__html="<b>{{ name }}</b>", low__html="low"
    )
    said = {name: value for name, value in EACH.items() if name != "ranges"}
    document = templates.render("invoice", {"name": "a<b"}, read_page(said))
    assert document == Document(
        "<p>a&lt;b</p>", javascript=True, paper=(8.27, 5.83), header="<b>a&lt;b</b>", footer="low",
        tagged=True, outline=True, single_page=True, wait_for="#a", wait_for_expression="a",
        fail_on_status=frozenset({404}), fail_on_script_error=True, omit_background=True,
    )  # fmt: skip
    assert templates.render("invoice", {"name": "a"}) == Document(
        "<p>a</p>", javascript=True, tagged=True, outline=True
    )


@pytest.mark.shows("P-54")
@pytest.mark.parametrize(
    "header",
    [
        "<b>hello</b>",
        "../invoice/top.html",
        "template.html",
        "style.css",
        "none.html",
        "/etc/hosts",
    ],
)
def test_a_header_is_a_file_of_the_folder_and_never_what_a_caller_writes(
    write: Write, header: str
) -> None:
    templates = write("header", top__html="t", style__css="p {}")
    with pytest.raises(BadPage, match="no such file"):
        templates.judge("invoice", {"name": "Ada"}, read_page({"header": header}))


@pytest.mark.shows("P-10")
@pytest.mark.parametrize("mark", ['class="date"', "class='small date'", "CLASS = date"])
def test_a_header_that_would_print_the_moment_is_refused(write: Write, mark: str) -> None:
    templates = write("header", top__html=f"<i {mark}></i>")
    with pytest.raises(PermanentPdfError, match='class="date"') as caught:
        templates.render("invoice", {"name": "Ada"}, read_page({"header": "top.html"}))
    assert caught.value.code == PdfErrorCode.TEMPLATE_ERROR


def test_an_expression_needs_a_template_whose_scripts_run(write: Write) -> None:
    templates = write("wait_for_expression")
    with pytest.raises(BadPage, match="do not run"):
        templates.judge("invoice", {"name": "Ada"}, read_page({"wait_for_expression": "a"}))
    told = [str(complaint) for complaint in templates.check("invoice")]
    assert any("wait_for_expression needs scripts" in one for one in told)


@pytest.mark.parametrize(
    ("style", "is_told"),
    [
        ("@page { margin: 1cm; size: A4 }", True),
        ("@page { margin: 1cm } p { font-size: 9pt }", False),
    ],
)
def test_a_paper_that_the_style_sheet_overrules_is_told_of(
    write: Write, style: str, is_told: bool
) -> None:
    templates = write("paper", "landscape", style__css=style)
    told = " ".join(str(complaint) for complaint in templates.check("invoice"))
    assert ("paper and landscape changes nothing" in told) == is_told


def test_a_manifest_with_an_unknown_option_is_refused(write: Write) -> None:
    templates = write("scale")
    with pytest.raises(PermanentPdfError, match="options: write a list"):
        templates.get("invoice")


class Sees:
    """A renderer that keeps the document it was given."""

    def __init__(self) -> None:
        self.seen: list[Document] = []

    async def render(self, document: Document, times: Times) -> Rendered:
        self.seen.append(document)
        return Rendered(A_PDF, pages=1, engine="Sees/1", timings={})


def payload_with(page: PageOptions, templates: Templates) -> PdfPayload:
    payload = payload_of(
        {"name": "Ada"},
        template_version=templates.version("invoice"),
        options={"page": said_by(page)},
    )
    return PdfPayload("invoice", payload, job_key="k")


@pytest.mark.shows("P-54")
def test_the_worker_prints_as_the_job_says_and_asks_the_template_again(
    sqlite_desk: Desk, write: Write
) -> None:
    templates, sees = write("landscape"), Sees()
    worker = sqlite_desk.worker(sees, templates)
    for page in (NOTHING_SAID, read_page({"landscape": True})):
        asyncio.run(worker.perform("job-1", payload_with(page, templates)))
    assert [document.paper for document in sees.seen] == [(8.27, 11.69), (11.69, 8.27)]
    given = payload_with(read_page({"omit_background": True}), templates)
    with pytest.raises(PdfError) as caught:
        asyncio.run(worker.perform("job-1", given))
    assert (caught.value.code, caught.value.detail) == ("TEMPLATE_ERROR", "page_options")
    assert len(sees.seen) == 2
