"""Contract versions: which statuses a type of subject has, and which may follow which.

A version is a file of data, `versions/2025-12-28.json`; a folder of the operator may hold more.
Files are checked when they are read, so that nothing is judged by a table with a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ulak.errors import BadInput
from ulak.kit import read_json
from ulak.settings import read_variables

VERSION: Final = "HOS_CONTRACT_VERSION"
TABLES: Final = "HOS_CONTRACT_TABLES"
DEFAULT_VERSION: Final = "2025-12-28"
LONGEST_NAME: Final = 100
"""Of a type or a status; with ids of their length, every index of PostgreSQL can hold them."""


@dataclass(frozen=True, slots=True)
class Table:
    """One type of subject."""

    initial: str
    moves: Mapping[str, tuple[str, ...]]
    terminal: frozenset[str]

    def allows(self, source: str, target: str) -> bool:
        return target in self.moves.get(source, ())


@dataclass(frozen=True, slots=True)
class Version:
    """The tables that are in force together."""

    name: str
    tables: Mapping[str, Table]


class UnknownVersion(BadInput):
    """There is no contract version of this name."""

    code = "unknown_contract_version"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known))
        super().__init__(f"there is no contract version {name!r}; known are {names}")


@dataclass(frozen=True, slots=True)
class Versions:
    """Every version that is known, and the one that is in force where nobody pins another."""

    known: Mapping[str, Version]
    active: Version

    def get(self, name: str | None) -> Version:
        """Return the version of a name, the active one for None. Raises `UnknownVersion`: naming
        those that are known."""
        if name is None:
            return self.active
        if name not in self.known:
            raise UnknownVersion(name, self.known)
        return self.known[name]


def versions_in_force(environ: Mapping[str, str] | None = None) -> Versions:
    """Read the versions that the settings name; raises as `load`."""
    found = read_variables({VERSION: str, TABLES: _folder}, environ)
    return load(found.get(VERSION, DEFAULT_VERSION), found.get(TABLES))


def load(active: str, folder: Path | None = None) -> Versions:
    """Read the versions that ulak brings and those of a folder. Raises `BadInput`: a file is no
    contract version, two have the same name, or the active one is not among them."""
    known: dict[str, Version] = {}
    for source, text in _files(folder):
        version = read(text, source)
        if version.name in known:
            raise BadInput(f"{source}: there is a contract version {version.name!r} already")
        known[version.name] = version
    if active not in known:
        raise UnknownVersion(active, known)
    return Versions(MappingProxyType(known), known[active])


def read(text: str, source: str) -> Version:
    """Read and check one version. `BadInput` names the source, the type and what is wrong with
    it."""
    try:
        document = read_json(text)
        version = _text(_member(document, "version"))
        types = _member(document, "types")
        if not isinstance(types, dict) or not types:
            raise ValueError("it has no types")
        return Version(
            version, MappingProxyType({_text(name): _table(name, types[name]) for name in types})
        )
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is no contract version: {error}") from error


def written(version: Version) -> dict[str, Any]:
    """Write a version as its file has it, without its name."""
    return {
        name: {
            "initial": table.initial,
            "moves": {source: list(targets) for source, targets in table.moves.items()},
            "terminal": sorted(table.terminal),
        }
        for name, table in version.tables.items()
    }


def _folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {text}")
    return folder


def _files(folder: Path | None) -> Iterator[tuple[str, str]]:
    shipped: Iterable[Traversable] = (files(__package__) / "versions").iterdir()
    if folder is not None and not folder.is_dir():
        raise BadInput(f"there is no folder {folder} to read contract versions from")
    own: Iterable[Traversable] = () if folder is None else folder.iterdir()
    for where, entries in (("ulak", shipped), (str(folder), own)):
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".json"):
                try:
                    yield f"{where}/{entry.name}", entry.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise BadInput(f"{where}/{entry.name} cannot be read: {error}") from error


def _table(kind: str, document: Any) -> Table:
    try:
        initial = _text(_member(document, "initial"))
        listed = _member(document, "moves")
        if not isinstance(listed, dict):
            raise ValueError("its moves are no object")
        moves = {_text(source): _texts(targets) for source, targets in listed.items()}
        terminal = frozenset(_texts(_member(document, "terminal")))
        _check(initial, moves, terminal)
    except ValueError as error:
        raise ValueError(f'the type "{kind}": {error}') from error
    return Table(initial, MappingProxyType(moves), terminal)


def _check(initial: str, moves: Mapping[str, tuple[str, ...]], terminal: frozenset[str]) -> None:
    """Refuse a table in which a status cannot be reached, or leads nowhere without saying so."""
    for source, targets in moves.items():
        if not targets:
            raise ValueError(f'nothing follows "{source}"; say that it is terminal instead')
        if source in targets:
            raise ValueError(f'"{source}" cannot follow itself')
        if len(set(targets)) < len(targets):
            raise ValueError(f'something is there twice among what follows "{source}"')
    every = {initial, *moves, *terminal, *(t for targets in moves.values() for t in targets)}
    if wrong := sorted(terminal & moves.keys()):
        raise ValueError(f"{_quoted(wrong)} cannot be terminal: something follows")
    if open_ends := sorted(every - moves.keys() - terminal):
        raise ValueError(f"nothing follows {_quoted(open_ends)}; say that it is terminal")
    reached, ahead = {initial}, [initial]
    while ahead:
        found = set(moves.get(ahead.pop(), ())) - reached
        reached |= found
        ahead += found
    if lost := sorted(every - reached):
        raise ValueError(f'nothing leads from "{initial}" to {_quoted(lost)}')


def _member(document: Any, name: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise ValueError(f'it has no "{name}"')
    return document[name]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise ValueError(f"{value!r} is no name; write 1 to {LONGEST_NAME} printable characters")
    if value != value.lower().strip():
        raise ValueError(f"{value!r} must be in lower case, without spaces around it")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is no list of statuses")
    return tuple(_text(value) for value in values)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
