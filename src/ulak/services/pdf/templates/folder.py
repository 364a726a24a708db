"""A template's folder, read as a whole: its manifest, its files and their digest."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ulak.services.pdf import output, page
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError, read_boolean
from ulak.services.pdf.page import PAPERS, read_paper
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
MANIFEST: Final = "manifest.toml"
PAGE: Final = "template.html"
SAMPLE: Final = "sample.json"
TEXTS: Final = (".html", ".css", ".svg", ".txt")
"""What may be included; other files are assets."""
MOST_FILES: Final = 500
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all files together: each becomes part of a document, and is kept in memory."""
# Not left to the machine's own table of types: the same folder is the same document everywhere.
_TYPES: Final = {
    ".css": "text/css",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".otf": "font/otf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
_CSS_URL: Final = re.compile(r"url\(\s*([\"']?)([^\"')]+)\1\s*\)", re.IGNORECASE)
Signature = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of a folder's files: the same as long as nobody has written there."""


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
            try:
                return len(value) <= 64 and Decimal(value).is_finite()
            except InvalidOperation:
                return False
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
    language: str = "en"
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


def read_manifest(name: str, text: str) -> Manifest:
    """Read the manifest of a template, and name everything that is wrong with it."""
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
    if found.get("engine") == "weasyprint":
        wrong += _beyond_weasyprint(found)
    if wrong:
        raise template_error(name, f", manifest.toml: {'; '.join(wrong)}", detail="manifest")
    return Manifest(**found)


def _beyond_weasyprint(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("javascript"):
        yield (
            "javascript: the engine weasyprint runs no scripts; set javascript = false, or "
            'engine = "chromium"'
        )
    for name in found.get("options", ()):
        if name not in WITHOUT_A_BROWSER:
            yield (
                f"options: {name} needs a browser; the engine weasyprint can do "
                f'{", ".join(WITHOUT_A_BROWSER)}; leave it out, or set engine = "chromium"'
            )


def _text(said: Any) -> str:
    if not isinstance(said, str) or not said.strip():
        raise ValueError("write a text")
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
    "javascript": read_boolean,
    "paper": read_paper,
    "language": _one_of(*LANGUAGES),
    "tagged": read_boolean,
    "outline": read_boolean,
    "options": _options,
    "variables": _variables,
}


@dataclass(frozen=True, slots=True)
class Template:
    """A template as its folder was at one moment; later changes do not reach it."""

    name: str
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    version: str
    """SHA-256, in hex, over the names and contents of the files: part of a job's key."""

    def text(self, path: str) -> str:
        """Return a file as text; raise where there is none, or it is no UTF-8."""
        if path not in self.files:
            raise template_error(self.name, f" has no file {path!r}", detail="file")
        try:
            return self.files[path].decode()
        except UnicodeDecodeError:
            raise template_error(self.name, f", {path}: it is no UTF-8", detail="file") from None

    def sample(self) -> dict[str, Any]:
        """Return the sample variables, {} when there are none; raise for no JSON object."""
        if SAMPLE not in self.files:
            return {}
        try:
            said = json.loads(self.text(SAMPLE))
        except ValueError as error:
            raise template_error(self.name, f", {SAMPLE}: {error}", detail="sample") from None
        if not isinstance(said, dict):
            raise template_error(self.name, f", {SAMPLE}: it is no object", detail="sample")
        return said

    def asset(self, path: str) -> str:
        """Return a file as a data: URL; raise where there is none, or of an unknown type."""
        suffix = PurePosixPath(path).suffix.lower()
        kind = _TYPES.get(suffix) or mimetypes.types_map.get(suffix)
        if path not in self.files or kind is None:
            raise template_error(self.name, f" has no asset {path!r}", detail="file")
        return f"data:{kind};base64,{base64.b64encode(self.files[path]).decode()}"

    def css(self, path: str) -> str:
        """Return a style sheet, the files that it names inlined as data: URLs; raise where there is
        none, or it would end the element it stands in."""
        text = self.text(path)
        if "</style" in text.lower():
            raise template_error(self.name, f", {path}: it holds </style", detail="file")
        below = PurePosixPath(path).parent

        def inline(found: re.Match[str]) -> str:
            named = str(below / found[2])
            return f'url("{self.asset(named)}")' if named in self.files else found[0]

        return _CSS_URL.sub(inline, text)


def sign(folder: Path) -> Signature:
    """Return a folder's signature, without reading its files."""
    known = ((path.relative_to(folder).as_posix(), path.stat()) for path in _paths(folder))
    return tuple((name, found.st_size, found.st_mtime_ns) for name, found in known)


def read_template(folder: Path) -> Template:
    """Read a template's folder, without hidden files and what links show from elsewhere. Raises
    PermanentPdfError: it is not complete, too large, or its manifest cannot be used."""
    name = folder.name
    files: dict[str, bytes] = {}
    left = MOST_BYTES
    for path in _paths(folder):
        files[path.relative_to(folder).as_posix()] = content = path.read_bytes()
        left -= len(content)
        if left < 0 or len(files) > MOST_FILES:
            limits = f"{MOST_FILES} files and {MOST_BYTES // 1024 // 1024} MiB"
            raise template_error(name, f" has more than {limits}", detail="size")
    for needed in (MANIFEST, PAGE):
        if needed not in files:
            raise template_error(name, f" has no {needed}", detail="file")
    made = Template(name, Manifest(version="", title=""), files, _digest(files))
    return Template(name, read_manifest(name, made.text(MANIFEST)), files, made.version)


def _paths(folder: Path) -> list[Path]:
    """Return the files of a folder, in order."""
    found: list[Path] = []
    for here, folders, files in os.walk(folder):  # does not enter folders behind links
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(here, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if not path.is_symlink() or _is_inside(path, folder))


def _is_inside(link: Path, folder: Path) -> bool:
    shown = link.resolve()
    return shown.is_file() and shown.is_relative_to(folder.resolve())


def _digest(files: Mapping[str, bytes]) -> str:
    """Digest names and contents, each with its length before it, so that none runs into another."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        for part in (path.encode(), content):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
