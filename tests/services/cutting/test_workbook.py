"""Import files: the template, the names, and every cell of what the optimiser reads."""

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.chart import BarChart
from openpyxl.styles import Font, PatternFill

from tests.services.cutting.orders import make_back, make_batches, make_part
from ulak.kit.files import TEMPORARY
from ulak.services.cutting import workbook
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.workbook import (
    check_template,
    import_name,
    make_marks,
    make_template,
    write_import,
)

# Spelled out here: what the optimiser expects is not what our module says of it.
TAGS = [
    "[P_CODE_MAT]", "[P_LENGTH]", "[P_WIDTH]", "[P_MINQ]", "[P_GRAIN]", "[P_IDESC]",
    "[P_EDGE_MAT_UP]", "[P_EGDE_MAT_LO]", "[P_EDGE_MAT_SX]", "[P_EDGE_MAT_DX]", "[P_IIDESC]",
    "[P_DESC1]",
]  # fmt: skip
SHEET = "ŞABLON"
JOB = "018f2b1c-7a51-7cc2-9a55-2f0d35a6f001"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    make_template(tmp_path / "template.xlsx")
    return tmp_path / "template.xlsx"


def cells(path: Path, sheet: str = SHEET) -> dict[str, tuple[Any, str]]:
    """Return what is in the cells of a sheet that are there: the value and the type."""
    found = openpyxl.load_workbook(path)[sheet]
    return {
        cell.coordinate: (cell.value, cell.data_type)
        for row in found.iter_rows()
        for cell in row
        if cell.value is not None
    }


def save(made: openpyxl.Workbook, path: Path) -> None:
    made.save(path)
    made.close()


# --- the template ---------------------------------------------------------------------


@pytest.mark.shows("C-32")
def test_the_template_that_is_shipped_has_the_tags_and_headings(template: Path) -> None:
    found = openpyxl.load_workbook(template)
    assert found.sheetnames == [SHEET]
    assert [cell.value for cell in found[SHEET][1]] == TAGS
    assert all(cell.value for cell in found[SHEET][2])
    assert found[SHEET].max_row == 2, "data begins in row 3"
    check_template(template)


def test_a_template_that_is_there_is_not_replaced(template: Path) -> None:
    template.write_bytes(b"of the customer")
    make_template(template)
    assert template.read_bytes() == b"of the customer"


@pytest.mark.shows("C-33")
def test_blanks_around_tags_and_what_stands_below_do_not_matter(template: Path) -> None:
    made = openpyxl.load_workbook(template)
    sheet = made[SHEET]
    sheet["A1"], sheet["L1"] = "  [P_CODE_MAT]", "[P_DESC1]\u00a0 "
    sheet["N1"], sheet["A2"], sheet["A3"] = "   ", None, "old data"
    made.create_sheet("notes", 0)
    save(made, template)
    check_template(template)


def with_cells(**values: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        made = openpyxl.load_workbook(path)
        for place, value in values.items():
            made[SHEET][place] = value
        save(made, path)

    return damage


def with_book(change: Callable[[openpyxl.Workbook], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        made = openpyxl.load_workbook(path)
        change(made)
        save(made, path)

    return damage


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def with_member(
    name: str, change: Callable[[bytes], bytes | None], compression: int = zipfile.ZIP_DEFLATED
) -> Callable[[Path], None]:
    """Change one file inside the workbook, or leave it out."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(BytesIO(path.read_bytes())) as source:
            members = {each: source.read(each) for each in source.namelist()}
        assert name in members
        with zipfile.ZipFile(path, "w") as target:
            for each, content in members.items():
                new = change(content) if each == name else content
                if new is not None:
                    target.writestr(each, new, compression)

    return damage


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def into_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere.xlsx"))
    path.symlink_to("elsewhere.xlsx")


def into_chart(made: openpyxl.Workbook) -> None:
    made[SHEET].title = "data"
    made.create_chartsheet(SHEET).add_chart(BarChart())


SHEET_XML = "xl/worksheets/sheet1.xml"
BOMB = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha">]><worksheet>&a;</worksheet>'
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "there is no such file"),
    "a folder": (into_folder, "neither folder nor file"),
    "a link": (into_link, "links are never followed"),
    "empty": (with_bytes(lambda data: b""), "no .xlsx workbook"),
    "a text": (with_bytes(lambda data: b"A;B;C\n1;2;3\n"), "no .xlsx workbook"),
    "an old .xls": (
        with_bytes(lambda data: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 64), "no .xlsx workbook"
    ),
    "half": (with_bytes(lambda data: data[: len(data) // 2]), "no .xlsx workbook"),
    "without its end": (with_bytes(lambda data: data[:-30]), "no .xlsx workbook"),
    "another zip": (with_member("xl/workbook.xml", lambda data: None), "no .xlsx workbook"),
    "a sheet of no XML": (with_member(SHEET_XML, lambda data: data[:-40]), "no .xlsx workbook"),
    "a sheet with an entity": (with_member(SHEET_XML, lambda data: BOMB), "EntitiesForbidden"),
    "of a strange packing": (
        with_member(SHEET_XML, lambda data: data, zipfile.ZIP_BZIP2), "packed as no workbook"
    ),
    "a bomb": (
        with_member(SHEET_XML, lambda data: data + b" " * 11_000_000), "larger than 10 MB"
    ),
    "no sheet of the name": (
        with_book(lambda made: setattr(made[SHEET], "title", "SABLON")), "no sheet 'ŞABLON', but"
    ),
    "a chart of the name": (with_book(into_chart), "no sheet 'ŞABLON'"),
    "no tags": (with_book(lambda made: made[SHEET].delete_rows(1)), "A1 is 'Material'"),
    "an empty row of tags": (
        with_book(lambda made: made[SHEET].insert_rows(1)), "row 1 has 0 tags instead of 12"
    ),
    "11 tags": (with_cells(L1=None), "row 1 has 11 tags instead of 12"),
    "13 tags": (with_cells(M1="[P_MORE]"), "row 1 has 13 tags instead of 12"),
    "a tag far out": (with_cells(Z1="[P_DESC1]"), "row 1 has 26 tags instead of 12"),
    "a tag left out": (
        with_book(lambda made: made[SHEET].delete_cols(4)),
        "D1 is '[P_GRAIN]' instead of '[P_MINQ]'",
    ),
    "two tags that changed places": (
        with_cells(B1=TAGS[2], C1=TAGS[1]), "B1 is '[P_WIDTH]' instead of '[P_LENGTH]'; C1 is"
    ),
    "the eighth spelled right": (
        with_cells(H1="[P_EDGE_MAT_LO]"), "H1 is '[P_EDGE_MAT_LO]' instead of '[P_EGDE_MAT_LO]'"
    ),
    "small letters": (with_cells(A1="[p_code_mat]"), "A1 is '[p_code_mat]'"),
    "a blank inside": (with_cells(A1="[P_CODE MAT]"), "A1 is '[P_CODE MAT]'"),
    "a tag twice": (with_cells(C1="[P_LENGTH]"), "C1 is '[P_LENGTH]' instead of '[P_WIDTH]'"),
    "a number for a tag": (with_cells(E1=5), "E1 is '5' instead of '[P_GRAIN]'"),
    "a hole among the tags": (with_cells(E1=None), "E1 is '' instead of '[P_GRAIN]'"),
}  # fmt: skip


@pytest.mark.shows("C-33", "C-32")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_template_is_refused_by_name(template: Path, kind: str) -> None:
    damage, why = DAMAGE[kind]
    damage(template)
    for refuse in (
        lambda: check_template(template),
        lambda: write_import(template, [], template.with_name("order.xlsx")),
    ):
        with pytest.raises(HoldCode) as caught:
            refuse()
        assert caught.value.code == "E_TEMPLATE_INVALID"
        assert str(template) in str(caught.value)
        assert why in str(caught.value)
    assert not template.with_name("order.xlsx").exists()


@pytest.mark.shows("C-33")
def test_a_template_with_any_byte_changed_is_taken_or_refused_and_never_a_crash(
    template: Path,
) -> None:
    whole = template.read_bytes()
    dice = random.Random(17)  # noqa: S311 - damage that can be had again
    refused = 0
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(dice.choice((1, 1, 5, 50))):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        template.write_bytes(damaged)
        try:
            check_template(template)
        except HoldCode as error:
            refused += error.code == "E_TEMPLATE_INVALID"
    assert refused > 30


# --- cells ----------------------------------------------------------------------------


def make_used_template(path: Path) -> None:
    """Make a template as people leave it: styles, a sheet of notes, old rows, a merged cell."""
    made = openpyxl.Workbook()
    made.worksheets[0].title = "notes"
    made["notes"]["B2"] = "do not touch"
    sheet = made.create_sheet(SHEET)
    sheet.append([f" {TAGS[0]} ", *TAGS[1:]])
    sheet.append(
        ["Kod", 12.5, True, None, "=1+1", "  blanks  ", "Su\nyönü", "", 0, "ğüşıöç", "#", "-"]
    )
    sheet["E2"].data_type = "s"  # a text that looks like a formula
    sheet["A1"].font = Font(bold=True)
    for _ in range(3, 40):
        sheet.append(["OLD", 1, 2, 3, 0, "old", 1, 1, 1, 1, "old", "old", "beyond the columns"])
    sheet["C3"].fill = PatternFill("solid", "FFFF00")
    sheet.merge_cells("A5:L6")
    sheet.merge_cells("B9:C400")
    save(made, path)


@pytest.mark.shows("C-34", "C-29")
def test_an_import_file_is_the_batch_cell_by_cell(tmp_path: Path) -> None:
    template, target = tmp_path / "template.xlsx", tmp_path / "order.xlsx"
    make_used_template(template)
    parts = [
        make_part(
            id="K1", material_code="MDF", length_cm=120.5, width_cm=33.3335, quantity=4, grain=1,
            edge_up="040", edge_lo="1mm", edge_sx="2mm", edge_dx="Bant Yok", iidesc="door",
            desc1="left", delik_kodu="H7",
        ),
        make_part(id="K2", material_code="MDF", iidesc="", desc1="", delik_kodu="H8", edge_up=""),
        make_part(id="=K3", material_code="MDF", iidesc="007", desc1="1.50", edge_dx=None, grain=3),
    ]  # fmt: skip
    [batch] = make_batches(*parts).batches
    write_import(template, [row.cells for row in batch.rows], target)

    before, after = cells(template), cells(target)
    rows_1_and_2 = {f"{letter}{row}" for letter in "ABCDEFGHIJKL" for row in (1, 2)}
    assert {place: before[place] for place in before if place in rows_1_and_2} == {
        place: after[place] for place in after if place in rows_1_and_2
    }
    assert after["A1"] == (" [P_CODE_MAT] ", "s")
    assert after["E2"] == ("=1+1", "s")
    data = {place: cell for place, cell in after.items() if place not in rows_1_and_2}
    assert data == {
        "A3": ("MDF", "s"), "B3": (1205, "n"), "C3": (333.34, "n"), "D3": (4, "n"),
        "E3": (1, "n"), "F3": ("GOVDE_K1_TRIM_10.00", "s"), "G3": (0.4, "n"), "H3": (1, "n"),
        "I3": (2, "n"), "K3": ("door", "s"), "L3": ("left", "s"),
        "A4": ("MDF", "s"), "B4": (720, "n"), "C4": (450, "n"), "D4": (2, "n"), "E4": (0, "n"),
        "F4": ("GOVDE_K2_TRIM_10.00", "s"), "L4": ("H8", "s"),
        "A5": ("MDF", "s"), "B5": (720, "n"), "C5": (450, "n"), "D5": (2, "n"), "E5": (3, "n"),
        "F5": ("GOVDE_=K3_TRIM_10.00", "s"), "K5": ("007", "s"), "L5": ("1.50", "s"),
    }  # fmt: skip
    assert cells(target, "notes") == {"B2": ("do not touch", "s")}
    assert openpyxl.load_workbook(target)[SHEET]["A1"].font.bold
    raw = zipfile.ZipFile(target).read("xl/worksheets/sheet2.xml").decode()
    for absent in ("J3", "G4", "K4", "G5", "A6", "M3", "B9", "A39"):
        assert f'r="{absent}"' not in raw, "an empty cell is not there"


@pytest.mark.shows("C-35", "C-34")
@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "=HYPERLINK(1)",
        "+1",
        "-1",
        "@SUM(A1)",
        "=",
        "#N/A",
        "#REF!",
        "1e5",
        "TRUE",
        "'",
        "\t=",
    ],
)
def test_a_text_is_never_a_formula_a_number_or_an_error(
    template: Path, tmp_path: Path, text: str
) -> None:
    row = (text, Decimal(1), Decimal(2), 1, 0, text, None, None, None, None, text, text)
    write_import(template, [row], tmp_path / "order.xlsx")
    found = cells(tmp_path / "order.xlsx")
    assert {found[place] for place in ("A3", "F3", "K3", "L3")} == {(text, "s")}
    sheet = openpyxl.load_workbook(tmp_path / "order.xlsx")[SHEET]
    assert bool(sheet["A3"].quotePrefix) == (text[0] in "=+-@")
    assert "<f>" not in zipfile.ZipFile(tmp_path / "order.xlsx").read(SHEET_XML).decode()


NUMBERS = st.decimals(min_value="0.01", max_value="5000", places=2)
TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=30
)
ROW = st.tuples(
    TEXTS, NUMBERS, NUMBERS, st.integers(1, 9999), st.integers(0, 3), TEXTS,
    *[st.none() | st.sampled_from([Decimal("0.4"), Decimal(1), Decimal("2.0")])] * 4,
    TEXTS, TEXTS,
)  # fmt: skip


@pytest.mark.shows("C-34")
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(ROW, max_size=5))
def test_whatever_the_rows_are_they_are_read_again_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    make_template(folder / "template.xlsx")
    write_import(folder / "template.xlsx", rows, folder / "order.xlsx")
    sheet = openpyxl.load_workbook(folder / "order.xlsx")[SHEET]
    found = [[cell.value for cell in row] for row in sheet.iter_rows(min_row=3, max_col=12)]
    while found and not any(found[-1]):
        found.pop()
    assert len(found) == len(rows)
    for row, read in zip(rows, found, strict=True):
        for value, cell in zip(row, read, strict=True):
            if isinstance(value, Decimal):
                assert Decimal(repr(cell)) == value
            else:
                assert cell == (value or (0 if value == 0 and value != "" else None))


# --- names ----------------------------------------------------------------------------


def mark_of(part_type: str, color: str, thickness: str) -> str:
    return make_marks([(part_type, color, thickness, "MDF")])[0]


@pytest.mark.shows("C-35")
def test_the_name_of_an_import_file_says_what_it_is_of() -> None:
    assert import_name(JOB, mark_of("GOVDE", "BEYAZ", "18")) == f"{JOB}_GOVDE_BEYAZ_18mm.xlsx"
    assert mark_of("ARKALIK", "Aç\u0131k Ceviz/2", "3.2") == "ARKALIK_A__k_Ceviz_2_3_2mm"
    assert mark_of("GOVDE", "../../etc", "18") == "GOVDE_______etc_18mm"
    assert mark_of("GOVDE", "a-b_C9", "18") == "GOVDE_a-b_C9_18mm"
    assert mark_of("GOVDE", "", "18") == "GOVDE__18mm"


@pytest.mark.shows("C-78")
def test_the_name_of_a_repeat_says_its_revision() -> None:
    assert import_name(JOB, "GOVDE_BEYAZ_18mm", 2) == f"{JOB}_GOVDE_BEYAZ_18mm_r02.xlsx"
    assert import_name(JOB, "GOVDE_BEYAZ_18mm", 123) == f"{JOB}_GOVDE_BEYAZ_18mm_r123.xlsx"


@pytest.mark.shows("C-35")
def test_batches_that_would_be_called_alike_get_a_digest() -> None:
    keys = [
        ("GOVDE", "ÇAM", "18", "MDF"), ("GOVDE", "ŞAM", "18", "MDF"), ("GOVDE", "_AM", "18", "MDF"),
        ("GOVDE", "beyaz", "18", "MDF"), ("GOVDE", "BEYAZ", "18", "MDF"),
        ("GOVDE", "KREM", "18", "MDF"), ("GOVDE", "KREM", "18", "SUNTA"),
        ("GOVDE", "x" * 300, "18", "MDF"), ("GOVDE", "x" * 301, "18", "MDF"),
        ("GOVDE", "MAVI", "18", "MDF"),
    ]  # fmt: skip
    marks = make_marks(keys)
    assert len({mark.lower() for mark in marks}) == len(keys)
    assert marks[-1] == "GOVDE_MAVI_18mm", "what is alone needs none"
    for mark in marks[:-1]:
        assert len(mark.rpartition("mm_")[2]) == 8
    assert all(len(import_name(JOB, mark, 1_000_000)) <= 200 for mark in marks)
    # The name does not depend on the order of the parts: a file is found again.
    assert dict(zip(keys[::-1], make_marks(keys[::-1]), strict=True)) == dict(
        zip(keys, marks, strict=True)
    )


@pytest.mark.shows("C-35")
def test_a_digest_that_two_share_is_lengthened(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alike:
        def __init__(self, data: bytes) -> None:
            self.text = "0" * 8 + ("1" if b"a" in data else "2") * 56

        def hexdigest(self) -> str:
            return self.text

    monkeypatch.setattr(workbook, "sha256", Alike)
    marks = make_marks([("GOVDE", "Ç", "18", "a"), ("GOVDE", "Ç", "18", "b")])
    assert marks == ("GOVDE___18mm_0000000011111111", "GOVDE___18mm_0000000022222222")


@pytest.mark.shows("C-35")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["GOVDE", "ARKALIK"]), st.text("aAçÇ_-./ ", max_size=3),
            st.sampled_from(["18", "3", "0.8", "0_8"]), st.sampled_from(["a", "b"]),
        ),
        unique=True,
    )
)  # fmt: skip
def test_no_two_batches_of_a_job_have_the_same_name(keys: list[workbook.Key]) -> None:
    marks = make_marks(keys)
    assert len({mark.lower() for mark in marks}) == len(keys)
    assert set("".join(marks)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    )


@pytest.mark.shows("C-31", "C-35")
def test_body_and_back_colours_thicknesses_and_materials_have_files_of_their_own() -> None:
    parts = [
        make_part(id="1"), make_back(id="2"), make_part(id="3", color="SİYAH"),
        make_part(id="4", thickness_mm=25), make_part(id="5", material_code="SUNTA"),
        make_part(id="6"),
    ]  # fmt: skip
    batches = make_batches(*parts).batches
    names = [import_name(JOB, batch.mark) for batch in batches]
    assert len(set(names)) == len(batches) == 5
    assert [row.part_id for row in batches[0].rows] == ["1", "6"]


# --- writing --------------------------------------------------------------------------

SOME_ROW = ("MDF", Decimal("720.00"), Decimal(450), 2, 0, "x", None, None, None, None, "", "")


@pytest.mark.shows("C-36")
def test_an_import_file_is_written_by_a_temporary_file_beside_it(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "import"
    folder.mkdir()
    renamed: list[tuple[str, list[str]]] = []
    rename = os.rename

    def note(source: str, target: str, **folders: Any) -> None:
        renamed.append((target, os.listdir(folder)))
        rename(source, target, **folders)

    monkeypatch.setattr("os.rename", note)
    write_import(template, [SOME_ROW], folder / "order.xlsx")
    [(target, [temporary])] = renamed
    assert target == "order.xlsx"
    assert temporary.endswith(TEMPORARY)
    assert os.listdir(folder) == ["order.xlsx"]


@pytest.mark.shows("C-37")
def test_a_file_with_the_recorded_digest_is_left_alone(template: Path, tmp_path: Path) -> None:
    target = tmp_path / "order.xlsx"
    written = write_import(template, [SOME_ROW], target)
    os.utime(target, ns=(1_000_000_007, 1_000_000_007))
    before = os.stat(target)
    template.unlink()  # nothing else is needed for it
    again = write_import(template, [], target, recorded=written.sha256)
    assert again.sha256 == written.sha256
    assert again.mtime_ns == 1_000_000_007
    assert os.stat(target).st_ino == before.st_ino


@pytest.mark.shows("C-37")
def test_a_file_that_is_gone_or_was_changed_is_written_again(
    template: Path, tmp_path: Path
) -> None:
    target = tmp_path / "order.xlsx"
    written = write_import(template, [SOME_ROW], target)
    for spoil in (
        target.unlink,
        lambda: target.write_bytes(b"half"),
        lambda: target.write_text(""),
    ):
        spoil()
        again = write_import(template, [SOME_ROW], target, recorded=written.sha256)
        assert again.sha256 == written.sha256
        assert cells(target)["A3"] == ("MDF", "s")


@pytest.mark.shows("C-37", "C-70")
def test_a_step_that_died_before_it_recorded_the_digest_finds_its_file(
    template: Path, tmp_path: Path
) -> None:
    target = tmp_path / "order.xlsx"
    write_import(template, [SOME_ROW], target, note="a note")
    before = os.stat(target)
    # In another process, which has another seed of hashes and another time.
    script = (
        "import sys; from pathlib import Path; from decimal import Decimal\n"
        "from ulak.services.cutting.workbook import write_import\n"
        f"row = {SOME_ROW!r}\n"
        "write_import(Path(sys.argv[1]), [row], Path(sys.argv[2]), note='a note')"
    )
    subprocess.run([sys.executable, "-c", script, template, target], check=True)
    after = os.stat(target)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.shows("C-29")
def test_what_no_column_has_a_place_for_stands_in_the_properties(
    template: Path, tmp_path: Path
) -> None:
    write_import(template, [SOME_ROW], tmp_path / "order.xlsx", note='{"customer": "Ayşe"}')
    found = openpyxl.load_workbook(tmp_path / "order.xlsx").properties.description
    assert found == '{"customer": "Ayşe"}'


def test_a_row_of_another_length_is_refused(template: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        write_import(template, [SOME_ROW[:-1]], tmp_path / "order.xlsx")
    assert not (tmp_path / "order.xlsx").exists()
