"""What a caller sends for a template: its name, and variables that are made harmless for HTML."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from markupsafe import Markup, escape

from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

DEEPEST: Final = 32
MOST_VALUES: Final = 100_000
"""Of one document, at every depth; a payload of the usual limit holds fewer."""

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
"""What a variable may be called: nothing with a leading underscore, which Python keeps for
itself."""
_TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_UNPRINTABLE: Final = re.compile("[\x00\ud800-\udfff]")


def is_template_name(name: str) -> bool:
    """Tell whether a text can be the name of a template: of a folder, and of nothing above it."""
    is_text = isinstance(name, str)
    return is_text and _TEMPLATE_NAME.fullmatch(name) is not None and name.strip(".") != ""


def validate_template(name: str, allowlist: Collection[str]) -> bool:
    """Tell whether a name is one and stands in the list; an empty list has no template."""
    try:
        must_be_listed(name, allowlist)
    except PermanentPdfError:
        return False
    return True


def must_be_listed(name: str, allowlist: Collection[str]) -> None:
    """Refuse (TEMPLATE_ERROR) a template for which `validate_template` is false, and say why."""
    if not is_template_name(name):
        # Not repeated: it may be anything.
        raise _refusal(
            "this is no name of a template; names hold letters, digits and _ . -, up to 200",
            "template_name",
        )
    # A list given as one text would allow every part of it.
    if isinstance(allowlist, str) or name not in allowlist:
        raise _refusal(
            f"template {name!r} is not in the allow-list; PDF_TEMPLATE_ALLOWLIST names those that "
            "may be rendered",
            "template_not_allowed",
        )


def sanitize_html_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Escape every text in the variables, at every depth, and keep everything else.

    `& < > " '` become entities. The texts returned are `Markup`, so that an engine that escapes
    by itself does not do it again, and so that sanitising what is sanitised changes nothing.

    Nothing is lost for any text, NUL and lone surrogates included; since HTML can hold neither,
    `find_unprintable` finds them before a document is made.

    Raises:
        PermanentPdfError: TEMPLATE_ERROR: a name is none, a value is of a type that JSON does not
            have, or there are too many or too deep. The message tells where, and no value.
    """
    left = [MOST_VALUES]
    return {
        _name(key, ""): _sanitized(value, str(key), 1, left) for key, value in variables.items()
    }


def find_unprintable(variables: Any, where: str = "") -> str | None:
    """Return where a text holds what HTML cannot, NUL or half of a surrogate pair; None if none.

    Chromium would print a replacement, or nothing, and so something else than was asked for.
    """
    if isinstance(variables, str):
        return where if _UNPRINTABLE.search(variables) else None
    inner: list[tuple[str, Any]] = []
    if isinstance(variables, Mapping):
        inner = [(f"{where}.{key}" if where else str(key), v) for key, v in variables.items()]
    elif isinstance(variables, list | tuple):
        inner = [(f"{where}[{place}]", value) for place, value in enumerate(variables)]
    return next(filter(None, (find_unprintable(value, at) for at, value in inner)), None)


def _sanitized(value: Any, where: str, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise _refusal(f"there are more than {MOST_VALUES} values in the variables")
    if depth > DEEPEST:
        raise _refusal(f"variable {where} is nested more than {DEEPEST} deep")
    if isinstance(value, str):
        return value if isinstance(value, Markup) else escape(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            _name(key, where): _sanitized(inner, f"{where}.{key}", depth + 1, left)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        places = enumerate(value)
        return [_sanitized(inner, f"{where}[{at}]", depth + 1, left) for at, inner in places]
    raise _refusal(f"variable {where} is a {type(value).__name__}, which JSON does not have")


def _name(key: object, where: str) -> str:
    # The key itself is not told: what is no name may be anything, a value included.
    if not isinstance(key, str) or not NAME.fullmatch(key):
        within = f"in variable {where}" if where else "of a variable"
        raise _refusal(
            f"a name {within} is none: names begin with a letter and hold letters, digits and "
            "underscores, up to 100"
        )
    return key


def _refusal(message: str, detail: str = "variables") -> PermanentPdfError:
    return PermanentPdfError(message, code=PdfErrorCode.TEMPLATE_ERROR, detail=detail)
