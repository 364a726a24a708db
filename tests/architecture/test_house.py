"""The drawing of docs/design.md is true of the tree, and its line of imports is the contract."""

import re
import tomllib

from tests.architecture.contract import PUBLIC
from tests.docs.pages import DOCS, ROOT

HOUSE = (DOCS / "design.md").read_text(encoding="utf-8").partition("## 4. The house")[2]
DRAWING = HOUSE.partition("    src/ulak/\n")[2].partition("\n\n")[0]
SOURCE = ROOT / "src" / "ulak"

FIRST_COLUMN = re.compile(r"^ {6}(\S+(?: \S+(?:/|\.py)(?= |$))*)")
NAMED = re.compile(r"[\w/]+(?:/|\.py|\.typed)(?![\w`])")


def drawn() -> tuple[set[str], set[str]]:
    """The entries of the first column, and everything named in the lines of each folder."""
    top: set[str] = set()
    inside: set[str] = set()
    folder = ""
    for line in DRAWING.splitlines():
        column = FIRST_COLUMN.match(line)
        if column:
            top.update(column[1].split())
            folder = column[1]
        inside.update(
            folder + name for name in NAMED.findall(line[column.end() if column else 0 :])
        )
    return top, inside


def layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return next(
        contract["layers"]
        for contract in contracts["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )


def test_everything_in_the_drawing_is_there() -> None:
    top, inside = drawn()
    assert "core/policy.py" in inside
    assert "store/sqlite/" in inside
    assert [name for name in sorted(top | inside) if not (SOURCE / name).exists()] == []


def test_every_room_is_drawn() -> None:
    entries = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    names = {f"{path.name}/" if path.is_dir() else path.name for path in entries}
    assert drawn()[0] == names


def test_a_room_to_come_is_not_there_yet() -> None:
    listed = HOUSE.partition("Rooms to come")[2].partition("\n\nA module imports")[0]
    rooms = re.findall(r"`([\w/]+/)`(?=[:;,.])", listed)
    assert "render/" in rooms
    assert [room for room in rooms if (SOURCE / room).exists()] == []


def test_the_line_of_imports_is_the_contract_of_import_linter() -> None:
    line = HOUSE.partition("imports point left to right only:\n")[2].partition("\n\n")[0]
    assert " ".join(line.split()) == re.sub(r"[()]", "", " > ".join(layers()))


def test_only_a_room_to_come_may_be_absent_from_the_contract() -> None:
    optional = re.findall(r"\((\w+)\)", " ".join(layers()))
    built = {path.stem for path in SOURCE.iterdir()}
    assert [name for name in optional if name in built] == []


def test_the_public_modules_are_those_of_the_contract_of_services() -> None:
    listed = HOUSE.partition("**Services import public names only**:")[2].partition("and never")[0]
    names = re.findall(r"`([\w.]+)`", listed)
    assert {n if n.startswith("ulak") else f"ulak.{n}" for n in names} == set(PUBLIC)
