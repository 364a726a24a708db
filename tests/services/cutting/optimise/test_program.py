"""The program of mode E, as a process: its files, its exit codes, its checkpoints."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from defusedxml import ElementTree as Xml
from openpyxl import Workbook

from ulak.services.cutting.optimise import __main__ as program
from ulak.services.cutting.optimise import layout
from ulak.services.cutting.optimise.reading import read_import
from ulak.services.cutting.optimise.verify import find_faults

SETTINGS = {
    "plate_mm": ["2100", "2800"], "kerf_mm": "3.2",
    "trimmed_sides": ["left", "right", "bottom", "top"], "grain_axis": "long",
    "deduct_bands": True, "milling_mm": "0", "offcut_mm": ["300", "100"], "stages": 3,
    "first_cut": "", "trimming": True, "stack_mm": "0", "seconds": 0,
}  # fmt: skip
NAME = "5f0c_GOVDE_BEYAZ_18mm"
COMMAND = [sys.executable, "-I", "-m", "ulak.services.cutting.optimise"]


def make_row(id: str, length: Any, width: Any, quantity: Any = 1, **more: Any) -> list[Any]:
    """Return a row of an import file."""
    bands = list(more.get("bands", (None,) * 4))
    trim = more.get("trim", "10.00")
    return [
        "M18", length, width, quantity, more.get("grain", 0), f"GOVDE_{id}_TRIM_{trim}", *bands,
        None, None,
    ]  # fmt: skip


def write_rows(path: Path, *rows: Sequence[Any]) -> Path:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "ŞABLON"
    for row in (["tag"] * 12, ["heading"] * 12, *rows):
        sheet.append(list(row))
    book.save(path)
    return path


def plan_of(folder: Path, *rows: Sequence[Any], **settings: Any) -> Element:
    """Return the plan of rows; `settings` are other ones than usual."""
    path = write_rows(folder / f"{NAME}.xlsx", *rows)
    text = json.dumps(SETTINGS | settings)
    assert program.main(["--export", str(folder), "--settings", text, "--", str(path)]) == 0
    return Xml.parse(folder / f"{NAME}.xml").getroot()


def test_a_part_that_must_not_turn_may_be_too_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        plan_of(tmp_path, make_row("P", 2500, 300, grain=2))
    assert "larger than a sheet: P" in capsys.readouterr().err
    plan = plan_of(tmp_path, make_row("P", 2500, 300))
    assert [part.attrib["length_along"] for part in plan.iter("Part")] == ["height"]


def run_program(folder: Path, *files: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--export", str(folder), "--settings", json.dumps(SETTINGS)]
    return subprocess.run(
        [*COMMAND, *options, "--", *map(str, files)],
        capture_output=True, text=True, check=False, env=dict(os.environ) | environment,
    )  # fmt: skip


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [make_row(f"P{n}", 300 + 7 * n, 200 + 5 * n, n % 4 + 1, grain=n % 4) for n in range(30)]
    path = write_rows(tmp_path / f"{NAME}.xlsx", *rows)
    plans = set()
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        assert run_program(folder, path, PYTHONHASHSEED=number).returncode == 0
        assert [entry.name for entry in folder.iterdir()] == [f"{NAME}.xml"]
        plans.add((folder / f"{NAME}.xml").read_bytes())
    assert len(plans) == 1


def test_parts_that_no_sheet_holds_are_named_and_no_plan_is_left(tmp_path: Path) -> None:
    good = write_rows(tmp_path / "good.xlsx", make_row("P", 100, 100))
    large = write_rows(
        tmp_path / "large.xlsx", make_row("A_TRIM_1", 3000, 100), make_row("B", 100, 100),
        make_row("C", 2500, 2500),
    )  # fmt: skip
    ended = run_program(tmp_path, good, large)
    assert ended.returncode == program.OVERSIZE
    assert ended.stderr == "large.xlsx: larger than a sheet: A_TRIM_1, C\n"
    assert not list(tmp_path.glob("*.xml*"))


def _damage(path: Path, kind: str) -> None:
    if kind == "absent":
        return
    if kind == "damaged":
        path.write_bytes(b"PK\x03\x04 and no more")
    elif kind == "sheet":
        Workbook().save(path)
    else:
        rows: dict[str, list[Any]] = {
            "text": make_row("P", "long", 100),
            "quantity": make_row("P", 100, 100, 0),
            "bands": make_row("P", 100, 1, bands=(1, 1, None, None)),
            "description": [*make_row("P", 100, 100)[:5], "P", *[None] * 6],
            "many": make_row("P", 10, 10, layout.MOST_PIECES + 1),
            "none": [None] * 12,
        }
        write_rows(path, rows[kind])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("absent", "no workbook"), ("damaged", "no workbook"), ("sheet", "no workbook"),
        ("text", "row 3"), ("quantity", "row 3"), ("bands", "P: nothing is left to cut"),
        ("description", "P_IDESC"),
        ("many", "100001 pieces"), ("none", "no parts"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    path = tmp_path / "bad.xlsx"
    _damage(path, kind)
    options = ["--export", str(tmp_path), "--settings", json.dumps(SETTINGS)]
    assert program.main([*options, "--", str(path)]) == program.UNUSABLE
    said = capsys.readouterr().err
    assert said.startswith("bad.xlsx: ")
    assert told in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*.xml*"))


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "good.xlsx", make_row("P", 100, 100))
    options = ["--export", str(tmp_path / "nowhere"), "--settings", json.dumps(SETTINGS)]
    assert program.main([*options, "--", str(path)]) == program.UNUSABLE
    assert "No such file or directory" in capsys.readouterr().err


def test_the_summary_counts_what_the_sheets_show(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, make_row("P", 2780, 2080, 2, grain=1), make_row("Q", 500, 400))
    solution = plan.find("Solution")
    assert solution is not None
    # 17.64 less 2 x 2.78 x 2.08 and 0.5 x 0.4.
    facts = {
        "boards": "3",
        "mqBoards": "17.64",
        "mqDrops": "5.8752",
        "patterns": "2",
        "cycles": "3",
    }
    assert {name: solution.attrib[name] for name in facts} == facts
    assert [sheet.attrib["pattern"] for sheet in plan.iter("Sheet")] in (
        ["1", "1", "2"],
        ["1", "2", "2"],
    )


def make_many(folder: Path) -> Path:
    rows = [make_row(f"P{n}", 200 + 37 * n % 700, 150 + 53 * n % 400, 1 + n % 3) for n in range(60)]
    return write_rows(folder / f"{NAME}.xlsx", *rows)


@pytest.mark.shows("C-98")
def test_the_best_plan_so_far_survives_a_kill(tmp_path: Path) -> None:
    path = make_many(tmp_path)
    settings = {**SETTINGS, "seconds": 60}
    text = ["--export", str(tmp_path), "--settings", json.dumps(settings), "--", str(path)]
    kept = tmp_path / f"{NAME}.best"
    running = subprocess.Popen([*COMMAND, *text])
    try:
        ends_at = time.monotonic() + 120
        while not kept.exists():
            assert running.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.05)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert not list(tmp_path.glob("*.xml"))
    # The same file with the same settings goes on from there, and with others it does not.
    order, data = read_import(path, settings), path.read_bytes()
    digest = program.find_digest(data, settings)
    checkpoint = program.Checkpoint(kept, order, digest)
    found = checkpoint.read()
    assert found is not None
    assert program.Checkpoint(kept, order, "another").read() is None
    plan = program.solve(order, seconds=0, start=found)
    assert len(plan.sheets) <= len(found.sheets)
    document = json.loads(kept.read_text())
    assert find_faults(order, document["plan"].encode()) == []
    kept.write_text(json.dumps({**document, "plan": document["plan"].replace('x="10', 'x="11', 1)}))
    assert checkpoint.read() is None, "a damaged one is left alone"


@pytest.mark.shows("C-98")
def test_a_plan_that_needs_too_much_memory_fails_and_leaves_nothing(tmp_path: Path) -> None:
    path = make_many(tmp_path)
    options = ["--export", str(tmp_path), "--settings", json.dumps(SETTINGS), "--", str(path)]
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 27, 1 << 27))\n"
        f"sys.argv = ['optimise', *{options!r}]\n"
        "runpy.run_module('ulak.services.cutting.optimise', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=False)
    assert ended.returncode != 0
    assert not list(tmp_path.glob("*.xml"))
