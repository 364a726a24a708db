"""The pages of docs/reference/ say what the code says."""

import re
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import EntryPoint
from typing import Any

import psycopg
import pytest
import typer

from tests.conformance.stores import make_schema
from tests.databases import Databases
from tests.docs.pages import DOCS, ROOT, pages
from ulak import settings
from ulak.cli.program import program
from ulak.core import event
from ulak.engine import why
from ulak.services.pdf.configuration import condition
from ulak.store.postgres import migrations as postgres_migrations
from ulak.store.sqlite import migrations

REFERENCE = DOCS / "reference"
COMMAND_LINE = re.compile(r"(?:^|`| && )(ulak [a-z][^`#\n]*)", re.M)


def read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The part of a page below a heading."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_column(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", text, re.M)


def test_every_kind_of_event_is_described() -> None:
    assert sorted(first_column(section(read("events.md"), "Kinds"))) == sorted(event.KINDS)


def test_every_code_of_the_core_is_described() -> None:
    texts = {v for k, v in vars(event).items() if k.isupper() and isinstance(v, str)}
    others = {event.ENGINE, event.NOTE, event.SUBMITTED_AGAIN}
    codes = texts - event.KINDS - others | {event.EXPIRED_CODE, event.CANCELLED_CODE}
    assert codes <= set(first_column(section(read("events.md"), "Codes")))


def test_every_answer_of_why_is_listed() -> None:
    page = (DOCS / "operations" / "monitor.md").read_text(encoding="utf-8")
    said = section(page, "`ulak why`").partition("Its codes:")[2].partition(".\n")[0]
    listed = re.findall(r"`([a-z-]+)`", said.partition(" The last")[0])
    assert sorted(listed) == sorted(why.CODES)


def test_every_setting_is_described() -> None:
    assert first_column(read("settings.md")) == list(settings.names())
    for name in settings.names():
        assert settings.variable(name) in read("settings.md")


def sqlite_columns() -> set[tuple[str, str]]:
    """Every table of a SQLite store with each of its columns."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrations.upgrade(db)
        return set(
            db.execute(
                "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "
                "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'"
            )
        )


@pytest.fixture(scope="module")
def postgres_columns(databases: Databases) -> set[tuple[str, str]]:
    """Every table of the schema `ulak` with each of its columns, partitions left out."""
    with databases.lend(make_schema) as url, psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
            "WHERE relnamespace = 'ulak'::regnamespace AND relkind IN ('r', 'p') "
            "AND NOT relispartition AND attnum > 0"
        )
        return {(str(table), str(column)) for table, column in rows}


def test_the_schema_page_has_every_table_and_column() -> None:
    page = read("schema.md").partition("\n## ")[0]
    assert f"at schema {migrations.NEWEST}." in page
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ (\|.*)$", page, re.M)
    said = {(table, column) for table, words in rows for column in re.findall(r"`(\w+)`", words)}
    assert said == sqlite_columns()


def test_the_schema_page_has_what_is_only_on_postgresql(
    postgres_columns: set[tuple[str, str]],
) -> None:
    page = section(read("schema.md"), "On PostgreSQL")
    assert f"at schema {postgres_migrations.NEWEST} " in page
    rows = re.findall(r"^\| (`.+`) \| `(\w+)` \|", page, re.M)
    only = {(table, column) for tables, column in rows for table in re.findall(r"\w+", tables)}
    only_on_sqlite = re.search(r"only on SQLite: ([^;.]+\.[^;]+)\.\n", page)
    assert only_on_sqlite is not None
    lacking = set(re.findall(r"`(\w+)\.(\w+)`", only_on_sqlite[1]))
    assert lacking <= sqlite_columns()
    assert postgres_columns == (sqlite_columns() - lacking) | only


def test_decision_0001_names_every_table_and_column(
    postgres_columns: set[tuple[str, str]],
) -> None:
    page = DOCS / "decisions" / "0001-tables-guards-and-roles.md"
    lines = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    rows = [(cells[1], cells[2]) for cells in lines if len(cells) == 5]
    columns = sqlite_columns() | postgres_columns
    assert columns
    for table, column in columns:
        said = " ".join(words for tables, words in rows if f"`{table}`" in tables)
        assert re.search(rf"`{column}\*?`", said), f"{table}.{column}"


def commands(group: Any, path: str = "ulak") -> Iterator[tuple[str, Any]]:
    """Every command of the command line, with its words.

    A group that does something alone, with an option of its own, is one as well.
    """
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            own = options(command) - {"--app", "-a", "--json", "--help"}
            if command.invoke_without_command and own:
                yield f"{path} {name}", command
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def options(command: Any) -> set[str]:
    return {o for p in command.params for o in p.opts if o.startswith("-")} | {"--help"}


def brought() -> Iterator[tuple[str, Any]]:
    """The commands that ulak's own package brings by entry points, as a stranger's would."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, value in declared.get("ulak.commands", {}).items():
        group = EntryPoint(name, value, "ulak.commands").load()
        yield from commands(typer.main.get_group(group), f"ulak {name}")
    for name, value in declared.get("ulak.services", {}).items():
        service = EntryPoint(name, value, "ulak.services").load()
        if service.commands is not None:
            yield from commands(typer.main.get_group(service.commands()), f"ulak {name}")


PARTS = {"ulak cutting serve", "ulak cutting saw"} | {
    f"ulak publishing {part}"
    for part in (
        "backend", "users-api", "saga-worker", "worker", "dlq-worker", "relay", "push-notificator",
    )
}  # fmt: skip
COMMANDS = dict([*commands(typer.main.get_command(program)), *brought()])


def test_the_command_line_page_has_every_command() -> None:
    assert set(re.findall(r"^## (ulak .+)$", read("cli.md"), re.M)) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_page_has_every_option(name: str) -> None:
    said = section(read("cli.md"), name)
    long = {o for o in options(COMMANDS[name]) if o.startswith("--")} - {"--help"}
    assert long == set(re.findall(r"--[a-z-]+", said))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_prints_data_prints_it_as_json(name: str) -> None:
    runs_until_stopped = name in ("ulak up", "ulak worker") or name in PARTS
    assert ("--json" in options(COMMANDS[name])) is not runs_until_stopped


def test_every_command_in_the_docs_exists() -> None:
    # The roadmap names commands that are to come.
    for page in (p for p in pages() if p.name != "roadmap.md"):
        for line in COMMAND_LINE.findall(page.read_text(encoding="utf-8")):
            words = line.split()
            name = next(
                (n for n in (" ".join(words[:3]), " ".join(words[:2])) if n in COMMANDS), ""
            )
            group = any(known.startswith(" ".join(words[:2]) + " ") for known in COMMANDS)
            assert name or group, f"{page.name}: {line}"
            if name:
                used = set(re.findall(r"(?<= )--[a-z-]+", line))
                assert used <= options(COMMANDS[name]), f"{page.name}: {line}"


def test_every_setting_of_rendering_is_told_with_its_default() -> None:
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ((?:PDF|S3)_\w+) \| ([^|]+) \|", page, re.M))
    found = condition(settings.Settings(), {}).settings
    usual = {name: value for name, (value, _) in found.items()}
    usual |= {"PDF_ENV": "`ULAK_ENV`", "PDF_CONCURRENCY": "cores"}
    assert rows == usual
