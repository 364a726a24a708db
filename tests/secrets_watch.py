"""No test may leave a secret where others read it: in a log line or in a table.

Each record of the whole run is looked at, whatever a test makes of logging; after each test, each
SQLite file below its `tmp_path` and each database that it gives back, if credentials were stored
in it. Looked for is what has the form of a key or a token, what stands where a secret stands
(`Authorization: ...`), and every password, key and signing secret that the code has had in its
hands during the test. A test that has leaked fails, and says where. One that leaks on purpose is
marked `plants_secrets`.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from ulak.auth import passwords, secrets
from ulak.auth.tokens import Tokens
from ulak.testing.secret_scan import FORMS, SQLITE, Scanner

MARKER: Final = "plants_secrets"
OURS: Final = "ulak"
SHORTEST: Final = 8
"""What is shorter is found by chance."""

_VALUE = rb"(?!\*\*\*)[^\s\"',;)}*]{4,}"
IN_LOGS: Final[Mapping[str, re.Pattern[bytes]]] = {
    **FORMS,
    "header": re.compile(
        rb"(?i)(?:authorization|x-admin-key|x-hos-api-key|ulak_session)[\"']*\s*[:=,]\s*b?[\"']*"
        rb"(?:(?:bearer|token|basic)\s+)?" + _VALUE
    ),
    "bearer": re.compile(rb"(?i)\bbearer\s+" + _VALUE),
    "password": re.compile(rb"(?i)(?:password|passwd)[\"']?\s*[=:]\s*[\"']?" + _VALUE),
    "url": re.compile(rb"://[^:/@?\s]*:(?!\*\*\*)[^@\s/]+@"),
    "link": re.compile(rb"/auth/link\?code=(?!\*\*\*)\S"),
}
"""What no line may hold: keys and tokens, and whatever stands where a secret stands."""

HASH: Final = re.compile(r"[0-9a-f]{64}|\$argon2id\$.+")
"""What is stored of a secret: SHA-256 of what is random, argon2 of what a person has chosen."""
UNHASHED: Final = "credentials.hash: not a hash"
_HASHES = "SELECT hash FROM {}credentials"

_formatter = logging.Formatter()
_usual = frozenset(vars(logging.makeLogRecord({})))


class Watch:
    """What was found since the last test that was told."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}
        self._known: dict[str, str] = {}
        self._plants = False

    # --- its test -----------------------------------------------------------------

    def begin(self, *, plants: bool) -> None:
        """Watch one more test; one that plants secrets is left out."""
        self._known.clear()
        self._plants = plants

    def end(self) -> list[str]:
        """Return what was found, each once, and watch for nothing in particular."""
        found = list(self._found)
        self._found.clear()
        self._plants = False
        return found

    def learn(self, secret: object, what: str) -> None:
        """Look for this as well until the test is over."""
        if isinstance(secret, str) and len(secret) >= SHORTEST:
            self._known.setdefault(secret, what)

    # --- what it looks at ---------------------------------------------------------

    def look_at_record(self, record: logging.LogRecord) -> None:
        """Look at a line of the log as it was made, before anybody could hide something."""
        if not self._plants:
            data = text_of(record).encode("utf-8", "backslashreplace")
            self._note(self._scanner(IN_LOGS).scan_bytes(data, f"log {record.name}"))

    def look_at_folder(self, folder: Path) -> None:
        """Look at the SQLite files of a folder in which credentials are stored."""
        if self._plants:
            return
        for path in _databases(folder):
            if (hashes := _hashes_of_sqlite(path)) is not None:
                self._must_be_hashes(hashes, str(path))
                self._note(self._scanner(FORMS).scan_sqlite(path))

    def look_at_postgres(self, url: str) -> None:
        """Look at a database of PostgreSQL, if credentials are stored in it."""
        if not self._plants and (hashes := _hashes_of_postgres(url)) is not None:
            name = url.rpartition("/")[2]
            self._must_be_hashes(hashes, name)
            self._note(self._scanner(FORMS).scan_postgres(url), f"{name}: ")

    def _scanner(self, forms: Mapping[str, re.Pattern[bytes]]) -> Scanner:
        # By a number: whoever reads the report need not learn the secret either.
        learned = enumerate(self._known.items(), 1)
        known = {f"{what}, secret {n} of this test": secret for n, (secret, what) in learned}
        return Scanner(known, forms)

    def _must_be_hashes(self, stored: list[str], where: str) -> None:
        if not all(map(HASH.fullmatch, stored)):
            self._found[f"{where}: {UNHASHED}"] = None

    def _note(self, leaks: Any, before: str = "") -> None:
        self._found.update(dict.fromkeys(f"{before}{leak}" for leak in leaks))


WATCH: Final = Watch()
"""Of this process; under xdist each worker has its own."""


# --- the plugin ---------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    # Not a handler: a test that configures logging would remove it, and a logger that keeps its
    # lines to itself would pass it by.
    handed_on = logging.Logger.callHandlers
    ours = logging.getLogger(OURS)

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        WATCH.look_at_record(record)
        if record.levelno >= _level_without(ours, logger):
            handed_on(logger, record)

    patch.setattr(logging.Logger, "callHandlers", call_handlers)
    # A line that is written nowhere today is written as soon as somebody asks for it.
    patch.setattr(ours, "level", logging.DEBUG)
    # What every password goes through, by whichever name its caller knows the functions.
    _overhear(patch, passwords, "_normal", what="password")
    _overhear(patch, secrets, "hash_of", what="key")
    _overhear(patch, Tokens, "__init__", what="signing secret", place=1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    WATCH.begin(plants=item.get_closest_marker(MARKER) is not None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        yield
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        if folder is not None:
            WATCH.look_at_folder(folder)
    finally:
        found = WATCH.end()
    if found:
        pytest.fail(f"{item.nodeid} has leaked:\n  " + "\n  ".join(found), pytrace=False)


def _overhear(
    patch: pytest.MonkeyPatch, owner: Any, name: str, *, what: str, place: int = 0
) -> None:  # fmt: skip
    """Learn each secret that a function is given."""
    real: Callable[..., Any] = getattr(owner, name)

    def overheard(*arguments: Any, **options: Any) -> Any:
        WATCH.learn(arguments[place] if len(arguments) > place else None, what)
        return real(*arguments, **options)

    patch.setattr(owner, name, overheard)


def _level_without(ours: logging.Logger, logger: logging.Logger) -> int:
    """Return from which level on a logger would log if nobody watched."""
    found: logging.Logger | None = logger
    while found is not None:
        if found.level and found is not ours:
            return found.level
        found = found.parent
    return logging.NOTSET


# --- what is looked at --------------------------------------------------------------


def text_of(record: logging.LogRecord) -> str:
    """Write down all that a record holds, as any formatter might."""
    try:
        parts = [record.getMessage()]
    except Exception:  # noqa: BLE001 - the line is wrong; what it holds is looked at all the same
        parts = [str(record.msg)]
    parts.append(_shown(record.args))
    parts += [f"{n}={_shown(v)}" for n, v in vars(record).items() if n not in _usual]
    if record.exc_info and record.exc_info[1] is not None:
        parts.append(_formatter.formatException(record.exc_info))
    parts += [text for text in (record.exc_text, record.stack_info) if text]
    return "\n".join(parts)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - of whatever class; what cannot be printed leaks nothing
        return ""


def _databases(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                with path.open("rb") as file:
                    if file.read(len(SQLITE)) == SQLITE:
                        yield path


def _hashes_of_sqlite(path: Path) -> list[str] | None:
    """Return what is stored of secrets, None when there are no credentials."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            return [hash for (hash,) in db.execute(_HASHES.format(""))] or None
    except sqlite3.DatabaseError:
        return None  # it has no such table, or a test has broken it


def _hashes_of_postgres(url: str) -> list[str] | None:
    try:
        with psycopg.connect(url) as db:
            return [hash for (hash,) in db.execute(_HASHES.format("ulak."))] or None
    except (psycopg.errors.UndefinedTable, psycopg.OperationalError):
        return None  # it has no such table, or a test has removed it
