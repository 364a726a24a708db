"""A service with tables of its own, on either database."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stores import make_schema
from ulak.engine.engine import Engine
from ulak.tables import Schema, Tables
from ulak.wiring import store_of

NOTES = {
    "sqlite": "CREATE TABLE acme_notes (text TEXT NOT NULL PRIMARY KEY) STRICT;",
    "postgresql": "CREATE TABLE ulak.acme_notes (text text NOT NULL PRIMARY KEY);",
}
STARS = {
    "sqlite": "ALTER TABLE acme_notes ADD COLUMN stars INTEGER NOT NULL DEFAULT 0;",
    "postgresql": "ALTER TABLE ulak.acme_notes ADD COLUMN stars integer NOT NULL DEFAULT 0;",
}
LOCK = 4711


@dataclass
class Service:
    """What its package brings: a folder of SQL, and processes that use it."""

    url: str
    folder: Path
    engines: list[Engine]

    def release(self, number: int, texts: dict[str, str]) -> None:
        """Write a file of the next release."""
        for name, text in texts.items():
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / f"{number:04}.sql").write_text(text)

    def schema(self, **options: Any) -> Schema:
        said: dict[str, Any] = {"version_table": "acme_notes_schema", "lock": LOCK} | options
        return Schema(
            "notes", folder=self.folder, why="a note and its job are one transaction", **said
        )

    def engine(self) -> Engine:
        self.engines.append(Engine(store_of(self.url)))
        return self.engines[-1]

    def start(self, **options: Any) -> Tables:
        """Start another process on the same database."""
        return Tables(self.engine(), self.schema(**options))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that has never heard of notes."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    engines: list[Engine] = []

    def make(url: str) -> Service:
        folder = tmp_path / "sql"
        folder.mkdir()
        made = Service(url, folder, engines)
        made.release(1, NOTES)
        return made

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def service(make_service: Callable[[str], Service], url: str) -> Service:
    """A service at its first release."""
    return make_service(url)
