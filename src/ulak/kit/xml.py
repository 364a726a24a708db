"""XML that another program wrote: read within bounds, without a tree, a DTD or an entity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import XMLParser  # type: ignore[import-untyped]

from ulak.kit.files import open_file

__all__ = ["BadXml", "read_xml"]

DEEPEST: Final = 200  # a guess: more than anybody writes, less than what a reader's stack takes
_CHUNK = 1 << 20


class BadXml(Exception):
    """The file is no XML that may be read; the message says why, without the file's name."""


class _Elements:
    """What the parser calls. A tree would take twenty times the size of the file."""

    def __init__(self, take: Callable[[str, Mapping[str, str], int], object]) -> None:
        self._take = take
        self._depth = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._depth > DEEPEST:
            raise BadXml(f"its elements are nested more than {DEEPEST} deep")
        self._take(tag.rpartition("}")[2], attributes, self._depth)
        self._depth += 1

    def end(self, tag: str) -> None:
        self._depth -= 1


def read_xml(
    path: Path, take: Callable[[str, Mapping[str, str], int], object], *, largest: int
) -> tuple[str, int]:
    """Call `take` with the name (without a namespace), the attributes and the depth of each
    element, the root's is 0; return the SHA-256 of the file in hex, and its size.

    Raises:
        BadXml: it is not well-formed, has a DTD or more than `largest` bytes, or is nested deep.
        OSError: it cannot be read, or is a link.
    """
    digest, size = sha256(), 0
    parser = XMLParser(target=_Elements(take), forbid_dtd=True)
    with open_file(path) as file:
        try:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > largest:
                    raise BadXml(f"it is larger than {largest // 1_000_000} MB")
                digest.update(chunk)
                parser.feed(chunk)
            parser.close()
        except DefusedXmlException as error:
            raise BadXml(f"it has a DTD or an entity, which is refused: {error}") from error
        except (SyntaxError, LookupError, ValueError) as error:  # also of an unknown encoding
            raise BadXml(f"it is no well-formed XML: {error}") from error
    return digest.hexdigest(), size
