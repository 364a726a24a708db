"""A template's folder, read as a whole: its files, what they say, and their digest."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ulak.services.pdf.templates.manifest import Manifest, read_manifest, template_error

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
class Template:
    """A template as its folder was at one moment; later changes do not reach it."""

    name: str
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    """By path below the folder, with slashes."""
    version: str
    """SHA-256, in hex, over the names and contents of the files: part of a job's key."""

    def text(self, path: str) -> str:
        """Return a file as text.

        Raises:
            PermanentPdfError: there is no such file, or it is no UTF-8.
        """
        if path not in self.files:
            raise template_error(self.name, f" has no file {path!r}", detail="file")
        try:
            return self.files[path].decode()
        except UnicodeDecodeError:
            raise template_error(self.name, f", {path}: it is no UTF-8", detail="file") from None

    def sample(self) -> dict[str, Any]:
        """Return the sample variables, {} when there are none.

        Raises:
            PermanentPdfError: they are no JSON object.
        """
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
        """Return a file as a data: URL.

        Raises:
            PermanentPdfError: there is no such file, or nobody knows its type.
        """
        kind = _TYPES.get(PurePosixPath(path).suffix.lower()) or mimetypes.types_map.get(
            PurePosixPath(path).suffix.lower()
        )
        if path not in self.files or kind is None:
            raise template_error(self.name, f" has no asset {path!r}", detail="file")
        return f"data:{kind};base64,{base64.b64encode(self.files[path]).decode()}"

    def css(self, path: str) -> str:
        """Return a style sheet, the files of the folder that it names inlined as data: URLs.

        Raises:
            PermanentPdfError: there is no such file, or it would end the element it stands in.
        """
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
    found: list[tuple[str, int, int]] = []
    for path in _paths(folder):
        known = path.stat()
        found.append((path.relative_to(folder).as_posix(), known.st_size, known.st_mtime_ns))
    return tuple(found)


def read_template(folder: Path) -> Template:
    """Read a template's folder.

    Files whose names begin with a dot are no part of it, and neither is what a symbolic link
    shows from elsewhere.

    Raises:
        PermanentPdfError: it is not complete, too large, or its manifest cannot be used.
    """
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
