"""The checker lets every history pass that can be, and none that cannot."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.testing.histories import (
    CONFLICT,
    EXECUTED,
    FAILED,
    FORGOTTEN,
    IN_PROGRESS,
    LOST,
    NOT_FOUND,
    REPLAYED,
    UNAVAILABLE,
    UNDONE,
    UNKNOWN,
    Call,
    History,
    read_history,
)
from ulak.testing.linearizability import check

_numbers = itertools.count(1)


def call(span: tuple[int, int | None], outcome: str, value: str = "", **facts: Any) -> Call:
    """One call over a span of time; it offers the value that it was executed with."""
    offers = value if outcome == EXECUTED else f"offer-{next(_numbers)}"
    made = Call("client", "key", "a", offers, span[0], span[1], outcome, value)
    return replace(made, **facts)


def is_linearizable(*calls: Call) -> bool:
    return check(calls) == []


FIRST = call((0, 10), EXECUTED, "v1")
CRASHED = call((0, None), UNKNOWN, offers="v1")

CAN_BE = {
    "nothing": [],
    "one execution": [FIRST],
    "a replay after it": [FIRST, call((20, 30), REPLAYED, "v1")],
    "a replay while it returns": [FIRST, call((5, 6), REPLAYED, "v1")],
    "a duplicate while it runs": [FIRST, call((1, 2), IN_PROGRESS)],
    "a duplicate that returns late": [FIRST, call((5, 40), IN_PROGRESS)],
    "another request after it": [FIRST, call((20, 30), CONFLICT, asked="b")],
    "another request while it runs": [FIRST, call((1, 2), CONFLICT, asked="b")],
    "another request that is told of the execution": [FIRST, call((1, 2), IN_PROGRESS, asked="b")],
    "another request first": [call((1, 4), EXECUTED, "v1", asked="b"), call((0, 9), CONFLICT)],
    "a failure and a retry": [call((0, 10), FAILED), call((20, 30), EXECUTED, "v2")],
    "a failure and a retry at once": [call((0, 10), FAILED), call((5, 9), EXECUTED, "v2")],
    "two answers, one forgotten": [
        FIRST, call((20, 30), FORGOTTEN), call((40, 50), EXECUTED, "v2"),
        call((60, 70), REPLAYED, "v2"),
    ],
    "a replay as it is forgotten": [
        FIRST, call((20, 40), FORGOTTEN), call((25, 35), REPLAYED, "v1"),
        call((26, 34), NOT_FOUND),
    ],
    "nothing to forget": [call((0, 1), NOT_FOUND), call((2, 3), EXECUTED, "v1")],
    "undone without a step": [FIRST, call((2, 3), UNDONE), call((20, 30), UNDONE)],
    "undone after a claim": [call((0, 10), UNDONE), call((1, 2), IN_PROGRESS)],
    "a crash that left nothing": [CRASHED, call((20, 30), EXECUTED, "v2")],
    "a crash that left an answer": [CRASHED, call((20, 30), REPLAYED, "v1")],
    "a crash that left a claim": [CRASHED, call((20, 30), IN_PROGRESS)],
    "a crash and a takeover": [
        CRASHED, call((20, 30), IN_PROGRESS), call((40, 50), EXECUTED, "v2"),
        call((60, 70), REPLAYED, "v2"),
    ],
    "a takeover from one who lives": [
        call((0, 50), LOST), call((10, 11), IN_PROGRESS), call((20, 30), EXECUTED, "v2"),
        call((60, 70), REPLAYED, "v2"),
    ],
    "a forgetting that nobody was told of": [
        FIRST, call((20, None), UNKNOWN, asked=""), call((40, 50), EXECUTED, "v2"),
    ],
    "a duplicate beside a forgetting": [
        FIRST, call((20, 30), FORGOTTEN), call((25, 40), IN_PROGRESS),
    ],
    "forgotten while it ran": [call((0, 50), LOST), call((10, 20), FORGOTTEN)],
    "no store": [FIRST, call((20, 30), UNAVAILABLE)],
    "two keys": [FIRST, call((0, 10), EXECUTED, "w1", key="other")],
    "calls that touch": [FIRST, call((10, 20), IN_PROGRESS)],
}  # fmt: skip

CANNOT_BE = {
    "in progress after it was undone": [call((0, 10), UNDONE), call((20, 30), IN_PROGRESS)],
    "a replay of what was undone": [
        call((0, 10), UNDONE, offers="v1"), call((20, 30), REPLAYED, "v1"),
    ],
    "a second execution": [FIRST, call((20, 30), EXECUTED, "v2")],
    "a second execution at once": [FIRST, call((0, 10), EXECUTED, "v2")],
    "a second execution of another request": [FIRST, call((20, 30), EXECUTED, "v2", asked="b")],
    "a replay of another value": [FIRST, call((20, 30), REPLAYED, "v2")],
    "a replay of a value that was lost": [
        call((0, 10), FAILED, offers="v1"), call((20, 30), REPLAYED, "v1"),
    ],
    "a replay before any execution began": [
        call((0, 5), REPLAYED, "v1"), call((6, 10), EXECUTED, "v1"),
    ],
    "a replay of nothing": [call((0, 5), REPLAYED, "v1")],
    "a replay for another request": [FIRST, call((20, 30), REPLAYED, "v1", asked="b")],
    "in progress after the answer": [FIRST, call((20, 30), IN_PROGRESS)],
    "in progress though nobody ever was": [call((0, 5), IN_PROGRESS)],
    "in progress after a failure": [call((0, 10), FAILED), call((20, 30), IN_PROGRESS)],
    "in progress by itself": [call((0, 10), IN_PROGRESS), call((20, 30), EXECUTED, "v1")],
    "the answer of another key": [
        FIRST, call((0, 10), EXECUTED, "w1", key="other"),
        call((20, 30), REPLAYED, "v1", key="other"),
    ],
    "a conflict with the same request": [FIRST, call((20, 30), CONFLICT)],
    "a conflict with nothing": [call((0, 5), CONFLICT, asked="b"), call((6, 9), EXECUTED, "v1")],
    "a conflict with what was forgotten": [
        FIRST, call((20, 30), FORGOTTEN), call((40, 50), CONFLICT, asked="b"),
    ],
    "a replay of what was forgotten": [
        FIRST, call((20, 30), FORGOTTEN), call((40, 50), REPLAYED, "v1"),
    ],
    "a duplicate of a forgetting that nobody was told of": [
        call((0, None), UNKNOWN, asked=""), call((5, 9), IN_PROGRESS),
    ],
    "an execution that nobody was told of, as a forgetting": [
        FIRST, call((20, None), UNKNOWN), call((40, 50), EXECUTED, "v2"),
    ],
    "a duplicate beside a forgetting that found nothing": [
        call((0, 10), NOT_FOUND), call((5, 9), IN_PROGRESS),
    ],
    "a duplicate after a forgetting": [
        FIRST, call((20, 30), FORGOTTEN), call((35, 40), IN_PROGRESS),
    ],
    "a duplicate before a forgetting": [
        FIRST, call((12, 15), IN_PROGRESS), call((20, 30), FORGOTTEN),
    ],
    "forgotten twice": [FIRST, call((20, 30), FORGOTTEN), call((40, 50), FORGOTTEN)],
    "not found though it is there": [FIRST, call((20, 30), NOT_FOUND)],
    "an answer that nobody offered": [replace(FIRST, offers="v0")],
    "a lease lost to nobody": [call((0, 10), LOST)],
    "both owners end": [
        call((0, 50), EXECUTED, "v1"), call((10, 20), IN_PROGRESS),
        call((30, 40), EXECUTED, "v2"),
    ],
    "a takeover by another request": [
        CRASHED, call((20, 30), IN_PROGRESS), call((31, 32), LOST),
        call((40, 50), EXECUTED, "v2", asked="b"), call((60, 70), REPLAYED, "v1"),
    ],
    "two values of two crashes": [
        CRASHED, call((0, None), UNKNOWN, offers="v2"), call((20, 30), REPLAYED, "v1"),
        call((40, 50), REPLAYED, "v2"),
    ],
    "an answer that comes and goes": [
        FIRST, call((20, 30), REPLAYED, "v1"), call((40, 50), EXECUTED, "v2"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("calls", CAN_BE.values(), ids=CAN_BE)
def test_a_history_that_can_be_passes(calls: list[Call]) -> None:
    assert check(calls) == []


@pytest.mark.parametrize("calls", CANNOT_BE.values(), ids=CANNOT_BE)
def test_a_history_that_cannot_be_is_rejected(calls: list[Call]) -> None:
    assert len(check(calls)) == 1


def test_a_violation_says_who_was_told_what() -> None:
    (wrong,) = check(CANNOT_BE["in progress after the answer"])
    assert str(wrong) == (
        'key: client asked for "a" and was told "in-progress", which no order of the calls explains'
    )


def test_each_key_is_judged_alone() -> None:
    wrong = CANNOT_BE["a second execution"]
    others = [call((n, n + 1), EXECUTED, f"w{n}", key=f"other-{n}") for n in range(5)]
    assert [violation.key for violation in check([*others, *wrong])] == ["key"]


def test_a_crowd_of_duplicates_is_judged_in_no_time() -> None:
    crowd = [call((n, 500 + n), IN_PROGRESS) for n in range(1, 200)]
    crowd += [call((n, 2000), REPLAYED, "v1") for n in range(200, 400)]
    first = call((0, 1000), EXECUTED, "v1")
    assert is_linearizable(first, *crowd)
    assert not is_linearizable(first, *crowd, call((2001, 2002), IN_PROGRESS))


# --- against a search without any of its shortcuts ----------------------------------------

OUTCOMES = [EXECUTED, REPLAYED, IN_PROGRESS, CONFLICT, FAILED, LOST, UNKNOWN, FORGOTTEN, NOT_FOUND]


def brute_force(calls: list[Call]) -> bool:
    """Try every order of every step of every call."""
    steps = {
        EXECUTED: [("claim", "settle")], FAILED: [("claim", "release"), ("claim", "gone")],
        LOST: [("claim", "gone")], FORGOTTEN: [("hold", "forget")],
        UNKNOWN: [(), ("claim",), ("claim", "settle"), ("claim", "release")],
    }  # fmt: skip
    for chosen in itertools.product(*(steps.get(c.outcome, [("tell",)]) for c in calls)):
        if any(_is_allowed(calls, order) for order in _orders(calls, chosen)):
            return True
    return False


def _orders(calls: list[Call], chosen: tuple[tuple[str, ...], ...]) -> Iterator[list[Any]]:
    def go(done: list[int], order: list[Any]) -> Iterator[list[Any]]:
        left = [n for n, steps in enumerate(chosen) if done[n] < len(steps)]
        if not left:
            yield order
        # No step of a call may come before the end of a call that had returned by then.
        ends = [calls[n].returned_at for n in left]
        for n in left:
            if not any(end is not None and end < calls[n].invoked_at for end in ends):
                after = [*done]
                after[n] += 1
                yield from go(after, [*order, (n, chosen[n][done[n]])])

    yield from go([0] * len(calls), [])


def _is_allowed(calls: list[Call], order: list[Any]) -> bool:
    owner: int | None = None
    record: tuple[str, str] | None = None  # what was asked, and what was answered
    holding = 0  # how many are about to forget it
    for n, step in order:
        c = calls[n]
        if step == "claim":
            if record is not None and (owner is None or record[0] != c.asked):
                return False
            owner, record = n, (c.asked, "")
        elif step in ("settle", "release"):
            if owner != n or (c.outcome == EXECUTED and c.value != c.offers):
                return False
            owner, record = None, ((c.asked, c.offers) if step == "settle" else None)
        elif step == "gone":
            if owner == n:
                return False
        elif step in ("hold", "forget"):
            if record is None:
                return False
            holding += 1 if step == "hold" else -1
            owner, record = (owner, record) if step == "hold" else (None, None)
        else:
            truth = {
                REPLAYED: owner is None and record == (c.asked, c.value),
                IN_PROGRESS: owner is not None or (holding > 0 and record is not None),
                CONFLICT: record is not None and record[0] != c.asked,
                NOT_FOUND: owner is not None or record is None,
            }
            if not truth[c.outcome]:
                return False
    return True


@st.composite
def small_histories(draw: st.DrawFn) -> list[Call]:
    calls = []
    for n in range(draw(st.integers(1, 4))):
        outcome = draw(st.sampled_from(OUTCOMES))
        invoked = draw(st.integers(0, 12))
        returned = None if outcome == UNKNOWN else invoked + draw(st.integers(0, 8))
        value = f"v{n}" if outcome == EXECUTED else f"v{draw(st.integers(0, 3))}"
        asked = draw(st.sampled_from("aab"))
        calls.append(Call("client", "key", asked, f"v{n}", invoked, returned, outcome, value))
    return calls


@settings(max_examples=600, deadline=None)
@given(small_histories())
def test_the_verdict_is_that_of_a_search_without_shortcuts(calls: list[Call]) -> None:
    assert is_linearizable(*calls) is brute_force(calls)


# --- recording ----------------------------------------------------------------------------


def test_what_is_recorded_is_read_and_who_never_returned_is_unknown(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    first = history.invoke("ada", key="k", asked="a", offers="v1")
    second = history.invoke("eve", key="k", asked="a", offers="v2")
    history.invoke("dead", key="k", asked="a", offers="v3")
    gave_up = history.invoke("late", key="k", asked="a", offers="v4")
    second.returns(IN_PROGRESS)
    first.returns(EXECUTED, "v1")
    gave_up.returns(UNKNOWN)
    history.close()
    ada, eve, dead, late = read_history(history.path)
    assert (ada.client, ada.key, ada.asked, ada.offers) == ("ada", "k", "a", "v1")
    assert (ada.outcome, ada.value, eve.outcome) == (EXECUTED, "v1", IN_PROGRESS)
    assert ada.returned_at is not None
    assert eve.returned_at is not None
    assert ada.invoked_at < eve.invoked_at < eve.returned_at < ada.returned_at
    for lost in (dead, late):
        assert (lost.outcome, lost.returned_at) == (UNKNOWN, None)
    assert check([ada, eve, dead, late]) == []
