"""The same order is one job, and one runner at a time has it."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.services.cutting import children
from tests.services.cutting.children import LEASE_S
from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import make_order, make_part
from tests.services.cutting.steps import (
    approve,
    find_imports,
    find_state,
    get,
    hold_for_operator,
    list_events,
    submit,
    write_plans,
)
from ulak import StaleJob, WorkerSettings
from ulak.errors import BadInput
from ulak.services.cutting.flow import Stages
from ulak.services.cutting.order import payload_hash
from ulak.testing import faults

CROWD = 50


@pytest.mark.shows("C-77")
def test_the_same_order_in_other_words_is_the_same_job(any_desk: Desk) -> None:
    desk = any_desk
    first = submit(desk, make_part(thickness_mm=18))
    again = submit(desk, make_part(thickness_mm=18.0, edge_up=None, unknown="key"))
    assert first == again
    assert get(desk, first)["payload_hash"] == payload_hash(desk.engine.inspect.payload(first))
    assert list_events(desk, first) == ["JOB_CREATED", "STATE_NEW", "JOB_DEDUP"]
    assert submit(desk, make_part(thickness_mm=25)) != first
    assert desk.cutting.jobs.list()[1] == 2


@pytest.mark.shows("C-78")
def test_many_identical_orders_at_once_make_one_job(any_desk: Desk) -> None:
    with ThreadPoolExecutor(CROWD) as threads:
        ids = list(threads.map(lambda _: submit(any_desk), range(CROWD)))
    assert len(set(ids)) == 1
    assert list_events(any_desk, ids[0]).count("JOB_DEDUP") == CROWD - 1


@pytest.mark.shows("C-78")
def test_an_order_may_come_again_when_its_job_has_failed_for_good(desk: Desk) -> None:
    desk.know()
    desk.change(retry_count_max=1, retry_backoff_minutes=[0])
    failed, jobs = submit(desk, opti_mode="A"), desk.cutting.jobs
    desk.work()
    assert submit(desk, opti_mode="A") == failed, "a retry may still mend it"
    jobs.retry(failed, actor="ada")
    desk.work()
    assert submit(desk, opti_mode="A") != failed, "its retries are spent"
    permanent = hold_for_operator(desk)
    write_plans(desk, permanent, "no XML")
    approve(desk, permanent)
    assert submit(desk) != permanent, "no retry helps"
    cancelled = submit(desk, order_id="other")
    jobs.cancel(cancelled, actor="ada")
    assert submit(desk, order_id="other") != cancelled
    done = hold_for_operator(desk, order_id="done")
    write_plans(desk, done)
    approve(desk, done)
    assert find_state(desk, done) == ("DONE", None)
    assert submit(desk, order_id="done") == done, "what was cut is not cut again"


@pytest.mark.shows("C-78")
def test_a_revision_is_another_order_whose_files_say_so(desk: Desk) -> None:
    desk.know()
    first, second = (hold_for_operator(desk, revision=n) for n in (1, 2))
    assert first != second
    for job_id, mark in [(first, "_r01.xlsx"), (second, "_r02.xlsx")]:
        (imported,) = find_imports(desk, job_id)
        assert imported.name.endswith(mark)
    write_plans(desk, second)
    approve(desk, second)
    assert find_state(desk, second) == ("DONE", None)


@pytest.mark.parametrize(
    "payload", [make_order(), "text", [], {"order_id": "1"}, {**make_order(), "opti_mode": "Z"}]
)
def test_an_order_that_was_not_checked_is_no_job(desk: Desk, payload: Any) -> None:
    flow = next(flow for flow in desk.engine.inspect.flows if flow.name == "cutting")
    with pytest.raises((BadInput, Exception), match=r"not checked|parts|write an object|opti_mode"):
        desk.engine.submit(flow, payload)
    assert desk.cutting.jobs.list() == ([], 0)


@pytest.mark.shows("C-68", "C-69", "C-71")
def test_a_job_of_a_vanished_runner_waits_for_its_lease_and_keeps_nobody_waiting(
    any_desk: Desk, url: str
) -> None:
    desk = any_desk
    lost = submit(desk, order_id="lost")
    desk.engine.close()
    died_at = time.monotonic()
    # In NEW, the first; in PREPARED, the second commit of a run.
    assert faults.run(children.work, url, desk.folder, kill_at="commit.inside", nth=2).killed
    again = Desk(url, desk.folder)
    with again.engine:
        behind = submit(again, order_id="behind")
        assert again.engine.get(lost).leased_by is not None
        assert again.engine.worker().take(lost) is None, "the lease still holds"
        with again.saw(), again.engine.working(WorkerSettings(lease=LEASE_S)):
            again.engine.wait(behind, until="HOLD", timeout=30)
            again.engine.wait(lost, until="HOLD", timeout=LEASE_S + 5)
        assert time.monotonic() - died_at < LEASE_S + 10
        assert "LEASE_EXPIRED" in list_events(again, lost)
        assert len(find_imports(again, lost)) == 1


@pytest.mark.shows("C-69")
def test_a_runner_that_has_lost_its_lease_cannot_write(any_desk: Desk) -> None:
    desk = any_desk
    job_id = submit(desk)
    slow = desk.engine.worker(WorkerSettings(lease=LEASE_S)).take(job_id, name="slow")
    assert slow is not None
    slow._lease.stop()
    desk.work()
    with desk.engine.working(WorkerSettings(lease=LEASE_S)):
        desk.engine.wait(job_id, until="HOLD", timeout=30)
    assert desk.engine.worker().take(job_id) is None
    with pytest.raises(StaleJob):
        slow.finish()
    assert find_state(desk, job_id)[0] == "HOLD"


@pytest.mark.shows("C-68")
def test_orders_are_taken_when_they_are_due_and_then_in_their_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    real = Stages.prepare

    def prepare(self: Stages, run: Any) -> Any:
        taken.append(run.payload["order_id"])
        return real(self, run)

    monkeypatch.setattr(Stages, "prepare", prepare)
    desk = Desk(f"sqlite:///{desk.folder.parent / 'other.db'}", desk.folder)
    ids = [submit(desk, order_id=name) for name in ("first", "second", "third")]
    desk.engine.cancel(ids[1], actor="ada")
    later = desk.engine.submit(
        next(flow for flow in desk.engine.inspect.flows if flow.name == "cutting"),
        desk.engine.inspect.payload(ids[1]), after=3600, actor="ada",
    )  # fmt: skip
    asyncio.run(desk.engine.worker(WorkerSettings(threads=1)).run(until_idle=True))
    assert taken == ["first", "third"], "what is not due is no candidate"
    assert find_state(desk, later.id) == ("NEW", None)
    # What is held comes back as of the moment of its approval.
    taken.clear()
    desk.cutting.jobs.approve(ids[2], actor="ada")
    desk.cutting.jobs.approve(ids[0], actor="ada")
    asyncio.run(desk.engine.worker(WorkerSettings(threads=1)).run(until_idle=True))
    assert taken == ["third", "first"]
    desk.engine.close()
