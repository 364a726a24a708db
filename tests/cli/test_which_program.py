"""A command finds its program, and says in one line why it cannot."""

from pathlib import Path

import pytest


def is_one_line(text: str, *, about: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and about in text


@pytest.mark.shows("E-16")
def test_a_program_is_named_by_argument_variable_or_project(shop, run, monkeypatch, tmp_path):
    shop.submit("greet", "ada")
    assert "greet" in run("jobs", "list", "-a", "shop:engine").out
    nobody = run("jobs", "list")
    assert nobody.code == 2
    assert "ULAK_APP" in nobody.err
    (tmp_path / "pyproject.toml").write_text('[tool.ulak]\napp = "shop:engine"\n')
    assert "greet" in run("jobs", "list").out
    (tmp_path / "pyproject.toml").write_text('[tool.ulak]\napp = "elsewhere:engine"\n')
    monkeypatch.setenv("ULAK_APP", "shop:engine")
    assert "greet" in run("jobs", "list").out


@pytest.mark.parametrize(
    ("app", "about"),
    [
        ("shop", "module:engine"),
        ("shop.py:engine", "with dots"),
        ("./shop.py", "with dots"),
        (":engine", "module:engine"),
        ("shop:", "module:engine"),
        ("shop:en gine", "module:engine"),
        ("nowhere:engine", "there is no module 'nowhere'"),
        ("shop.inner:engine", "there is no module 'shop.inner'"),
        ("shop:motor", "shop has no 'motor'"),
        ("shop:claim", "is a Flow, not an engine"),
        ("broken:engine", "name 'undefined' is not defined"),
        ("unparsable:engine", "line 1"),
        ("needy:engine", "No module named 'not_installed'"),
    ],
)
@pytest.mark.parametrize("command", [("jobs", "list", "-a"), ("worker",), ("up",)], ids=" ".join)
def test_a_program_that_cannot_be_used_is_one_line(
    shop, run, tmp_path: Path, command: tuple[str, ...], app: str, about: str
):
    (tmp_path / "broken.py").write_text("undefined\n")
    (tmp_path / "unparsable.py").write_text("def (\n")
    (tmp_path / "needy.py").write_text("import not_installed\n")
    answer = run(*command, app)
    assert (answer.code, answer.out) == (1, "")
    assert is_one_line(answer.err, about=about), answer.err


def test_a_declaration_that_cannot_work_is_one_line(run, tmp_path: Path):
    (tmp_path / "undeclarable.py").write_text(
        'import ulak\nengine = ulak.connect("memory://")\n'
        'engine.add(ulak.Flow("f", ulak.Lifecycle("a", {"a": ["b"]})))\n'
    )
    answer = run("flows", "-a", "undeclarable:engine")
    assert answer.code == 1
    assert is_one_line(answer.err, about="f:")


def test_a_store_that_cannot_be_opened_is_one_line(run, tmp_path: Path):
    (tmp_path / "far.py").write_text('import ulak\nengine = ulak.connect("sqlite:///no/dir.db")\n')
    answer = run("jobs", "list", "-a", "far:engine")
    assert answer.code == 1
    assert is_one_line(answer.err, about="no/dir.db")


def test_a_file_that_is_no_database_is_one_line(shop, tmp_path: Path):
    (tmp_path / "shop.db").write_text("not a database, and long enough to be read as one" * 100)
    answer = shop.ulak("jobs", "list")
    assert answer.code == 1
    assert is_one_line(answer.err, about="not a database")


def test_a_schema_of_another_release_is_one_line_with_its_cure(shop, tmp_path: Path):
    import sqlite3

    shop.submit("greet", "ada")
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("UPDATE schema_version SET oldest = 99")
    db.close()
    answer = shop.ulak("jobs", "list")
    assert answer.code == 1
    assert is_one_line(answer.err, about="99")


def test_the_memory_of_another_process_is_not_promised(run, tmp_path: Path):
    (tmp_path / "brief.py").write_text('import ulak\nengine = ulak.connect("memory://")\n')
    answer = run("jobs", "list", "-a", "brief:engine")
    assert answer.code == 0
    assert "not shared" in answer.err


@pytest.mark.shows("E-57")
def test_a_worker_of_a_store_that_no_other_process_sees_is_refused_with_the_cure(
    run, tmp_path: Path
):
    (tmp_path / "brief.py").write_text('import ulak\nengine = ulak.connect("memory://")\n')
    answer = run("worker", "brief:engine")
    assert answer.code == 1
    assert is_one_line(answer.err, about="ulak worker cannot serve the memory store")
    assert "sqlite:///" in answer.err
    assert "engine.working()" in answer.err


def test_help_names_the_table_of_the_project_file(run):
    assert "[tool.ulak] app" in " ".join(run("--help").out.split())
