"""Contract versions are data: those that ulak brings, those of an operator, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

import ulak
from ulak.errors import BadInput, NotSupported
from ulak.services.contracts import service, tables
from ulak.services.contracts.tables import TABLES, VERSION, versions_in_force
from ulak.settings import load

SPECIFIED = {
    "order": {
        "pending": ["paid", "cancelled"],
        "paid": ["cancelled"],
        "cancelled": [],
    },
    "payment": {
        "pending": ["paid", "failed", "cancelled"],
        "paid": [],
        "failed": [],
        "cancelled": [],
    },
    "reservation": {
        "pending": ["confirmed", "cancelled"],
        "confirmed": ["checked_in", "cancelled"],
        "checked_in": ["completed", "cancelled"],
        "cancelled": [],
        "completed": [],
    },
}


def good(**changes: Any) -> dict[str, Any]:
    table = {"initial": "new", "moves": {"new": ["old"]}, "terminal": ["old"]}
    return {"version": "2030-01-01", "types": {"thing": table | changes}}


def put(folder: Path, document: Any, name: str = "own.json") -> Path:
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return folder


def test_the_first_version_is_the_table_of_the_specification() -> None:
    version = versions_in_force({}).active
    assert version.name == "2025-12-28"
    assert version.tables.keys() == SPECIFIED.keys()
    for name, table in version.tables.items():
        assert table.initial == "pending"
        assert table.terminal == {s for s, targets in SPECIFIED[name].items() if not targets}
        for source, targets in SPECIFIED[name].items():
            assert list(table.moves.get(source, ())) == targets


def test_an_operator_adds_a_version_and_makes_it_active(tmp_path: Path) -> None:
    put(tmp_path, good())
    (tmp_path / "README.md").write_text("not a version")
    found = versions_in_force({TABLES: str(tmp_path), VERSION: "2030-01-01"})
    assert found.active.name == "2030-01-01"
    assert found.get("2025-12-28").tables.keys() == SPECIFIED.keys()
    assert found.get(None).tables["thing"].allows("new", "old")


def test_a_start_with_an_unknown_version_is_refused_with_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VERSION, "1999-01-01")
    engine = ulak.connect(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(BadInput, match=r"no contract version '1999-01-01'; known are 2025-12-28"):
        service.attach(engine, load())


def test_a_start_on_a_store_that_forgets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSupported, match="cannot be kept in the memory store"):
        service.attach(ulak.connect("memory://"), load())


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{TABLES}: there is no folder"):
        versions_in_force({TABLES: str(tmp_path / "nowhere")})


def test_two_files_of_one_version_are_refused(tmp_path: Path) -> None:
    put(tmp_path, {**good(), "version": "2025-12-28"})
    with pytest.raises(BadInput, match=r"own\.json: there is a contract version '2025-12-28'"):
        versions_in_force({TABLES: str(tmp_path)})


@pytest.mark.parametrize(
    ("document", "about"),
    [
        ("{", "own.json is no contract version"),
        ("[" * 100_000, "own.json is no contract version"),
        ("[]", 'it has no "version"'),
        ('{"version": "a", "version": "b"}', "a member is there twice"),
        ({"version": "A", "types": {}}, "'A' must be in lower case"),
        ({"version": "a", "types": {}}, "it has no types"),
        ({"version": "a", "types": {"thing": []}}, 'the type "thing": it has no "initial"'),
        (good(moves=["new"]), "its moves are no object"),
        (good(terminal="old"), "'old' is no list of statuses"),
        (good(initial="New"), "'New' must be in lower case"),
        (good(initial=" new"), "' new' must be in lower case, without spaces"),
        (good(initial=7), "7 is no name"),
        (good(initial=""), "'' is no name"),
        (good(initial="x" * 101), "is no name"),
        (good(moves={"new": ["new", "old"]}), '"new" cannot follow itself'),
        (good(moves={"new": ["old", "old"]}), "something is there twice"),
        (good(moves={"new": ["old"], "old": []}), 'nothing follows "old"; say that it is terminal'),
        (good(moves={"new": ["old"], "old": ["new"]}), '"old" cannot be terminal'),
        (good(terminal=[]), 'nothing follows "old"; say that it is terminal'),
        (good(terminal=["old", "lost"]), 'nothing leads from "new" to "lost"'),
        (good(initial="other"), 'nothing follows "other"'),
    ],
)
def test_a_table_with_a_hole_is_refused(tmp_path: Path, document: Any, about: str) -> None:
    with pytest.raises(BadInput, match=r"own\.json") as refused:
        versions_in_force({TABLES: str(put(tmp_path, document))})
    assert about in str(refused.value)


def test_a_version_is_written_as_it_was_read() -> None:
    version = tables.read(json.dumps(good()), "x")
    assert tables.written(version) == good()["types"]
