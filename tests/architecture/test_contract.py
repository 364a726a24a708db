"""Services use public names, and only `store` and `engine` hold SQL on the engine's tables."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import contract
from tests.docs.pages import DOCS

OWNERS = {contract.IMPORTS: ("old",), contract.SQL: ("old",)}

House = Callable[..., list[str]]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A small ulak that keeps the contract with two exceptions of the service `old`."""
    ulak = tmp_path / "ulak"
    write(ulak / "__init__.py", '__all__ = ["Engine"]\n')
    write(ulak / "errors.py", '__all__ = ["BadInput"]\n')
    write(ulak / "settings.py", '__all__ = ["load"]\n')
    write(ulak / "web" / "__init__.py", '__all__ = ["Routes"]\n')
    write(ulak / "web" / "problems.py")
    write(ulak / "store" / "__init__.py")
    write(ulak / "store" / "protocol.py")
    write(ulak / "store" / "postgres" / "schema" / "0001.sql", "CREATE TABLE ulak.jobs (id int);")
    write(ulak / "store" / "sqlite" / "migrations.py", 'SQL = "CREATE TABLE events (id INT)"')
    write(ulak / "services" / "__init__.py")
    write(ulak / "services" / "old" / "__init__.py", "from ulak.store.protocol import Store\n")
    write(ulak / "services" / "old" / "rows.py", 'COUNT = "SELECT count(*) FROM {schema}.jobs"\n')
    exceptions = write(
        tmp_path / "exceptions.txt",
        "# A head.\n\n[private imports: old 1]\nulak.services.old ulak.store.protocol.Store\n\n"
        "[engine sql: old 1]\nulak.services.old.rows:COUNT jobs\n",
    )

    def check(files: dict[str, str] | None = None, listed: str = "") -> list[str]:
        for name, text in (files or {}).items():
            write(ulak / name, text)
        if listed:
            write(exceptions, listed)
        return contract.problems(tmp_path, exceptions, OWNERS)

    return check


def test_services_keep_the_contract_but_for_the_exceptions_of_today() -> None:
    found = contract.problems()
    assert not found, "\n".join(["", *found])


@pytest.mark.shows("E-69")
def test_no_word_of_a_shipped_service_stands_in_the_kernel(tmp_path: Path) -> None:
    assert contract.service_words() == []
    write(tmp_path / "ulak" / "services" / "pdf" / "__init__.py")
    write(tmp_path / "ulak" / "auth" / "principal.py", 'READ = "jobs:read"\nPDF = "PDF:read"\n')
    assert contract.service_words(tmp_path) == ['ulak/auth/principal.py, line 2: PDF = "PDF:read"']


def test_the_tables_of_the_engine_are_those_of_its_schema_page() -> None:
    page = (DOCS / "reference" / "schema.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)` \| ", page, re.M))
    assert described
    assert described <= contract.engine_tables()
    assert "schema_version" in contract.engine_tables()


def test_a_tree_that_keeps_the_contract_has_no_problem(house: House) -> None:
    kept = (
        "import ulak\nimport ulak.web\nfrom ulak import Engine, settings, web\n"
        "from ulak.errors import *\nfrom ulak.errors import BadInput\n"
        "from ulak.services.new import rows\nfrom . import rows\n"
        "from .rows import ROWS\nsettings.load()\nulak.web.Routes\nulak.__version__\n"
        "def f(settings):\n    return settings.anything\n"
    )
    rows = (
        '"""Rows as `SELECT id FROM jobs` has them."""\n'
        'ROWS = "SELECT id FROM {schema}.new_jobs"\nNOTE = "a message from jobs and events"\n'
    )
    sql = "-- Read FROM jobs.\nCREATE TABLE ulak.new_jobs (id int);"
    found = house(
        {"services/new/__init__.py": kept, "services/new/rows.py": rows, "services/new/1.sql": sql}
    )
    assert found == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from ulak.store.protocol import JobFilter", "ulak.store.protocol.JobFilter"),
        ("from ulak.store import protocol", "ulak.store.protocol"),
        ("from ulak import store", "ulak.store"),
        ("import ulak.store.protocol", "ulak.store.protocol"),
        ("import ulak.store.protocol as p", "ulak.store.protocol"),
        ("from ulak.store.protocol import *", "ulak.store.protocol.*"),
        ("from ...store.protocol import JobFilter", "ulak.store.protocol.JobFilter"),
        ("from ulak.web import problems", "ulak.web.problems"),
        ("from ulak.errors import _hidden", "ulak.errors._hidden"),
        ("from ulak import connect", "ulak.connect"),
        ("def f():\n    from ulak.store.protocol import Store", "ulak.store.protocol.Store"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ulak.web import Hub",
            "ulak.web.Hub",
        ),
        ("from ulak import settings\nsettings._READERS", "ulak.settings._READERS"),
        ("import ulak\nulak.store.protocol.Store", "ulak.store.protocol.Store"),
        ("import importlib\nimportlib.import_module('ulak.store.protocol')", "ulak.store.protocol"),
        ("from importlib import import_module\nimport_module('ulak.store')", "ulak.store"),
        ("__import__('ulak.store')", "ulak.store"),
    ],
)
def test_an_import_that_is_not_public_is_reported(house: House, text: str, name: str) -> None:
    found = house({"services/new/routes.py": text})
    assert found
    assert f"import of {name}, which is not public." in found[0]
    assert "ulak.services.new.routes, line " in found[0]
    assert (
        "the public API lacks a word: add it to `__all__` of one of ulak, ulak.errors" in found[0]
    )


@pytest.mark.parametrize(
    "text",
    ["from ulak.services.old.rows import COUNT", "from ..old import rows", "from .. import old"],
)
def test_an_import_of_another_service_is_reported(house: House, text: str) -> None:
    (found,) = house({"services/new/routes.py": text})
    assert "ulak.services.new.routes, line 1: import of ulak.services.old" in found
    assert "services do not know each other" in found


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('Q = "SELECT id FROM jobs"', "jobs"),
        ('Q = "select id from jobs"', "jobs"),
        ('Q = "SELECT 1 FROM {schema}.rows AS r JOIN {schema}.events AS e ON TRUE"', "events"),
        ('Q = "SELECT 1 FROM {schema}.rows AS r, {schema}.jobs"', "jobs"),
        ('Q = "SELECT 1 FROM rows r, jobs"', "jobs"),
        ('Q = "INSERT OR IGNORE INTO ulak.jobs VALUES (1)"', "jobs"),
        ('Q = "UPDATE jobs SET id = 1"', "jobs"),
        ('Q = "update ulak.jobs set id = 1"', "jobs"),
        ('Q = \'DELETE FROM "ulak"."jobs"\'', "jobs"),
        ('Q = "DROP TABLE IF EXISTS jobs"', "jobs"),
        ('Q = "SELECT id " + "FROM jobs"', "jobs"),
        ('def f(s):\n    return f"SELECT {s} FROM {s}.jobs"', "jobs"),
        ('class Q:\n    def f(self):\n        run("FROM ulak.events")', "events"),
    ],
)
@pytest.mark.parametrize("room", ["services/new", "kit", "control", "web"])
def test_sql_on_a_table_of_the_engine_is_reported(
    house: House, room: str, text: str, table: str
) -> None:
    (found,) = house({f"{room}/queries.py": text})
    assert f"SQL on the engine's table {table}; only ulak.store and ulak.engine" in found
    assert "Call a verb of the engine" in found


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE new_rows (job int REFERENCES ulak.jobs (id));",
        "CREATE TRIGGER t AFTER UPDATE ON jobs BEGIN SELECT 1; END;",
        "CREATE INDEX new_index ON ulak.jobs (id);",
        "CREATE VIEW v AS\nSELECT id\nFROM jobs;",
        "ALTER TABLE jobs ADD COLUMN mine TEXT;",
    ],
)
def test_a_sql_file_that_names_a_table_of_the_engine_is_reported(house: House, text: str) -> None:
    (found,) = house({"services/new/sql/sqlite/0001.sql": f"-- Rows.\nSELECT 1;\n\n{text}"})
    assert found.startswith("ulak/services/new/sql/sqlite/0001.sql, line 4: SQL on the engine's")


@pytest.mark.parametrize("room", ["store/sqlite", "engine"])
def test_store_and_engine_hold_sql(house: House, room: str) -> None:
    assert house({f"{room}/queries.py": 'Q = "SELECT id FROM jobs"'}) == []


def test_an_exception_that_is_no_longer_needed_is_reported(house: House) -> None:
    found = house({"services/old/__init__.py": "", "services/old/rows.py": ""})
    assert len(found) == 2
    assert "`ulak.services.old ulak.store.protocol.Store` is no longer needed" in found[0]
    assert "`ulak.services.old.rows:COUNT jobs` is no longer needed" in found[1]


GROWN = """
[private imports: old {ceiling}]
ulak.services.old ulak.store.protocol.JobFilter
ulak.services.old ulak.store.protocol.Store

[engine sql: old 1]
ulak.services.old.rows:COUNT jobs
"""


def test_a_line_more_than_the_number_of_its_section_is_reported(house: House) -> None:
    more = {"services/old/__init__.py": "from ulak.store.protocol import JobFilter, Store"}
    (found,) = house(more, GROWN.format(ceiling=1))
    assert "[private imports: old 1] of exceptions.txt has 2 lines" in found
    assert "never add one" in found


def test_a_new_service_with_an_exception_is_reported(house: House, tmp_path: Path) -> None:
    listed = (tmp_path / "exceptions.txt").read_text(encoding="utf-8")
    listed += "\n[private imports: new 1]\nulak.services.new ulak.store.protocol.Store\n"
    (found,) = house({"services/new/__init__.py": "from ulak.store.protocol import Store"}, listed)
    assert "new may have none; a new service starts without" in found


def test_a_service_that_lost_its_last_exception_gets_none_again(house: House) -> None:
    (found,) = house(
        {"services/old/rows.py": ""},
        "[private imports: old 1]\nulak.services.old ulak.store.protocol.Store\n",
    )
    assert "old has no exception of engine sql left; remove it from OWNERS" in found


def test_exceptions_are_sorted_and_each_stands_once(house: House) -> None:
    twice = "ulak.services.old ulak.store.protocol.Store\n" * 2
    sql = "[engine sql: old 1]\nulak.services.old.rows:COUNT jobs\n"
    (found,) = house({}, f"[private imports: old 2]\n{twice}{sql}")
    assert "is not sorted, or has a line twice" in found


def test_shrinking_removes_what_is_not_needed_and_adds_nothing(
    house: House, tmp_path: Path
) -> None:
    gone = "ulak.services.old ulak.store.protocol.Gone\n"
    kept = (tmp_path / "exceptions.txt").read_text(encoding="utf-8")
    house(
        {"services/old/more.py": "from ulak.store import protocol"},
        kept.replace("old 1]\nulak.services.old ", f"old 2]\n{gone}ulak.services.old ", 1),
    )
    contract.shrink(tmp_path, tmp_path / "exceptions.txt")
    assert (tmp_path / "exceptions.txt").read_text(encoding="utf-8") == kept
    (found,) = house()
    assert "ulak.services.old.more, line 1: import of ulak.store.protocol" in found
