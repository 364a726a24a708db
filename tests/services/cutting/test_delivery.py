"""Plans on their way to the saw: placed whole, at most once, and followed to its answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.cutting.dispatch import (
    POLL_S,
    Dispatch,
    FakeRun,
    deliver,
    delivering,
    look,
    wait_until,
)
from ulak import Stopped
from ulak.kit import threads
from ulak.kit.clock import now
from ulak.services.cutting import delivery
from ulak.services.cutting.codes import CuttingError, HoldCode
from ulak.services.cutting.delivery import Deliveries, Delivery
from ulak.store import faults


@pytest.fixture
def dispatch(tmp_path: Path) -> Iterator[Dispatch]:
    made = Dispatch(f"sqlite:///{tmp_path / 'cutting.db'}", tmp_path)
    yield made
    made.close()


@pytest.fixture
def stored(url: str, tmp_path: Path) -> Iterator[Dispatch]:
    """The same on either database."""
    made = Dispatch(url, tmp_path)
    yield made
    made.close()


# --- placing -------------------------------------------------------------------------------


@pytest.mark.shows("C-53", "C-56")
def test_a_plan_is_stored_as_an_intent_and_then_appears_whole_under_its_own_name(
    dispatch, monkeypatch
):
    (plan,) = dispatch.make_plans("job1_GOVDE")
    job = dispatch.submit(plan)
    seen: dict[str, tuple[list[str], list[tuple[int, int, str]]]] = {}

    def handle(point: str) -> None:
        if point.startswith("cutting."):
            seen.setdefault(point, (dispatch.names("inbox"), dispatch.rows(job)))

    monkeypatch.setattr(faults, "handler", handle)
    assert not (dispatch.drop / "inbox").exists()
    look(dispatch, FakeRun(dispatch, job), plan)
    assert [dispatch.names(place) for place in ("processed", "failed")] == [[], []]
    assert seen["cutting.delivery.write.before"] == ([], [])
    (temporary,) = seen["cutting.delivery.intent.before"][0]
    assert temporary.startswith("job1_GOVDE_d1.xml.")
    assert temporary.endswith(".tmp")
    assert seen["cutting.delivery.intent.before"][1] == []
    assert seen["cutting.delivery.place.before"] == ([temporary], [(0, 1, "intent")])
    assert seen["cutting.delivery.place.after"] == (["job1_GOVDE_d1.xml"], [(0, 1, "intent")])
    placed = dispatch.drop / "inbox" / "job1_GOVDE_d1.xml"
    assert placed.read_bytes() == plan.path.read_bytes()
    (row,) = dispatch.find(job)
    assert (row.file_name, row.sha256) == ("job1_GOVDE_d1.xml", plan.sha256)


def test_a_plan_that_has_changed_is_not_delivered_and_one_that_is_gone_is_waited_for(dispatch):
    changed, gone = dispatch.make_plans("changed", "gone")
    changed.path.write_text("<Plan><Part>another</Part></Plan>")
    gone.path.unlink()
    told = (
        (changed, "E_UNKNOWN", "has changed since it was checked"),
        (gone, "E_OSI_ACK_TIMEOUT", r"No such file or directory: .*gone\.xml"),
    )
    for plan, code, why in told:
        job = dispatch.submit(plan)
        with pytest.raises(CuttingError, match=why) as raised:
            deliver(dispatch, FakeRun(dispatch, job), plan, patience_s=0.1)
        assert raised.value.code == code
        assert dispatch.rows(job) == []
        assert list(dispatch.drop.glob("inbox/*")) == []


# --- the answer ----------------------------------------------------------------------------


@pytest.mark.shows("C-54")
def test_a_plan_in_processed_and_gone_from_the_inbox_is_acknowledged_and_a_copy_is_not(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    run = FakeRun(dispatch, job)
    look(dispatch, run, plan)
    (dispatch.drop / "processed" / "a_d1.xml").write_bytes(plan.path.read_bytes())
    look(dispatch, run, plan, times=4)
    assert dispatch.rows(job) == [(0, 1, "intent")]
    (dispatch.drop / "inbox" / "a_d1.xml").unlink()
    (done,) = deliver(dispatch, run, plan)
    assert (done.state, done.file_name, done.sha256) == ("acked", "a_d1.xml", plan.sha256)


@pytest.mark.shows("C-54")
def test_a_plan_in_failed_is_refused(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    dispatch.move("a_d1.xml", to="failed")
    for _ in range(2):  # also when the runner died before it could say so
        with pytest.raises(CuttingError, match=r"refused a_d1\.xml") as raised:
            deliver(dispatch, FakeRun(dispatch, job), plan)
        assert raised.value.code == "E_OSI_ACK_FAILED"
    assert dispatch.rows(job) == [(0, 1, "failed")]


@pytest.mark.shows("C-54")
@pytest.mark.parametrize("place", ["inbox", "nowhere"])
def test_a_plan_without_an_answer_is_given_up_at_the_deadline(dispatch, monkeypatch, place):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    if place == "nowhere":
        (dispatch.drop / "inbox" / "a_d1.xml").unlink()
    looks: list[float] = []
    find = delivery._find_places

    def count(folder: Path, name: str) -> set[str]:
        looks.append(time.monotonic())
        return find(folder, name)

    monkeypatch.setattr(delivery, "_find_places", count)
    with pytest.raises(CuttingError, match=r"not answered a\.xml in time$") as raised:
        deliver(dispatch, FakeRun(dispatch, job), plan, patience_s=POLL_S * 6)
    assert raised.value.code == "E_OSI_ACK_TIMEOUT"
    assert dispatch.rows(job) == [(0, 1, "intent")]
    # It is polled: first more often, then once in the seconds of a poll.
    assert 4 <= len(looks) <= 12
    assert looks[-1] - looks[-2] >= POLL_S


@pytest.mark.shows("C-54", "C-70")
def test_an_answer_that_came_while_no_runner_was_there_counts_after_the_deadline_too(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    dispatch.move("a_d1.xml", to="processed")
    (done,) = deliver(dispatch, FakeRun(dispatch, job), plan, patience_s=-60.0)
    assert done.state == "acked"


def test_a_saw_that_says_both_is_looked_at_by_a_person(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    dispatch.move("a_d1.xml", to="processed")
    (dispatch.drop / "failed" / "a_d1.xml").write_text("also refused")
    for _ in range(2):
        with pytest.raises(HoldCode) as raised:
            deliver(dispatch, FakeRun(dispatch, job), plan)
        assert raised.value.details == {"files": ["a_d1.xml"]}
    assert dispatch.rows(job) == [(0, 1, "unknown")]


# --- once ----------------------------------------------------------------------------------


@pytest.mark.shows("C-56")
@pytest.mark.parametrize("place", ["inbox", "processed", "failed", "nowhere"])
def test_what_was_placed_before_a_crash_is_not_copied_again(dispatch, place):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    if place == "nowhere":
        (dispatch.drop / "inbox" / "a_d1.xml").unlink()
    elif place != "inbox":
        dispatch.move("a_d1.xml", to=place)
    after = FakeRun(dispatch, job)
    if place == "processed":
        deliver(dispatch, after, plan)
    elif place == "failed":
        with pytest.raises(CuttingError):
            deliver(dispatch, after, plan)
    else:
        look(dispatch, after, plan, times=3)
    assert dispatch.names("inbox") == (["a_d1.xml"] if place == "inbox" else [])
    assert len(dispatch.rows(job)) == 1


@pytest.mark.shows("C-56", "C-73")
def test_of_many_runners_that_have_one_job_one_places_its_plan(stored):
    for n in range(5):
        plans = stored.make_plans(f"a{n}", f"b{n}")
        job = stored.submit(*plans)

        async def race(job: str = job, plans: Any = plans) -> list[list[Delivery]]:
            runs = (delivering(stored, FakeRun(stored, job), *plans) for _ in range(8))
            return await asyncio.gather(*runs)

        with stored.sawing():
            found = asyncio.run(race())
        assert all(done == found[0] for done in found)
        assert stored.rows(job) == [(0, 1, "acked"), (1, 1, "acked")]
        assert stored.names("inbox") == []
    assert len(stored.cuts()) == len(set(stored.cuts())) == 10


@pytest.mark.shows("C-56", "C-69")
@pytest.mark.parametrize(("point", "rows"), [("intent", 1), ("place", 2)])
def test_a_runner_that_has_lost_its_job_places_nothing_any_more(dispatch, monkeypatch, point, rows):
    """Whether it wakes up before it stores its intent, or before it renames."""
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    asleep, awake = threading.Event(), threading.Event()

    def handle(passed: str) -> None:
        if passed == f"cutting.delivery.{point}.before":
            asleep.set()
            awake.wait()

    monkeypatch.setattr(faults, "handler", handle)
    old, ended = FakeRun(dispatch, job), list[str]()

    def live() -> None:
        look(dispatch, old, plan, times=2)
        ended.append("stopped")

    thread = threading.Thread(target=live)
    thread.start()
    asleep.wait()
    monkeypatch.setattr(faults, "handler", None)
    # An operator has retried meanwhile, the saw has cut, and the job is done.
    young = FakeRun(dispatch, job, round=2)
    look(dispatch, young, plan)
    (name,) = [name for name in dispatch.names("inbox") if name.endswith(".xml")]
    dispatch.move(name, to="processed")
    deliver(dispatch, young, plan)
    awake.set()
    thread.join()
    assert ended == ["stopped"]
    assert [name for name in dispatch.names("inbox") if name.endswith(".xml")] == []
    assert [state for _, _, state in dispatch.rows(job)][-1] == "acked"
    assert len(dispatch.rows(job)) == rows


# --- again ---------------------------------------------------------------------------------


@pytest.mark.shows("C-57")
def test_a_redelivery_has_a_fresh_name_and_the_old_file_is_withdrawn_before(stored):
    (plan,) = stored.make_plans("a")
    job = stored.submit(plan)
    look(stored, FakeRun(stored, job), plan)
    look(stored, FakeRun(stored, job, round=2), plan)
    assert stored.names("inbox") == ["a_d2.xml"]
    assert stored.rows(job) == [(0, 1, "withdrawn"), (0, 2, "intent")]
    stored.move("a_d2.xml", to="failed")
    with pytest.raises(CuttingError):
        deliver(stored, FakeRun(stored, job, round=2), plan)
    look(stored, FakeRun(stored, job, round=3), plan)
    assert stored.names("inbox") == ["a_d3.xml"]
    stored.move("a_d3.xml", to="processed")
    (done,) = deliver(stored, FakeRun(stored, job, round=3), plan)
    assert done.n == 3


@pytest.mark.shows("C-57")
@pytest.mark.parametrize("place", ["processed", "failed"])
def test_an_old_file_of_the_name_never_counts(dispatch, place):
    (plan,) = dispatch.make_plans("a")
    (dispatch.drop / place).mkdir()
    (dispatch.drop / place / "a_d1.xml").write_text("of another life")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan, times=3)
    assert dispatch.names("inbox") == ["a_d2.xml"]
    assert dispatch.rows(job) == [(0, 1, "intent")]


@pytest.mark.shows("C-57", "C-66")
def test_what_is_no_longer_in_the_inbox_is_held_and_sent_again_when_a_person_says_so(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    (dispatch.drop / "inbox" / "a_d1.xml").unlink()
    approved = now(dispatch.engine)
    for approved_at in (None, approved):  # an approval of before is none of this
        with pytest.raises(HoldCode) as raised:
            deliver(dispatch, FakeRun(dispatch, job, round=2, approved_at=approved_at), plan)
        assert raised.value.code == "E_OSI_STATE_UNKNOWN"
        assert dispatch.names("inbox") == []
    after = FakeRun(dispatch, job, round=2, approved_at=now(dispatch.engine))
    look(dispatch, after, plan)
    assert dispatch.names("inbox") == ["a_d2.xml"]
    # The approval was of the first file: what becomes of the second is to be asked again.
    (dispatch.drop / "inbox" / "a_d2.xml").unlink()
    third = FakeRun(dispatch, job, round=3, approved_at=now(dispatch.engine))
    with pytest.raises(HoldCode, match=r"a_d2\.xml"):
        deliver(dispatch, third, plan)


@pytest.mark.shows("C-57")
def test_a_crash_after_the_approval_does_not_need_another_one(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    (dispatch.drop / "inbox" / "a_d1.xml").unlink()
    with pytest.raises(HoldCode):
        deliver(dispatch, FakeRun(dispatch, job, round=2), plan)
    approved_at = now(dispatch.engine)
    for _ in range(2):
        look(dispatch, FakeRun(dispatch, job, round=2, approved_at=approved_at), plan)
        assert dispatch.names("inbox") == ["a_d2.xml"]


@pytest.mark.shows("C-57")
def test_a_refused_plan_that_was_cut_after_all_is_taken_and_a_second_one_withdrawn(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    dispatch.move("a_d1.xml", to="failed")
    with pytest.raises(CuttingError):
        deliver(dispatch, FakeRun(dispatch, job), plan)
    look(dispatch, FakeRun(dispatch, job, round=2), plan)
    dispatch.move("a_d1.xml", place="failed", to="processed")
    (done,) = deliver(dispatch, FakeRun(dispatch, job, round=3), plan)
    assert (done.file_name, dispatch.names("inbox")) == ("a_d1.xml", [])


@pytest.mark.parametrize("is_approved", [False, True])
def test_an_answer_that_comes_late_is_taken_instead_of_sending_again(dispatch, is_approved):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    approved_at = None
    if is_approved:
        (dispatch.drop / "inbox" / "a_d1.xml").rename(dispatch.drop / "on the table")
        with pytest.raises(HoldCode):
            deliver(dispatch, FakeRun(dispatch, job, round=2), plan)
        (dispatch.drop / "on the table").rename(dispatch.drop / "inbox" / "a_d1.xml")
        approved_at = now(dispatch.engine)
    dispatch.move("a_d1.xml", to="processed")
    (done,) = deliver(dispatch, FakeRun(dispatch, job, round=2, approved_at=approved_at), plan)
    assert (done.file_name, done.state) == ("a_d1.xml", "acked")
    assert dispatch.names("inbox") == []


@pytest.mark.shows("C-57")
def test_what_a_saw_has_copied_and_left_is_held_when_it_is_withdrawn(dispatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, job), plan)
    (dispatch.drop / "processed" / "a_d1.xml").write_bytes(plan.path.read_bytes())
    for _ in range(2):
        with pytest.raises(HoldCode):
            deliver(dispatch, FakeRun(dispatch, job, round=2), plan)
    assert [name for name in dispatch.names("inbox") if name.endswith(".xml")] == []
    look(dispatch, FakeRun(dispatch, job, round=2, approved_at=now(dispatch.engine)), plan)
    assert [name for name in dispatch.names("inbox") if name.endswith(".xml")] == ["a_d2.xml"]


@pytest.mark.shows("C-58")
def test_every_batch_is_delivered_and_a_retry_sends_the_rest_again(dispatch):
    plans = dispatch.make_plans("a", "b", "c")
    job = dispatch.submit(*plans)
    with dispatch.working():
        # b is refused, and c lies in the inbox when the job fails over it.
        for name, place in (("a_d1.xml", "processed"), ("b_d1.xml", "failed")):
            wait_for(dispatch.drop / "inbox" / name)
            wait_for(dispatch.drop / "inbox" / "c_d1.xml")
            dispatch.move(name, to=place)
        failed = dispatch.wait(job)
        assert (failed.state, failed.code) == ("FAILED", "E_OSI_ACK_FAILED")
        dispatch.retry(job)
        for name in ("b_d2.xml", "c_d2.xml"):
            wait_for(dispatch.drop / "inbox" / name)
            assert dispatch.engine.get(job).state == "XML_READY"
            assert "a_d2.xml" not in dispatch.names("inbox")
        dispatch.move("b_d2.xml", to="processed")
        assert dispatch.engine.get(job).state == "XML_READY"
        dispatch.move("c_d2.xml", to="processed")
        assert dispatch.wait(job).state == "DELIVERED"
    assert dispatch.engine.result(job) == ["a_d1.xml", "b_d2.xml", "c_d2.xml"]
    assert dispatch.names("inbox") == []
    intent, ack = "cutting.delivery-intent", "cutting.ack"
    assert sorted(dispatch.notes(job)) == sorted([intent] * 5 + [ack] * 3 + ["cutting.withdrawn"])


# --- a share that is away --------------------------------------------------------------------


@pytest.mark.shows("C-59")
def test_a_share_that_is_away_is_waited_for(dispatch):
    (plan,) = dispatch.make_plans("a")
    away = dispatch.folder / "unplugged"
    dispatch.drop.rename(away)
    job = dispatch.submit(plan)
    with dispatch.working():
        wait_until(lambda: dispatch.engine.get(job).leased_by)
        away.rename(dispatch.drop)
        wait_for(dispatch.drop / "inbox" / "a_d1.xml")
        dispatch.drop.rename(away)
        time.sleep(POLL_S * 3)
        assert dispatch.engine.get(job).state == "XML_READY"
        assert not dispatch.drop.exists(), "a folder was made where a share is to be mounted"
        away.rename(dispatch.drop)
        dispatch.move("a_d1.xml", to="processed")
        assert dispatch.wait(job).state == "DELIVERED"
    trail = dispatch.engine.inspect.trail(job)
    assert [line.kind for line in trail if line.kind in ("retried", "failed")] == []


@pytest.mark.shows("C-59")
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_share_that_stays_away_fails_the_delivery_at_the_deadline(dispatch, is_placed):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    if is_placed:
        look(dispatch, FakeRun(dispatch, job), plan)
    dispatch.drop.rename(dispatch.folder / "unplugged")
    with pytest.raises(CuttingError, match=r"osi: .*No such file|inbox is not there") as raised:
        deliver(dispatch, FakeRun(dispatch, job), plan, patience_s=0.2)
    assert raised.value.code == "E_OSI_ACK_TIMEOUT"
    assert not dispatch.drop.exists()


@pytest.mark.shows("C-59")
def test_a_share_that_hangs_holds_nobody_up(dispatch, monkeypatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    released = threading.Event()
    monkeypatch.setattr(delivery, "_find_places", lambda *_: released.wait() and set())
    monkeypatch.setattr(threads, "HANGS_S", 0.1)
    with pytest.raises(CuttingError, match="osi: there is no answer"):
        deliver(dispatch, FakeRun(dispatch, job), plan, patience_s=0.2)
    run = FakeRun(dispatch, job)
    run.looks = 2
    with pytest.raises(Stopped):  # and a run that is to stop does
        deliver(dispatch, run, plan)
    released.set()


def test_a_full_disk_is_waited_for_and_leaves_nothing(dispatch, monkeypatch):
    (plan,) = dispatch.make_plans("a")
    job = dispatch.submit(plan)
    write, refusals = delivery.write_atomically, [OSError(28, "No space left on device")] * 3

    def fail(*arguments: Any) -> str:
        if refusals:
            raise refusals.pop()
        return write(*arguments)

    monkeypatch.setattr(delivery, "write_atomically", fail)
    look(dispatch, FakeRun(dispatch, job), plan, times=5)
    assert dispatch.names("inbox") == ["a_d1.xml"]


# --- ended jobs ------------------------------------------------------------------------------


@pytest.mark.shows("C-67")
def test_files_of_a_cancelled_job_are_withdrawn(dispatch):
    plans = dispatch.make_plans("a", "b", "c")
    job = dispatch.submit(*plans)
    with dispatch.working():
        for name in ("a", "b", "c"):
            wait_for(dispatch.drop / "inbox" / f"{name}_d1.xml")
        dispatch.move("a_d1.xml", to="processed")
        dispatch.engine.cancel(job, actor="ada")
        dispatch.wait(job)
    for _ in range(2):
        found = dispatch.deliveries.withdraw(job, dispatch.drop)
        assert [row.state for row in found] == ["acked", "withdrawn", "withdrawn"]
        assert dispatch.names("inbox") == []


@pytest.mark.shows("C-67")
def test_a_runner_that_lags_behind_a_cancel_places_nothing(stored):
    fresh, begun = stored.make_plans("a", "b")
    job = stored.submit(fresh, begun)
    look(stored, FakeRun(stored, job), begun)
    assert stored.names("inbox") == ["b_d1.xml"]
    stored.deliveries.withdraw(job, stored.drop)
    for plan in (fresh, begun):
        with pytest.raises(Stopped):
            deliver(stored, FakeRun(stored, job), plan)
    assert stored.names("inbox") == []
    assert stored.rows(job) == [(1, 1, "withdrawn")]


def test_a_withdrawal_of_nothing_needs_no_share_and_one_of_something_does(dispatch):
    (plan,) = dispatch.make_plans("a")
    untouched, begun = dispatch.submit(plan), dispatch.submit(plan)
    look(dispatch, FakeRun(dispatch, begun), plan)
    dispatch.drop.rename(dispatch.folder / "unplugged")
    assert dispatch.deliveries.withdraw(untouched, dispatch.drop) == []
    with pytest.raises(FileNotFoundError):
        dispatch.deliveries.withdraw(begun, dispatch.drop)


def wait_for(path: Path) -> None:
    wait_until(path.exists)


def test_deliveries_of_a_process_share_one_set_of_threads(dispatch):
    before = threading.active_count()
    plans = dispatch.make_plans(*(f"p{n}" for n in range(40)))
    jobs = [dispatch.submit(plan) for plan in plans]
    with dispatch.working(), dispatch.sawing():
        for job in jobs:
            assert dispatch.wait(job).state == "DELIVERED"
        assert threading.active_count() - before < delivery.THREADS + 20
    assert len(dispatch.cuts()) == 40
    assert isinstance(dispatch.deliveries, Deliveries)
