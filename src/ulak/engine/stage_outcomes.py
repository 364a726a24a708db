"""How a stage's end is read: what it returned or raised becomes an outcome."""

from __future__ import annotations

import functools
import traceback
import types
import typing
from collections.abc import Callable
from typing import Any

from ulak.clock import read_micros
from ulak.core import event as kinds
from ulak.core.bounds import find_excess, must_fit, storable_key
from ulak.core.flow import Flow
from ulak.core.job import Message, NewJob
from ulak.core.outcome import (
    JUST_FINISHED,
    NOTHING,
    Deferred,
    Finished,
    Goto,
    Held,
    Hold,
    Left,
    Note,
    Outcome,
    Passed,
    Raised,
    RetryLater,
)
from ulak.core.run import Stopped
from ulak.errors import BadInput
from ulak.store import codec

LONGEST_TRACEBACK = 3000

_OUTCOMES = (Goto, Hold, RetryLater)


class Abandoned(BaseException):
    """Raised inside a stage that must not go on; not an Exception, so that none swallows it."""


class Postponed(Abandoned):
    """Raised inside a stage that cannot go on now, through no fault of its own."""


class PayloadUnreadable(Exception):
    """The stored payload or result does not fit the declared type."""


class EffectUnwritable(Exception):
    """An effect has happened and what it returned cannot be recorded: a person must look."""


def read_return(
    returned: object, messages: tuple[Message, ...], spawns: tuple[NewJob, ...]
) -> Outcome:
    """Read what a stage returned. A result that cannot be stored fails the stage for good, and an
    outcome with a wrong value in it holds the job.
    """
    if returned is None and not messages and not spawns:
        return JUST_FINISHED
    if isinstance(returned, _OUTCOMES) and (wrong := _complaint(returned)) is not None:
        return Held(kinds.BAD_OUTCOME, f"it returned {type(returned).__name__} with {wrong}")
    if isinstance(returned, Hold):
        return Held(returned.code, returned.why)
    if isinstance(returned, RetryLater):
        return Deferred(returned.after, returned.spend_attempt, returned.why, returned.key)
    value = returned.result if isinstance(returned, Goto) else returned
    try:
        data = None if value is None else codec.encode(value)
    except BadInput as error:
        if isinstance(value, type) and issubclass(value, _OUTCOMES):
            said = f"it returned the class {value.__name__}; return {value.__name__}(...)"
            return Held(kinds.BAD_OUTCOME, said)
        return Raised(kinds.RESULT_UNWRITABLE, str(error), permanent=True)
    if data is not None and (excess := find_excess(data, "the result")) is not None:
        return Raised(kinds.RESULT_TOO_LARGE, excess, permanent=True)
    left = Left(data, messages, spawns)
    if isinstance(returned, Goto):
        return Finished(left, returned.state, returned.after)
    return Finished(left)


def read_before(
    returned: object, messages: tuple[Message, ...], spawns: tuple[NewJob, ...]
) -> Outcome:
    """Read what a function returned that is called before a stage: None, or an outcome."""
    if returned is None:
        return Passed(Left(None, messages, spawns) if messages or spawns else NOTHING)
    if isinstance(returned, _OUTCOMES):
        return read_return(returned, messages, spawns)
    said = f"its before returned {type(returned).__name__}; return None, Goto, Hold or RetryLater"
    return Held(kinds.BAD_OUTCOME, said)


def read_error(flow: Flow[Any], error: BaseException) -> Outcome:
    """Read what a stage raised, by the nearest class that the flow declares."""
    if isinstance(error, RetryLater):
        return read_return(error, (), ())
    if isinstance(error, PayloadUnreadable):
        return Held(kinds.PAYLOAD_UNREADABLE, str(error))
    if isinstance(error, EffectUnwritable):
        return Held(kinds.RESULT_UNWRITABLE, str(error))
    if is_stopped(error):
        return Raised("raised", "it stopped, and nobody had told it to", details=_details(error))
    code, message = _told_by(error)
    details = _details(error)
    for kind in type(error).__mro__:
        if kind in flow.transient:
            break
        if kind in flow.permanent:
            return Raised(code or "permanent", message, permanent=True, details=details)
        if kind in flow.holds_on:
            return Held(code or "held", message, details)
    return Raised(code or "raised", message, details=details)


def is_stopped(error: BaseException) -> bool:
    """Tell whether a stage has ended because it had to stop, or some tasks of it have."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_stopped, error.exceptions))
    return isinstance(error, Stopped)


def write_effect(name: str, value: object) -> bytes:
    """Encode what an effect returned.

    Raises:
        EffectUnwritable: it cannot be recorded; running the effect again would repeat it.
    """
    try:
        data = codec.encode(value)
    except BadInput as error:
        raise EffectUnwritable(f"once({name!r}) was done, but: {error}") from error
    excess = find_excess(data, f"once({name!r}) was done, but what it returned")
    if excess is not None:
        raise EffectUnwritable(excess)
    return data


def make_note(kind: str, message: str, details: dict[str, object]) -> Note:
    """Write a line of a service's own kind as the trail keeps it.

    Raises:
        BadInput: the details are no JSON, or too large.
    """
    data = must_fit(codec.encode(details), f"the details of {kind}") if details else None
    return Note(kind, message, None if data is None else data.decode())


def timed_out(timeout_us: int) -> Raised:
    seconds = timeout_us / 1e6
    return Raised(kinds.TIMEOUT, f"it ran for more than {seconds:g} s", timed_out=True)


@functools.cache
def returns(function: Callable[..., Any]) -> Any:
    """Return the type that a function says it returns, without outcomes and awaitables."""
    try:
        kind = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [m for m in typing.get_args(kind) if m not in _OUTCOMES]
        if not members:
            return Any
        return members[0] if len(members) == 1 else functools.reduce(lambda a, b: a | b, members)
    return Any if kind in _OUTCOMES else kind


def _complaint(outcome: Goto | Hold | RetryLater) -> str | None:
    """Return which value of an outcome cannot be used, and what would work."""
    try:
        return _wrong_value(outcome)
    except BaseException as error:  # noqa: BLE001 - the runner: a value that fails when it is shown
        return f"a value that cannot be shown ({type(error).__name__}); use plain texts and numbers"


def _wrong_value(outcome: Goto | Hold | RetryLater) -> str | None:
    if isinstance(outcome, Hold):
        if not isinstance(outcome.code, str) or not outcome.code:
            return f"code={outcome.code!r}; a code is a text that is not empty"
        return _not_a_text("why", outcome.why)
    try:
        if isinstance(outcome, Goto):
            if not isinstance(outcome.state, str) or not outcome.state:
                return f"state={outcome.state!r}; name one of the states that its stage may go to"
            if outcome.after is not None:
                read_micros(outcome.after, "an after that")
            return None
        read_micros(outcome.after, "an after that")
        if outcome.key is not None:
            storable_key(outcome.key, "a key that")
    except BadInput as error:
        return str(error)
    if not isinstance(outcome.spend_attempt, bool):
        return f"spend_attempt={outcome.spend_attempt!r}; it is True or False"
    return _not_a_text("why", outcome.why)


def _not_a_text(name: str, value: object) -> str | None:
    return None if isinstance(value, str) else f"{name}={value!r}; it is a text"


def _told_by(error: BaseException) -> tuple[str | None, str]:
    """Return the code and the text of an error, whatever its class does when it is shown."""
    name = type(error).__name__
    try:
        named = getattr(error, "code", None)
        return (named if isinstance(named, str) and named else None), f"{name}: {error}"
    except BaseException:  # noqa: BLE001 - the runner: a broken __str__ is no reason to lose the end of a run
        return None, f"{name}: (it cannot be printed)"


def _details(error: BaseException) -> str:
    safe = _traceback(error)[-LONGEST_TRACEBACK:].encode("utf-8", "replace").decode()
    return codec.encode({"type": type(error).__name__, "traceback": safe}).decode()


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error without marks below its lines: to place them Python parses
    each line, and 3.11 keeps some memory of every parse for ever."""
    whole = traceback.TracebackException.from_exception(error)
    found: list[traceback.TracebackException | None] = [whole]
    while found:
        if one := found.pop():
            found += [one.__cause__, one.__context__, *(one.exceptions or ())]
            for frame in one.stack:
                frame.colno = None
    return "".join(whole.format())
