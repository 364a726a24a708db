"""What is done to printed documents: real ones of Chromium's, looked at with two other readers."""

from __future__ import annotations

import asyncio
import hashlib
import io
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pikepdf
import pypdfium2
import pytest
from pikepdf import Name
from PIL import ImageChops

from tests.processes import is_alive
from tests.services.pdf.browser.yard import a_pool, sizes_of
from ulak.services.pdf.document import Document, Times
from ulak.services.pdf.finishing import composing
from ulak.services.pdf.finishing.applying import apply
from ulak.services.pdf.finishing.composing import finish
from ulak.services.pdf.finishing.order import Mark, Order
from ulak.services.pdf.model import PdfError
from ulak.services.pdf.output import Attachment, Metadata, Password, Watermark

TEXT = "TASLAK \N{EN DASH} ОБРАЗЕЦ ĞÜŞİÖÇ"
FIRST = """<!doctype html><html lang="en"><head><title>First</title><style>
@page { size: A5; margin: 20mm } h1 { break-before: page }</style></head><body>
<p><a href="#part">to the part</a></p><h1 id="part">Part one</h1><h2>Inner</h2>
<table><thead><tr><th id="h">Head</th></tr></thead><tbody><tr><td headers="h">cell</td></tr></tbody>
</table></body></html>"""
SECOND = (
    FIRST.replace('lang="en"', 'lang="tr"').replace("First", "İkinci").replace("A5", "A4 landscape")
).replace("Part one", "Bölüm bir")
XML = "<?xml version='1.0'?><Fatura>ğüş</Fatura>".encode()


@dataclass(frozen=True)
class Printed:
    """What the browser made of each."""

    first: bytes
    second: bytes
    untagged: bytes
    mark: bytes


@pytest.fixture(scope="module")
def printed() -> Printed:
    documents = (
        Document(FIRST, tagged=True, outline=True),
        Document(SECOND, tagged=True, outline=True),
        Document(SECOND),
        composing._mark_of(Document(FIRST), Watermark(TEXT, colour="#aa0000")),
    )

    async def render() -> Printed:
        async with a_pool() as pool:
            return Printed(*[(await pool.render(one, Times())).pdf for one in documents])

    return asyncio.run(render())


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[pikepdf.Pdf] = []

    def open_(pdf: bytes, secret: str = "") -> pikepdf.Pdf:
        made.append(pikepdf.open(io.BytesIO(pdf), password=secret))
        return made[-1]

    yield open_
    for one in made:
        one.close()


def titles(pdf: pikepdf.Pdf) -> list[tuple[str, int]]:
    """The outline: each entry and the page that it leads to."""
    found: list[tuple[str, int]] = []
    document = pypdfium2.PdfDocument(_bytes(pdf))
    try:
        for entry in document.get_toc():
            place = entry.get_dest()
            found.append((entry.get_title(), -1 if place is None else place.get_index()))
    finally:
        document.close()
    return found


def _bytes(pdf: pikepdf.Pdf) -> bytes:
    written = io.BytesIO()
    pdf.save(written)
    return written.getvalue()


def elements(pdf: pikepdf.Pdf) -> list[Any]:
    found: list[Any] = []
    waiting = [pdf.Root.StructTreeRoot]
    while waiting:
        kids = waiting.pop(0).get(Name.K, [])
        for kid in kids if isinstance(kids, pikepdf.Array) else [kids]:
            if isinstance(kid, pikepdf.Dictionary) and Name.S in kid:
                found.append(kid)
                waiting.append(kid)
    return found


def headers_of(cell: Any) -> list[Any]:
    attributes = cell.get(Name.A, pikepdf.Array())
    several = attributes if isinstance(attributes, pikepdf.Array) else [attributes]
    return [header for one in several for header in one.get(Name.Headers, [])]


# --- put together ---------------------------------------------------------------


@pytest.mark.shows("P-55")
def test_documents_stand_in_the_given_order_with_their_outlines(
    printed: Printed, opened: Any
) -> None:
    whole = opened(apply(Order((printed.first, printed.second, printed.first))))
    assert sizes_of(_bytes(whole)) == [(420, 595)] * 2 + [(842, 595)] * 2 + [(420, 595)] * 2
    assert titles(whole) == [
        ("Part one", 1), ("Inner", 1), ("Bölüm bir", 3), ("Inner", 3), ("Part one", 5), ("Inner", 5)
    ]  # fmt: skip
    assert str(whole.docinfo.Title) == "First"
    assert str(whole.Root.Lang) == "en"


@pytest.mark.shows("P-55")
def test_links_lead_to_their_own_document_where_names_are_the_same(
    printed: Printed, opened: Any
) -> None:
    whole = opened(apply(Order((printed.first, printed.second))))
    numbers = {page.objgen: number for number, page in enumerate(whole.pages)}
    led = {}
    for number, page in enumerate(whole.pages):
        for link in page.get(Name.Annots, []):
            place = whole.Root.Dests[link.Dest]
            led[number] = numbers[place[0].objgen]
    assert led == {0: 1, 2: 3}


def test_names_of_places_are_kept_apart_in_either_way_of_writing_them(opened: Any) -> None:
    """Chromium has a dictionary of names; others have a tree of texts, and links by actions."""
    pdf = pikepdf.new()
    for _ in range(2):
        pdf.add_blank_page()
    place = pikepdf.Array([pdf.pages[1].obj, Name.Fit])
    tree = pikepdf.NameTree.new(pdf)
    tree["part"] = place
    pdf.Root.Names = pikepdf.Dictionary(Dests=tree.obj)
    action = pikepdf.Dictionary(S=Name.GoTo, D=pikepdf.String("part"))
    link = pikepdf.Dictionary(Type=Name.Annot, Subtype=Name.Link, Rect=[0, 0, 9, 9], A=action)
    pdf.pages[0].Annots = pdf.make_indirect(pikepdf.Array([pdf.make_indirect(link)]))
    one = _bytes(pdf)
    whole = opened(apply(Order((one, one, one))))
    numbers = {page.objgen: number for number, page in enumerate(whole.pages)}
    places = pikepdf.NameTree(whole.Root.Names.Dests)
    led = {
        number: numbers[places[str(link.A.D)][0].objgen]
        for number, page in enumerate(whole.pages)
        for link in page.get(Name.Annots, [])
    }
    assert led == {0: 1, 2: 3, 4: 5}


@pytest.mark.shows("P-55")
def test_the_structure_of_every_document_is_kept_and_belongs_to_its_pages(
    printed: Printed, opened: Any
) -> None:
    alone = [opened(one) for one in (printed.first, printed.second)]
    whole = opened(apply(Order((printed.first, printed.second))))
    found = elements(whole)
    assert len(found) == sum(len(elements(one)) for one in alone)
    pages = [page.objgen for page in whole.pages]
    kept = pikepdf.NumberTree(whole.Root.StructTreeRoot.ParentTree)
    for number, page in enumerate(whole.pages):
        parents = kept[int(page.StructParents)]
        owners = {pages.index(one.Pg.objgen) for one in parents if Name.Pg in one}
        assert owners == {number}, "what stands on a page is of that page"
    assert len({int(page.StructParents) for page in whole.pages}) == len(pages)
    ids = [str(one.ID) for one in found if Name.ID in one]
    assert len(set(ids)) == len(ids)
    cells = [one for one in found if one.S == Name.TD]
    named = [str(header) for one in cells for header in headers_of(one)]
    assert len(set(named)) == len(named) == 2, "each cell has the head of its own document"
    tree = pikepdf.NameTree(whole.Root.StructTreeRoot.IDTree)
    assert {name: tree[name].S for name in named} == dict.fromkeys(named, Name.TH)
    tops = whole.Root.StructTreeRoot.K
    assert [str(top.get(Name.Lang, "")) for top in tops][1] == "tr"


def test_a_document_without_structure_may_follow_and_may_lead(
    printed: Printed, opened: Any
) -> None:
    behind = opened(apply(Order((printed.first, printed.untagged))))
    assert len(elements(behind)) == len(elements(opened(printed.first)))
    before = opened(apply(Order((printed.untagged, printed.first))))
    assert Name.StructTreeRoot not in before.Root
    assert all(Name.StructParents not in page for page in before.pages)
    assert titles(before) == [("Part one", 3), ("Inner", 3)]


# --- watermark ------------------------------------------------------------------


def marked(printed: Printed, *pdfs: bytes, opacity: float = 0.5, angle: float = 45) -> bytes:
    return apply(Order(pdfs, mark=Mark(printed.mark, opacity=opacity, angle=angle)))


@pytest.mark.shows("P-55")
def test_a_watermark_is_text_on_every_page_and_no_part_of_the_structure(
    printed: Printed, opened: Any
) -> None:
    pdf = marked(printed, printed.first, printed.second)
    document = pypdfium2.PdfDocument(pdf)
    try:
        for page in document:
            assert TEXT in page.get_textpage().get_text_bounded().replace("\r\n", " ")
    finally:
        document.close()
    whole, before = opened(pdf), opened(apply(Order((printed.first, printed.second))))
    assert len(elements(whole)) == len(elements(before))
    for page in whole.pages:
        drawn = pikepdf.parse_content_stream(page)
        begins = [n for n, one in enumerate(drawn) if str(one.operator) == "BDC"][-1]
        assert drawn[begins].operands[0] == Name.Artifact
        assert drawn[begins].operands[1].Subtype == Name.Watermark
        inside = [str(one.operator) for one in drawn[begins + 1 :]]
        assert inside == ["q", "gs", "cm", "Do", "Q", "EMC"]
        assert page.Resources.ExtGState["/UlakWatermarkState"].ca == pytest.approx(0.5)
        fonts = page.Resources.XObject["/UlakWatermark"].Resources.Font
        for font in fonts.values():
            [inner] = font.DescendantFonts
            assert Name.FontFile2 in inner.FontDescriptor, "its font is in the document"


@pytest.mark.shows("P-55")
@pytest.mark.parametrize("angle", [0, 45, -90])
def test_a_watermark_stays_on_the_page_and_in_its_middle(printed: Printed, angle: float) -> None:
    pdf = marked(printed, printed.first, printed.second, opacity=1, angle=angle)
    document = pypdfium2.PdfDocument(pdf)
    try:
        for page in document:
            image = page.render(scale=1).to_pil().convert("RGB")
            red, green, _ = image.split()
            is_red = ImageChops.multiply(
                red.point(lambda value: 255 * (value > 140)),
                green.point(lambda value: 255 * (value < 90)),
            )
            left, top, right, bottom = is_red.getbbox() or pytest.fail("it is not seen")
            assert left > 2
            assert right < image.width - 2
            assert top > 2
            assert bottom < image.height - 2
            assert abs((left + right) / 2 - image.width / 2) < image.width * 0.05
            assert abs((top + bottom) / 2 - image.height / 2) < image.height * 0.05
    finally:
        document.close()


@pytest.mark.shows("P-55")
def test_a_watermark_is_as_faint_as_it_is_asked_to_be(printed: Printed) -> None:
    darkest = {}
    for opacity in (0.2, 0.6, 1.0):
        document = pypdfium2.PdfDocument(marked(printed, printed.first, opacity=opacity))
        try:
            image = document[1].render(scale=1).to_pil().convert("RGB")
        finally:
            document.close()
        # Of the lower half, where nothing is printed: white through red, which is #aa0000.
        _, green, _ = image.crop((0, image.height // 2, image.width, image.height)).split()
        darkest[opacity] = green.getextrema()[0]
    assert darkest == {opacity: pytest.approx(255 * (1 - opacity), abs=6) for opacity in darkest}


# --- metadata, attachments, passwords -------------------------------------------


@pytest.mark.shows("P-55")
def test_metadata_is_in_info_and_in_xmp_and_both_agree(printed: Printed, opened: Any) -> None:
    said = Metadata("Fatura: şubat", "Ada", "İş", keywords=("bir", "iki"), language="tr-TR")
    pdf = opened(apply(Order((printed.first,), metadata=said)))
    info = pdf.docinfo
    assert [str(info[name]) for name in ("/Title", "/Author", "/Subject", "/Keywords")] == [
        "Fatura: şubat", "Ada", "İş", "bir, iki"
    ]  # fmt: skip
    assert str(pdf.Root.Lang) == "tr-TR"
    assert pdf.Root.ViewerPreferences.DisplayDocTitle
    with pdf.open_metadata() as xmp:
        assert xmp["dc:title"] == str(info.Title)
        assert xmp["dc:creator"] == [str(info.Author)]
        assert xmp["dc:description"] == str(info.Subject)
        assert xmp["pdf:Keywords"] == str(info.Keywords)
        assert set(xmp["dc:subject"]) == {"bir", "iki"}
        assert set(xmp["dc:language"]) == {"tr-TR"}
        assert xmp["pdf:Producer"] == str(info.Producer)
    bare = opened(apply(Order((printed.first,), metadata=Metadata(author="Ada"))))
    assert str(bare.docinfo.Title) == "First", "what is not said stays as the HTML has it"
    with bare.open_metadata() as xmp:
        assert xmp["dc:title"] == "First"


@pytest.mark.shows("P-55")
def test_an_attachment_is_had_back_bit_by_bit(printed: Printed, opened: Any) -> None:
    noise = bytes(range(256)) * 40
    files = (
        Attachment("fatura-ş.xml", "application/xml", XML, "Data", "the same, for machines"),
        Attachment("b.bin", "application/octet-stream", noise),
    )
    pdf = apply(Order((printed.first,), attachments=files))
    found = opened(pdf)
    assert set(found.attachments) == {"fatura-ş.xml", "b.bin"}
    for one in files:
        spec = found.attachments[one.name]
        stored = spec.get_file()
        assert stored.read_bytes() == one.data
        assert stored.mime_type == one.media_type
        params = stored.obj.Params
        digest = hashlib.md5(one.data, usedforsecurity=False).digest()
        assert bytes(params.CheckSum) == digest
        assert int(params.Size) == len(one.data)
        assert spec.obj.AFRelationship == Name(f"/{one.relationship}")
    assert {str(one.UF) for one in found.Root.AF} == {"fatura-ş.xml", "b.bin"}
    document = pypdfium2.PdfDocument(pdf)
    try:
        names = {
            document.get_attachment(n).get_name(): bytes(document.get_attachment(n).get_data())
            for n in range(document.count_attachments())
        }
    finally:
        document.close()
    assert names == {one.name: one.data for one in files}


@pytest.mark.shows("P-55")
def test_a_password_encrypts_with_aes_256_and_rights_are_the_owners(
    printed: Printed, opened: Any
) -> None:
    password = Password("müşteri", "sahip", ("copy", "print"))
    pdf = apply(Order((printed.first,), password=password, metadata=Metadata(title="hidden one")))
    assert b"hidden one" not in pdf
    for wrong in ("", "wrong"):
        with pytest.raises(pikepdf.PasswordError):
            opened(pdf, wrong)
    asuser = opened(pdf, "müşteri")
    assert (asuser.encryption.R, asuser.encryption.bits) == (6, 256)
    assert asuser.encryption.stream_method.name == "aesv3"
    assert not asuser.owner_password_matched
    allowed = asuser.allow
    assert (allowed.print_highres, allowed.print_lowres, allowed.extract) == (True, True, True)
    assert not (allowed.modify_other)
    assert not (allowed.modify_annotation)
    assert not (allowed.modify_assembly)
    assert not (allowed.modify_form)
    assert allowed.accessibility, "machines may always read it aloud"
    assert opened(pdf, "sahip").owner_password_matched


def test_without_an_owners_password_nobody_is_the_owner(printed: Printed, opened: Any) -> None:
    pdf = apply(Order((printed.first,), password=Password("user", "", ())))
    with pytest.raises(pikepdf.PasswordError):
        opened(pdf)
    assert not opened(pdf, "user").owner_password_matched
    locked = apply(Order((printed.first,), password=Password("", "owner", ())))
    assert not opened(locked).owner_password_matched
    assert not opened(locked).allow.print_highres


@pytest.mark.shows("P-10", "P-55")
def test_the_same_order_gives_the_same_bytes(printed: Printed) -> None:
    order = Order(
        (printed.first, printed.second), mark=Mark(printed.mark, opacity=0.2, angle=30),
        metadata=Metadata(title="x", keywords=("one", "two", "three")),
        attachments=(Attachment("a.xml", "application/xml", XML),),
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order) == order
    first = apply(order)
    # Identifiers and dates have seconds in them: were they of now, these would differ.
    time.sleep(1.1)
    assert apply(order) == first
    assert apply(replace(order, metadata=Metadata(title="y"))) != apply(order)


# --- the process that does it ---------------------------------------------------


@pytest.mark.shows("P-10", "P-55")
def test_a_process_of_its_own_does_the_same(printed: Printed) -> None:
    order = Order(
        (printed.first, printed.second), metadata=Metadata(title="x", keywords=("one", "two"))
    )
    assert asyncio.run(finish(order, seconds=60)) == apply(order)


def test_what_cannot_be_read_is_told_in_one_word() -> None:
    with pytest.raises(PdfError) as caught:
        asyncio.run(finish(Order((b"tell-nobody",)), seconds=60))
    assert (caught.value.code, caught.value.detail) == ("UNKNOWN", "finishing_failed")
    assert "PdfError" in str(caught.value)
    assert "tell-nobody" not in str(caught.value)


def test_the_process_is_given_nothing_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULAK_SECRET", "tell-nobody")
    tells = "import os; print(sorted(os.environ), end='')"
    told = asyncio.run(finish(Order((b"",)), seconds=60, command=(sys.executable, "-c", tells)))
    assert "PYTHONPATH" in told.decode()
    assert "ULAK_SECRET" not in told.decode()


NEVER = """
import os, sys
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    pass
"""


@pytest.mark.shows("P-13", "P-55")
@pytest.mark.parametrize("end", ["time", "cancel"])
def test_a_process_that_never_ends_is_killed(tmp_path: Any, end: str) -> None:
    told = tmp_path / "pid"
    command = (sys.executable, "-c", NEVER, str(told))

    async def run() -> None:
        order = Order((b"",))
        if end == "cancel":
            task = asyncio.ensure_future(finish(order, seconds=600, command=command))
            while not told.exists():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        with pytest.raises(PdfError) as caught:
            await finish(order, seconds=2, command=command)
        assert caught.value.code == "NAVIGATION_TIMEOUT"

    asyncio.run(run())
    if told.exists():
        assert not is_alive(int(told.read_text()))


@pytest.mark.shows("P-55", "P-32")
def test_a_document_that_needs_too_much_memory_fails_by_its_limit(printed: Printed) -> None:
    large = Attachment("large.bin", "application/octet-stream", data=bytes(128 * 1024 * 1024))
    order = Order((printed.first,), attachments=(large,))

    async def run() -> None:
        assert await finish(order, seconds=120)
        with pytest.raises(PdfError) as caught:
            await finish(replace(order, memory_bytes=300 * 1024 * 1024), seconds=120)
        assert (caught.value.code, caught.value.detail) == ("TEMPLATE_ERROR", "memory_exceeded")

    asyncio.run(run())
