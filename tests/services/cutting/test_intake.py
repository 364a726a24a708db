"""The spreadsheet of an order: what is read from it, and what is refused by its cell."""

import zipfile
from io import BytesIO
from typing import Any

import openpyxl
import pytest

from tests.services.cutting.orders import PHONE, RULES
from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.intake import read_order_sheet
from ulak.services.cutting.order import parse_order

HEAD: tuple[list[Any], ...] = (["SİPARİŞ 17"], ["RENK: BEYAZ", None, "210*280"], ["18MM"])
TITLES = ["info", "length", "width", "quantity"]
DOOR = ["door", 720, 450, 2]


def make_sheet(*rows: list[Any]) -> bytes:
    made = openpyxl.Workbook()
    for row in rows:
        made.worksheets[0].append(row)
    return save(made)


def save(made: openpyxl.Workbook) -> bytes:
    data = BytesIO()
    made.save(data)
    return data.getvalue()


def parts(*rows: list[Any], **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_order_sheet(make_sheet(*HEAD, *rows), **options)["parts"]
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_order_sheet(data)
    assert caught.value.status == 422
    return str(caught.value)


@pytest.mark.shows("C-107")
def test_a_sheet_is_read_to_an_order() -> None:
    data = make_sheet(
        *HEAD,
        TITLES,
        ["door", 720, 450.5, 2, 1, "x", 1, "yok", None, "H1", "H2", "left one"],
        ["shelf", "560,5", "300", 4.0],
        [],
        ["SECOND CABINET"],
        ["door", 333.3, 200, 1, 0, None, None, "evet", "1mm", None, "H3"],
        ["TOTAL", None, None, 7],
    )
    body = read_order_sheet(data, material_code="MDF18")
    same = {"part_type": "GOVDE", "material_code": "MDF18", "thickness_mm": 18, "color": "BEYAZ"}
    assert body == {
        "plate_size": {"width_mm": 2100, "height_mm": 2800},
        "parts": [
            same | {
                "id": "5", "length_cm": 72, "width_cm": 45.05, "quantity": 2, "grain": 1,
                "edge_up": "1mm", "edge_lo": "1mm", "iidesc": "door", "delik_kodu": "H1+H2",
                "desc1": "left one",
            },
            same | {"id": "6", "length_cm": 56.05, "width_cm": 30, "quantity": 4, "grain": 0,
                    "iidesc": "shelf"},
            same | {
                "id": "9", "length_cm": 33.33, "width_cm": 20, "quantity": 1, "grain": 0,
                "edge_sx": "1mm", "edge_dx": "1mm", "iidesc": "door", "delik_kodu": "H3",
            },
        ],
    }  # fmt: skip
    order = parse_order(body | {"order_id": "S-1", "customer_phone": PHONE}, rules=RULES)
    assert order["parts"] == body["parts"]


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    "cell",
    [
        None, "", "  ", 0, 0.0, "0", "0.0", "0,0", False, "false", "FALSE", "no", "No", "N", "n",
        "yok", "YOK", " Yok ", "hayir", "HAYIR", "hay\u0131r", "HAY\u0130R",
    ],
)  # fmt: skip
def test_an_edge_without_a_band(cell: Any) -> None:
    [part] = parts([*DOOR, 0, cell, cell, cell, cell])
    assert not [key for key in part if key.startswith("edge")]


@pytest.mark.shows("C-107")
@pytest.mark.parametrize("cell", [1, 0.4, "x", "1mm", "evet", True, "✓", "00", 2.0])
@pytest.mark.parametrize(
    ("column", "edge"), [(5, "edge_up"), (6, "edge_lo"), (7, "edge_sx"), (8, "edge_dx")]
)
def test_an_edge_with_a_band(cell: Any, column: int, edge: str) -> None:
    row = [*DOOR, 0, None, None, None, None]
    row[column] = cell
    [part] = parts(row, band="2mm")
    assert {key: part[key] for key in part if key.startswith("edge")} == {edge: "2mm"}


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    ("head", "thickness"),
    [
        ([["18MM"]], 18), ([["18 mm"]], 18), ([["GOVDE 25MM BEYAZ"]], 25), ([[None, "3,2MM"]], 3.2),
        ([[18]], 18), ([["8"]], 8), ([[60]], 60), ([[1]], 1),
        ([[61], [25]], 25), ([[0], [25]], 25), ([[5], ["18MM"]], 18), ([["2800MM"], [18]], 18),
        ([["210*280*18MM"]], 18), ([[None, 18], [25]], 25),
    ],
)  # fmt: skip
def test_the_thickness_stands_above_the_parts(head: list[list[Any]], thickness: float) -> None:
    body = read_order_sheet(make_sheet(["RENK: BEYAZ"], *head, DOOR))
    assert body["parts"][0]["thickness_mm"] == thickness


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    ("cell", "plate"),
    [
        ("210*280", (2100, 2800)), ("2100*2800", (2100, 2800)), ("183 x 366", (1830, 3660)),
        ("PLAKA: 2100X2800 MM", (2100, 2800)), ("122,5*244", (1225, 2440)),
        ("999*1000", (9990, 1000)),
    ],
)  # fmt: skip
def test_the_plate_is_in_centimetres_below_1000(cell: str, plate: tuple[int, int]) -> None:
    body = read_order_sheet(make_sheet(["RENK: BEYAZ", cell], ["18MM"], DOOR))
    assert tuple(body["plate_size"].values()) == plate


@pytest.mark.shows("C-107")
def test_a_sheet_without_a_plate_leaves_it_to_the_rules() -> None:
    assert "plate_size" not in read_order_sheet(make_sheet(["RENK: BEYAZ"], ["18MM"], DOOR))


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    ("row", "color"),
    [
        (["RENK: BEYAZ"], "BEYAZ"), (["renk :  Açık Ceviz "], "Açık Ceviz"),  # noqa: RUF001
        ([None, "SİPARİŞ RENK:ANTRASİT"], "ANTRASİT"), (["RENK:", None, "KREM"], "KREM"),
    ],
)  # fmt: skip
def test_the_colour_stands_behind_its_word(row: list[Any], color: str) -> None:
    assert read_order_sheet(make_sheet(row, ["18MM"], DOOR))["parts"][0]["color"] == color


@pytest.mark.shows("C-107")
def test_only_the_first_ten_rows_say_what_holds_for_all() -> None:
    above: list[list[Any]] = [["-"]] * 8
    head = make_sheet(*above, ["RENK: BEYAZ", "210*280"], ["18MM"], DOOR)
    assert read_order_sheet(head)["parts"][0]["id"] == "11"
    said = refusal(make_sheet(*above, ["-"], ["-"], ["RENK: BEYAZ"], ["18MM"], DOOR))
    assert said == (
        "body: no thickness in the first 10 rows; write it as 18MM; "
        "body: no colour in the first 10 rows; write it as RENK: WHITE"
    )


@pytest.mark.shows("C-107")
def test_the_parts_begin_where_three_numbers_stand() -> None:
    found = parts(TITLES, ["1", "mm", "mm", "pieces"], ["a", 100, None, 5], DOOR, ["b", 1, 2, 3])
    assert [part["iidesc"] for part in found] == ["door", "b"]
    assert "no row has numbers in B, C and D" in refusal(make_sheet(*HEAD, TITLES))


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([DOOR, ["b", "72o", 450, 2]], "B5: '72o' is no number"),
        ([DOOR, ["b", 720, None, 2]], "C5: '' is no number"),
        ([DOOR, ["b", 720, 450, None]], "D5: '' is no number"),
        ([DOOR, ["b", 720, 450, "two"]], "D5: 'two' is no number"),
        ([DOOR, ["b", 720, 450, 2, "long"]], "E5: 'long' is no number"),
        ([DOOR, ["b", 720, "NaN", 1]], "C5: 'NaN' is no number"),
        ([DOOR, ["b", None, None, None, 1]], "B5: '' is no number"),
        ([["b", "72o", 450, 2], DOOR], "B4: '72o' is no number"),
    ],
)
def test_a_part_that_cannot_be_read_is_named_and_never_left_out(
    rows: list[list[Any]], said: str
) -> None:
    assert refusal(make_sheet(*HEAD, *rows)).startswith(said)


def test_an_order_that_is_not_possible_is_refused_by_the_rules_of_orders() -> None:
    body = read_order_sheet(make_sheet(*HEAD, ["a", 720, 450, 2.5, 7], ["b", 0.1, 450, 1]))
    with pytest.raises(InvalidInput) as caught:
        parse_order(body | {"order_id": "S-1", "customer_phone": PHONE}, rules=RULES)
    for place in ("parts.0.quantity", "parts.0.grain", "parts.1.length_cm"):
        assert place in str(caught.value)


def test_results_of_formulas_are_read() -> None:
    data = make_sheet(*HEAD, ["a", "=360*2", 450, 2])
    with zipfile.ZipFile(BytesIO(data)) as source:
        members = {name: source.read(name) for name in source.namelist()}
    sheet = members["xl/worksheets/sheet1.xml"]
    assert b"<f>360*2</f><v/>" in sheet or b"<f>360*2</f><v></v>" in sheet
    members["xl/worksheets/sheet1.xml"] = sheet.replace(b"<v/>", b"<v>720</v>").replace(
        b"<v></v>", b"<v>720</v>"
    )
    changed = BytesIO()
    with zipfile.ZipFile(changed, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    assert read_order_sheet(changed.getvalue())["parts"][0]["length_cm"] == 72


def with_member(name: str, content: bytes) -> bytes:
    source = zipfile.ZipFile(BytesIO(make_sheet(*HEAD, DOOR)))
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as target:
        for each in source.namelist():
            target.writestr(each, content if each == name else source.read(each))
    return data.getvalue()


SHEET_XML = "xl/worksheets/sheet1.xml"
SPREADSHEET = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"
ENTITY = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><worksheet>&b;</worksheet>'
FAR_ROW = (
    b'<worksheet xmlns="' + SPREADSHEET + b'"><sheetData><row r="999999999999">'
    b'<c r="B999999999999"><v>1</v></c></row></sheetData></worksheet>'
)


@pytest.mark.shows("C-107")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no .xlsx workbook"),
        (b"info;length;width\n", "no .xlsx workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 100, "no .xlsx workbook"),
        (make_sheet(*HEAD, DOOR)[:2000], "no .xlsx workbook"),
        (with_member(SHEET_XML, b"<worksheet"), "ParseError"),
        (with_member(SHEET_XML, ENTITY), "EntitiesForbidden"),
        (with_member("xl/workbook.xml", ENTITY), "it is "),
        (with_member(SHEET_XML, b" " * 11_000_000), "larger than 10 MB when unpacked"),
        (with_member(SHEET_XML, FAR_ROW), "it has more than 5000 rows, or one beyond 100000"),
        (make_sheet(*[["a"]] * 5002), "it has more than 5000 rows"),
        (make_sheet(), "no row has numbers"),
    ],
)
def test_what_is_no_sheet_of_an_order_is_refused(data: bytes, said: str) -> None:
    assert said in refusal(data)
    assert "root:" not in refusal(data)
