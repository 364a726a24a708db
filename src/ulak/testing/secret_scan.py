"""Looks for secrets where none may be: in logs, dumps and databases.

Two kinds are found: those that were planted, however they are written, and whatever has the form
of a key or a token, although nobody planted it. A test that plants secrets, works, and scans what
is left knows that nothing has leaked; it should plant one where it must be found, too.
"""

from __future__ import annotations

import base64
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

KEY: Final = re.compile(rb"ulak_[a-z0-9]{8}_[0-9A-Za-z]{40,}")
JWT: Final = re.compile(rb"eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{2,}\.[0-9A-Za-z_-]{8,}")
FORMS: Final[Mapping[str, re.Pattern[bytes]]] = {"key": KEY, "token": JWT}

SQLITE: Final = b"SQLite format 3\x00"
A_PIECE: Final = 16 * 1024 * 1024
# Longer than any secret in any of its forms, so that none is missed between two pieces.
OVERLAP: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Leak:
    """A secret where none may be. It does not say the secret itself."""

    where: str
    """A file, or a table and a column of one."""
    what: str
    """The name under which it was planted; `key` or `token` when nobody planted it."""
    written: str
    """How: plain, base64, hex, percent or escaped."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.written})"


@dataclass(frozen=True, slots=True)
class Scanner:
    """Looks for planted secrets and for the forms of keys and tokens.

    Args:
        planted: Each secret, by a name that may be printed. Eight characters or more: a shorter
            one is found by chance.
        forms: What else is looked for, by its form.
    """

    planted: Mapping[str, str] = field(repr=False)
    forms: Mapping[str, re.Pattern[bytes]] = field(default_factory=lambda: FORMS)

    def __post_init__(self) -> None:
        short = [name for name, secret in self.planted.items() if len(secret) < 8]
        if short:
            raise ValueError(
                f"{', '.join(short)}: a secret of less than 8 characters is everywhere"
            )

    def scan_bytes(self, data: bytes, where: str) -> set[Leak]:
        """Return what leaked into some bytes."""
        found = {
            Leak(where, name, written)
            for name, secret in self.planted.items()
            for written, forms in _written(secret).items()
            if any(form in data for form in forms)
        }
        # What was planted is told by its name, not once more by its form.
        known = [secret.encode() for secret in self.planted.values()]
        for name, pattern in self.forms.items():
            if any(not any(k in hit or hit in k for k in known) for hit in pattern.findall(data)):
                found.add(Leak(where, name, "plain"))
        return found

    def scan_file(self, path: Path) -> set[Leak]:
        """Return what leaked into a file: its bytes and, of a SQLite database, every value."""
        found: set[Leak] = set()
        with path.open("rb") as file:
            is_database = file.read(len(SQLITE)) == SQLITE
            file.seek(0)
            rest = b""
            while piece := file.read(A_PIECE):
                found |= self.scan_bytes(rest + piece, str(path))
                rest = piece[-OVERLAP:]
        # A long value is parted among the pages of the file, so that its bytes alone miss it.
        return found | self.scan_sqlite(path) if is_database else found

    def scan_folder(self, folder: Path) -> list[Leak]:
        """Return what leaked into the files of a folder and of the folders below it."""
        files = (Path(place, name) for place, _, names in os.walk(folder) for name in sorted(names))
        found: set[Leak] = set()
        for path in files:
            if path.is_file() and not path.is_symlink():
                found |= self.scan_file(path)
        return _sorted(found)

    def scan_sqlite(self, path: Path) -> set[Leak]:
        """Return what leaked into the values of a SQLite database, what is in its WAL included."""
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            tables = [
                str(name)
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            return self._scan_rows(str(path), ((t, db.execute(_all_of(t))) for t in tables))

    def scan_postgres(self, url: str, schema: str = "ulak") -> list[Leak]:
        """Return what leaked into the values of every table of a schema."""
        import psycopg

        find = (
            "SELECT quote_ident(nspname) || '.' || quote_ident(relname) FROM pg_class "
            "JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = %s AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1"
        )
        with psycopg.connect(url) as db:
            tables = [str(name) for (name,) in db.execute(find, (schema,))]
            rows = ((t, db.execute(f"SELECT * FROM {t}")) for t in tables)  # noqa: S608 - quoted by the server
            return _sorted(self._scan_rows(schema, rows))

    def _scan_rows(self, where: str, tables: Iterable[tuple[str, Any]]) -> set[Leak]:
        found: set[Leak] = set()
        for table, cursor in tables:
            columns = [column[0] for column in cursor.description]
            for row in cursor:
                for column, value in zip(columns, row, strict=True):
                    data = value if isinstance(value, bytes) else str(value).encode()
                    if len(data) >= 8:
                        found |= self.scan_bytes(data, f"{where}: {table}.{column}")
        return found


@cache
def _written(secret: str) -> dict[str, set[bytes]]:
    """Return each way in which a secret may be written, and how it reads then."""
    data = secret.encode()
    escaped = {repr(secret)[1:-1].encode(), ascii(secret)[1:-1].encode()}
    percent = {quote(secret).encode(), quote(secret, safe="").encode(), quote_plus(secret).encode()}
    return {
        "plain": {data},
        "base64": set(_base64(data)),
        "hex": {data.hex().encode(), data.hex().upper().encode()},
        "percent": percent - {data},
        "escaped": escaped - {data} - percent,
    }


def _base64(data: bytes) -> Iterator[bytes]:
    """Return what surely stands in a text in base64 that has the data somewhere inside.

    It may begin at any of three places, and its first and last letters depend on its neighbours.
    """
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * shift + data)
            first = 0 if shift == 0 else 4
            last = (shift + len(data)) // 3 * 4
            yield text[first:last]


def _all_of(table: str) -> str:
    name = table.replace('"', '""')
    return f'SELECT * FROM "{name}"'  # noqa: S608 - quoted, and read from the database itself


def _sorted(found: set[Leak]) -> list[Leak]:
    return sorted(found, key=lambda leak: (leak.where, leak.what, leak.written))
