"""What becomes of a delivery when its handler has returned or raised.

A delivery is one message for one handler. Pure: a store writes what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ulak.clock import SECOND, Instant, read_micros
from ulak.core.change import clean
from ulak.core.job import Event, Message
from ulak.core.outcome import Refused, RetryLater
from ulak.core.policy import Backoff
from ulak.errors import BadInput
from ulak.ids import to_text

PENDING: Final = "pending"
SENT: Final = "sent"
DEAD: Final = "dead"
REFUSED: Final = "refused"
DISCARDED: Final = "discarded"
STATES: Final = (PENDING, SENT, DEAD, REFUSED, DISCARDED)
GAVE_UP: Final = (DEAD, REFUSED)
"""Nobody tries these again, until a person redrives them."""

EVERY_TOPIC: Final = "*"
NOBODY: Final = ""
"""The handler of messages that no stored handler wants. A publisher has this name."""

EVENT: Final = -1
"""The number of a delivery that is an event of a trail for a follower, and no message."""
MOST_EVENTS: Final = 1000
"""A guess: so many events a follower gets in one transaction, in which others may wait for it."""

KEPT_US: Final = 7 * 24 * 3600 * SECOND
"""How long a message without a handler is kept, and one without a job after it was sent."""


class Terms(NamedTuple):
    """How often, how long and in which order a handler's deliveries are tried."""

    retry: Backoff
    give_up_us: int | None = None
    """A delivery that was tried is dead so long after its message; None is never."""
    block: bool = False
    """A delivery that gave up stops its key."""


class Verdict(NamedTuple):
    """What is to be written of a delivery that was not made."""

    state: str
    not_before: Instant
    spends_try: bool
    error: str


def judge(
    error: BaseException,
    terms: Terms,
    now: Instant,
    *,
    tries: int,
    give_up_at: Instant | None,
    seed: bytes,
) -> Verdict:
    """Decide when a failed delivery is tried again, if at all. `tries` have failed before, its time
    is over at `give_up_at`, and the jitter is drawn from `seed`."""
    if isinstance(error, Refused):
        state = DEAD if error.dead else REFUSED
        return Verdict(state, now, True, clean(error.why) or "refused")
    spends_try, why = True, _describe(error)
    wait = terms.retry.delay_us(tries + 1, seed)
    if isinstance(error, RetryLater):
        try:
            after = read_micros(error.after, "RetryLater(after=)")
        except BadInput as wrong:
            why = _describe(wrong)
        else:
            spends_try, why = error.spend_attempt, clean(error.why) or "later"
            wait = after if wait is not None or not spends_try else None
    if wait is None:
        return Verdict(DEAD, now, spends_try, why)
    if give_up_at is not None and now + wait >= give_up_at:
        return Verdict(DEAD, now, spends_try, f"its time is over; before that: {why}")
    return Verdict(PENDING, now + wait, spends_try, why)


def is_overdue(tries: int, give_up_at: Instant | None, now: Instant) -> bool:
    return give_up_at is not None and tries > 0 and now >= give_up_at


def make_delivery(flow: str, event: Event) -> Message:
    """Make what stands for an event in the table of deliveries: its line is that of its job."""
    key = to_text(event.job_id)
    return Message(event.job_id, event.seq, EVENT, key, flow, b"null", event.at)


def judge_events(
    error: BaseException, terms: Terms, now: Instant, *, tries: int, jobs: int, seed: bytes
) -> Verdict:
    """Decide when the events of a job are handed to a follower again, as one of so many `jobs`.
    Which job of several was at fault is not known. So each of them is tried again alone, at once,
    and has spent nothing."""
    verdict = judge(error, terms, now, tries=tries, give_up_at=None, seed=seed)
    if jobs == 1 or isinstance(error, RetryLater):
        return verdict
    return Verdict(PENDING, now, False, verdict.error)


def count_whole(events: Sequence[Event], limit: int) -> int:
    """Return how many of these events, of one job, make up whole commits within a limit."""
    if len(events) <= limit:
        return len(events)
    n = limit
    while n and events[n - 1].commit_id == events[n].commit_id:
        n -= 1
    return n or limit  # a commit that is larger than the limit is parted


def _describe(error: BaseException) -> str:
    said = str(error)
    return clean(f"{type(error).__name__}: {said}" if said else type(error).__name__) or ""
