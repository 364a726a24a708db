"""What a job that ends early owes is paid, in order, before anything of it is given back."""

from datetime import timedelta

import pytest

from tests.unit.core.machine import DONE, HOUR, MINUTE, Machine, raised, stopped, two_steps, work
from ulak.clock import micros
from ulak.core import event as kinds
from ulak.core.flow import Flow
from ulak.core.job import Message
from ulak.core.lifecycle import Lifecycle
from ulak.core.outcome import Cancel, Deferred, Finished, GivenBack, Left, Noted
from ulak.core.policy import Backoff, Dedup
from ulak.errors import TransitionNotAllowed

NO_RETRY = {"retry": 0}


def saga(**life: object) -> Flow:
    """Three stages with undos, the middle one busy while it runs; dedup until it has ended."""
    moves = {"a": ["b"], "b": ["busy"], "busy": ["c"], "c": ["done"]}
    flow: Flow = Flow(
        "saga", Lifecycle("a", moves, **life), retry=0, undo_retry=Backoff(delays=[MINUTE]),
        dedup=Dedup(),
    )  # fmt: skip
    flow.stage("a")(work).undo(work)
    flow.stage("b", during="busy")(work).undo(work)
    flow.stage("c")(work).undo(work)
    return flow


def undoing(**life: object) -> Machine:
    """A saga that gave up in its last stage."""
    return Machine(saga(**life), key="k").run(DONE, DONE, raised("down"))


def undo_failed(**life: object) -> Machine:
    return undoing(**life).run(DONE, raised(), raised())


@pytest.mark.shows("E-42", "E-43")
def test_undos_run_in_reverse_order_each_with_its_own_event() -> None:
    job = undoing()
    assert (job.row.role, job.row.started) == ("undoing", "a b c")
    job.run(DONE, DONE, DONE)
    undone = [e.message for e in job.trail if e.kind == kinds.UNDONE]
    assert undone == ["c", "b", "a"]
    assert [change.voids for change in job.changes[-3:]] == [("c",), ("b",), ("a",)]
    assert job.at == ("failed", "failed")
    assert (job.row.code, job.row.started, job.row.undo_to) == ("down", "", None)


@pytest.mark.shows("E-42")
def test_key_and_end_come_with_the_last_undo_and_not_before() -> None:
    job = undoing()
    assert job.holds_key
    job.run(DONE, DONE)
    assert job.holds_key
    assert job.row.role == "undoing"
    job.run(DONE)
    assert not job.holds_key
    assert job.last.kind == kinds.ENDED


@pytest.mark.shows("E-42")
def test_only_stages_that_stood_leased_are_undone() -> None:
    never = Machine(two_steps("ab"))
    never.cancel()
    assert never.at == ("cancelled", "cancelled")
    first = Machine(two_steps("ab")).run(DONE)
    first.cancel()
    assert first.row.started == "a"
    second = Machine(two_steps("ab")).run(DONE, Deferred(HOUR, False, ""))
    second.cancel()
    assert second.row.started == "a b"


@pytest.mark.shows("E-42")
def test_a_stage_that_lapsed_in_its_busy_state_is_undone_too() -> None:
    job = Machine(saga(), key="k").run(DONE)
    job.claim().lapse()
    job.cancel()
    assert job.row.started == "a b"


@pytest.mark.shows("E-42")
@pytest.mark.parametrize("act", ["retry", "release", "cancel"])
def test_nobody_retries_releases_or_cancels_while_undos_run(act: str) -> None:
    job = undoing()
    with pytest.raises(TransitionNotAllowed, match="its undos are running"):
        getattr(job, act)()


@pytest.mark.shows("E-43")
def test_a_closed_table_keeps_its_own_state_while_undoing() -> None:
    job = undoing()
    assert job.at == ("c", "undoing")
    job.run(DONE)
    assert job.at == ("c", "undoing")
    job.run(DONE, DONE)
    assert job.path() == ["a", "b", "busy", "c", "failed"]


@pytest.mark.shows("E-42", "E-1")
def test_a_named_undoing_state_and_a_named_end_are_seen_in_the_trail() -> None:
    job = undoing(undoing="rolling_back", undone="rolled_back")
    assert job.at == ("rolling_back", "undoing")
    job.run(DONE, DONE, DONE)
    assert job.at == ("rolled_back", "failed")
    assert job.path() == ["a", "b", "busy", "c", "rolling_back", "rolled_back"]


@pytest.mark.shows("E-42")
def test_a_job_that_gave_up_with_nothing_to_undo_simply_failed() -> None:
    flow = two_steps("b", life={"undone": "rolled_back"}, **NO_RETRY)
    assert Machine(flow).run(raised()).at == ("failed", "failed")


@pytest.mark.shows("E-42")
def test_a_job_whose_undos_ran_is_retried_from_the_start() -> None:
    job = undoing(undone="rolled_back").run(DONE, DONE, DONE)
    change = job.retry()
    assert (job.at, job.row.round, job.row.started) == (("a", "ready"), 2, "")
    assert change.takes_key
    job.run(DONE, DONE, DONE)
    assert job.at == ("done", "done")


@pytest.mark.shows("E-43")
def test_an_undo_is_retried_by_its_own_schedule() -> None:
    job = undoing()
    job.claim().end(raised("net"))
    assert (job.row.role, job.row.attempt) == ("undoing", 1)
    assert job.row.not_before == job.now + micros(MINUTE)
    assert (job.last.kind, job.last.message) == (kinds.RETRY, "undo of c: it broke")
    job.run(DONE)
    assert (job.row.started, job.row.attempt) == ("a b", 0)


@pytest.mark.shows("E-43")
@pytest.mark.parametrize("life", [{}, {"undoing": "back"}, {"release_to": "a"}])
def test_an_undo_out_of_attempts_is_held_and_a_release_goes_on_undoing(life: dict) -> None:
    job = undo_failed(**life)
    assert (job.at, job.row.code) == (("held", "held"), kinds.UNDO_FAILED)
    assert (job.row.started, job.row.undo_to) == ("a b", "failed")
    assert job.last.code == kinds.UNDO_FAILED
    assert job.holds_key
    with pytest.raises(TransitionNotAllowed, match="its undos are owed"):
        job.cancel()
    with pytest.raises(TransitionNotAllowed):
        job.retry()
    job.release()
    assert job.at == (life.get("undoing", "c"), "undoing")
    job.run(DONE, DONE)
    assert (job.at, job.row.code) == (("failed", "failed"), kinds.GAVE_UP)
    assert not job.holds_key


@pytest.mark.shows("E-43")
@pytest.mark.parametrize(
    "outcome", [raised(permanent=True), stopped("look"), Deferred(HOUR, True, "")]
)
def test_an_undo_that_stops_or_fails_for_good_loses_nothing_that_is_owed(outcome: object) -> None:
    flow = saga()
    flow.undo_retry = Backoff(0)
    job = Machine(flow, key="k").run(DONE, DONE, raised(), DONE, outcome)
    assert (job.at, job.row.code) == (("held", "held"), kinds.UNDO_FAILED)
    assert job.row.started == "a b"
    job.release()
    assert job.run(DONE, DONE).at == ("failed", "failed")


@pytest.mark.shows("E-43", "E-27")
def test_an_undo_whose_workers_vanish_too_often_is_held_with_what_it_owes() -> None:
    flow = saga()
    flow.max_lapses = 1
    flow.on_lapse = "LOST"
    job = Machine(flow, key="k").run(DONE, DONE, raised(), DONE)
    job.claim().lapse().run_lapsed()
    assert (job.at, job.row.code) == (("held", "held"), kinds.UNDO_FAILED)
    assert (job.row.started, job.row.undo_to) == ("a b", "failed")


@pytest.mark.shows("E-43")
def test_an_undo_may_be_deferred_or_given_back_and_keeps_its_place() -> None:
    job = undoing().run(Deferred(HOUR, False, "later"), GivenBack())
    assert (job.row.role, job.row.started, job.row.attempt) == ("undoing", "a b c", 0)
    assert job.row.lane in job.flow.table.undo_lanes.values()


@pytest.mark.shows("E-43")
def test_an_undo_waits_until_the_deadline_of_the_run_that_vanished() -> None:
    job = Machine(two_steps("a"))
    leased_at = job.claim().row.leased_at
    job.turn(MINUTE).lapse()
    job.cancel()
    assert job.row.not_before == leased_at + job.flow.table.places["a"].timeout_us


@pytest.mark.shows("E-43", "E-27")
def test_an_undo_after_too_many_lapses_waits_for_the_last_run_even_through_a_hold() -> None:
    job = Machine(two_steps("a", max_lapses=1))
    job.claim().lapse().run_lapsed()
    assert job.at == ("held", "held")
    leased_at = job.row.leased_at
    job.cancel()
    assert job.row.not_before >= leased_at + job.flow.table.places["a"].timeout_us


@pytest.mark.shows("E-43")
def test_an_undo_comes_at_once_when_a_later_run_has_answered_for_the_lapse() -> None:
    job = Machine(two_steps("a", **NO_RETRY))
    job.claim().lapse()
    assert job.run_lapsed() is None
    job.end(raised())
    assert (job.row.role, job.row.not_before) == ("undoing", job.now)


@pytest.mark.shows("E-42")
def test_a_cancelled_hold_is_undone_from_where_it_was_held() -> None:
    job = Machine(saga(release_to="a"), key="k").run(DONE, stopped())
    job.cancel()
    assert (job.at, job.row.started, job.row.undo_to) == (("busy", "undoing"), "a b", "cancelled")


@pytest.mark.shows("E-37")
def test_a_once_inside_an_undo_is_recorded_for_the_stage_that_is_undone() -> None:
    job = undoing().run(DONE)
    job.claim()
    change = job.end(Noted("refund", b"1"))
    assert [(r.stage, r.name) for r in change.results] == [("b", "refund")]
    job.end(DONE)
    assert job.changes[-1].voids == ("b",)


@pytest.mark.shows("E-42")
def test_an_undo_may_emit_like_any_run() -> None:
    job = undoing()
    message = Message(job.row.id, 0, 0, "k", "withdrawn", b"{}", 0)
    job.claim().end(Finished(Left(None, (message,))))
    assert [m.topic for m in job.changes[-1].messages] == ["withdrawn"]
    assert job.last.emitted == 1


@pytest.mark.shows("E-39", "E-42")
def test_a_cancel_that_reaches_an_undo_changes_nothing() -> None:
    job = undoing()
    job.claim()
    job.end(DONE, asked=Cancel("bob"))
    assert (job.row.role, job.row.undo_to) == ("undoing", "failed")


@pytest.mark.shows("E-42")
def test_a_stage_that_ran_twice_is_undone_once_at_its_latest_place() -> None:
    moves = {"a": ["b"], "b": ["a", "done"]}
    flow: Flow = Flow("loop", Lifecycle("a", moves), retry=0)
    flow.stage("a")(work).undo(work)
    flow.stage("b", to="done")(work).undo(work)
    job = Machine(flow).run(DONE, Finished(to="a"), raised())
    assert job.row.started == "b a"


@pytest.mark.shows("E-89", "E-43")
@pytest.mark.parametrize("wait", [timedelta(0), 2 * MINUTE])
def test_an_undo_that_says_less_waits_no_longer_after_a_lapse(wait: timedelta) -> None:
    flow = two_steps(on_lapse="LOST", retry=0)
    flow.declared.stages[0].undo(wait=wait)(work)
    job = Machine(flow)
    job.claim().lapse().run_lapsed()
    assert (job.row.role, job.row.code) == ("undoing", "LOST")
    assert job.row.not_before == max(job.now, (job.row.leased_at or 0) + micros(wait))
