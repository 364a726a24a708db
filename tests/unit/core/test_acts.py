"""What people and the clock may ask of a job that nobody has leased."""

import json
from datetime import timedelta

import pytest

from tests.unit.core.machine import (
    DONE,
    HOUR,
    MINUTE,
    Machine,
    goto,
    raised,
    stopped,
    two_steps,
    work,
)
from ulak.clock import micros, rfc3339, to_datetime
from ulak.core import event as kinds
from ulak.core.acts import answer
from ulak.core.change import EVERY_STAGE
from ulak.core.flow import Flow
from ulak.core.lifecycle import SAME, Lifecycle
from ulak.core.outcome import Asked, Cancel, Decide, Elapsed, Release, Retry
from ulak.core.policy import SUBMITTER, Backoff, Dedup
from ulak.errors import BadInput, TransitionNotAllowed

DAY = timedelta(days=1)


def reviewed(undo: bool = True, life: dict | None = None, **gate: object) -> Flow:
    """A draft is written, reviewed, then published or refused."""
    moves = {
        "draft": ["review"], "review": ["approved", "refused", "draft"], "approved": ["published"],
    }  # fmt: skip
    done = {"done": ["published", "refused"]}
    flow: Flow = Flow("posts", Lifecycle("draft", moves, **{**done, **(life or {})}))
    stage = flow.stage("draft")(work)
    if undo:
        stage.undo(work)
    flow.stage("approved")(work)
    choices = {"approve": "approved", "refuse": "refused", "redo": "draft", "kill": "failed"}
    flow.gate("review", **{"choices": choices, "refusals": {"refuse"}, **gate})
    return flow


def in_review(**options: object) -> Machine:
    return Machine(reviewed(**options), key=None).run(DONE)


# --- a state that this program lacks ---------------------------------------------


@pytest.mark.shows("E-50")
@pytest.mark.parametrize("asked", [Cancel("op"), Elapsed(), Decide("op", "", "approve", None)])
def test_nobody_acts_on_a_job_in_a_state_that_this_program_lacks(asked: Asked) -> None:
    row = in_review().row
    with pytest.raises(TransitionNotAllowed, match='orders in this program lacks "review"') as no:
        answer(two_steps(), row, asked, row.changed_at, commit_id=b"c")
    assert no.value.code == "state-unknown"


@pytest.mark.shows("E-50")
@pytest.mark.parametrize("state", ["held", "failed"])
def test_a_job_cannot_go_back_to_a_state_that_this_program_lacks(state: str) -> None:
    job = Machine(two_steps(retry=0)).run(DONE)
    job.run(stopped() if state == "held" else raised())
    other: Flow = Flow("orders", Lifecycle("a", {"a": ["done"]}), retry=0)
    other.stage("a")(work)
    row = job.row
    assert (row.state, row.resume) == (state, "b")
    asked = Release("op") if state == "held" else Retry("op")
    with pytest.raises(TransitionNotAllowed, match='lacks "b"'):
        answer(other, row, asked, row.changed_at, commit_id=b"c")


# --- gates ----------------------------------------------------------------------


@pytest.mark.shows("E-11")
def test_a_gate_holds_the_job_until_somebody_decides_and_keeps_what_was_said() -> None:
    job = in_review()
    assert job.at == ("review", "held")
    change = job.decide("approve", "bob", note="checked", data=b'{"x":1}')
    assert job.at == ("approved", "ready")
    assert (job.last.kind, job.last.code) == (kinds.DECIDED, "approve")
    assert (job.last.actor, job.last.message) == ("bob", "checked")
    (result,) = change.results
    assert (result.stage, result.data) == ("review", b'{"x":1}')
    assert (change.version, change.token) == (2, None)


@pytest.mark.shows("E-11")
def test_whoever_submitted_a_job_may_not_decide_it_where_the_gate_says_so() -> None:
    job = in_review(not_by=SUBMITTER)
    with pytest.raises(TransitionNotAllowed, match="ann may not decide here") as refused:
        job.decide("approve", "ann")
    assert refused.value.code == "not-permitted"
    job.decide("approve", "bob")


@pytest.mark.shows("E-11")
def test_only_the_roles_of_the_gate_may_decide() -> None:
    job = in_review(by={"operator"})
    with pytest.raises(TransitionNotAllowed, match='only "operator" may decide') as refused:
        job.act(Decide("bob", choice="approve"), roles={"viewer"})
    assert refused.value.code == "not-permitted"
    job.act(Decide("bob", choice="approve"), roles={"operator", "viewer"})
    assert job.row.state == "approved"


@pytest.mark.shows("E-11")
def test_a_choice_or_a_state_that_is_not_asked_is_refused_by_name() -> None:
    job = in_review()
    with pytest.raises(TransitionNotAllowed, match='"perhaps" is not a choice; say "approve"'):
        job.decide("perhaps")
    with pytest.raises(TransitionNotAllowed, match="use decide"):
        job.release()
    job.decide("approve")
    with pytest.raises(TransitionNotAllowed, match='gates are in "review"'):
        job.decide("approve")
    with pytest.raises(TransitionNotAllowed, match="this flow has no gates"):
        Machine(two_steps()).decide("approve")


@pytest.mark.shows("E-11", "E-12")
def test_a_gate_whose_deadline_has_passed_goes_where_it_expires() -> None:
    job = in_review(deadline=DAY, on_expiry="approved", undo=False)
    assert job.row.wake_at == job.now + micros(DAY)
    assert job.turn(DAY - MINUTE).elapse() is None
    job.turn(MINUTE).elapse()
    assert job.at == ("approved", "ready")
    assert (job.last.kind, job.last.actor) == (kinds.WAITED, "ulak")
    assert job.row.wake_at is None


@pytest.mark.shows("E-11")
def test_a_gate_may_be_the_first_state() -> None:
    flow: Flow = Flow("f", Lifecycle("ask", {"ask": ["done"]}))
    flow.gate("ask", choices={"yes": "done"}, deadline=HOUR, on_expiry="failed")
    job = Machine(flow)
    assert (job.at, job.row.wake_at) == (("ask", "held"), job.now + micros(HOUR))
    job.decide("yes")
    assert job.at == ("done", "done")


def test_a_delay_never_shortens_the_deadline_of_a_gate() -> None:
    flow = reviewed(deadline=DAY, on_expiry="failed")
    job = Machine(flow)
    job.claim().end(goto("review", after=MINUTE))
    assert job.row.deadline_at == job.now + micros(DAY)


def test_a_choice_may_hold_the_job_and_its_release_asks_again() -> None:
    job = in_review(choices={"later": "held", "approve": "approved"}, refusals=None)
    job.decide("later")
    assert (job.at, job.row.code) == (("held", "held"), "later")
    job.release()
    assert job.at == ("review", "held")


@pytest.mark.shows("E-42")
@pytest.mark.parametrize(("choice", "end"), [("refuse", "refused"), ("kill", "failed")])
def test_a_refusal_at_a_gate_undoes_what_was_done_and_then_ends(choice: str, end: str) -> None:
    job = in_review()
    job.decide(choice)
    assert (job.at, job.row.undo_to) == (("review", "undoing"), end)
    with pytest.raises(TransitionNotAllowed, match="its undos are running"):
        job.decide("approve")
    job.run(DONE)
    assert job.row.state == end


@pytest.mark.shows("E-42")
def test_a_choice_that_ends_badly_is_a_refusal_whatever_refusals_names() -> None:
    job = in_review(refusals=())
    job.decide("kill")
    assert job.row.role == "undoing"


@pytest.mark.shows("E-11", "E-42")
def test_a_deadline_into_a_refusal_undoes_too() -> None:
    job = in_review(deadline=DAY, on_expiry="refused")
    job.turn(DAY).elapse()
    assert (job.row.role, job.row.undo_to) == ("undoing", "refused")
    assert job.run(DONE).at == ("refused", "done")


@pytest.mark.shows("E-42")
def test_a_refusal_may_lead_back_to_work_once_everything_is_undone() -> None:
    job = in_review(refusals={"redo"})
    job.decide("redo")
    job.run(DONE)
    assert (job.at, job.row.resume, job.row.undo_to) == (("draft", "ready"), None, None)
    job.run(stopped())
    job.release()
    assert job.row.state == "draft"


def test_a_refusal_that_owes_nothing_goes_straight_back_to_work() -> None:
    job = in_review(refusals={"redo"}, undo=False)
    job.decide("redo")
    assert (job.at, job.row.resume, job.row.code) == (("draft", "ready"), None, None)


@pytest.mark.shows("E-42")
def test_a_refusal_into_held_undoes_first_and_is_released_to_the_start() -> None:
    gate = {"choices": {"stop": "held", "approve": "approved"}, "refusals": {"stop"}}
    job = in_review(**gate)
    job.decide("stop")
    assert (job.row.role, job.row.undo_to) == ("undoing", "held")
    job.run(DONE)
    assert (job.at, job.row.code, job.row.undo_to) == (("held", "held"), "stop", None)
    job.release()
    assert job.at == ("draft", "ready")
    owes_nothing = in_review(**gate, undo=False)
    owes_nothing.decide("stop")
    assert (owes_nothing.row.code, owes_nothing.row.resume) == ("stop", "review")


# --- waits ----------------------------------------------------------------------


def payment(**wait: object) -> Flow:
    moves = {"open": ["pending"], "pending": ["paid", "abandoned"], "paid": ["done"]}
    flow: Flow = Flow("pay", Lifecycle("open", moves, done=["done", "abandoned"]))
    flow.stage("open")(work).undo(work)
    flow.wait("pending", **wait)
    flow.stage("paid")(work)
    return flow


@pytest.mark.shows("E-12")
def test_a_signal_ends_the_wait_for_it_and_its_data_is_kept() -> None:
    job = Machine(payment(signal="paid", to="paid")).run(DONE)
    assert (job.at, job.row.awaits) == (("pending", "waiting"), "paid")
    with pytest.raises(TransitionNotAllowed, match='does not wait for "shipped"'):
        job.signal("shipped")
    change = job.signal("paid", b"5")
    assert (job.at, job.row.awaits) == (("paid", "ready"), None)
    assert [(r.stage, r.data) for r in change.results] == [("pending", b"5")]
    assert change.answers == (("signal", "paid"),)
    with pytest.raises(TransitionNotAllowed):
        job.signal("paid")


@pytest.mark.shows("E-12")
def test_a_wait_for_the_clock_goes_on_by_itself() -> None:
    job = Machine(payment(after=HOUR, to="paid")).run(DONE)
    assert job.elapse() is None
    job.turn(HOUR).elapse()
    assert job.at == ("paid", "ready")


@pytest.mark.shows("E-12")
def test_goto_says_how_long_a_wait_waits() -> None:
    job = Machine(payment(after=HOUR, to="paid"))
    job.claim().end(goto("pending", after=MINUTE))
    assert job.row.deadline_at == job.now + micros(MINUTE)
    job.turn(MINUTE).elapse()
    assert job.row.state == "paid"


@pytest.mark.shows("E-12")
def test_a_signal_that_does_not_come_leads_to_where_the_wait_expires() -> None:
    job = Machine(payment(signal="p", to="paid", deadline=HOUR, on_expiry="abandoned")).run(DONE)
    job.turn(HOUR).elapse()
    assert job.at == ("abandoned", "done")


@pytest.mark.shows("E-12", "E-42")
@pytest.mark.parametrize("by", ["signal", "clock"])
def test_a_wait_that_ends_badly_goes_through_the_undos(by: str) -> None:
    job = Machine(payment(signal="bounced", to="failed", deadline=HOUR, on_expiry="failed"))
    job.run(DONE)
    if by == "signal":
        job.signal("bounced")
    else:
        job.turn(HOUR).elapse()
    assert (job.row.role, job.row.undo_to) == ("undoing", "failed")


@pytest.mark.shows("E-6", "E-12")
def test_a_wait_on_a_final_state_ends_it_in_another() -> None:
    flow: Flow = Flow(
        "pdf", Lifecycle("a", {"a": ["succeeded"], "succeeded": ["expired"]}, done="succeeded"),
        expires=MINUTE,
    )  # fmt: skip
    flow.stage("a")(work)
    flow.wait("succeeded", after=DAY, to="expired")
    job = Machine(flow).run(DONE)
    assert (job.at, job.row.wake_at) == (("succeeded", "done"), job.now + micros(DAY))
    job.turn(DAY).elapse()
    assert (job.at, job.row.wake_at) == (("expired", "expired"), None)


def test_a_hold_may_end_by_itself() -> None:
    flow = two_steps()
    flow.wait("held", after=DAY, to="failed")
    job = Machine(flow).run(stopped())
    job.turn(DAY).elapse()
    assert job.at == ("failed", "failed")


# --- expiry ---------------------------------------------------------------------


@pytest.mark.shows("E-39")
@pytest.mark.parametrize("where", ["ready", "held", "delayed"])
def test_a_job_whose_time_ran_out_expires_wherever_it_stands(where: str) -> None:
    job = Machine(two_steps(expires=HOUR))
    if where == "held":
        job.run(stopped())
    if where == "delayed":
        job.claim().end(goto("b", after=DAY))
    assert job.row.wake_at == job.row.expires_at
    assert job.elapse() is None
    change = job.turn(HOUR).elapse()
    assert job.at == ("expired", "expired")
    assert (job.row.code, job.row.wake_at) == ("expired", None)
    assert change.answers == (("expire", ""),)


@pytest.mark.shows("E-42")
def test_an_expired_job_is_undone_first_and_does_not_expire_twice() -> None:
    job = Machine(two_steps("a", expires=HOUR)).run(DONE)
    job.turn(HOUR).elapse()
    assert (job.row.role, job.row.undo_to, job.row.wake_at) == ("undoing", "expired", None)
    assert job.turn(HOUR).elapse() is None
    assert job.run(DONE).at == ("expired", "expired")


def test_the_deadline_of_a_state_comes_before_the_expiry_of_the_job() -> None:
    flow = reviewed(undo=False, deadline=MINUTE, on_expiry="approved")
    job = Machine(flow, expires=HOUR).run(DONE)
    job.turn(HOUR).elapse()
    assert job.row.state == "approved"
    job.elapse()
    assert job.row.state == "expired"


@pytest.mark.parametrize("bad", [{"priority": 4}, {"after": -HOUR}, {"expires": timedelta(0)}])
def test_a_submission_that_cannot_be_kept_is_refused(bad: dict) -> None:
    with pytest.raises(BadInput):
        Machine(two_steps(), **bad)


@pytest.mark.parametrize("text", ["nul\x00", "half \ud800", "x" * 501])
def test_a_text_that_no_store_can_keep_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Machine(two_steps(), tenant=text)


# --- cancel ---------------------------------------------------------------------


@pytest.mark.shows("E-39")
def test_a_waiting_held_or_delayed_job_is_cancelled_at_once() -> None:
    waiting = Machine(payment(signal="p", to="paid"))
    held = Machine(two_steps()).run(stopped())
    asked = in_review(undo=False)
    for job in (waiting, held, asked):
        job.cancel()
        assert job.at == ("cancelled", "cancelled")
        assert (job.last.actor, job.last.message) == ("bob", "not wanted")


@pytest.mark.shows("E-39")
def test_a_job_that_has_ended_cannot_be_cancelled() -> None:
    job = Machine(two_steps()).run(DONE, DONE)
    with pytest.raises(TransitionNotAllowed, match="already ended") as refused:
        job.cancel()
    assert refused.value.code == kinds.TOO_LATE


@pytest.mark.shows("E-18")
def test_an_act_on_a_leased_job_is_guarded_by_version_and_never_by_the_workers_token() -> None:
    job = Machine(two_steps())
    job.claim()
    change = answer(job.flow, job.row, Cancel("bob"), job.now, commit_id=b"c" * 16)
    assert (change.token, change.version) == (None, job.row.version)
    assert change.frees_slot is None


# --- retry ----------------------------------------------------------------------


@pytest.mark.shows("E-5", "E-37")
def test_an_operators_retry_goes_back_to_where_it_failed_in_a_new_round() -> None:
    job = Machine(two_steps(retry=0)).run(DONE, raised())
    change = job.retry()
    assert (job.at, job.row.round, job.row.attempt) == (("b", "ready"), 2, 0)
    assert (job.row.code, job.row.resume) == (None, None)
    assert change.voids == ()
    assert (job.last.kind, job.last.round, job.last.actor) == (kinds.RETRIED, 2, "bob")
    assert job.last.details is None, "it is due at once"


@pytest.mark.shows("E-5", "E-37")
def test_a_retry_from_a_named_state_voids_what_every_stage_left() -> None:
    job = Machine(two_steps(retry=0, life={"retry_to": "a"})).run(DONE, raised())
    change = job.retry()
    assert (job.row.state, change.voids) == ("a", (EVERY_STAGE,))


@pytest.mark.shows("E-5")
def test_only_a_failed_job_can_be_retried() -> None:
    job = Machine(two_steps())
    with pytest.raises(TransitionNotAllowed, match="only a failed job"):
        job.retry()
    with pytest.raises(TransitionNotAllowed, match='only a job in "held"'):
        job.release()


@pytest.mark.shows("E-10")
def test_operators_retry_as_often_and_as_late_as_the_flow_allows() -> None:
    flow = two_steps(retry=0, operator_retry=Backoff(delays=[MINUTE, HOUR]))
    job = Machine(flow)
    for delay in (MINUTE, HOUR):
        job.run(raised())
        job.retry()
        assert job.row.not_before == job.now + micros(delay)
        due_at = rfc3339(to_datetime(job.row.not_before), "milliseconds")
        told = {"after_s": delay.total_seconds(), "due_at": due_at}
        assert json.loads(job.last.details or "") == told
    job.run(raised())
    with pytest.raises(TransitionNotAllowed, match="retried 2 times") as refused:
        job.retry()
    assert refused.value.code == "retries-spent"


def test_a_retry_into_a_gate_keeps_the_gates_own_deadline() -> None:
    flow = reviewed(undo=False, deadline=DAY, on_expiry="failed", life={"retry_to": SAME})
    flow.operator_retry = Backoff(delays=[MINUTE])
    job = Machine(flow).run(DONE)
    job.decide("kill")
    job.retry()
    assert job.at == ("review", "held")
    assert job.row.deadline_at == job.now + micros(DAY)


@pytest.mark.shows("E-30")
def test_a_retry_takes_the_key_again_that_its_failure_freed() -> None:
    job = Machine(two_steps(retry=0, dedup=Dedup()), key="k").run(raised())
    assert not job.holds_key
    assert job.retry().takes_key
    again = Machine(two_steps(retry=0, dedup=Dedup(until=["done", "failed"])), key="k")
    assert again.run(raised()).retry().takes_key
    kept = Machine(two_steps(retry=0, dedup=Dedup(until=["done"], keep=HOUR)), key="k")
    assert not kept.run(raised()).retry().takes_key


def test_a_job_whose_time_ran_out_is_not_retried_only_to_expire() -> None:
    job = Machine(two_steps(retry=0, expires=HOUR)).run(raised())
    with pytest.raises(TransitionNotAllowed, match="its time ran out") as refused:
        job.turn(HOUR).retry()
    assert refused.value.code == kinds.TOO_LATE


def test_the_clock_has_nothing_to_do_for_a_job_without_dates() -> None:
    job = Machine(two_steps())
    assert job.turn(DAY).act(Elapsed()) is None
