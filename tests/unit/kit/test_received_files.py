"""Workbooks and XML of others: read within bounds, or refused with a reason."""

import subprocess
import sys
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZipFile

import openpyxl
import pytest

from ulak.kit.workbooks import (
    UnreadableWorkbook,
    cell_text,
    open_workbook,
    read_rows,
    replace_rows,
    save_workbook,
)
from ulak.kit.xml import BadXml, read_xml

MADE = (
    "import sys; from ulak.kit.workbooks import *; import openpyxl\n"
    "made = openpyxl.Workbook(); made.worksheets[0].append(['a', 1, None, 0.5])\n"
    "sys.stdout.buffer.write(save_workbook(made))"
)


def make_workbook() -> bytes:
    made = openpyxl.Workbook()
    made.worksheets[0].append(["a", 1, None, 0.5])
    return save_workbook(made)


def pack(members: dict[str, bytes], compression: int = ZIP_DEFLATED) -> bytes:
    data = BytesIO()
    with ZipFile(data, "w", compression) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return data.getvalue()


def test_the_same_cells_make_the_same_bytes_in_every_process() -> None:
    child = subprocess.run([sys.executable, "-c", MADE], check=True, capture_output=True)
    assert child.stdout == make_workbook()
    assert open_workbook(child.stdout).worksheets[0]["D1"].value == 0.5


def test_rows_that_are_not_empty_are_read_with_their_numbers() -> None:
    made = openpyxl.Workbook()
    for row in (["a", 1], [], [None, "b", "beyond"], [None, None, "beyond"]):
        made.worksheets[0].append(row)
    assert read_rows(save_workbook(made), 2) == [(1, ("a", 1)), (3, (None, "b"))]


def test_a_cell_has_the_text_that_people_write() -> None:
    values = (None, "", " a ", 7, 7.0, 7.25, 1e20, True)
    texts = ["", "", "a", "7", "7", "7.25", "100000000000000000000", "True"]
    assert [cell_text(value) for value in values] == texts


def test_rows_take_the_place_of_those_that_are_there_and_their_texts_stay_texts() -> None:
    made = openpyxl.Workbook()
    sheet = made.worksheets[0]
    for _ in range(4):
        sheet.append(["old", "old", "old"])
    sheet.merge_cells("A3:C4")
    texts = ("=1+1", "+1", "-1", "@a", "#N/A", "1e5", "TRUE")
    replace_rows(sheet, [(text, Decimal("2.50"), None) for text in texts], first=2, columns=3)
    found = open_workbook(save_workbook(made)).worksheets[0]
    rows = [[(cell.value, cell.data_type) for cell in row] for row in found.iter_rows(max_col=3)]
    assert rows == [
        [("old", "s")] * 3, *([(text, "s"), (2.5, "n"), (None, "n")] for text in texts)
    ]  # fmt: skip
    quoted = [found.cell(row, 1).quotePrefix for row in range(2, 9)]
    assert list(map(bool, quoted)) == [True] * 4 + [False] * 3
    for row in (("a",), ("a", 1, 2, 3)):
        with pytest.raises(ValueError, match="argument 2"):
            replace_rows(sheet, [row], first=2, columns=3)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no .xlsx workbook"),
        (b"PK\x03\x04", "no .xlsx workbook"),
        (pack({"a": b"b"}), "no .xlsx workbook"),
        (pack({f"{n}": b"" for n in range(1001)}), "larger than 10 MB"),
        (pack({"a": b" " * 6_000_000, "b": b" " * 6_000_000}), "larger than 10 MB"),
        (pack({"a": b"b"}, ZIP_LZMA), "packed as no workbook is"),
    ],
)
def test_what_is_no_workbook_is_refused(data: bytes, why: str) -> None:
    for read in (open_workbook, lambda data: read_rows(data, 3)):
        with pytest.raises(UnreadableWorkbook, match=why):
            read(data)


def test_each_element_of_a_file_is_told_with_its_depth(tmp_path: Path) -> None:
    content = b'<x:a xmlns:x="u:y" x:k="0"><b k="1"><c/></b>text<b/></x:a>'
    (tmp_path / "a.xml").write_bytes(content)
    told: list[tuple[str, dict[str, str], int]] = []

    def take(name: str, attributes: object, depth: int) -> None:
        told.append((name, dict(attributes), depth))  # type: ignore[call-overload]

    assert read_xml(tmp_path / "a.xml", take, largest=1000)[1] == len(content)
    assert told == [
        ("a", {"{u:y}k": "0"}, 0), ("b", {"k": "1"}, 1), ("c", {}, 2), ("b", {}, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no well-formed XML"), (b"<a>", "no well-formed XML"), (b"<a/>" * 2, "junk after"),
        (b"<a>" * 300, "nested more than 200 deep"), (b"<a>" + b" " * 1000, "larger than"),
        (b"<!DOCTYPE a><a/>", "a DTD"), (b"<a>&b;</a>", "undefined entity"),
    ],
)  # fmt: skip
def test_xml_that_may_do_harm_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a.xml").write_bytes(content)
    with pytest.raises(BadXml, match=why):
        read_xml(tmp_path / "a.xml", lambda *_: None, largest=1000)


def test_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.xml").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="link"):
        read_xml(tmp_path / "a.xml", lambda *_: None, largest=1000)
