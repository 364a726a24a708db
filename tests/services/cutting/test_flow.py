"""An order goes through ten states, and only as the table says."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import make_back, make_part
from tests.services.cutting.steps import (
    MISSING,
    PATH,
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
from tests.services.publishing.site import eventually
from ulak import TransitionNotAllowed
from ulak.services.cutting import flow as module
from ulak.services.cutting.codes import JobNotFound, Refused
from ulak.services.cutting.saw import LEDGER

OTHERS = ("HOLD", "FAILED")


def find_flow(desk: Desk) -> Any:
    return next(flow for flow in desk.engine.inspect.flows if flow.name == "cutting")


def must_refuse(code: str, verb: Callable[..., object], job_id: str) -> None:
    with pytest.raises(Refused) as refused:
        verb(job_id, actor="ada")
    assert refused.value.code == code


@pytest.mark.shows("C-55", "C-60")
def test_an_order_in_mode_e_goes_from_submit_to_done(any_desk: Desk) -> None:
    job_id = submit(any_desk, make_part(), make_back(), opti_mode="E")
    assert find_state(any_desk, job_id) == ("NEW", None)
    with any_desk.saw() as saw, any_desk.engine.working():
        assert any_desk.engine.wait(job_id, timeout=60).state == "DONE"
    assert set(find_flow(any_desk).table.places) == {*PATH, *OTHERS}, "no eleventh state"
    assert find_entries(any_desk, job_id) == [
        (None, "NEW"), *pairwise(PATH),
    ]  # fmt: skip
    assert list_events(any_desk, job_id) == [
        "JOB_CREATED", "STATE_NEW", "STATE_PREPARED", "STATE_OPTI_IMPORTED", "STATE_OPTI_RUNNING",
        "OPTI_RUNNER_ENDED", "STATE_OPTI_DONE", "STATE_XML_READY", "DELIVERY_INTENT",
        "ACK", "DELIVERY_INTENT", "ACK", "STATE_DELIVERED", "STATE_DONE",
    ]  # fmt: skip
    assert len((saw.folder / LEDGER).read_text().splitlines()) == 2, "each batch is cut once"
    assert get(any_desk, job_id)["manual_trigger_approved"] == 0
    assert any_desk.engine.inspect.verify() == []


@pytest.mark.shows("C-61")
def test_the_store_knows_no_other_moves_than_those_of_the_table(desk: Desk) -> None:
    legal = set(find_flow(desk).table.legal)
    path = set(pairwise(PATH))
    stops = {(state, stop) for state in PATH[:-1] for stop in OTHERS}
    others = {("HOLD", "NEW"), ("FAILED", "NEW"), ("HOLD", "FAILED")}
    assert legal == path | stops | others


@pytest.mark.shows("C-61")
def test_data_that_cannot_be_used_is_found_before_prepared(desk: Desk) -> None:
    unknown = submit(desk)
    desk.work()
    assert find_state(desk, unknown) == ("HOLD", "E_CRM_NO_MATCH")
    assert find_entries(desk, unknown) == [(None, "NEW"), ("NEW", "HOLD")]
    desk.know()
    asked = hold_for_operator(desk, order_id="asked")
    assert find_entries(desk, asked)[-1] == ("OPTI_IMPORTED", "HOLD")


@pytest.mark.shows("C-61")
def test_done_is_final(desk: Desk) -> None:
    desk.know()
    job_id = hold_for_operator(desk)
    write_plans(desk, job_id)
    approve(desk, job_id)
    assert find_state(desk, job_id) == ("DONE", None)
    jobs = desk.cutting.jobs
    for verb, code in [
        (jobs.retry, "not_failed"), (jobs.approve, "not_in_hold"), (jobs.cancel, "finished"),
    ]:  # fmt: skip
        must_refuse(f"e_job_{code}", verb, job_id)
    for verb in (desk.engine.release, desk.engine.retry, desk.engine.cancel, desk.engine.expire):
        with pytest.raises(TransitionNotAllowed):
            verb(job_id, actor="ada")
    assert find_state(desk, job_id) == ("DONE", None)


@pytest.mark.shows("C-62")
def test_a_code_of_a_hold_waits_a_permanent_one_refuses_and_a_transient_one_allows_a_retry(
    desk: Desk,
) -> None:
    desk.know()
    desk.change(timeouts={"optiXmlMinutes": 0.001, "osiAckMinutes": 5})
    jobs = desk.cutting.jobs
    held = hold_for_operator(desk, order_id="held")
    must_refuse("e_job_not_failed", jobs.retry, held)
    write_plans(desk, held, "<Plan/>")
    approve(desk, held)
    assert find_state(desk, held) == ("FAILED", "E_XML_INVALID")
    must_refuse("e_xml_invalid", jobs.retry, held)
    transient = hold_for_operator(desk, order_id="transient")
    approve(desk, transient)
    assert find_state(desk, transient) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    must_refuse("e_job_not_in_hold", jobs.approve, transient)
    assert jobs.retry(transient, actor="ada") == 1
    assert find_state(desk, transient) == ("NEW", None)


class StrayError(Exception):
    code = "23505"


@pytest.mark.shows("C-63")
def test_what_nobody_foresaw_is_e_unknown_with_its_text(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.know()

    def fail(*arguments: Any, **options: Any) -> None:
        raise StrayError("duplicate key")

    monkeypatch.setattr(module, "check_template", fail)
    job_id = submit(desk)
    desk.work()
    job = get(desk, job_id)
    assert (job["state"], job["error_code"]) == ("FAILED", "E_UNKNOWN")
    assert job["error_message"] == "StrayError: duplicate key"
    assert find_details(desk, job_id, "STATE_FAILED") == [
        {"errorCode": "E_UNKNOWN", "reason": "StrayError: duplicate key"}
    ]
    assert desk.cutting.jobs.retry(job_id, actor="ada") == 1, "it is a transient one"


@pytest.mark.shows("C-64")
def test_only_an_operator_retries_as_often_and_as_late_as_the_rules_say(desk: Desk) -> None:
    desk.know()
    desk.change(retry_count_max=3, retry_backoff_minutes=[0.001, 0.002])
    job_id, jobs = submit(desk, opti_mode="A"), desk.cutting.jobs
    for count, minutes in [(1, 0.001), (2, 0.002), (3, 0.002)]:
        desk.cutting.breaker.reset("ada")
        desk.work()
        assert find_state(desk, job_id) == ("FAILED", MISSING)
        assert list_events(desk, job_id).count("STATE_FAILED") == count, "nothing retries by itself"
        assert jobs.retry(job_id, actor="ada") == count
        job = get(desk, job_id)
        assert (job["state"], job["error_code"], job["error_message"]) == ("NEW", None, None)
        told = find_details(desk, job_id, "JOB_RETRY_SCHEDULED")[-1]
        due = job["next_run_at"]
        assert told == {"retry_count": count, "backoff_minutes": minutes, "next_run_at": due}
        eventually(lambda: desk.engine.inspect.why(job_id).code != "delayed")
    desk.cutting.breaker.reset("ada")
    desk.work()
    must_refuse("e_retry_limit_reached", jobs.retry, job_id)
    with pytest.raises(TransitionNotAllowed, match="retried 3 times"):
        desk.engine.retry(job_id, actor="ada")


def test_the_minutes_of_the_rules_are_1_3_and_9(desk: Desk) -> None:
    retry = find_flow(desk).operator_retry
    minutes = [delay and delay / 60e6 for delay in (retry.delay_us(n, b"") for n in range(1, 5))]
    assert minutes == [1, 3, 9, None]
    (desk.folder / "cutting" / "rules.json").unlink()
    assert retry.limit() == 3, "a job ends also while there are no rules"


@pytest.mark.shows("C-65")
def test_after_a_refusal_of_the_saw_the_same_plan_is_sent_again(any_desk: Desk) -> None:
    desk = any_desk
    desk.change(retry_backoff_minutes=[0])
    job_id = hold_for_operator(desk)
    write_plans(desk, job_id)
    (imported,) = find_imports(desk, job_id)
    before = imported.stat()
    desk.cutting.jobs.approve(job_id, actor="ada")
    with desk.saw(wrong=1.0), desk.engine.working():
        assert desk.engine.wait(job_id, timeout=30).state == "FAILED"
    assert find_state(desk, job_id) == ("FAILED", "E_OSI_ACK_FAILED")
    desk.cutting.jobs.retry(job_id, actor="ada")
    desk.work()
    assert find_state(desk, job_id) == ("DONE", None)
    names = [row.file_name for row in desk.cutting.deliveries.find(job_id)]
    assert [name[-7:] for name in names] == ["_d1.xml", "_d2.xml"]
    assert list_events(desk, job_id).count("STATE_HOLD") == 1, "the operator is not asked again"
    assert imported.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.shows("C-65")
def test_after_a_failure_of_the_optimiser_it_runs_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.know()
    desk.change(retry_backoff_minutes=[0], timeouts={"optiXmlMinutes": 0.001, "osiAckMinutes": 5})
    runs: list[str] = []

    async def run_mode(mode: str, files: list[Path], **options: Any) -> str:
        runs.append(mode)
        if len(runs) == 2:
            write_plans(desk, job_id)
        return ""

    monkeypatch.setattr(module, "run_mode", run_mode)
    job_id = submit(desk, opti_mode="A")
    desk.work()
    assert find_state(desk, job_id) == ("FAILED", "E_OPTI_XML_TIMEOUT")
    desk.cutting.jobs.retry(job_id, actor="ada")
    desk.work()
    assert find_state(desk, job_id) == ("DONE", None)
    assert runs == ["A", "A"]


@pytest.mark.shows("C-52")
def test_a_plan_of_mode_e_that_is_not_the_order_is_not_sent_to_the_saw(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.know()
    real = module.run_mode

    async def run_mode(mode: str, files: list[Path], *, paths: Any, **options: Any) -> str:
        output = await real(mode, files, paths=paths, **options)
        (plan,) = paths.export_folder.glob("*.xml")
        plan.write_text(plan.read_text().replace('x="10.00"', 'x="11.00"', 1))
        return output

    monkeypatch.setattr(module, "run_mode", run_mode)
    job_id = submit(desk, make_part(), opti_mode="E")
    desk.work()
    assert find_state(desk, job_id) == ("FAILED", "E_PLAN_INVALID")
    assert "sheet 1" in get(desk, job_id)["error_message"]
    with pytest.raises(Refused):
        desk.cutting.jobs.retry(job_id, actor="ada")


@pytest.mark.shows("C-65")
def test_retries_can_be_left_to_the_rules(desk: Desk) -> None:
    desk.know()
    desk.change(autoRetry=True, retry_backoff_minutes=[0], retry_count_max=2)
    job_id = submit(desk, opti_mode="A")
    desk.work()
    assert find_state(desk, job_id) == ("FAILED", MISSING)
    assert get(desk, job_id)["retry_count"] == 2, "as often as an operator might"
    actors = {e.actor for e in desk.engine.inspect.trail(job_id) if e.kind == "retried"}
    assert actors == {"auto-retry"}


@pytest.mark.shows("C-66")
def test_an_approval_leads_to_new_at_once_and_sets_the_flag_only_for_the_operators_hold(
    desk: Desk,
) -> None:
    job_id, jobs = submit(desk), desk.cutting.jobs
    must_refuse("e_job_not_in_hold", jobs.approve, job_id)
    desk.work()
    assert find_state(desk, job_id) == ("HOLD", "E_CRM_NO_MATCH")
    desk.know()
    job = jobs.approve(job_id, actor="ada")
    assert (job["state"], job["error_code"], job["manual_trigger_approved"]) == ("NEW", None, 0)
    assert job["next_run_at"] == job["updated_at"]
    desk.work()
    assert find_state(desk, job_id) == ("HOLD", TRIGGER)
    assert jobs.approve(job_id, actor="ada")["manual_trigger_approved"] == 1
    assert find_details(desk, job_id, "HOLD_APPROVED") == [
        {"mode_c_approved": False}, {"mode_c_approved": True},
    ]  # fmt: skip
    for absent in ("0197f2f4-9d5e-7cc0-b6b3-3f2a6f1f7c11", "no-id"):
        with pytest.raises(JobNotFound):
            jobs.approve(absent, actor="ada")


@pytest.mark.shows("C-67")
@pytest.mark.parametrize("by", ["service", "engine"])
def test_a_job_is_cancelled_wherever_it_stands(desk: Desk, by: str) -> None:
    desk.know()
    verb = desk.cutting.jobs.cancel if by == "service" else desk.engine.cancel
    new, held = submit(desk, order_id="new"), hold_for_operator(desk, order_id="held")
    running = hold_for_operator(desk, order_id="running")
    behind = hold_for_operator(desk, order_id="behind")
    (imported,) = find_imports(desk, running)
    with desk.engine.working():
        desk.cutting.jobs.approve(running, actor="ada")
        eventually(lambda: find_state(desk, running)[0] == "OPTI_RUNNING")
        desk.cutting.jobs.approve(behind, actor="ada")
        eventually(lambda: desk.engine.inspect.why(behind).code == "parked")
        for job_id in (new, held, running):
            verb(job_id, actor="ada")
        assert desk.engine.wait(running, timeout=5).state == "FAILED"
        eventually(lambda: find_state(desk, behind)[0] == "OPTI_RUNNING")
        eventually(lambda: not imported.exists())
    for job_id in (new, held, running):
        assert find_state(desk, job_id) == ("FAILED", "E_CANCELLED")
        assert list_events(desk, job_id)[-2:] == ["JOB_CANCELLED", "STATE_FAILED"]
        must_refuse("e_cancelled", desk.cutting.jobs.retry, job_id)
        must_refuse("e_job_finished", desk.cutting.jobs.cancel, job_id)


@pytest.mark.shows("C-67")
def test_a_cancelled_job_leaves_nothing_for_the_saw(any_desk: Desk) -> None:
    desk = any_desk
    job_id = hold_for_operator(desk)
    write_plans(desk, job_id)
    desk.cutting.jobs.approve(job_id, actor="ada")
    inbox = desk.cutting.config.paths().drop_folder / "inbox"
    with desk.engine.working():
        eventually(lambda: list(inbox.glob("*.xml")))
        assert desk.cutting.jobs.cancel(job_id, actor="ada")["error_code"] == "E_CANCELLED"
        eventually(lambda: "DELIVERY_WITHDRAWN" in list_events(desk, job_id))
    assert not list(inbox.iterdir())
    assert not find_imports(desk, job_id)
