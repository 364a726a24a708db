"""Which templates may be named."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def is_template_name(name: str) -> bool:
    """Tell whether a text can be the name of a template: of a folder, and of nothing above it."""
    return TEMPLATE_NAME.fullmatch(name) is not None and name.strip(".") != ""


def validate_template(name: str, allowlist: Collection[str]) -> None:
    """Refuse a template unless its name is one and stands in the list, letter by letter.

    An empty list refuses every template.

    Raises:
        PermanentPdfError: TEMPLATE_ERROR.
    """
    if not is_template_name(name):
        # Not repeated: it may be anything.
        raise PermanentPdfError(
            "this is no name of a template; names hold letters, digits and _ . -, up to 200",
            code=PdfErrorCode.TEMPLATE_ERROR,
            detail="template_name",
        )
    # A list given as one text would allow every part of it.
    if isinstance(allowlist, str) or name not in allowlist:
        raise PermanentPdfError(
            f"template {name!r} is not in the allow-list; PDF_TEMPLATE_ALLOWLIST names those that "
            "may be rendered",
            code=PdfErrorCode.TEMPLATE_ERROR,
            detail="template_not_allowed",
        )
