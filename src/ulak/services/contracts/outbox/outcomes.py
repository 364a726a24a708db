"""What becomes of an event after an attempt: every rule of sending is here, and nothing else.

Pure: the time, the answer and the randomness are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Literal

from ulak.kit.clock import SECOND, Instant, to_instant

Verdict = Literal["sent", "rejected", "dead", "retry"]
Uniform = Callable[[float, float], float]
"""Draws a number between two others, such as `random.Random(seed).uniform`."""

BASE: Final = timedelta(seconds=2)
CAP: Final = timedelta(hours=1)
MOST_ATTEMPTS: Final = 20
LONGEST_RETRY: Final = timedelta(days=3)
"""For how long an event is tried again; whoever remembers its key must do so for longer."""

SHORTEST_WAIT_S: Final = 1.0
"""How long an execution that is under way is left alone at least."""
# Beyond this a wait is no number that anybody means, and no date that can be told.
_LONGEST_WAIT_S: Final = timedelta(days=366).total_seconds()
_LONGEST_QUOTE: Final = 200

IN_PROGRESS: Final = "idempotency_in_progress"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
PASSING: Final = frozenset(
    {SUBJECT_NOT_FOUND, "idempotency_lease_lost", "idempotency_store_unavailable"}
)
"""Codes and reasons that another attempt, later and with the same key, may find gone."""
LASTING: Final = frozenset(
    {
        "idempotency_key_reused", "idempotency_response_not_stored", "idempotency_key_required",
        "idempotency_key_invalid", "idempotency_key_conflict",
    }
)  # fmt: skip
"""Codes that the same request would be answered with for ever."""
PASSING_STATUSES: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
    }
)  # fmt: skip
"""Statuses below 500 that say nothing about the event itself: a key that is set anew, a pause."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from the remote."""

    status: int
    _: KW_ONLY
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""

    @property
    def retry_after(self) -> str | None:
        """When to ask again, as it was sent."""
        return self.headers.get("retry-after")

    @property
    def document(self) -> Mapping[str, Any]:
        """The body, if it is a JSON object; else an empty one."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Fault:
    """No answer came: why, for whoever reads `last_error`."""

    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is done with the event, and why."""

    verdict: Verdict
    _: KW_ONLY
    why: str = ""
    """What `last_error` says; '' for what was sent."""
    retry_at: Instant | None = None
    """When the next attempt may begin, of a retry."""
    is_counted: bool = True
    """Whether the attempt counts against `MOST_ATTEMPTS`."""

    @property
    def is_failure(self) -> bool:
        """Whether the remote has not judged the event although it should have."""
        return self.verdict == "dead" or (self.verdict == "retry" and self.is_counted)


def judge(
    reply: Reply | Fault, *, attempts: int, give_up_at: Instant, now: Instant, uniform: Uniform
) -> Outcome:
    """Decide what becomes of an event, by what the answer says before by its status.

    Args:
        reply: The answer to the attempt that has just ended.
        attempts: How many attempts count, this one included.
        give_up_at: The last moment at which an attempt may begin.
        now: The store's time.
        uniform: The randomness of the delay.
    """
    if isinstance(reply, Fault):
        return _again(reply.why, None, attempts, give_up_at, now, uniform)
    document = reply.document
    why = _quote(reply, document)
    said = {word for word in (document.get("code"), document.get("reason")) if type(word) is str}
    if IN_PROGRESS in said:
        return _after_the_first(reply, why, give_up_at, now)
    if said & LASTING:
        return Outcome("dead", why=why)
    if said & PASSING or _is_passing(reply.status):
        return _again(why, reply, attempts, give_up_at, now, uniform)
    if document.get("ok") is False:
        return Outcome("rejected", why=why)
    if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome("sent")
    if reply.status == HTTPStatus.CONFLICT:  # with whom it does not say; conflicts pass
        return _again(why, reply, attempts, give_up_at, now, uniform)
    return Outcome("dead", why=why)


def is_overdue(*, was_tried: bool, give_up_at: Instant, now: Instant) -> bool:
    """Tell whether an event may no longer be tried, although nobody has given it up.

    So it is when every dispatcher was away. An event that was never sent is sent however late:
    nobody can have forgotten its key.
    """
    return was_tried and now > give_up_at


def delay_s(retry: int, uniform: Uniform) -> float:
    """Draw how long to wait before the retry of this number: full jitter, so that a thousand that
    failed together do not return together."""
    ceiling = CAP.total_seconds()
    # The exponent is bounded first: 2**attempts of a broken counter would not end.
    if retry < ceiling:
        ceiling = min(ceiling, BASE.total_seconds() * 2.0**retry)
    return uniform(0.0, ceiling)


def seconds_of(retry_after: str | None, now: Instant) -> float:
    """Read `Retry-After`, a number of seconds or an HTTP date; 0 when it says nothing usable."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return _LONGEST_WAIT_S if len(text) > 9 else min(float(text), _LONGEST_WAIT_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    if moment.tzinfo is None:  # "-0000": UTC, of which the sender says no more
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (to_instant(moment) - now) / SECOND), _LONGEST_WAIT_S)


def _after_the_first(reply: Reply, why: str, give_up_at: Instant, now: Instant) -> Outcome:
    """Wait for the execution that is under way: what was not judged does not count."""
    wait_s = max(SHORTEST_WAIT_S, seconds_of(reply.retry_after, now))
    return _unless_too_late(why, wait_s, give_up_at, now, is_counted=False)


def _again(
    why: str, reply: Reply | None, attempts: int, give_up_at: Instant, now: Instant,
    uniform: Uniform,
) -> Outcome:  # fmt: skip
    if attempts >= MOST_ATTEMPTS:
        return Outcome("dead", why=f"gave up after {attempts} attempts: {why}")
    told = 0.0 if reply is None else seconds_of(reply.retry_after, now)
    return _unless_too_late(why, max(told, delay_s(attempts, uniform)), give_up_at, now)


def _unless_too_late(
    why: str, wait_s: float, give_up_at: Instant, now: Instant, *, is_counted: bool = True
) -> Outcome:
    retry_at = now + round(wait_s * SECOND)
    if retry_at > give_up_at:
        return Outcome("dead", why=f"gave up since the next attempt would be too late: {why}")
    return Outcome("retry", why=why, retry_at=retry_at, is_counted=is_counted)


def _is_passing(status: int) -> bool:
    """Whether a status says nothing about the event: a redirect is an address that is wrong."""
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    return is_redirect or status in PASSING_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _quote(reply: Reply, document: Mapping[str, Any]) -> str:
    """Say in a line what was answered."""
    words = [document.get(name) for name in ("reason", "code", "detail")]
    said = ": ".join(dict.fromkeys(word for word in words if isinstance(word, str) and word))
    text = f"HTTP {reply.status}" + (f": {said}" if said else "")
    # A body is anybody's: lone surrogates, which no database takes, and lines without end.
    text = " ".join(text.encode("utf-8", "replace").decode().replace("\x00", " ").split())
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
