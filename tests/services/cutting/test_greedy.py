"""Plans of mode E, checked by rules of their own: this file shares no code with the packing."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from defusedxml import ElementTree as Xml
from openpyxl import Workbook

from ulak.services.cutting import greedy

PROGRAM = Path(greedy.__file__)
SETTINGS = {
    "plate_mm": ["2100", "2800"], "kerf_mm": "3.2",
    "trimmed_sides": ["left", "right", "bottom", "top"], "grain_axis": "long",
    "deduct_bands": True, "milling_mm": "0", "offcut_mm": ["300", "100"],
}  # fmt: skip
NAME = "5f0c_GOVDE_BEYAZ_18mm"


@dataclass(frozen=True)
class Rectangle:
    """A piece on a sheet, in 0.01 mm."""

    id: str
    x: int
    y: int
    width: int
    height: int
    is_upright: bool


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
    assert greedy.main(["--export", str(folder), "--settings", text, "--", str(path)]) == 0
    return Xml.parse(folder / f"{NAME}.xml").getroot()


def sheets_of(plan: Element) -> list[list[Rectangle]]:
    def units(element: Element, name: str) -> int:
        whole, _, cents = element.attrib[name].partition(".")
        assert len(cents) == 2
        return int(whole) * 100 + int(cents)

    return [
        [
            Rectangle(
                part.attrib["id"], *(units(part, name) for name in ("x", "y", "width", "height")),
                {"height": True, "width": False}[part.attrib["length_along"]],
            )
            for part in sheet.iter("Part")
        ]
        for sheet in plan.iter("Sheet")
    ]  # fmt: skip


def count_stages(
    pieces: Sequence[Rectangle], region: tuple[int, int, int, int], kerf: int, along_x: bool
) -> int:
    """Return by how many stages of full cuts a region is divided into its pieces, those that trim
    a single piece included; more than 9 when it cannot be. `region` is x0, x1, y0, y1."""
    only = pieces[0]
    if len(pieces) == 1 and region == (only.x, only.x + only.width, only.y, only.y + only.height):
        return 0
    spans = sorted(
        ((p.x, p.x + p.width, p) if along_x else (p.y, p.y + p.height, p) for p in pieces),
        key=lambda span: span[:2],
    )
    groups: list[tuple[int, int, list[Rectangle]]] = []
    for low, high, piece in spans:
        if groups and low - groups[-1][1] < kerf:
            # No blade comes between them.
            groups[-1] = (groups[-1][0], max(high, groups[-1][1]), [*groups[-1][2], piece])
        else:
            groups.append((low, high, [piece]))
    x0, x1, y0, y1 = region
    bounds = (x0, x1) if along_x else (y0, y1)
    assert bounds[0] <= groups[0][0], "a piece lies over the edge"
    assert groups[-1][1] <= bounds[1], "a piece lies over the edge"
    if len(groups) == 1 and groups[0][:2] == bounds:
        return 10  # nothing to cut in this direction, and not the last one
    parts = [
        (members, (low, high, y0, y1) if along_x else (x0, x1, low, high))
        for low, high, members in groups
    ]
    return 1 + max(count_stages(members, part, kerf, not along_x) for members, part in parts)


def check(
    plan: Element,
    wanted: Mapping[str, tuple[int, int, int, int]],
    *,
    plate: tuple[int, int] = (210000, 280000),
    trims: tuple[int, int, int, int] = (1000, 1000, 1000, 1000),
    kerf: int = 320,
) -> int:
    """Check a plan by every rule, and return its number of sheets.

    Args:
        wanted: By part: the length and the width that are cut, how many, the grain.
        trims: Left, right, bottom, top.
    """
    sheets = sheets_of(plan)
    found = Counter(piece.id for sheet in sheets for piece in sheet)
    assert found == {id: quantity for id, (_, _, quantity, _) in wanted.items()}
    region = (trims[0], plate[0] - trims[1], trims[2], plate[1] - trims[3])
    for sheet in sheets:
        for piece in sheet:
            length, width, _, grain = wanted[piece.id]
            extents = (width, length) if piece.is_upright else (length, width)
            assert (piece.width, piece.height) == extents, piece
            if grain in (1, 2):
                assert piece.is_upright == ((grain == 1) == (plate[1] >= plate[0])), piece
        stages = min(count_stages(sheet, region, kerf, along_x) for along_x in (True, False))
        # Three, and one that trims.
        assert stages <= 4, sheet
    solution = plan.find("Solution")
    assert solution is not None
    assert int(solution.attrib["boards"]) == len(sheets)
    assert float(solution.attrib["mqBoards"]) == pytest.approx(
        len(sheets) * plate[0] * plate[1] / 1e10
    )
    return len(sheets)


@pytest.mark.parametrize("seed", range(24))
def test_every_plan_can_be_cut_and_has_every_part(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a case that can be drawn again
    plate = draw.choice([(2100, 2800), (1830, 3660), (2800, 2070)])
    kerf, trim = draw.choice([0, 320, 1000]), draw.choice([0, 500, 1000])
    rows, wanted = [], {}
    for number in range(draw.randint(1, 25)):
        grain = draw.randint(0, 3)
        # What fits in either orientation.
        length, width = draw.randint(5000, 180000), draw.randint(5000, 90000)
        bands = [draw.choice([None, 0.4, 1, 2]) for _ in range(4)]
        up, low, left, right = (round((band or 0) * 100) for band in bands)
        quantity = draw.randint(1, 12)
        wanted[f"P{number}"] = (length - left - right, width - up - low, quantity, grain)
        rows.append(
            make_row(
                f"P{number}", length / 100, width / 100, quantity, grain=grain, bands=bands,
                trim=f"{trim / 100:.2f}",
            )
        )  # fmt: skip
    plan = plan_of(tmp_path, *rows, plate_mm=[str(side) for side in plate], kerf_mm=str(kerf / 100))
    sheets = check(
        plan, wanted, plate=(plate[0] * 100, plate[1] * 100), trims=(trim,) * 4, kerf=kerf
    )
    area = sum(length * width * quantity for length, width, quantity, _ in wanted.values())
    assert sheets <= 2 * area / ((plate[0] * 100 - 2 * trim) * (plate[1] * 100 - 2 * trim)) + 2


@pytest.mark.parametrize(("side", "sheets"), [(460, 1), (461, 2)])
def test_the_blade_takes_its_width_at_each_cut(tmp_path: Path, side: int, sheets: int) -> None:
    # 2,780 mm are usable; 6 x 460 and 5 cuts of 3.2 take 2,776, 6 x 461 take 2,782.
    plan = plan_of(tmp_path, make_row("P", side, side, 6), plate_mm=["500", "2800"])
    units = side * 100
    assert check(plan, {"P": (units, units, 6, 0)}, plate=(50000, 280000)) == sheets


def test_what_fits_exactly_needs_no_cut(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, make_row("P", 2780, 2080, grain=1))
    assert check(plan, {"P": (278000, 208000, 1, 1)}) == 1


def test_a_side_may_stay_untrimmed(tmp_path: Path) -> None:
    sides = ["right", "top"]
    plan = plan_of(tmp_path, make_row("P", 2790, 2090, grain=1), trimmed_sides=sides)
    assert check(plan, {"P": (279000, 209000, 1, 1)}, trims=(0, 1000, 0, 1000)) == 1


def test_bands_and_milling_change_what_is_cut(tmp_path: Path) -> None:
    row = make_row("P", 720, 450, bands=(1, 1, 0.4, None))
    assert check(plan_of(tmp_path, row), {"P": (71960, 44800, 1, 0)}) == 1
    assert check(plan_of(tmp_path, row, milling_mm="0.5"), {"P": (72010, 44900, 1, 0)}) == 1
    assert check(plan_of(tmp_path, row, deduct_bands=False), {"P": (72000, 45000, 1, 0)}) == 1


@pytest.mark.parametrize("plate", [("2100", "2800"), ("2800", "2100")])
@pytest.mark.parametrize("axis", ["long", "short"])
def test_the_grain_decides_how_a_part_lies(
    tmp_path: Path, plate: tuple[str, str], axis: str
) -> None:
    rows = [make_row(f"P{grain}", 700, 300, grain=grain) for grain in (1, 2)]
    plan = plan_of(tmp_path, *rows, plate_mm=plate, grain_axis=axis)
    upright = {piece.id: piece.is_upright for sheet in sheets_of(plan) for piece in sheet}
    first = (axis == "long") == (plate[1] == "2800")
    assert upright == {"P1": first, "P2": not first}


def test_a_part_that_must_not_turn_may_be_too_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        plan_of(tmp_path, make_row("P", 2500, 300, grain=2))
    assert "larger than a sheet: P" in capsys.readouterr().err
    assert check(plan_of(tmp_path, make_row("P", 2500, 300)), {"P": (250000, 30000, 1, 0)}) == 1


def run_program(folder: Path, *files: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--export", str(folder), "--settings", json.dumps(SETTINGS)]
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM), *options, "--", *map(str, files)],
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
    assert ended.returncode == greedy.OVERSIZE
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
            "many": make_row("P", 10, 10, greedy.MOST_PIECES + 1),
            "none": [None] * 12,
        }
        write_rows(path, rows[kind])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("absent", "no workbook"), ("damaged", "no workbook"), ("sheet", "no workbook"),
        ("text", "row 3"), ("quantity", "row 3"), ("bands", "row 3"), ("description", "P_IDESC"),
        ("many", "100001 pieces"), ("none", "no parts"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    path = tmp_path / "bad.xlsx"
    _damage(path, kind)
    options = ["--export", str(tmp_path), "--settings", json.dumps(SETTINGS)]
    assert greedy.main([*options, "--", str(path)]) == greedy.UNUSABLE
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
    assert greedy.main([*options, "--", str(path)]) == greedy.UNUSABLE
    assert "No such file or directory" in capsys.readouterr().err


def test_the_summary_counts_what_the_sheets_show(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, make_row("P", 2780, 2080, 2, grain=1), make_row("Q", 500, 400))
    solution = plan.find("Solution")
    assert solution is not None
    # 17.64 less 2 x 2.78 x 2.08 and 0.5 x 0.4.
    assert solution.attrib == {
        "name": "E", "algo": "greedy", "best": "1", "mqBoards": "17.64", "boards": "3",
        "patterns": "2", "cycles": "3", "mqDrops": "5.8752",
    }  # fmt: skip
    assert [sheet.attrib["pattern"] for sheet in plan.iter("Sheet")] == ["1", "1", "2"]


def test_200_parts_are_packed_within_a_second() -> None:
    draw = random.Random(1)  # noqa: S311 - a case that can be drawn again
    parts = []
    for number in range(200):
        extents = draw.randint(5000, 150000), draw.randint(5000, 80000)
        parts.append(greedy.Part(f"P{number}", "", 1, [greedy.Pose(extents, False)]))
    began = os.times().user
    greedy.pack(parts, (208000, 278000), 320)
    assert os.times().user - began < 1
