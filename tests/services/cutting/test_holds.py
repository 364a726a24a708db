"""What waits for a person: an unknown customer, an operator who runs the optimiser."""

import json
import os
from collections.abc import Callable

import pytest

from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import PHONE_NORMALIZED, make_back, make_part
from tests.services.cutting.steps import (
    PLAN,
    TRIGGER,
    approve,
    find_details,
    find_entries,
    find_imports,
    find_state,
    get,
    hold_for_operator,
    list_events,
    submit,
    write_plans,
)
from ulak.services.cutting.flow import UPKEEP
from ulak.services.cutting.optimise.model import CHECKPOINT

Open = Callable[..., Desk]


@pytest.mark.shows("C-18")
def test_an_unknown_customer_holds_the_order_until_there_is_a_record(desk: Desk) -> None:
    job_id = submit(desk)
    desk.work()
    assert find_state(desk, job_id) == ("HOLD", "E_CRM_NO_MATCH")
    (details,) = find_details(desk, job_id, "STATE_HOLD")
    assert details["phone_normalized"] == PHONE_NORMALIZED
    assert details["errorCode"] == "E_CRM_NO_MATCH"
    assert details["reason"] == get(desk, job_id)["error_message"]
    assert not find_imports(desk, job_id)
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("HOLD", "E_CRM_NO_MATCH"), "nobody has made the record"
    assert not find_imports(desk, job_id)
    desk.know()
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("HOLD", TRIGGER), "it went through"
    assert len(find_imports(desk, job_id)) == 1


@pytest.mark.shows("C-40")
def test_mode_c_asks_the_operator_once(any_desk: Desk) -> None:
    desk = any_desk
    job_id = hold_for_operator(desk, make_part(), make_back())
    assert find_entries(desk, job_id)[-1] == ("OPTI_IMPORTED", "HOLD")
    assert get(desk, job_id)["manual_trigger_approved"] == 0
    files = find_imports(desk, job_id)
    assert len(files) == 2
    # Whatever the operator's program has done with a file, it stays as it is.
    files[0].write_bytes(b"saved by a program of the operator")
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    write_plans(desk, job_id)
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("DONE", None)
    assert get(desk, job_id)["manual_trigger_approved"] == 1
    assert list_events(desk, job_id).count("STATE_HOLD") == 1
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before


@pytest.mark.shows("C-40")
def test_only_a_retry_after_a_plan_that_never_came_asks_the_operator_again(desk: Desk) -> None:
    desk.know()
    desk.change(retry_backoff_minutes=[0], timeouts={"optiXmlMinutes": 0.001, "osiAckMinutes": 5})
    job_id, jobs = hold_for_operator(desk), desk.cutting.jobs
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    assert get(desk, job_id)["manual_trigger_approved"] == 1, "a failure alone clears nothing"
    jobs.retry(job_id, actor="ada")
    assert get(desk, job_id)["manual_trigger_approved"] == 0
    desk.work()
    assert find_state(desk, job_id) == ("HOLD", TRIGGER)
    # The engine's own release is the same approval.
    desk.engine.release(job_id, actor="ada")
    assert get(desk, job_id)["manual_trigger_approved"] == 1
    write_plans(desk, job_id)
    desk.change(timeouts={"optiXmlMinutes": 5, "osiAckMinutes": 0.001})
    with desk.engine.working():
        assert desk.engine.wait(job_id, timeout=30).code == "E_OSI_ACK_TIMEOUT"
    desk.change(timeouts={"optiXmlMinutes": 5, "osiAckMinutes": 5})
    (gone,) = (desk.cutting.config.paths().drop_folder / "inbox").glob("*.xml")
    gone.unlink()
    jobs.retry(job_id, actor="ada")
    assert get(desk, job_id)["manual_trigger_approved"] == 1
    desk.work()
    assert find_state(desk, job_id) == ("HOLD", "E_OSI_STATE_UNKNOWN")
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("DONE", None)
    assert get(desk, job_id)["manual_trigger_approved"] == 1, "another approval leaves it alone"


def keep_up(desk: Desk) -> None:
    """Run what is run every minute, now."""
    desk.engine.schedules.run(UPKEEP)
    desk.work()


@pytest.mark.shows("C-41")
def test_a_held_job_goes_on_by_itself_when_every_plan_has_come_if_the_rules_say_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ulak.services.cutting.flow.WATCHES_S", 0.01)
    monkeypatch.setattr("ulak.services.cutting.flow.WATCH_EVERY_S", 0.01)
    desk.know()
    job_id = hold_for_operator(desk, make_part(), make_back())
    write_plans(desk, job_id)
    keep_up(desk)
    assert find_state(desk, job_id) == ("HOLD", TRIGGER), "it is off by default"
    desk.change(autoContinueC=True)
    folder = desk.cutting.config.paths().export_folder
    first, second = sorted(folder.glob("*.xml"))
    second.rename(folder / "not yet")
    keep_up(desk)
    assert find_state(desk, job_id) == ("HOLD", TRIGGER), "a batch has no plan"
    second.write_text("<Plan/>")
    keep_up(desk)
    assert find_state(desk, job_id) == ("HOLD", TRIGGER), "a plan is not valid"
    (folder / "not yet").rename(second)
    os.utime(first, (1, 1))
    keep_up(desk)
    assert find_state(desk, job_id) == ("HOLD", TRIGGER), "a plan is older than the attempt"
    os.utime(first)
    keep_up(desk)
    assert find_state(desk, job_id) == ("DONE", None)
    assert get(desk, job_id)["manual_trigger_approved"] == 1
    (line,) = (e for e in desk.cutting.jobs.audit(job_id) if e["event_type"] == "HOLD_APPROVED")
    assert line["actor"] == "export-folder"
    assert json.loads(line["details_json"]) == {"mode_c_approved": True}
    assert ("HOLD", "NEW") in find_entries(desk, job_id)


def test_files_of_an_order_go_when_their_days_are_over_and_those_of_a_held_one_stay(
    desk: Desk,
) -> None:
    desk.know()
    held, done = hold_for_operator(desk), hold_for_operator(desk, order_id="S-2")
    write_plans(desk, done)
    approve(desk, done)
    assert find_state(desk, done) == ("DONE", None)
    plans = desk.cutting.config.paths().export_folder
    stray = plans / "of somebody else.xml"
    stray.write_text(PLAN)
    # Of a run of the optimiser that was killed.
    for plan in plans.glob(f"{done}*.xml"):
        plan.with_suffix(CHECKPOINT).write_text("{}")
    assert list(plans.glob(f"*{CHECKPOINT}"))
    keep_up(desk)
    assert find_imports(desk, done), "they are kept for 30 days"
    desk.change(keepFilesDays=1e-9)
    kept = find_imports(desk, held)
    keep_up(desk)
    assert not find_imports(desk, done)
    assert not list(plans.glob(f"*{CHECKPOINT}"))
    assert list(plans.glob("*.xml")) == [stray], "its plan is gone, what nobody knows is not"
    assert find_imports(desk, held) == kept
    assert len(kept) == 1
