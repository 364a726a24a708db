"""The store of offcuts: rests join it when an order is done, and later orders cut them first."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.services.cutting.desk import Desk, OpenDesk
from tests.services.cutting.orders import make_batches, make_part
from tests.services.cutting.steps import find_state, list_events, submit
from ulak.cli import main
from ulak.errors import NotFound
from ulak.services.cutting import flow
from ulak.services.cutting.offcuts import Offcut
from ulak.services.cutting.optimise.document import read_sheets
from ulak.services.cutting.optimise.reading import make_order
from ulak.services.cutting.optimise.verify import BadPlan, StoredSheet

LARGE = make_part(length_cm=270, width_cm=100, quantity=1)
"""It leaves more than half of a plate."""
SMALL = make_part(length_cm=60, width_cm=40, quantity=2)


@pytest.fixture
def desk(any_desk: Desk) -> Desk:
    any_desk.change(offcutStore=True)
    return any_desk


def cut(desk: Desk, part: dict[str, Any], **changes: Any) -> str:
    """Have an order of mode E cut; return the id of its job."""
    id = submit(desk, part, opti_mode="E", **changes)
    desk.work()
    assert find_state(desk, id) == ("DONE", None)
    return id


def read(desk: Desk, id: str) -> list[StoredSheet]:
    (batch,) = desk.cutting.jobs._records.read_batches(id)
    assert batch.plan_path
    return read_sheets(batch.plan_path.read_bytes())


def there(desk: Desk) -> list[Offcut]:
    return desk.cutting.offcuts.list_there()


@pytest.mark.shows("C-95")
def test_what_an_order_leaves_is_cut_before_a_new_plate(desk: Desk) -> None:
    first = cut(desk, LARGE)
    (rest,) = there(desk)
    assert (rest.material, rest.thickness_mm, rest.cut_from) == ("MDF18", "18", first)
    assert rest.promised_to is None

    second = cut(desk, SMALL)
    (sheet,) = read(desk, second)
    assert sheet.name == f"offcut {rest.id}"
    assert sheet.size == (Decimal(rest.width_mm) * 100, Decimal(rest.height_mm) * 100)
    left = there(desk)
    assert rest.id not in [offcut.id for offcut in left]
    assert {offcut.cut_from for offcut in left} == {second}
    assert not any(offcut.promised_to for offcut in left)


@pytest.mark.shows("C-95")
def test_an_order_that_is_done_twice_leaves_its_rests_once(desk: Desk) -> None:
    first = cut(desk, LARGE)
    second = cut(desk, SMALL)
    found, records = there(desk), desk.cutting.jobs._records
    for id in (first, second):
        (batch,) = records.read_batches(id)
        desk.cutting.offcuts.settle(id, {batch.batch: read(desk, id)})
    assert there(desk) == found


@pytest.mark.shows("C-95")
def test_what_one_order_is_promised_no_other_gets_until_it_is_let_go(desk: Desk) -> None:
    cut(desk, LARGE)
    (rest,) = there(desk)
    waiting = submit(desk, SMALL, opti_mode="E", order_id="S-2")
    assert promise(desk, waiting) == [[f"offcut {rest.id}", rest.width_mm, rest.height_mm]]
    assert promise(desk, "another") == []
    with pytest.raises(NotFound, match=f"no offcut {rest.id} that is free"):
        desk.cutting.offcuts.remove(rest.id)

    desk.cutting.jobs.cancel(waiting, actor="ada")
    desk.work()
    assert there(desk) == [rest]
    desk.cutting.offcuts.remove(rest.id)
    assert there(desk) == []


def test_an_order_whose_plan_cannot_be_read_is_done_and_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(desk, LARGE)

    def fail(data: bytes) -> list[StoredSheet]:
        raise BadPlan("it is half a plan")

    monkeypatch.setattr(flow, "read_sheets", fail)
    id = cut(desk, SMALL)
    assert "OFFCUTS_LOST" in list_events(desk, id)
    assert there(desk) == [], "what was promised may have been cut"


@pytest.mark.shows("C-95")
def test_nothing_is_kept_unless_the_rules_say_so(any_desk: Desk) -> None:
    id = cut(any_desk, LARGE)
    assert there(any_desk) == []
    assert "offcuts" not in any_desk.cutting.jobs._records.get_order(id).settings


@pytest.mark.parametrize(
    ("grain", "names"), [(0, ["high", "wide"]), (1, ["high"]), (3, ["high", "wide"])]
)
def test_where_a_part_has_a_grain_offcuts_lie_as_the_plates_do(
    grain: int, names: list[str]
) -> None:
    settings = {
        "plate_mm": ["2100", "2800"], "kerf_mm": "3.2", "trimmed_sides": ["left", "right"],
        "grain_axis": "long", "deduct_bands": True, "milling_mm": "0",
    }  # fmt: skip
    row = ["M18", 600, 400, 1, grain, "GOVDE_P1_TRIM_10.00", *[None] * 6]
    offcuts = [["high", "500", "900"], ["wide", "900.5", "500"], ["thin", "20", "900"]]
    plate, *found = make_order([(3, row)], settings, None, offcuts).stock
    assert plate.quantity is None
    assert [each.name for each in found] == names
    assert {each.quantity for each in found} == {1}


def test_the_store_is_listed_and_cleared_from_the_command_line(
    open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = open_desk(offcutStore=True)
    desk.know()
    id = cut(desk, LARGE)
    monkeypatch.setenv("ULAK_STORE", f"sqlite:///{desk.folder.parent / 'cutting.db'}")
    monkeypatch.setenv("ULAK_DATA", str(desk.folder))

    def run(*options: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["cutting", "offcuts", *options])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    (rest,) = json.loads(run("--json")[1])["offcuts"]
    assert (rest["cut_from"], rest["material"]) == (id, "MDF18")
    assert rest["width_mm"] in run()[1]
    assert run("--remove", "99") == (
        1,
        "error: there is no offcut 99 that is free; see 'ulak cutting offcuts'\n",
    )
    status, said = run("--remove", str(rest["id"]), "--json")
    assert (status, json.loads(said)) == (0, {"offcuts": []})


def promise(desk: Desk, job_id: str) -> list[list[str]]:
    (batch,) = make_batches(SMALL).batches
    with desk.cutting.tables.writing() as connection:
        return desk.cutting.offcuts.promise(connection, job_id, batch)
