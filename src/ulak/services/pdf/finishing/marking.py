"""A watermark laid over every page, as text that is no part of the document's structure."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from pikepdf import Array, Dictionary, Name, Object, Page, Pdf

FILLS: Final = 0.85
"""Of the page's width or height, whichever is reached first."""
TALLEST: Final = 1 / 6
"""Of the shorter edge: how high a short text may become."""
_FORM: Final = "/UlakWatermark"
_STATE: Final = "/UlakWatermarkState"


def mark_pages(pdf: Pdf, mark: Pdf, *, opacity: float, angle: float) -> None:
    """Lay a text over every page, in the middle and as large as the page lets it be.

    Args:
        pdf: Whose pages.
        mark: One page with one line of text that is a link: its rectangle says where the text is.
        opacity: Of the text.
        angle: Degrees by which it rises.

    Raises:
        ValueError: there is no such link.
    """
    box = _box_of(mark.pages[0])
    form = pdf.copy_foreign(mark.make_indirect(mark.pages[0].as_form_xobject()))
    # As a group it is drawn at once: what stands in it may say that it is opaque.
    form[Name.Group] = Dictionary(Type=Name.Group, S=Name.Transparency)
    state = pdf.make_indirect(
        Dictionary(Type=Name.ExtGState, ca=Decimal(str(opacity)), CA=Decimal(str(opacity)))
    )
    for page in pdf.pages:
        _draw(pdf, page, form, state, _matrix(page, box, math.radians(angle)))


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
    annotations = page.obj.get(Name.Annots, Array())
    for annotation in annotations:
        if annotation.get(Name.Subtype) == Name.Link:
            one_x, one_y, other_x, other_y = (float(edge) for edge in annotation.Rect)
            # Any two corners that are not of one edge: each engine has its own.
            (left, right), (bottom, top) = sorted((one_x, other_x)), sorted((one_y, other_y))
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
