"""Jobs and their files: templates that hold them, import files that stay, plans to come."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import openpyxl
import pytest

from tests.services.cutting.desk import Desk, OpenDesk
from tests.services.cutting.orders import make_back, make_part
from tests.services.cutting.steps import (
    MISSING,
    TRIGGER,
    approve,
    find_imports,
    find_state,
    get,
    hold_for_operator,
    list_events,
    submit,
)
from ulak.services.cutting.records import Records
from ulak.services.cutting.workbook import make_template

THREE = (make_part(), make_part(id="P2", color="KREM"), make_back())
PLAN = b'<Plan><Solution name="S1" best="1" mqBoards="11.76" secret="x"/></Plan>'


@pytest.fixture
def desk(open_desk: OpenDesk) -> Desk:
    """Mode C, where people put the plans into the folder; retries without a wait."""
    desk = open_desk(
        retry_backoff_minutes=[0],
        timeouts={"optiXmlMinutes": 0.01, "osiAckMinutes": 1},
    )  # fmt: skip
    desk.know()
    return desk


def go_on(desk: Desk, id: str) -> tuple[str, str | None]:
    """Approve, work, and return how the job stands then."""
    approve(desk, id)
    return find_state(desk, id)


def retry(desk: Desk, id: str) -> tuple[str, str | None]:
    """Try a job again, and return how it stands then."""
    desk.ask("POST", f"/jobs/{id}/retry")
    desk.work()
    return find_state(desk, id)


def find_reason(desk: Desk, id: str) -> str:
    reason: str = get(desk, id)["error_message"]
    return reason


def put_plans(desk: Desk, files: Sequence[Path], content: bytes = PLAN) -> list[Path]:
    """Leave the plan of each import file, as the optimiser does."""
    folder = desk.cutting.config.paths().export_folder
    plans = [folder / f"{file.stem}.xml" for file in files]
    for plan in plans:
        plan.write_bytes(content)
    return plans


@contextmanager
def worker(desk: Desk) -> Iterator[None]:
    """Have a worker for the length of a block; it drains at the end."""
    works = desk.engine.worker()
    thread = threading.Thread(target=lambda: asyncio.run(works.run()))
    thread.start()
    try:
        yield
    finally:
        works.stop()
        thread.join()


def wait_for(desk: Desk, id: str, state: str) -> None:
    ends_at = time.monotonic() + 20
    while find_state(desk, id)[0] != state:
        assert time.monotonic() < ends_at, find_state(desk, id)
        time.sleep(0.02)


# --- templates ------------------------------------------------------------------------


def drop_a_tag(path: Path) -> None:
    made = openpyxl.load_workbook(path)
    made["ŞABLON"]["L1"] = None
    made.save(path)


@pytest.mark.shows("C-33", "C-61")
def test_a_job_without_a_good_template_is_held_until_it_is_mended(desk: Desk) -> None:
    template = desk.cutting.config.paths().template_path
    # The optimiser is a process, and takes longer than people are waited for here.
    desk.change(timeouts={"optiXmlMinutes": 5, "osiAckMinutes": 1})
    id = submit(desk, opti_mode="E")
    for damage, why in (
        (drop_a_tag, "row 1 has 11 tags instead of 12"),
        (lambda path: path.write_bytes(b"no workbook"), "cannot be read"),
        (Path.unlink, "there is no such file"),
    ):
        damage(template)
        if find_state(desk, id)[0] == "HOLD":
            approve(desk, id)
        desk.work()
        assert find_state(desk, id) == ("HOLD", "E_TEMPLATE_INVALID")
        assert why in find_reason(desk, id)
    assert "STATE_PREPARED" not in list_events(desk, id)
    assert find_imports(desk, id) == []
    make_template(template)
    assert go_on(desk, id) == ("DONE", None)


@pytest.mark.shows("C-19")
def test_the_template_is_checked_after_the_plate_and_before_the_parts(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.know()
    desk.cutting.config.paths().template_path.unlink()
    id = submit(desk, make_part(thickness_mm=16))
    desk.work()
    assert find_state(desk, id) == ("HOLD", "E_TEMPLATE_INVALID")
    make_template(desk.cutting.config.paths().template_path)
    assert go_on(desk, id) == ("HOLD", "E_TRIM_RULE_MISSING")


# --- import files ---------------------------------------------------------------------


@pytest.mark.shows("C-35", "C-31")
def test_a_job_has_an_import_file_for_each_batch(desk: Desk) -> None:
    id = hold_for_operator(desk, *THREE)
    assert [path.name for path in find_imports(desk, id)] == [
        f"{id}_ARKALIK_BEYAZ_3mm.xlsx",
        f"{id}_GOVDE_BEYAZ_18mm.xlsx",
        f"{id}_GOVDE_KREM_18mm.xlsx",
    ]
    [line] = [
        line
        for line in desk.ask("GET", f"/jobs/{id}")["audit"]
        if line["event_type"] == "STATE_OPTI_IMPORTED"
    ]
    assert all(path.name in line["details_json"] for path in find_imports(desk, id))


@pytest.mark.shows("C-37", "C-40")
def test_import_files_are_the_same_after_an_approval_and_after_a_retry(desk: Desk) -> None:
    id = hold_for_operator(desk, *THREE)
    before = [
        (path, os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in find_imports(desk, id)
    ]
    assert go_on(desk, id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    assert retry(desk, id) == ("HOLD", TRIGGER)
    after = [
        (path, os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in find_imports(desk, id)
    ]
    assert after == before


@pytest.mark.shows("C-37")
def test_an_import_file_that_was_lost_or_damaged_is_written_again_by_a_retry(
    open_desk: OpenDesk,
) -> None:
    desk = open_desk(retry_backoff_minutes=[0])
    desk.know()
    id = submit(desk, *THREE, opti_mode="A")
    desk.work()  # there is no program of mode A
    assert find_state(desk, id) == ("FAILED", MISSING)
    good = [path.read_bytes() for path in find_imports(desk, id)]
    first, second, third = find_imports(desk, id)
    first.unlink()
    second.write_bytes(b"half")
    kept = os.stat(third).st_ino
    retry(desk, id)
    assert [path.read_bytes() for path in find_imports(desk, id)] == good
    assert os.stat(third).st_ino == kept


@pytest.mark.shows("C-36")
def test_what_a_dead_writer_left_is_swept_after_an_hour(desk: Desk) -> None:
    paths = desk.cutting.config.paths()
    for folder in (paths.import_folder, paths.export_folder):
        for name, age_s in {"old.tmp": 3700, "new.tmp": 3500, "old.xml": 9999}.items():
            (folder / name).write_bytes(b"half")
            os.utime(folder / name, (time.time() - age_s,) * 2)
    desk.engine.schedules.run("cutting-upkeep")
    desk.work()
    for folder in (paths.import_folder, paths.export_folder):
        assert sorted(os.listdir(folder)) == ["new.tmp", "old.xml"]


# --- plans ----------------------------------------------------------------------------


@pytest.mark.shows("C-51", "C-46")
def test_a_job_waits_for_the_plan_of_every_batch(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.know()
    id = hold_for_operator(desk, *THREE)
    files = find_imports(desk, id)
    put_plans(desk, files[:2])
    with desk.saw(), worker(desk):
        desk.ask("POST", f"/jobs/{id}/approve")
        wait_for(desk, id, "OPTI_RUNNING")
        time.sleep(0.2)
        assert find_state(desk, id)[0] == "OPTI_RUNNING"
        put_plans(desk, files[2:])
        wait_for(desk, id, "DONE")
    stored = Records(desk.cutting.tables).read_batches(id)
    assert {each.import_file[:-5] for each in stored} == {
        each.plan_path.stem for each in stored if each.plan_path
    }


@pytest.mark.shows("C-47", "C-48", "C-40")
def test_a_plan_of_an_earlier_attempt_is_not_taken_after_a_retry(desk: Desk) -> None:
    id = hold_for_operator(desk, *THREE)
    put_plans(desk, find_imports(desk, id)[:2])
    assert go_on(desk, id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    assert "no plan came for GOVDE_KREM_18mm" in find_reason(desk, id)
    retry(desk, id)
    put_plans(desk, find_imports(desk, id)[2:])
    assert go_on(desk, id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    assert "ARKALIK_BEYAZ_3mm, GOVDE_BEYAZ_18mm" in find_reason(desk, id) or (
        "GOVDE_BEYAZ_18mm, ARKALIK_BEYAZ_3mm" in find_reason(desk, id)
    )
    retry(desk, id)
    put_plans(desk, find_imports(desk, id))
    assert go_on(desk, id) == ("DONE", None)


@pytest.mark.shows("C-48")
def test_an_approval_does_not_move_the_start_of_the_attempt(desk: Desk) -> None:
    # The operator runs the optimiser while the job is on hold, and approves then.
    id = hold_for_operator(desk, *THREE)
    put_plans(desk, find_imports(desk, id))
    time.sleep(0.1)
    assert go_on(desk, id) == ("DONE", None)


@pytest.mark.shows("C-48")
def test_files_from_before_the_import_and_of_other_jobs_are_ignored(desk: Desk) -> None:
    id = hold_for_operator(desk, make_part())
    [file] = find_imports(desk, id)
    [old] = put_plans(desk, [file])
    before = os.stat(file).st_mtime_ns - 1_000_000_000
    os.utime(old, ns=(before, before))
    other = id[:-1] + ("0" if id[-1] != "0" else "1")
    put_plans(desk, [file.with_name(file.name.replace(id, other))])
    assert go_on(desk, id) == ("FAILED", "E_OPTI_XML_TIMEOUT")


@pytest.mark.shows("C-48")
def test_a_plan_that_grows_byte_by_byte_is_waited_for(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.change(stableSeconds=0.3)
    desk.know()
    id = hold_for_operator(desk, make_part())
    folder = desk.cutting.config.paths().export_folder
    with desk.saw(), worker(desk):
        desk.ask("POST", f"/jobs/{id}/approve")
        with open(folder / f"{find_imports(desk, id)[0].stem}.xml", "wb", buffering=0) as plan:
            for byte in PLAN:
                plan.write(bytes([byte]))
                time.sleep(0.02)
            assert find_state(desk, id)[0] == "OPTI_RUNNING"
        wait_for(desk, id, "DONE")


@pytest.mark.shows("C-47")
def test_the_deadline_counts_from_the_state_and_a_restart_does_not_move_it(
    open_desk: OpenDesk,
) -> None:
    desk = open_desk(timeouts={"optiXmlMinutes": 0.025, "osiAckMinutes": 1})
    desk.know()
    id = hold_for_operator(desk, make_part())
    desk.ask("POST", f"/jobs/{id}/approve")
    for _ in range(3):  # three workers, each for a part of the time
        with worker(desk):
            wait_for(desk, id, "OPTI_RUNNING")
            time.sleep(0.3)
    with worker(desk):
        wait_for(desk, id, "FAILED")
    assert find_state(desk, id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    audit = desk.ask("GET", f"/jobs/{id}")["audit"]
    at = {line["event_type"]: datetime.fromisoformat(line["created_at"]) for line in audit}
    assert 1.5 <= (at["STATE_FAILED"] - at["STATE_OPTI_RUNNING"]).total_seconds() < 3.5


@pytest.mark.shows("C-49", "C-62", "C-51")
@pytest.mark.parametrize("content", [b"<root>", b"<!DOCTYPE a><a><b/></a>"])
def test_a_job_with_one_bad_plan_fails_for_good(desk: Desk, content: bytes) -> None:
    id = hold_for_operator(desk, *THREE)
    put_plans(desk, find_imports(desk, id))
    put_plans(desk, find_imports(desk, id)[1:2], content)
    assert go_on(desk, id) == ("FAILED", "E_XML_INVALID")
    assert f"{id}_GOVDE_BEYAZ_18mm.xml: " in find_reason(desk, id)
    assert "STATE_OPTI_DONE" in list_events(desk, id)
    assert "STATE_XML_READY" not in list_events(desk, id)
    assert desk.refuse("POST", f"/jobs/{id}/retry") == (400, "E_XML_INVALID")


@pytest.mark.shows("C-50")
def test_what_a_plan_says_of_itself_is_stored_with_the_job(desk: Desk) -> None:
    id = hold_for_operator(desk, *THREE)
    first, second, third = find_imports(desk, id)
    put_plans(desk, [first, second])
    put_plans(desk, [third], b"<root><ok>true</ok></root>")
    assert go_on(desk, id) == ("DONE", None)
    stored = Records(desk.cutting.tables).read_batches(id)
    found = {each.import_file: each.solution for each in stored}
    known = {"name": "S1", "best": "1", "mqBoards": "11.76"}
    assert found == {first.name: known, second.name: known, third.name: None}
