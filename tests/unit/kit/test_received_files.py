"""Workbooks and XML of others: read within bounds, or refused with a reason."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZipFile

import openpyxl
import pytest

from ulak.kit.workbooks import UnreadableWorkbook, open_workbook, read_rows, save_workbook
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
