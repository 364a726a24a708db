"""Can this history be? A check of recorded calls against what one key may do.

What a key may do, one step after the other:

    absent --claim--> executing --settle--> answered
      ^                 |   ^ |               |
      |                 |   '-' take over     |
      '------ release or forget --------------'

A call that was executed takes two steps, `claim` and `settle`; one that failed `claim` and
`release`; one that lost its lease only `claim`, and somebody else has moved on by the time it is
told. A takeover needs the same fingerprint. A replay, a 409 or a 422 takes no step: it is true in
some state. A forgetting holds the record until it has taken its step: a duplicate that does not
wait so long gets a 409, as beside an execution. One that was undone did what one does that failed,
or nothing. Of a call without an answer nobody knows: it has taken all of its steps, some or none.

A history is linearizable if the steps of its calls can be put in one order such that each happens
between the invocation and the return of its call, each is allowed where it stands, and what every
call was told is true at some moment between its invocation and its return (Herlihy and Wing, 1990).
Keys are independent, so each is checked alone: linearizability is local.

The search is that of Wing and Gong, done just in time as Lowe describes ("Testing for
linearizability", 2017): all states that may hold are kept while invocations and returns are passed
in the order of time, and at a return only those stay in which that call is complete. Whatever a
call was told without a step of its own is ticked off as soon as it is true: that changes no state,
so no order is lost by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
)

_CLAIMING = frozenset({EXECUTED, FAILED, LOST, UNDONE, UNKNOWN})
"""Outcomes of calls that have claimed, or may have."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The first call of a key whose answer nothing before it can explain."""

    key: str
    call: Call

    def __str__(self) -> str:
        call = self.call
        told = f"{call.outcome} {call.value}".strip()
        return (
            f'{self.key}: {call.client} asked for "{call.asked}" and was told "{told}", which no '
            "order of the calls explains"
        )


def check(calls: Iterable[Call]) -> list[Violation]:
    """Answer, for each key whose history cannot be, where that shows; nothing when all can."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.outcome != UNAVAILABLE:  # it took no step and was told nothing of the key
            by_key[call.key].append(call)
    return [
        Violation(key, wrong)
        for key, its_calls in by_key.items()
        if (wrong := _first_wrong(its_calls)) is not None
    ]


class _State(NamedTuple):
    """What holds of a key."""

    owner: int | None = None
    """Which call is executing."""
    asked: str | None = None
    """The fingerprint of what is executed or answered; None when the key is absent."""
    value: str | None = None
    """What was answered."""


_ABSENT = _State()


class _Way(NamedTuple):
    """One way in which it may have come so far."""

    state: _State
    owed: frozenset[int]
    """The calls that have been invoked and are not complete."""
    begun: frozenset[int]
    """Those of them that have claimed."""


def _first_wrong(calls: Sequence[Call]) -> Call | None:
    ways = {_Way(_ABSENT, frozenset(), frozenset())}
    for at_return, number in _passed(calls):
        if not at_return:
            ways = {_tick_off(calls, way._replace(owed=way.owed | {number})) for way in ways}
            continue
        ways = _reachable(calls, ways)
        if calls[number].outcome == UNDONE:
            ways = {_without_a_step(way, number) for way in ways}
        ways = {way for way in ways if number not in way.owed}
        if not ways:
            return calls[number]
    return None


def _passed(calls: Sequence[Call]) -> Iterator[tuple[bool, int]]:
    """Pass invocations and returns in the order of time; at the same moment, invocations first,
    since calls that touch may have overlapped."""
    moments = [(call.invoked_at, False, n) for n, call in enumerate(calls)]
    moments += [
        (call.returned_at, True, n) for n, call in enumerate(calls) if call.returned_at is not None
    ]
    for _, at_return, number in sorted(moments):
        yield at_return, number


def _reachable(calls: Sequence[Call], ways: set[_Way]) -> set[_Way]:
    """Everything that the calls under way may have done by now."""
    found, ahead = set(ways), list(ways)
    while ahead:
        way = ahead.pop()
        for number in way.owed:
            for after in _steps(calls[number], number, way):
                ticked = _tick_off(calls, after)
                if ticked not in found:
                    found.add(ticked)
                    ahead.append(ticked)
    return found


def _steps(call: Call, number: int, way: _Way) -> Iterator[_Way]:
    """The steps that a call may take next; a call without a fingerprint wants the key forgotten."""
    state = way.state
    if _is_forgetting(call):
        if state != _ABSENT:
            yield _done(way, number, _ABSENT)
    elif call.outcome not in _CLAIMING:
        return
    elif number not in way.begun:
        is_takeover = state.owner is not None and state.asked == call.asked
        if state == _ABSENT or is_takeover:
            yield _Way(_State(number, call.asked), way.owed, way.begun | {number})
    elif state.owner == number:
        if call.outcome == UNKNOWN or (call.outcome == EXECUTED and call.value == call.offers):
            yield _done(way, number, _State(None, call.asked, call.offers))
        if call.outcome in (FAILED, UNDONE, UNKNOWN):
            yield _done(way, number, _ABSENT)
    elif call.outcome in (FAILED, LOST, UNDONE):
        yield _done(way, number, state)


def _done(way: _Way, number: int, state: _State) -> _Way:
    return _Way(state, way.owed - {number}, way.begun - {number})


def _without_a_step(way: _Way, number: int) -> _Way:
    """Complete a call that need not have done anything, if it has not."""
    return way if number in way.begun else way._replace(owed=way.owed - {number})


def _tick_off(calls: Sequence[Call], way: _Way) -> _Way:
    """Complete the calls that were told what is true now."""
    is_held = way.state.owner is not None or (
        way.state != _ABSENT and any(_is_forgetting(calls[number]) for number in way.owed)
    )
    true = {number for number in way.owed if _is_true(calls[number], way.state, is_held=is_held)}
    return way._replace(owed=way.owed - true) if true else way


def _is_forgetting(call: Call) -> bool:
    """Tell whether this call has forgotten a record, or was killed when it was about to."""
    return call.outcome == FORGOTTEN or (call.outcome == UNKNOWN and not call.asked)


def _is_true(call: Call, state: _State, *, is_held: bool) -> bool:
    if call.outcome == REPLAYED:
        return (state.asked, state.value) == (call.asked, call.value)
    if call.outcome == IN_PROGRESS:
        return is_held
    if call.outcome == CONFLICT:
        return state.asked is not None and state.asked != call.asked
    # A claim in a transaction that has not committed is not there for an operator.
    return call.outcome == NOT_FOUND and state.value is None
