"""The end of a run: what each outcome writes."""

from contextlib import nullcontext

import pytest

from tests.unit.core.machine import (
    DONE,
    HOUR,
    MINUTE,
    Machine,
    always,
    goto,
    raised,
    stopped,
    two_steps,
    work,
)
from ulak.clock import micros
from ulak.core import event as kinds
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.flow import Flow
from ulak.core.job import JobRow, Message
from ulak.core.lifecycle import Lifecycle
from ulak.core.outcome import (
    Cancel,
    Deferred,
    Elapsed,
    Finished,
    GivenBack,
    Held,
    Lapsed,
    Left,
    Noted,
    Overran,
)
from ulak.core.policy import Backoff, Dedup, Limit, Until
from ulak.errors import TransitionNotAllowed

NEVER = Backoff(0)
TWICE = Backoff(delays=[MINUTE, HOUR])


def busy_flow(**options: object) -> Flow:
    """ "queued" runs during "running" and is limited; "packing" has a limit of its own."""
    flow: Flow = Flow(
        "pdf",
        Lifecycle(
            "queued", {"queued": ["running"], "running": ["packing"], "packing": ["succeeded"]},
            done="succeeded",
        ),
        **options,
    )  # fmt: skip
    flow.stage("queued", during="running", limit=Limit(2), retry=TWICE)(work)
    flow.stage("packing", limit=Limit(1))(work)
    return flow


# --- moves ----------------------------------------------------------------------


@pytest.mark.shows("E-1", "E-44")
def test_a_finished_stage_moves_on_with_one_event_that_carries_worker_attempt_and_start() -> None:
    job = Machine(two_steps())
    job.claim("w1").turn(MINUTE)
    change = job.end(DONE)
    assert job.at == ("b", "ready")
    assert change.moved_from == "a"
    (event,) = change.events
    assert (event.kind, event.from_state, event.to_state) == (kinds.MOVED, "a", "b")
    assert (event.worker, event.actor, event.attempt, event.token) == ("w1", "w1", 1, 1)
    assert event.started_at == job.now - micros(MINUTE)
    assert event.at == job.now


def test_a_move_writes_the_columns_that_it_decides_and_no_other() -> None:
    job = Machine(busy_flow(expires=HOUR), key="k", priority=2, tenant="acme")
    job.run(raised("down"))
    before = job.claim().turn(MINUTE).row
    after = job.end(DONE).row
    changed = {
        f: getattr(after, f) for f in JobRow._fields if getattr(after, f) != getattr(before, f)
    }
    assert changed == {
        "state": "packing", "role": "ready", "version": before.version + 1, "seq": before.seq + 1,
        "attempt": 0, "changed_at": job.now, "not_before": job.now, "slot": "pdf/packing",
        "leased_by": None, "token": before.token + 1, "stood": 0,
        "lane": "pdf/thread/pdf@1#packing",
    }  # fmt: skip


@pytest.mark.shows("E-18", "E-24")
def test_the_end_of_a_run_is_guarded_by_its_token_and_moves_it() -> None:
    job = Machine(two_steps())
    job.claim()
    change = job.end(DONE)
    assert (change.token, change.version) == (1, None)
    assert (job.row.token, job.row.leased_by) == (2, None)


@pytest.mark.shows("E-1")
def test_the_last_stage_ends_the_job_and_nobody_may_claim_it() -> None:
    job = Machine(two_steps()).run(DONE, DONE)
    assert job.at == ("done", "done")
    assert (job.row.lane, job.row.wake_at) == ("", None)


@pytest.mark.shows("E-4")
@pytest.mark.parametrize("to", ["done", "failed", "nowhere"])
def test_a_move_outside_the_table_is_refused_and_the_sentence_names_the_ways(to: str) -> None:
    job = Machine(two_steps())
    job.claim()
    with pytest.raises(TransitionNotAllowed, match=f'"a" may move to "b", not to "{to}"'):
        job.end(goto(to))


@pytest.mark.shows("E-9")
def test_a_stage_with_two_ways_must_say_which() -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["b", "done"], "b": ["done"]}))
    flow.stage("a")(work)
    flow.stage("b")(work)
    job = Machine(flow)
    job.claim()
    with pytest.raises(TransitionNotAllowed, match='"b" or "done"; return Goto'):
        job.end(DONE)
    job.end(goto("done"))
    assert job.at == ("done", "done")


@pytest.mark.shows("E-9")
def test_goto_after_delays_the_next_stage() -> None:
    job = Machine(two_steps())
    job.claim().end(goto("b", after=HOUR))
    assert job.row.not_before == job.now + micros(HOUR)


@pytest.mark.shows("E-44")
def test_messages_carry_the_number_of_the_event_they_were_written_with() -> None:
    job = Machine(two_steps())
    message = Message(job.row.id, 0, 0, "k", "topic", b"{}", 0)
    job.claim().end(Finished(Left(b"7", (message, message._replace(n=1)))))
    change = job.changes[-1]
    assert [(m.seq, m.n) for m in change.messages] == [(2, 0), (2, 1)]
    assert change.events[0].emitted == 2
    assert [(r.stage, r.name, r.data) for r in change.results] == [("a", "", b"7")]
    assert job.row.has_results == 1


@pytest.mark.shows("E-9")
def test_goto_held_waits_for_a_person_and_is_released_to_where_it_stood() -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["b", "held"], "b": ["done"]}))
    flow.stage("a", to="b")(work)
    flow.stage("b")(work)
    job = Machine(flow).run(goto("held"))
    assert job.at == ("held", "held")
    assert (job.row.resume, job.row.code) == ("a", "held")
    job.release()
    assert job.at == ("a", "ready")


@pytest.mark.shows("E-42")
@pytest.mark.parametrize(
    ("end", "code", "kind"),
    [
        ("failed", kinds.GAVE_UP, kinds.FAILED),
        ("cancelled", kinds.CANCELLED_CODE, kinds.CANCELLED),
        ("expired", kinds.EXPIRED_CODE, kinds.EXPIRED),
    ],
)
def test_a_stage_that_goes_to_a_bad_end_goes_there_through_the_undos(
    end: str, code: str, kind: str
) -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["b"], "b": ["done", end]}))
    flow.stage("a")(work).undo(work)
    flow.stage("b", to="done")(work)
    job = Machine(flow, key=None).run(DONE, goto(end))
    assert job.at == ("b", "undoing")
    assert job.last.kind == kind
    job.run(DONE)
    assert job.row.state == end
    assert job.row.code == code


@pytest.mark.shows("E-42")
def test_a_stage_may_send_its_job_into_undoing_by_its_name() -> None:
    life = Lifecycle("a", {"a": ["b"], "b": ["done", "back"]}, undoing="back", undone="undone")
    flow: Flow = Flow("f", life)
    flow.stage("a")(work).undo(work)
    flow.stage("b", to="done")(work)
    job = Machine(flow).run(DONE, goto("back"))
    assert (job.at, job.row.undo_to) == (("back", "undoing"), "undone")
    assert job.run(DONE).at == ("undone", "failed")


# --- failures -------------------------------------------------------------------


@pytest.mark.shows("E-5", "E-10")
def test_a_failure_is_retried_in_the_same_state_after_the_declared_delay() -> None:
    job = Machine(two_steps(retry=TWICE))
    job.claim().end(raised())
    assert job.at == ("a", "ready")
    assert (job.row.attempt, job.row.not_before) == (1, job.now + micros(MINUTE))
    job.claim().end(raised())
    assert (job.row.attempt, job.row.not_before) == (2, job.now + micros(HOUR))
    assert job.last.attempt == 2
    job.claim().end(raised("down"))
    assert job.at == ("failed", "failed")
    assert (job.row.code, job.row.permanent, job.row.resume) == ("down", 0, "a")


@pytest.mark.shows("E-10")
def test_attempts_count_per_stage_and_a_move_resets_them() -> None:
    job = Machine(two_steps(retry=Backoff(1))).run(raised(), DONE)
    assert (job.row.state, job.row.attempt) == ("b", 0)
    job.run(raised())
    assert job.row.state == "b"


@pytest.mark.shows("E-9", "E-10")
def test_a_stages_retry_replaces_the_flows() -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["done"]}), retry=5)
    flow.stage("a", retry=0)(work)
    assert Machine(flow).run(raised()).row.state == "failed"


@pytest.mark.shows("E-10")
def test_a_permanent_failure_is_never_retried() -> None:
    job = Machine(two_steps(retry=5)).run(raised(permanent=True))
    assert job.at == ("failed", "failed")
    assert job.row.permanent == 1
    with pytest.raises(TransitionNotAllowed, match="failed for good"):
        job.retry()


@pytest.mark.shows("E-10")
def test_an_operator_retries_a_permanent_failure_where_the_flow_says_so() -> None:
    job = Machine(two_steps(retries_permanent=True)).run(raised(permanent=True))
    job.retry()
    assert (job.row.state, job.row.permanent, job.row.round) == ("a", 0, 2)


@pytest.mark.shows("E-5", "E-3")
def test_an_automatic_retry_leaves_the_job_in_its_busy_state_without_lease_and_slot() -> None:
    job = Machine(busy_flow())
    job.claim()
    change = job.end(raised())
    assert job.at == ("running", "busy")
    assert (job.row.leased_by, change.frees_slot) == (None, "pdf/queued")
    assert job.row.not_before == job.now + micros(MINUTE)
    job.claim()
    assert job.kinds().count("entered") == 1


@pytest.mark.shows("E-5")
def test_retry_via_writes_both_moves_in_one_commit() -> None:
    job = Machine(busy_flow(retry_via="failed"))
    job.claim()
    change = job.end(raised("down"))
    assert [(e.kind, e.from_state, e.to_state) for e in change.events] == [
        ("failed", "running", "failed"), ("retry", "failed", "queued"),
    ]  # fmt: skip
    assert job.at == ("queued", "ready")
    assert (job.row.attempt, job.row.not_before) == (1, job.now + micros(MINUTE))
    job.run(raised(), raised())
    assert job.at == ("failed", "failed")


@pytest.mark.shows("E-3", "E-10")
def test_a_retry_at_once_under_the_same_lease_enters_the_busy_state_again_and_has_an_end() -> None:
    flow: Flow = Flow(
        "pdf", Lifecycle("queued", {"queued": ["running"], "running": ["done"]}),
        retry=Backoff(delays=[0 * MINUTE] * 2), retry_via="failed",
    )  # fmt: skip
    flow.stage("queued", during="running")(work)
    job = Machine(flow).claim()
    for attempt in (1, 2):
        job.end(raised("down"), keep=always)
        assert job.at == ("running", "busy")
        assert (job.row.attempt, job.row.leased_by) == (attempt, "w1")
        assert job.last.kind == kinds.ENTERED
    job.end(raised("down"), keep=always)
    assert job.at == ("failed", "failed")


@pytest.mark.shows("E-5", "E-42")
def test_retry_via_remembers_that_the_stage_has_started() -> None:
    flow = two_steps("a", retry_via="failed", retry=1)
    job = Machine(flow).run(raised())
    assert job.row.started == "a"
    job.cancel()
    assert job.at == ("a", "undoing")


@pytest.mark.shows("E-9")
def test_retry_later_spends_no_attempt_unless_it_says_so() -> None:
    job = Machine(two_steps(retry=Backoff(1)))
    job.claim().end(Deferred(HOUR, False, "not yet"))
    assert (job.row.attempt, job.row.not_before) == (0, job.now + micros(HOUR))
    assert (job.last.kind, job.last.message) == (kinds.RETRY, "not yet")
    job.claim().end(Deferred(HOUR, True, "not yet"))
    assert (job.row.attempt, job.row.not_before) == (1, job.now + micros(HOUR))


@pytest.mark.shows("E-9", "E-10")
def test_retry_later_that_spends_the_last_attempt_gives_up() -> None:
    spend = Deferred(HOUR, True, "not yet")
    job = Machine(two_steps(retry=Backoff(1))).run(spend, spend)
    assert job.at == ("failed", "failed")
    assert job.row.code == kinds.GAVE_UP


@pytest.mark.shows("E-40")
def test_a_run_given_back_by_a_drain_spends_no_attempt_and_is_due_at_once() -> None:
    job = Machine(busy_flow())
    job.claim()
    change = job.end(GivenBack(), keep=always)
    assert job.at == ("running", "busy")
    assert (job.row.attempt, job.row.leased_by, job.row.not_before) == (0, None, job.now)
    assert change.frees_slot == "pdf/queued"
    assert job.last.kind == kinds.GIVEN_BACK


# --- holds ----------------------------------------------------------------------


@pytest.mark.shows("E-9", "E-5")
def test_a_hold_waits_for_a_person_and_release_goes_back_to_the_same_state() -> None:
    job = Machine(two_steps()).run(DONE, stopped("no-match"))
    assert job.at == ("held", "held")
    assert (job.row.code, job.row.resume, job.row.lane) == ("no-match", "b", "")
    assert (job.last.kind, job.last.code) == (kinds.HELD, "no-match")
    job.release()
    assert job.at == ("b", "ready")
    assert (job.row.code, job.row.resume) == (None, None)
    assert job.last.actor == "bob"


@pytest.mark.shows("E-5")
def test_release_goes_to_the_state_that_release_to_names() -> None:
    job = Machine(two_steps(life={"release_to": "a"})).run(DONE, stopped())
    job.release()
    assert job.at == ("a", "ready")


@pytest.mark.shows("E-5")
def test_a_job_held_twice_is_released_to_where_it_stood_last() -> None:
    job = Machine(two_steps()).run(stopped())
    job.release()
    job.run(DONE, stopped())
    job.release()
    assert job.row.state == "b"


def test_a_job_held_while_busy_is_released_into_its_busy_state() -> None:
    job = Machine(busy_flow()).run(stopped())
    job.release()
    assert job.at == ("running", "busy")


@pytest.mark.shows("E-19")
def test_what_a_stage_says_is_made_storable() -> None:
    job = Machine(two_steps(proofs=True)).run(Held("co\x00de", "a\x00b\ud800" + "x" * 9000))
    assert "\x00" not in (job.row.code or "")
    assert job.last.code == job.row.code
    message = job.last.message or ""
    assert "\x00" not in message
    assert len(message) == 4000
    message.encode()


# --- lapses ---------------------------------------------------------------------


@pytest.mark.shows("E-27")
def test_a_lapse_is_simply_run_again_and_spends_no_attempt() -> None:
    job = Machine(two_steps())
    job.claim().lapse()
    assert job.run_lapsed() is None
    assert (job.row.attempt, job.row.lapses) == (0, 1)


@pytest.mark.shows("E-27")
def test_after_max_lapses_the_job_is_held_and_a_release_gives_it_as_many_again() -> None:
    job = Machine(two_steps(max_lapses=2))
    job.claim().lapse()
    assert job.run_lapsed() is None
    job.lapse()
    assert isinstance(job.run_lapsed(), Held)
    assert (job.at, job.row.code) == (("held", "held"), kinds.WORKER_DIED)
    job.release()
    assert job.row.lapses == 0


@pytest.mark.shows("E-27", "E-5")
def test_on_lapse_makes_a_lapse_a_failed_attempt_that_follows_retry_and_retry_via() -> None:
    job = Machine(busy_flow(on_lapse="NAVIGATION_TIMEOUT", retry_via="failed"))
    for attempt in (1, 2):
        job.claim().lapse()
        assert job.run_lapsed() == Lapsed()
        assert (job.row.state, job.row.attempt) == ("queued", attempt)
        assert [e.to_state for e in job.changes[-1].events] == ["failed", "queued"]
        assert job.last.code == "NAVIGATION_TIMEOUT"
    job.claim().lapse().run_lapsed()
    assert (job.at, job.row.code) == (("failed", "failed"), "NAVIGATION_TIMEOUT")


@pytest.mark.shows("E-27")
def test_on_lapse_says_nothing_of_a_job_whose_worker_lives() -> None:
    job = Machine(busy_flow(on_lapse="LOST"))
    job.claim()
    assert lapse_answer(job.flow, job.row) is None


# --- the lease goes on ----------------------------------------------------------


@pytest.mark.shows("E-28", "E-3")
def test_a_kept_lease_enters_the_busy_state_in_the_same_change() -> None:
    flow: Flow = Flow("f", Lifecycle("a", {"a": ["b"], "b": ["busy"], "busy": ["done"]}))
    flow.stage("a")(work)
    flow.stage("b", during="busy", limit=Limit(1))(work)
    job = Machine(flow)
    job.claim()
    change = job.end(DONE, keep=always)
    assert [(e.kind, e.to_state) for e in change.events] == [("moved", "b"), ("entered", "busy")]
    assert job.at == ("busy", "busy")
    assert (job.row.leased_by, job.row.token, job.row.stood) == ("w1", 1, 1)
    assert (change.takes_slot, change.frees_slot) == ("f/b", None)


@pytest.mark.shows("E-28", "E-29")
def test_a_kept_lease_gives_its_slot_back_and_takes_the_next_in_one_change() -> None:
    job = Machine(busy_flow())
    job.claim()
    change = job.end(DONE, keep=always)
    assert (change.frees_slot, change.takes_slot) == ("pdf/queued", "pdf/packing")
    change = job.end(DONE, keep=always)
    assert (change.frees_slot, change.takes_slot) == ("pdf/packing", None)


@pytest.mark.shows("E-28")
@pytest.mark.parametrize(
    "outcome",
    [goto("b", after=MINUTE), raised(), stopped(), GivenBack(), Deferred(HOUR, False, "")],
)
def test_the_lease_is_given_back_when_the_next_stage_is_not_due_or_is_a_persons(
    outcome: object,
) -> None:
    job = Machine(two_steps())
    job.claim().end(outcome, keep=always)
    assert job.row.leased_by is None


@pytest.mark.shows("E-28")
def test_the_lease_is_kept_only_where_the_worker_may() -> None:
    asked = []
    job = Machine(two_steps())
    job.claim().end(DONE, keep=lambda place: asked.append(place.state) or False)
    assert asked == ["b"]
    assert job.row.leased_by is None


@pytest.mark.shows("E-38")
def test_a_thread_that_overran_keeps_lease_and_slot() -> None:
    job = Machine(busy_flow())
    job.claim()
    change = job.end(Overran())
    assert (job.row.leased_by, job.row.token) == ("w1", 1)
    assert (change.frees_slot, change.takes_slot) == (None, None)
    assert (job.last.kind, job.last.code) == (kinds.OVERRAN, kinds.TIMEOUT)


@pytest.mark.shows("E-37")
def test_a_noted_effect_belongs_to_job_round_stage_and_name_and_keeps_the_lease() -> None:
    job = Machine(busy_flow())
    job.claim()
    change = job.end(Noted("charge", b"1"))
    (result,) = change.results
    assert (result.round, result.stage, result.name, result.data) == (1, "queued", "charge", b"1")
    assert (job.row.leased_by, job.row.has_results) == ("w1", 1)


# --- asked while it ran ---------------------------------------------------------


@pytest.mark.shows("E-39")
@pytest.mark.parametrize(
    ("asked", "end"), [(Cancel("bob", "stop"), "cancelled"), (Elapsed(), "expired")]
)
def test_what_was_asked_while_a_stage_ran_follows_its_move_in_the_same_commit(
    asked: object, end: str
) -> None:
    job = Machine(two_steps())
    job.claim()
    change = job.end(DONE, keep=always, asked=asked)
    assert [e.to_state for e in change.events] == ["b", end]
    assert job.at == (end, end)
    assert change.answers == (("cancel" if end == "cancelled" else "expire", ""),)
    assert job.row.leased_by is None
    assert job.last.actor == ("bob" if end == "cancelled" else "ulak")


@pytest.mark.shows("E-39")
def test_a_final_move_wins_over_the_cancel_that_came_meanwhile() -> None:
    job = Machine(two_steps()).run(DONE)
    job.claim()
    change = job.end(DONE, asked=Cancel("bob"))
    assert job.at == ("done", "done")
    assert change.answers == ()


@pytest.mark.shows("E-39", "E-42")
def test_a_cancel_that_came_meanwhile_goes_through_the_undos() -> None:
    job = Machine(two_steps("ab"), key="k")
    job.claim()
    job.end(DONE, keep=always, asked=Cancel("bob"))
    assert (job.at, job.row.started, job.row.undo_to) == (("b", "undoing"), "a", "cancelled")
    assert job.row.leased_by is None
    job.run(DONE)
    assert job.at == ("cancelled", "cancelled")


@pytest.mark.shows("E-39")
@pytest.mark.parametrize("outcome", [raised(), stopped(), GivenBack(), Deferred(HOUR, False, "")])
def test_a_cancel_wins_over_every_outcome_that_is_not_final(outcome: object) -> None:
    job = Machine(two_steps("a"))
    job.claim()
    job.end(outcome, asked=Cancel("bob"))
    assert (job.at, job.row.started) == (("a", "undoing"), "a")


# --- keys -----------------------------------------------------------------------


@pytest.mark.shows("E-30")
@pytest.mark.parametrize(
    ("until", "outcomes", "freed"),
    [
        (Until.FINISHED, [DONE, DONE], True),
        (Until.FINISHED, [raised(permanent=True)], True),
        (Until.FAILED_FOR_GOOD, [DONE, DONE], False),
        (Until.FAILED_FOR_GOOD, [raised(permanent=True)], True),
        (Until.FORGOTTEN, [raised(permanent=True)], False),
        (["failed"], [DONE, DONE], False),
        (["failed"], [raised(permanent=True)], True),
    ],
)
def test_a_dedup_key_is_freed_by_the_end_that_the_flow_names(
    until: object, outcomes: list, freed: bool
) -> None:
    keep = HOUR if until is Until.FORGOTTEN else None
    job = Machine(two_steps(dedup=Dedup(until=until, keep=keep)), key="k").run(*outcomes)
    assert job.changes[-1].frees_key is freed
    assert all(not change.frees_key for change in job.changes[:-1])


@pytest.mark.shows("E-67")
@pytest.mark.parametrize(
    ("outcome", "late", "options", "freed"),
    [
        (raised(), False, {}, False),
        (raised(permanent=True), False, {}, True),
        (raised(permanent=True), False, {"retries_permanent": True}, False),
        (raised(), False, {"operator_retry": Backoff(1)}, False),
        (raised(), False, {"operator_retry": Backoff(0)}, True),
        (raised(), True, {}, True),
    ],
)
def test_a_key_is_freed_by_the_end_after_which_no_retry_is_left(
    outcome: object, late: bool, options: dict, freed: bool
) -> None:
    flow = two_steps(retry=0, expires=HOUR, dedup=Dedup(until=Until.FAILED_FOR_GOOD), **options)
    job = Machine(flow, key="k").claim()
    job.turn(2 * HOUR if late else MINUTE).end(outcome)
    assert (job.row.role, job.changes[-1].frees_key) == ("failed", freed)
    with pytest.raises(TransitionNotAllowed) if freed else nullcontext():
        job.retry()


@pytest.mark.shows("E-30", "E-6")
def test_a_key_that_the_first_end_keeps_is_freed_by_the_second() -> None:
    flow: Flow = Flow(
        "pdf", Lifecycle("a", {"a": ["done"], "done": ["expired"]}),
        dedup=Dedup(until=Until.FAILED_FOR_GOOD),
    )  # fmt: skip
    flow.stage("a")(work)
    flow.wait("done", after=HOUR, to="expired")
    job = Machine(flow, key="k").run(DONE)
    assert (job.at, job.holds_key) == (("done", "done"), True)
    job.turn(HOUR).elapse()
    assert (job.at, job.holds_key) == (("expired", "expired"), False)


@pytest.mark.shows("E-30", "E-6")
def test_a_key_that_the_first_end_freed_is_not_freed_again_by_the_second() -> None:
    flow: Flow = Flow(
        "pdf", Lifecycle("a", {"a": ["done"], "done": ["expired"]}), dedup=Dedup()
    )  # fmt: skip
    flow.stage("a")(work)
    flow.wait("done", after=HOUR, to="expired")
    job = Machine(flow, key="k").run(DONE)
    job.turn(HOUR).elapse()
    assert [change.frees_key for change in job.changes] == [True, False]


def test_a_decision_knows_nothing_but_what_it_is_given() -> None:
    job = Machine(two_steps())
    job.claim()
    facts = RunFacts("w1", job.now)
    first, second = (
        decide(job.flow, job.row, raised(), job.now, facts=facts, commit_id=b"c" * 16)
        for _ in range(2)
    )
    assert first == second


@pytest.mark.shows("E-47")
def test_a_flow_with_proofs_writes_one_body_per_event() -> None:
    job = Machine(two_steps(proofs=True))
    assert job.new.proof is not None
    job.claim().end(DONE)
    change = job.changes[-1]
    assert len(change.proofs) == len(change.events) == 1
    assert b"moved" in change.proofs[0]
    assert Machine(two_steps()).new.proof is None


def test_a_timeout_is_an_ordinary_failure() -> None:
    job = Machine(two_steps(retry=NEVER)).run(raised("timeout", timed_out=True))
    assert (job.row.state, job.row.code) == ("failed", "timeout")
