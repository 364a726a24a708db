"""No sequence of outcomes and acts breaks the rules, whatever the flow.

`Machine.write` holds every change to the table, the guards, the numbers and the way on.
"""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.machine import DONE, HOUR, MINUTE, Machine, always, goto, raised, stopped, work
from ulak.clock import micros
from ulak.core.acts import answer
from ulak.core.flow import Flow
from ulak.core.job import Message
from ulak.core.lifecycle import CLAIMABLE, FINAL, SAME, Lifecycle
from ulak.core.outcome import (
    Cancel,
    Deferred,
    Elapsed,
    Finished,
    GivenBack,
    Left,
    Noted,
    Overran,
    Retry,
)
from ulak.core.policy import Backoff, Dedup, Limit, Until
from ulak.errors import TransitionNotAllowed

KINDS = ("stage", "stage", "busy", "gate", "signal", "timer")


@st.composite
def flows(draw: st.DrawFn) -> Flow[Any]:
    """A small flow: a row of states that leads to done, with ways aside and every option."""
    size = draw(st.integers(1, 4))
    states = [f"s{n}" for n in range(size)]
    kinds = [draw(st.sampled_from(KINDS)) for _ in states]
    undos = [kind in ("stage", "busy") and draw(st.booleans()) for kind in kinds]
    aside = [*states, "done", "held", "failed", "cancelled", "expired"]
    has_undo = any(undos)
    life: dict[str, Any] = {"release_to": draw(st.sampled_from([SAME, states[0]]))}
    for name in ("cancelled", "expired"):
        if draw(st.booleans()):
            life[name] = "failed"
            aside.remove(name)
    if has_undo and draw(st.booleans()):
        life["undoing"] = "undoing"
        aside.append("undoing")
    if has_undo and draw(st.booleans()):
        life["undone"] = "undone"
    if not has_undo:
        life["retry_to"] = draw(st.sampled_from([SAME, states[0], None]))
    moves: dict[str, list[str]] = {}
    for n, (state, kind) in enumerate(zip(states, kinds, strict=True)):
        onward = states[n + 1] if n + 1 < size else "done"
        ways = [onward, *draw(st.lists(st.sampled_from(aside), max_size=2))]
        if kind == "busy":
            moves[state], state = [f"{state}_busy"], f"{state}_busy"
        moves[state] = list(dict.fromkeys(ways))
    if draw(st.booleans()):
        moves["done"] = [life.get("expired", "expired")]
    flow: Flow[Any] = Flow(
        "any", Lifecycle(states[0], moves, **life),
        retry=Backoff(draw(st.integers(0, 2))), undo_retry=Backoff(draw(st.integers(0, 1))),
        retry_via=draw(st.sampled_from([None, "failed"])),
        on_lapse=draw(st.sampled_from([None, "LOST"])), max_lapses=draw(st.integers(1, 3)),
        expires=draw(st.sampled_from([None, 5 * HOUR])), retries_permanent=draw(st.booleans()),
        operator_retry=draw(st.sampled_from([None, Backoff(0), Backoff(1)])),
        dedup=draw(st.sampled_from([None, Dedup(), Dedup(until=Until.FAILED_FOR_GOOD)])),
        proofs=draw(st.booleans()),
    )  # fmt: skip
    for state, kind, undo in zip(states, kinds, undos, strict=True):
        _declare(draw, flow, state, kind, undo, moves)
    if "done" in moves:
        flow.wait("done", after=HOUR, to=moves["done"][0])
    return flow


def _declare(
    draw: st.DrawFn, flow: Flow[Any], state: str, kind: str, undo: bool, moves: dict[str, list[str]]
) -> None:
    ways = moves[state]
    if kind in ("stage", "busy"):
        stage = flow.stage(
            state,
            during=f"{state}_busy" if kind == "busy" else None,
            to=moves[f"{state}_busy"][0] if kind == "busy" else ways[0],
            limit=draw(st.sampled_from([None, Limit(1)])),
        )(work)
        if undo:
            stage.undo(work)
    elif kind == "gate":
        choices = {f"to-{way}": way for way in ways}
        flow.gate(
            state, choices=choices, deadline=HOUR, on_expiry=draw(st.sampled_from(ways)),
            refusals=draw(st.sampled_from([None, set(choices)])),
        )  # fmt: skip
    elif kind == "signal":
        flow.wait(state, signal="go", to=ways[0], deadline=HOUR, on_expiry=ways[-1])
    else:
        flow.wait(state, after=HOUR, to=draw(st.sampled_from(ways)))


OUTCOMES = st.one_of(
    st.just(DONE),
    st.just(DONE),
    st.builds(raised, permanent=st.booleans()),
    st.just(stopped()),
    st.builds(Deferred, st.sampled_from([timedelta(0), MINUTE]), st.booleans(), st.just("later")),
    st.just(GivenBack()),
    st.builds(
        goto,
        st.sampled_from(["s0", "s1", "s2", "done", "held", "failed", "expired", "undoing"]),
        after=st.sampled_from([None, MINUTE]),
    ),
    st.just(Finished(Left(b"1", (Message(b"j" * 16, 0, 0, "k", "t", b"{}", 0),)))),
    st.just(Overran()),
    st.just(Noted("once", b"1")),
)
STEPS = st.one_of(
    st.tuples(
        st.just("run"),
        OUTCOMES,
        st.booleans(),
        st.sampled_from([None, None, None, Cancel("bob"), Elapsed()]),
    ),
    st.tuples(st.just("run"), OUTCOMES, st.booleans(), st.none()),
    st.tuples(st.sampled_from(["lapse", "cancel", "retry", "release", "signal", "elapse"])),
    st.tuples(st.just("decide"), st.sampled_from(["s0", "s1", "s2", "done", "failed", "undoing"])),
    st.tuples(st.just("turn"), st.sampled_from([MINUTE, 2 * HOUR])),
)


def take(job: Machine, step: tuple[Any, ...]) -> None:
    """Take one step if the job stands where it can be taken."""
    match step:
        case ("run", outcome, keep, asked) if job.row.role in CLAIMABLE:
            if job.row.leased_by is None:
                job.run_lapsed()
            if job.row.leased_by is not None:
                job.end(outcome, keep=always if keep else None, asked=asked)
        case ("lapse",) if job.row.role in CLAIMABLE:
            if job.row.leased_by is None:
                job.claim()
            job.lapse()
        case ("turn", by):
            job.turn(by)
        case ("signal",) if job.row.leased_by is None:
            job.signal("go")
        case ("decide", to) if job.row.leased_by is None:
            job.decide(f"to-{to}")
        case (("cancel" | "retry" | "release" | "elapse") as verb,) if job.row.leased_by is None:
            getattr(job, verb)()


@pytest.mark.shows("E-2", "E-42", "E-67")
@settings(max_examples=400, deadline=None)
@given(flow=flows(), steps=st.lists(STEPS, max_size=30))
def test_any_sequence_of_outcomes_and_acts_obeys_the_table_and_leaves_a_way_on(
    flow: Flow[Any], steps: list[tuple[Any, ...]]
) -> None:
    job = Machine(flow, key="k" if flow.dedup else None)
    for step in steps:
        before = job.row
        with contextlib.suppress(TransitionNotAllowed):
            take(job, step)
        after = job.row
        assert after.token >= before.token
        assert after.version >= before.version
        assert [event.seq for event in job.trail] == list(range(1, after.seq + 1))
        assert after.seq == job.trail[-1].seq
        assert job.path()[-1] == after.state
        _owes_only_what_it_may(job)


def _owes_only_what_it_may(job: Machine) -> None:
    row = job.row
    assert (row.undo_to is not None) == (row.role == "undoing" or row.code == "undo-failed")
    if row.undo_to is not None:
        assert row.started
        assert row.wake_at is None
    if row.role in FINAL:
        assert row.started == ""
    if row.state == "held" and row.undo_to is None:
        assert row.code
    if row.role == "failed" and row.code in ("cancelled", "expired"):
        assert row.permanent == (row.state == getattr(job.flow.lifecycle, row.code))
    if job.flow.dedup is not None and row.role not in FINAL:
        assert job.holds_key
    if job.flow.dedup == Dedup(until=Until.FAILED_FOR_GOOD) and row.role in FINAL:
        assert job.holds_key == (row.role == "done" or _could_be_retried(job))
    places = job.flow.table.places
    if row.role != "undoing":
        assert row.role == places[row.state].role
    assert row.attempt <= max(job.flow.retry.limit(), job.flow.undo_retry.limit())


def _could_be_retried(job: Machine) -> bool:
    """Ask what a retry at the moment of the job's end would have been answered."""
    try:
        answer(job.flow, job.row, Retry("bob"), job.row.changed_at, commit_id=b"c" * 16)
    except TransitionNotAllowed:
        return False
    return True


@pytest.mark.shows("E-2")
@settings(max_examples=200, deadline=None)
@given(flow=flows(), steps=st.lists(STEPS, max_size=15))
def test_whatever_happened_a_job_can_still_be_brought_to_an_end(
    flow: Flow[Any], steps: list[tuple[Any, ...]]
) -> None:
    job = Machine(flow, key="k" if flow.dedup else None)
    for step in steps:
        with contextlib.suppress(TransitionNotAllowed):
            take(job, step)
    for _ in range(20):
        if job.row.role in FINAL:
            break
        if job.row.leased_by is not None:
            job.lapse()
        if job.row.role in CLAIMABLE:
            job.run_lapsed()
            if job.row.leased_by is not None:
                job.end(DONE, asked=Cancel("bob"))
        elif job.row.undo_to is not None:
            job.release()
        else:
            job.cancel()
    assert job.row.role in FINAL


BACKOFFS = st.builds(
    Backoff,
    st.integers(0, 3000),
    first=st.timedeltas(timedelta(0), timedelta(days=1)),
    factor=st.floats(1, 1e12),
    longest=st.timedeltas(timedelta(0), timedelta(days=30)),
    jitter=st.floats(0, 2),
)


@pytest.mark.shows("E-5")
@given(BACKOFFS, st.integers(1, 3001), st.binary(min_size=16, max_size=16))
def test_a_delay_is_bounded_repeatable_and_ends_with_the_retries(
    backoff: Backoff, failures: int, job_id: bytes
) -> None:
    delay = backoff.delay_us(failures, job_id)
    if failures > backoff.retries:
        assert delay is None
        return
    assert delay is not None
    assert delay == backoff.delay_us(failures, job_id)
    assert 0 <= delay <= micros(backoff.longest) * (1 + backoff.jitter) + 1
    assert delay >= min(micros(backoff.first), micros(backoff.longest))


@given(BACKOFFS, st.integers(1, 2999))
def test_without_jitter_delays_never_shrink(backoff: Backoff, failures: int) -> None:
    plain = Backoff(
        3000, first=backoff.first, factor=backoff.factor, longest=backoff.longest, jitter=0
    )
    first, second = plain.delay_us(failures, b""), plain.delay_us(failures + 1, b"")
    assert first is not None
    assert second is not None
    assert first <= second


@given(st.lists(st.timedeltas(timedelta(0), timedelta(days=9)), max_size=5))
def test_named_delays_are_taken_as_they_are(delays: list[timedelta]) -> None:
    backoff = Backoff(delays=delays)
    assert [backoff.delay_us(n + 1, b"") for n in range(len(delays))] == [micros(d) for d in delays]
    assert backoff.delay_us(len(delays) + 1, b"") is None
