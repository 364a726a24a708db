"""Page options on paper: what both drivers print, and what fails instead of being printed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pypdfium2
import pytest

from tests.services.pdf.browser.scene import colours_of
from tests.services.pdf.browser.yard import a_pool, sizes_of, text_of
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.driver import Driver
from ulak.services.pdf.browser.playwright import PlaywrightDriver
from ulak.services.pdf.document import Document, Fetched, Rendered, Times
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.page import on_page, read_page
from ulak.services.pdf.templates import Templates

THREE = """<!doctype html><style>@page { margin: 30mm } h1 { break-after: page }</style>
<h1>alpha</h1><h1>beta</h1><p>gamma</p>"""
MARGIN = 30 / 25.4 * 72
"""Points."""
ARRIVING = """<p>there</p><script>
fetch("https://afar.test/held").then(answer => answer.text()).then(text => {
  document.body.insertAdjacentHTML("beforeend", "<p id=late>" + text + "</p>");
  window.isThere = true;
});
</script>"""


@pytest.fixture(params=[DevTools, PlaywrightDriver])
def driver(request: pytest.FixtureRequest) -> Driver:
    made: Driver = request.param()
    return made


class World:
    """Answers everything with one status, once its gate is open."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.gate = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def fetch(self, url: str, *, method: str, headers: Mapping[str, str]) -> Fetched:
        self.was_asked.set()
        await self.gate.wait()
        heads = (("Content-Type", "text/plain"), ("Access-Control-Allow-Origin", "*"))
        return Fetched(self.status, heads, b"arrived")


def printed(driver: Driver, *documents: Document, **options: object) -> list[Rendered | str]:
    """Render documents in one pool; of those that fail, the code and the detail."""

    async def render() -> list[Rendered | str]:
        found: list[Rendered | str] = []
        async with a_pool(driver, **options) as pool:
            for document in documents:
                try:
                    found.append(await pool.render(document, Times()))
                except PermanentPdfError as error:
                    found.append(f"{error.code} {error.detail}")
        return found

    return asyncio.run(render())


def words_within(pdf: bytes, number: int, *, above: float, below: float) -> str:
    """The words of a page between two heights, in points from its upper edge."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        page = document[number]
        height = page.get_height()
        text = page.get_textpage()
        return str(text.get_text_bounded(bottom=height - below, top=height - above)).strip()
    finally:
        document.close()


@pytest.mark.shows("P-54")
def test_header_and_footer_stand_in_the_margins_and_number_the_pages(driver: Driver) -> None:
    part = '<span style="font-size: 9px">{} <b class="pageNumber"></b>/<b class="totalPages"></b>'
    document = Document(THREE, header=part.format("upper"), footer=part.format("lower"))
    result, only_header = printed(driver, document, Document(THREE, header=part.format("upper")))
    assert isinstance(result, Rendered)
    assert isinstance(only_header, Rendered)
    assert result.pages == 3
    for number, word in enumerate(("alpha", "beta", "gamma")):
        mark = f"{number + 1}/3"
        assert words_within(result.pdf, number, above=0, below=MARGIN) == f"upper {mark}"
        assert words_within(result.pdf, number, above=842 - MARGIN, below=842) == f"lower {mark}"
        assert words_within(result.pdf, number, above=MARGIN, below=842 - MARGIN) == word
    # Where one is not said, nothing stands there: the browser's own would tell the date.
    assert words_within(only_header.pdf, 0, above=842 - MARGIN, below=842) == ""


@pytest.mark.shows("P-54")
def test_only_the_pages_asked_for_are_printed_and_at_least_one_must_be_there(
    driver: Driver,
) -> None:
    some, beyond, none = printed(
        driver,
        Document(THREE, ranges="1,3"), Document(THREE, ranges="2-9"), Document(THREE, ranges="7-"),
    )  # fmt: skip
    assert isinstance(some, Rendered)
    assert isinstance(beyond, Rendered)
    assert (some.pages, text_of(some.pdf).split()) == (2, ["alpha", "gamma"])
    assert text_of(beyond.pdf).split() == ["beta", "gamma"]
    assert none == "TEMPLATE_ERROR page_range"


@pytest.mark.shows("P-9", "P-54")
def test_paper_and_landscape_count_where_the_style_sheet_has_no_size(driver: Driver) -> None:
    plain, sized = "<p>x", "<style>@page { size: A5 }</style><p>x"
    turned = read_page({"landscape": True})
    label = read_page({"paper": "4 x 2 in"})
    found = printed(
        driver,
        on_page(Document(plain), turned), on_page(Document(plain), label),
        on_page(Document(sized), turned), on_page(Document(sized), label),
    )  # fmt: skip
    sizes = [sizes_of(one.pdf)[0] for one in found if isinstance(one, Rendered)]
    assert sizes == [(842, 596), (288, 144), (420, 595), (420, 595)]


LONG = {
    "paragraphs without a doctype": "<p>line</p>" * 200,
    "pages of their own": "<!doctype html><style>h1 { break-after: page } .c { page: c }</style>"
    + "<h1>one</h1><h1 class=c>two</h1>" * 20,
    "a table": "<!doctype html><table>" + "<tr><td>cell<td>words that wrap " * 250 + "</table>",
    "as high as its window": "<!doctype html><style>body { min-height: 100vh }</style>"
    '<p>low</p><p style="position: absolute; top: 1500px">deep</p>',
}


@pytest.mark.shows("P-54")
def test_a_single_page_is_as_long_as_its_content_and_keeps_width_and_margins(
    driver: Driver,
) -> None:
    page = "<style>@page { size: A5; margin: 30mm 10mm }</style>"
    documents = [Document(page + html, single_page=True) for html in LONG.values()]
    too_long = Document('<div style="height: 30000px">x</div>', single_page=True)
    short = Document(page + "<p>one line", single_page=True)
    *found, small, refused = printed(driver, *documents, short, too_long)
    for name, one, html in zip(LONG, found, LONG.values(), strict=True):
        assert isinstance(one, Rendered), (name, one)
        ((width, height),) = sizes_of(one.pdf)
        assert (width, height > 842) == (420, True), name
        assert len(text_of(one.pdf).split()) == len(_without_tags(html).split()), name
        assert words_within(one.pdf, 0, above=0, below=MARGIN) == "", name
        assert words_within(one.pdf, 0, above=height - MARGIN, below=height) == "", name
    assert isinstance(small, Rendered)
    assert sizes_of(small.pdf)[0][1] < 300
    assert refused == "TEMPLATE_ERROR page_too_long"


def _without_tags(html: str) -> str:
    document = html.partition("</style>")[2] or html.removeprefix("<!doctype html>")
    return "".join(
        " " if is_tag else text
        for part in document.split("<")
        for is_tag, text in zip((True, False), part.partition(">")[::2], strict=True)
    )


@pytest.mark.shows("P-54")
@pytest.mark.parametrize(
    "wanted", [{"wait_for": "#late"}, {"wait_for_expression": "window.isThere"}], ids=" ".join
)
def test_a_document_is_printed_when_what_it_waits_for_is_there(
    driver: Driver, wanted: dict[str, str]
) -> None:
    async def story() -> None:
        world = World()
        async with a_pool(driver, fetcher=world, places=2) as pool:
            waiting = asyncio.ensure_future(
                pool.render(Document(ARRIVING, javascript=True, **wanted), Times())
            )
            await world.was_asked.wait()
            # Another one that waits for nothing begins now, and is done meanwhile.
            without = await pool.render(Document(ARRIVING, javascript=True), Times())
            assert text_of(without.pdf).split() == ["there"]
            assert not waiting.done()
            world.gate.set()
            assert text_of((await waiting).pdf).split() == ["there", "arrived"]

    asyncio.run(story())


@pytest.mark.shows("P-54")
def test_waiting_for_what_can_never_be_fails_at_once(driver: Driver) -> None:
    found = printed(
        driver,
        Document("<p id=p>x", wait_for="#p"),
        Document("<p>x", wait_for="#late"),
        Document("<p>x", wait_for="p:::["),
        Document("<p>x", wait_for_expression="nobody.knows", javascript=True),
        Document("<p>x", wait_for_expression=")", javascript=True),
    )
    assert isinstance(found[0], Rendered)
    assert found[1:] == ["TEMPLATE_ERROR wait_for"] * 4


@pytest.mark.shows("P-54")
def test_a_status_that_was_not_to_be_fails_the_document_and_others_do_not(driver: Driver) -> None:
    page = '<p>x</p><img src="https://afar.test/logo.png">'

    async def story() -> None:
        world = World(status=404)
        world.gate.set()
        async with a_pool(driver, fetcher=world) as pool:
            for fine in (frozenset[int](), frozenset({500, 403})):
                await pool.render(Document(page, fail_on_status=fine), Times())
            with pytest.raises(PermanentPdfError) as refused:
                await pool.render(Document(page, fail_on_status=frozenset({404})), Times())
        assert refused.value.code == PdfErrorCode.TEMPLATE_ERROR
        assert refused.value.detail == "resource_status"
        assert "404" in str(refused.value)
        assert "afar" not in str(refused.value)

    asyncio.run(story())


@pytest.mark.shows("P-54")
def test_a_script_that_fails_fails_the_document_only_when_it_was_to(driver: Driver) -> None:
    page = "<p>x</p><script>nobodyKnows('a-value')</script>"
    fine, refused = printed(
        driver,
        Document(page, javascript=True),
        Document(page, javascript=True, fail_on_script_error=True),
    )
    assert isinstance(fine, Rendered)
    assert fine.script_errors == ("ReferenceError at line 1",)
    assert refused == "TEMPLATE_ERROR script_error"


@pytest.mark.shows("P-9", "P-54")
def test_backgrounds_are_printed_unless_they_are_omitted(driver: Driver) -> None:
    page = '<div style="height: 90px; background: rgb(255, 0, 0)"></div>'
    usual, without = printed(driver, Document(page), Document(page, omit_background=True))
    assert isinstance(usual, Rendered)
    assert isinstance(without, Rendered)
    assert (255, 0, 0) in colours_of(usual.pdf)
    assert colours_of(without.pdf) == {(255, 255, 255)}


@pytest.mark.shows("P-10", "P-54")
def test_a_header_is_filled_from_the_folder_and_the_bytes_stay_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "letter"
    folder.mkdir()
    (folder / "manifest.toml").write_text(
        'version = "1"\ntitle = "Letter"\noptions = ["header"]\n[variables]\nname = "text"\n'
    )
    (folder / "template.html").write_text("<style>@page { margin: 30mm }</style><p>Dear</p>")
    (folder / "top.html").write_text(
        '<p style="font-size: 9px">To {{ name }}, <b class="pageNumber"></b></p>'
    )
    page = read_page({"header": "top.html"})
    document = Templates([tmp_path]).render("letter", {"name": "Öz & <Co>"}, page)
    first, again = (printed(made, document)[0] for made in (DevTools(), PlaywrightDriver()))
    assert isinstance(first, Rendered)
    assert isinstance(again, Rendered)
    assert words_within(first.pdf, 0, above=0, below=MARGIN) == "To Öz & <Co>, 1"
    assert first.pdf == again.pdf
