"""Databases that earlier releases have made, and processes of this release and the next on them."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path

import psycopg
import pytest

from tests.databases import Databases
from tests.upgrade import later, program
from ulak import Engine
from ulak.cli import main

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RELEASES = sorted(path.parent.name for path in HERE.glob("*/sqlite.sql"))

APP = """
import os
from pathlib import Path

from tests.upgrade.program import Outside, make_engine

engine = make_engine({url!r}, Outside(os.environ["RELEASE"], Path({folder!r})))
"""


class Site:
    """A database, a folder, and the processes that run there until the test ends."""

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._started: list[subprocess.Popen[str]] = []
        (folder / "app.py").write_text(APP.format(url=url, folder=str(folder)))

    def engine(self) -> Engine:
        """Make the program's engine in this process; it works on nothing."""
        return program.make_engine(self.url, program.Outside("", self.folder))

    def schema(self) -> int:
        """Return the number of the schema that the database is at."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.folder / "app.db")) as db:
                return int(db.execute("PRAGMA user_version").fetchone()[0])
        with psycopg.connect(self.url) as db:
            return int(db.execute("SELECT version FROM ulak.schema_version").fetchone()[0])

    def ulak(self, *arguments: str, is_next: bool = False) -> str:
        """Run a command of this release, or of the next one, and return what it printed."""
        with self._monkeypatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.chdir(self.folder)
            patch.setattr(sys, "path", list(sys.path))
            patch.delitem(sys.modules, "app", raising=False)
            patch.setenv("RELEASE", "")
            if is_next:
                later.teach(patch.setattr)
            with pytest.raises(SystemExit) as ended:
                main([*arguments, "--app", "app:engine"])
            sys.modules.pop("app", None)
        assert not ended.value.code, out.getvalue()
        return out.getvalue().strip()

    def work(self, release: str, *, is_next: bool = False) -> subprocess.Popen[str]:
        """Start a worker of this release, or of the next one; its stages return this name."""
        others = {name: text for name, text in os.environ.items() if not name.startswith("ULAK_")}
        module = later.__name__ if is_next else "ulak"
        child = subprocess.Popen(
            [sys.executable, "-m", module, "worker", "app:engine"],
            cwd=self.folder,
            env=others | {"PYTHONPATH": str(ROOT), "RELEASE": release},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(child)
        return child

    def stop(self, worker: subprocess.Popen[str]) -> None:
        """Have a worker drain, and wait for its end."""
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, out

    def close(self) -> None:
        for child in self._started:
            if child.poll() is None:
                child.kill()
                child.communicate()


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def site(
    request: pytest.FixtureRequest, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A database of an earlier release, as that release has left it."""
    for url in _urls(request, release, tmp_path):
        made = Site(url, tmp_path, monkeypatch)
        yield made
        made.close()


def _urls(request: pytest.FixtureRequest, release: str, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        with closing(sqlite3.connect(folder / "app.db")) as db:
            db.executescript((HERE / release / "sqlite.sql").read_text())
        yield f"sqlite:///{folder}/app.db"
        return
    databases: Databases = request.getfixturevalue("databases")
    with databases.lend(_loader(release)) as url:
        yield url


@cache
def _loader(release: str) -> Callable[[str], None]:
    """Return what fills a database of PostgreSQL: the same object each time, for `lend`."""
    return partial(_load, (HERE / release / "postgres.sql").read_text())


def _load(statements: str, url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(statements)
