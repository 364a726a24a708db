"""`manifest.toml`: what a template says about itself."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ulak.services.pdf import output, page
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.paper import PAPERS as PAPERS
from ulak.services.pdf.paper import read_paper as read_paper
from ulak.services.pdf.security.template_input import NAME

ENGINES: Final = ("chromium", "weasyprint")
WITHOUT_A_BROWSER: Final = ("paper", "landscape", "ranges", "fail_on_status", *output.NAMES)
"""The options that the engine weasyprint can do as the browser does them, and those of what is
done to a document that is printed already."""
LANGUAGES: Final = ("en", "tr")
KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "any": (object,),
    "boolean": (bool,),
    "integer": (int,),
    "list": (list, tuple),
    "number": (int, float, str),
    "object": (Mapping,),
    "text": (str,),
}
"""What a variable may be declared as; `?` at the end makes it optional. A number may be written as
a text, since JSON's own lose the cents."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that a template is filled with."""

    name: str
    kind: str
    is_optional: bool

    def takes(self, value: Any) -> bool:
        """Tell whether a value is of the kind that was declared."""
        if value is None:
            return self.is_optional
        if isinstance(value, bool) and self.kind not in ("boolean", "any"):
            return False
        if self.kind == "number" and isinstance(value, str):
            return is_number(value)
        return isinstance(value, KINDS[self.kind])


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a template says about itself."""

    _: KW_ONLY
    version: str
    title: str
    description: str = ""
    engine: str = "chromium"
    """What prints it; weasyprint runs no scripts and has fewer page options."""
    javascript: bool = False
    paper: tuple[float, float] = PAPERS["A4"]
    """Width and height in inches, where the style sheet says none."""
    language: str = "en"
    """How numbers, dates and capitals are written."""
    tagged: bool = True
    """Whether the PDF has its structure in it: headings, lists, tables, for whoever cannot see."""
    outline: bool = True
    """Whether its headings are an outline beside the pages; it is made of the structure."""
    variables: Mapping[str, Variable] | None = None
    """By name; None when the template takes whatever it is given."""
    options: tuple[str, ...] = ()
    """What callers may say about the printed page (`page.NAMES`), and have done to the document
    (`output.NAMES`); by default nothing."""


def template_error(name: str, message: str, *, detail: str = "") -> PermanentPdfError:
    """Make the error of a template, which names it and holds no value."""
    return PermanentPdfError(
        f"template {name!r}{message}", code=PdfErrorCode.TEMPLATE_ERROR, detail=detail
    )


def is_number(text: str) -> bool:
    """Tell whether a text is a plain decimal number."""
    try:
        return len(text) <= 64 and Decimal(text).is_finite()
    except InvalidOperation:
        return False


def read_manifest(name: str, text: str) -> Manifest:
    """Read the manifest of a template.

    Raises:
        PermanentPdfError: naming everything that is wrong with it.
    """
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise template_error(name, f", manifest.toml: {error}", detail="manifest") from None
    wrong: list[str] = []
    found: dict[str, Any] = {}
    for key, read in _READERS.items():
        if key in said:
            try:
                found[key] = read(said.pop(key))
            except ValueError as error:
                wrong.append(f"{key}: {error}")
        elif key in ("version", "title"):
            wrong.append(f"{key} is missing")
    wrong += [f"{key} is unknown; known are {', '.join(_READERS)}" for key in said]
    wrong += _beyond(found)
    if wrong:
        raise template_error(name, f", manifest.toml: {'; '.join(wrong)}", detail="manifest")
    return Manifest(**found)


def _beyond(found: Mapping[str, Any]) -> list[str]:
    """Say what a manifest asks of an engine that cannot do it."""
    if found.get("engine") != "weasyprint":
        return []
    wrong: list[str] = []
    if found.get("javascript"):
        wrong.append(
            "javascript: the engine weasyprint runs no scripts; set javascript = false, or "
            'engine = "chromium"'
        )
    wrong += [
        f"options: {name} needs a browser; the engine weasyprint can do "
        f'{", ".join(WITHOUT_A_BROWSER)}; leave it out, or set engine = "chromium"'
        for name in found.get("options", ())
        if name not in WITHOUT_A_BROWSER
    ]
    return wrong


def _text(said: Any) -> str:
    if not isinstance(said, str) or not said.strip():
        raise ValueError("write a text")
    return said


def _boolean(said: Any) -> bool:
    if not isinstance(said, bool):
        raise ValueError("write true or false")
    return said


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(said: Any) -> str:
        if said not in names:
            raise ValueError(f"write one of {', '.join(names)}")
        return str(said)

    return read


def _options(said: Any) -> tuple[str, ...]:
    names = (*page.NAMES, *output.NAMES)
    if not isinstance(said, list) or any(one not in names for one in said):
        raise ValueError(f"write a list of what callers may say: {', '.join(names)}")
    return tuple(dict.fromkeys(map(str, said)))


def _variables(said: Any) -> Mapping[str, Variable]:
    if not isinstance(said, dict):
        raise ValueError('write a table, as number = "text"')
    found: dict[str, Variable] = {}
    for name, kind in said.items():
        plain = kind.removesuffix("?") if isinstance(kind, str) else ""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name; names hold letters, digits and underscores")
        if plain not in KINDS:
            raise ValueError(f"{name} is none of {', '.join(KINDS)}, with ? at the end if optional")
        found[name] = Variable(name, plain, plain != kind)
    return found


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "version": _text,
    "title": _text,
    "description": _text,
    "engine": _one_of(*ENGINES),
    "javascript": _boolean,
    "paper": read_paper,
    "language": _one_of(*LANGUAGES),
    "tagged": _boolean,
    "outline": _boolean,
    "options": _options,
    "variables": _variables,
}
