"""An order done with pikepdf, from the bytes that were printed to those that are stored.

The same order gives the same bytes, but for a password: keys of encryption are random.
"""

from __future__ import annotations

import io
import math
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from decimal import Decimal
from typing import Final

import pikepdf
from pikepdf import Array, AttachedFileSpec, Dictionary, Name, Object, Page, Pdf, String

from ulak.services.pdf.finishing.merging import append
from ulak.services.pdf.finishing.order import Mark, Order
from ulak.services.pdf.output import Attachment, Metadata, Password

VERSION: Final = "1.7"
"""Of the PDFs that are written, at least; AES-256 makes it 2.0."""
FILLS: Final = 0.85
"""How much of the page's width or height a watermark fills, whichever is reached first."""
TALLEST: Final = 1 / 6
"""Of the shorter edge: how high a short text may become."""
_FORM: Final = "/UlakWatermark"
_STATE: Final = "/UlakWatermarkState"
_DATE: Final = "2000-01-01T00:00:00+00:00"
"""As other dates (`browser.chromium_pdf`): the same document has the same bytes."""


def apply(order: Order) -> bytes:
    """Do an order; fails with `pikepdf.PdfError` where what was printed cannot be read."""
    with ExitStack() as stack:
        # All stay open until the end: pages are read when they are written.
        pdf, *others = (stack.enter_context(pikepdf.open(io.BytesIO(one))) for one in order.pdfs)
        for number, other in enumerate(others, 2):
            append(pdf, other, number=number)
        if order.mark is not None:
            drawn = stack.enter_context(pikepdf.open(io.BytesIO(order.mark.pdf)))
            _mark_pages(pdf, drawn, order.mark)
        _describe(pdf, order.metadata)
        _attach(pdf, order.attachments)
        written, password = io.BytesIO(), order.password
        pdf.save(
            written,
            min_version=VERSION,
            object_stream_mode=pikepdf.ObjectStreamMode.generate,
            # An encrypted document's identifier is part of its keys, and as random.
            deterministic_id=password is None,
            encryption=False if password is None else _encryption(password),
        )
        return written.getvalue()


def _mark_pages(pdf: Pdf, drawn: Pdf, mark: Mark) -> None:
    """Lay a text over every page, in the middle and as large as the page lets it be.

    It is no part of the document's structure. The text is drawn as one line on one page, and is a
    link: its rectangle says where the text is.
    """
    box = _box_of(drawn.pages[0])
    form = pdf.copy_foreign(drawn.make_indirect(drawn.pages[0].as_form_xobject()))
    # As a group it is drawn at once: what stands in it may say that it is opaque.
    form[Name.Group] = Dictionary(Type=Name.Group, S=Name.Transparency)
    opacity = Decimal(str(mark.opacity))
    state = pdf.make_indirect(Dictionary(Type=Name.ExtGState, ca=opacity, CA=opacity))
    for page in pdf.pages:
        _draw(pdf, page, form, state, _matrix(page, box, math.radians(mark.angle)))


def _draw(pdf: Pdf, page: Page, form: Object, state: Object, matrix: str) -> None:
    resources = page.obj.get(Name.Resources)
    # Pages may share theirs; what is added to one must not be added to it again by the next.
    own = Dictionary() if resources is None else Dictionary(dict(resources.items()))
    for kind, name, thing in ((Name.XObject, _FORM, form), (Name.ExtGState, _STATE, state)):
        known = own.get(kind)
        own[kind] = Dictionary({**(dict(known.items()) if known is not None else {}), name: thing})
    page.obj[Name.Resources] = own
    # What the page itself changes of the plane must not reach the text: its own part is put aside.
    page.contents_add(b"q\n", prepend=True)
    page.contents_add(
        b"\nQ\n/Artifact <</Type /Pagination /Subtype /Watermark>> BDC\n"
        + f"q {_STATE} gs {matrix} cm {_FORM} Do Q\nEMC\n".encode("ascii")
    )


def _box_of(page: Page) -> tuple[float, float, float, float]:
    for annotation in page.obj.get(Name.Annots, Array()):
        if annotation.get(Name.Subtype) == Name.Link:
            edges = [float(edge) for edge in annotation.Rect]
            # Any two corners that are not of one edge: each engine has its own.
            (left, right), (bottom, top) = sorted(edges[::2]), sorted(edges[1::2])
            if right > left and top > bottom:
                return left, bottom, right, top
    raise ValueError("the watermark has no text")


def _matrix(page: Page, box: tuple[float, float, float, float], angle: float) -> str:
    left, bottom, right, top = box
    width, height = right - left, top - bottom
    page_left, page_bottom, page_right, page_top = (float(edge) for edge in page.cropbox)
    across, up = page_right - page_left, page_top - page_bottom
    cosine, sine = math.cos(angle), math.sin(angle)
    scale = min(
        FILLS * across / (width * abs(cosine) + height * abs(sine)),
        FILLS * up / (width * abs(sine) + height * abs(cosine)),
        TALLEST * min(across, up) / height,
    )
    a, b, c, d = scale * cosine, scale * sine, -scale * sine, scale * cosine
    middle_x, middle_y = (left + right) / 2, (bottom + top) / 2
    e = (page_left + page_right) / 2 - (a * middle_x + c * middle_y)
    f = (page_bottom + page_top) / 2 - (b * middle_x + d * middle_y)
    return " ".join(f"{number:.5f}" for number in (a, b, c, d, e, f))


def _describe(pdf: Pdf, metadata: Metadata) -> None:
    """Write what is said over what the HTML said, and all of it in XMP too, where both agree."""
    info = pdf.docinfo
    said = {
        Name.Title: metadata.title,
        Name.Author: metadata.author,
        Name.Subject: metadata.subject,
        Name.Keywords: ", ".join(metadata.keywords),
    }
    for name, text in said.items():
        if text:
            info[name] = String(text)
    if metadata.language:
        pdf.Root[Name.Lang] = String(metadata.language)
    title, author, subject, keywords, creator, producer = (
        str(info.get(name, "")) for name in (*said, Name.Creator, Name.Producer)
    )
    if title:
        if Name.ViewerPreferences not in pdf.Root:
            pdf.Root[Name.ViewerPreferences] = Dictionary()
        pdf.Root.ViewerPreferences[Name.DisplayDocTitle] = True
    with pdf.open_metadata(set_pikepdf_as_editor=False, update_docinfo=False) as xmp:
        for key, value in {
            "dc:title": title,
            "dc:creator": [author] if author else "",
            "dc:description": subject,
            "pdf:Keywords": keywords,
            "dc:subject": list(metadata.keywords) if keywords else "",
            "dc:language": [str(pdf.Root.Lang)] if Name.Lang in pdf.Root else "",
            "xmp:CreatorTool": creator,
            "pdf:Producer": producer,
        }.items():
            if value != "":
                xmp[key] = value
        xmp["xmp:CreateDate"] = xmp["xmp:ModifyDate"] = _DATE


def _attach(pdf: Pdf, attachments: Iterable[Attachment]) -> None:
    """Embed files, each with its checksum and with how it belongs to the document."""
    specs = []
    for one in attachments:
        spec = AttachedFileSpec(
            pdf,
            one.data,
            filename=one.name,
            description=one.description,
            mime_type=one.media_type,
            # Nobody has said when, and the same document has the same bytes.
            creation_date="",
            mod_date="",
        )
        spec.obj[Name.AFRelationship] = Name(f"/{one.relationship}")
        pdf.attachments[one.name] = spec
        specs.append(pdf.attachments[one.name].obj)
    if specs:
        pdf.Root[Name.AF] = pdf.make_indirect(Array(specs))


def _encryption(password: Password) -> pikepdf.Encryption:
    allowed = password.allow
    return pikepdf.Encryption(
        user=password.user,
        # With none at all everybody would be the owner.
        owner=password.owner or secrets.token_urlsafe(32),
        R=6,
        aes=True,
        metadata=True,
        allow=pikepdf.Permissions(
            # Never refused: people read with the help of machines.
            accessibility=True,
            extract="copy" in allowed,
            modify_annotation="annotate" in allowed,
            modify_assembly="assemble" in allowed,
            modify_form="fill" in allowed,
            modify_other="modify" in allowed,
            print_lowres="print" in allowed,
            print_highres="print" in allowed,
        ),
    )
