"""An order done with pikepdf, from the bytes that were printed to those that are stored.

The same order gives the same bytes, but for a password: keys of encryption are random.
"""

from __future__ import annotations

import io
import secrets
from contextlib import ExitStack
from typing import Final

import pikepdf

from ulak.services.pdf.finishing.describing import attach, describe
from ulak.services.pdf.finishing.marking import mark_pages
from ulak.services.pdf.finishing.merging import append
from ulak.services.pdf.finishing.order import Order
from ulak.services.pdf.output import Password

VERSION: Final = "1.7"
"""Of the PDFs that are written, at least; AES-256 makes it 2.0."""


def apply(order: Order) -> bytes:
    """Do an order.

    Raises:
        pikepdf.PdfError: what was printed cannot be read.
    """
    with ExitStack() as stack:
        # All stay open until the end: pages are read when they are written.
        pdf, *others = (stack.enter_context(pikepdf.open(io.BytesIO(one))) for one in order.pdfs)
        for number, other in enumerate(others, 2):
            append(pdf, other, number=number)
        if order.mark is not None:
            mark = stack.enter_context(pikepdf.open(io.BytesIO(order.mark.pdf)))
            mark_pages(pdf, mark, opacity=order.mark.opacity, angle=order.mark.angle)
        describe(pdf, order.metadata)
        attach(pdf, order.attachments)
        return _written(pdf, order.password)


def _written(pdf: pikepdf.Pdf, password: Password | None) -> bytes:
    written = io.BytesIO()
    pdf.save(
        written,
        min_version=VERSION,
        object_stream_mode=pikepdf.ObjectStreamMode.generate,
        # An encrypted document's identifier is part of its keys, and as random.
        deterministic_id=password is None,
        encryption=False if password is None else _encryption(password),
    )
    return written.getvalue()


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
