"""The audit of an order, and the views for people who look with SQL."""

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.services.cutting import children
from tests.services.cutting.desk import Desk, OpenDesk
from tests.services.cutting.orders import make_back, make_part
from tests.services.cutting.steps import (
    TRIGGER,
    approve,
    find_details,
    find_imports,
    find_state,
    get,
    hold_for_operator,
    list_events,
    submit,
    write_plans,
)
from ulak.services.cutting.jobs import COLUMNS, EVENT_COLUMNS
from ulak.testing import faults

TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.shows("C-74", "C-75")
def test_every_step_of_an_order_is_in_its_audit(any_desk: Desk) -> None:
    desk = any_desk
    desk.change(retry_backoff_minutes=[0.001])
    desk.change(timeouts={"optiXmlMinutes": 0.001, "osiAckMinutes": 5})
    back = make_back(edge_up="1mm", edge_lo="2mm")
    job_id, jobs = hold_for_operator(desk, make_part(), back), desk.cutting.jobs
    submit(desk, make_part(), back)
    approve(desk, job_id)
    jobs.retry(job_id, actor="bob")
    jobs.cancel(job_id, actor="eve")
    events = jobs.audit(job_id)
    imports = [path.name for path in find_imports(desk, job_id)]
    assert [e["event_type"] for e in events] == [
        "JOB_CREATED", "STATE_NEW", "BACKING_EDGE_RESET", "STATE_PREPARED", "STATE_OPTI_IMPORTED",
        "STATE_HOLD", "JOB_DEDUP", "HOLD_APPROVED", "STATE_NEW", "STATE_PREPARED",
        "STATE_OPTI_IMPORTED", "STATE_OPTI_RUNNING", "STATE_FAILED", "JOB_RETRY_SCHEDULED",
        "STATE_NEW", "JOB_CANCELLED", "STATE_FAILED",
    ]  # fmt: skip
    told = {e["event_type"]: json.loads(e["details_json"]) for e in events}
    prepared = {"batch_count": 2, "backing_edge_reset_count": 1}
    assert told["JOB_CREATED"] == {"mode": "C"}
    assert told["BACKING_EDGE_RESET"] == {"count": 1}
    assert told["STATE_PREPARED"] == prepared
    assert sorted(told["STATE_OPTI_IMPORTED"]["import_files"]) == imports or not imports
    assert told["STATE_HOLD"]["errorCode"] == TRIGGER
    assert told["HOLD_APPROVED"] == {"mode_c_approved": True}
    failed, cancelled = find_details(desk, job_id, "STATE_FAILED")
    assert failed["errorCode"] == "E_OPTI_XML_TIMEOUT"
    assert failed["reason"].startswith("no plan came for ")
    assert cancelled == {"errorCode": "E_CANCELLED", "reason": "by eve"}
    assert set(told["JOB_RETRY_SCHEDULED"]) == {"retry_count", "backoff_minutes", "next_run_at"}
    assert [e["actor"] for e in events[:2]] == ["ada", "ada"]
    assert events[-1]["actor"] == "eve"
    for event in events:
        assert list(event) == list(EVENT_COLUMNS)
        assert isinstance(event["id"], int)
        assert event["job_id"] == job_id
        assert TIME.fullmatch(event["created_at"])
        plain = json.loads(event["details_json"])
        assert event["details_json"] == json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    ids = [e["id"] for e in events]
    assert ids == sorted(set(ids))


@pytest.mark.shows("C-75")
def test_plans_deliveries_and_answers_are_in_the_audit(desk: Desk) -> None:
    desk.know()
    job_id = hold_for_operator(desk)
    write_plans(desk, job_id)
    approve(desk, job_id)
    (imported,) = find_imports(desk, job_id)
    (done,) = find_details(desk, job_id, "STATE_OPTI_DONE")
    assert done == {"xml_files": [f"{imported.stem}.xml"]}
    (intent,), (ack,) = (find_details(desk, job_id, kind) for kind in ("DELIVERY_INTENT", "ACK"))
    assert intent == ack
    assert intent["file_name"] == f"{imported.stem}_d1.xml"
    assert find_state(desk, job_id) == ("DONE", None)


@pytest.mark.shows("C-74")
def test_messages_are_one_sentence_each_in_the_language_of_the_rules(desk: Desk) -> None:
    desk.know()
    job_id = hold_for_operator(desk)
    told = {e["event_type"]: e["message"] for e in desk.cutting.jobs.audit(job_id)}
    assert told["STATE_PREPARED"] == "The job is prepared"
    desk.change(language="tr")
    told = {e["event_type"]: e["message"] for e in desk.cutting.jobs.audit(job_id)}
    assert told["STATE_PREPARED"] == "Job donusum icin hazirlandi"
    assert told["STATE_HOLD"] == "Islem HOLD"
    rows = desk.cutting.tables.read("SELECT event_type, en, tr FROM {schema}.cutting_messages")
    assert all(en and tr and tr.isascii() for _, en, tr in rows)
    assert ("STATE_FAILED", "The job has failed", "Islem FAILED") in rows


@pytest.mark.shows("C-76")
@pytest.mark.parametrize(("point", "state"), [("commit.inside", "HOLD"), ("commit.after", "NEW")])
def test_a_move_and_its_audit_are_one_commit(
    desk: Desk, open_desk: OpenDesk, point: str, state: str, tmp_path: Path
) -> None:
    desk.know()
    job_id = hold_for_operator(desk)
    before = list_events(desk, job_id)
    desk.engine.close()
    url = f"sqlite:///{tmp_path / 'cutting.db'}"
    assert faults.run(children.approve, url, desk.folder, job_id, kill_at=point).killed
    again = open_desk()
    with again.engine:
        added = {"HOLD": [], "NEW": ["HOLD_APPROVED", "STATE_NEW"]}[state]
        assert list_events(again, job_id) == [*before, *added]
        assert get(again, job_id)["state"] == state


@pytest.mark.shows("C-76", "C-109")
def test_the_views_have_the_columns_of_the_api_and_can_only_be_read(any_desk: Desk) -> None:
    desk = any_desk
    job_id = submit(desk)
    tables = desk.cutting.tables
    for view, columns in [("cutting_jobs", COLUMNS), ("audit_events", EVENT_COLUMNS)]:
        names = ", ".join(columns)
        where = "id" if view == "cutting_jobs" else "job_id"
        rows = tables.read(f"SELECT {names} FROM {{schema}}.{view} WHERE {where} = ?", job_id)  # noqa: S608
        assert rows
        for change in (
            f"UPDATE {{schema}}.{view} SET {where} = 'x'",  # noqa: S608
            f"DELETE FROM {{schema}}.{view}",  # noqa: S608
        ):
            with pytest.raises(Exception, match=r"view|Cannot|cannot"), tables.writing() as db:
                tables.execute(db, change)
    assert get(desk, job_id) == dict(zip(COLUMNS, read_job(desk, job_id), strict=True))
    assert len(list_events(desk, job_id)) == 2


def read_job(desk: Desk, job_id: str) -> Any:
    names = ", ".join(COLUMNS)
    statement = f"SELECT {names} FROM {{schema}}.cutting_jobs WHERE id = ?"  # noqa: S608
    return desk.cutting.tables.read(statement, job_id)[0]


@pytest.mark.shows("C-109")
def test_people_look_with_sql_alone(desk: Desk, tmp_path: Path) -> None:
    desk.know()
    job_id = hold_for_operator(desk)
    with sqlite3.connect(f"file:{tmp_path / 'cutting.db'}?mode=ro", uri=True) as db:
        columns = "order_id, state, error_code, opti_mode"
        rows = db.execute(f"SELECT {columns} FROM cutting_jobs").fetchall()  # noqa: S608
        assert rows == [("S-1", "HOLD", TRIGGER, "C")]
        events = db.execute("SELECT event_type FROM audit_events WHERE job_id = ?", (job_id,))
        assert [kind for (kind,) in events] == list_events(desk, job_id)
        slots = db.execute("SELECT limit_name, n FROM slots WHERE of_state = 1").fetchall()
        assert slots == [], "no job is in OPTI_RUNNING"
        (key,) = db.execute("SELECT key FROM dedup WHERE flow = 'cutting'").fetchone()
        assert key == get(desk, job_id)["payload_hash"]
    db.close()


@pytest.mark.shows("C-15")
def test_rules_that_change_later_change_nothing_of_a_prepared_order(any_desk: Desk) -> None:
    desk = any_desk
    first, jobs = hold_for_operator(desk, order_id="first"), desk.cutting.jobs
    read = "SELECT rules_hash, settings_json FROM {schema}.cutting_orders WHERE job_id = ?"
    before = desk.cutting.tables.read(read, first)
    (imported,) = find_imports(desk, first)
    content = imported.read_bytes()
    assert before[0][0] == desk.cutting.config.rules().version
    rules = desk.cutting.config.rules().document()
    trims = {**rules["trimByThickness"], "18": 7}
    told = jobs.configure("rules", {**rules, "trimByThickness": trims}, actor="carol")
    assert told["trimByThickness"]["18"] == 7
    write_plans(desk, first)
    imported.unlink()
    approve(desk, first)
    assert imported.read_bytes() == content, "it is made as it was prepared"
    second = hold_for_operator(desk, order_id="second")
    after = desk.cutting.tables.read(read, second)
    assert desk.cutting.tables.read(read, first) == before
    assert after[0][0] == desk.cutting.config.rules().version != before[0][0]
    changes = "SELECT actor, name, values_json FROM {schema}.cutting_changes"
    (actor, name, values) = desk.cutting.tables.read(changes)[0]
    assert (actor, name) == ("carol", "rules")
    assert json.loads(values)["trimByThickness"]["18"] == 7


def test_a_change_of_the_rules_that_cannot_be_told_is_taken_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = desk.cutting.config.rules()

    def refuse(*arguments: object) -> None:
        raise ulak.StoreError("the disk is full")

    monkeypatch.setattr(type(desk.cutting.tables), "execute", refuse)
    changed = {**before.document(), "language": "tr"}
    with pytest.raises(ulak.StoreError):
        desk.cutting.jobs.configure("rules", changed, actor="carol")
    assert desk.cutting.config.rules() == before
