"""The outbox: messages, their deliveries to handlers, and events for followers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from ulak.clock import Clock, Instant
from ulak.core.delivery import MOST_EVENTS, PENDING, count_whole
from ulak.core.job import Event, JobRow, Message
from ulak.ids import to_text


class HandlerRow(NamedTuple):
    """A handler of messages, or a follower, as the engines that opened have stored it."""

    name: str
    topic: str
    """What it wants; `*` is every message. A follower wants none: ''."""
    give_up_us: int | None = None
    """For how long a delivery is tried; None is for ever."""
    flow: str | None = None
    """The flow whose events a follower gets."""


class OutboxRow(NamedTuple):
    """One delivery: a message for one handler, and how far it has come."""

    message: Message
    handler: str
    state: str = PENDING
    tries: int = 0
    not_before: Instant = 0
    give_up_at: Instant | None = None
    sent_at: Instant | None = None
    answer: bytes | None = None
    """What the handler returned, as JSON; None is nothing."""
    error: str | None = None
    position: int = 0
    """Later ones have higher numbers."""


class Settled(NamedTuple):
    """How a try to deliver has ended."""

    message: Message
    handler: str
    state: str
    """`pending` when it is to be tried again."""
    not_before: Instant = 0
    spends_try: bool = True
    blocks: bool = False
    """Whether one that gave up stops its key."""
    answer: bytes | None = None
    error: str | None = None


class DeliveryFilter(NamedTuple):
    """Which deliveries; what is not said does not matter."""

    handler: str | None = None
    states: Sequence[str] = ()
    key: str | None = None


class DeliveryCount(NamedTuple):
    """How many deliveries of a handler stand in a state, and the date of the oldest message."""

    handler: str
    state: str
    deliveries: int
    oldest_at: Instant


class Followed(NamedTuple):
    """Events of one job that a follower has not got, the oldest first."""

    head: OutboxRow
    """The delivery of the first one; what becomes of all of them is recorded with it."""
    job: JobRow
    events: tuple[Event, ...]
    positions: tuple[int, ...]
    """Those of their deliveries."""


class EventSource(Protocol):
    """Where a follower gets events: a transaction, or a store that has no transactions."""

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        """Take events of up to `limit` jobs for this follower alone, until the transaction ends; of
        a store without one, for `hold_us`.

        A job whose events failed before comes alone. Of each job all that are there come, in order,
        as long as they are not more than `MOST_EVENTS` together; those of one commit are not
        parted. The events of a job that is taken, is not due, or gave up, wait.
        """

    def finish_events(self, taken: Sequence[Followed]) -> None:
        """Record that a follower has got them: they never come again."""

    def settle_events(self, settled: Sequence[Settled]) -> None:
        """Record how a try has failed, as `OutboxStore.settle_messages` does."""


class OutboxStore(Protocol):
    """Deliveries, in order per handler and key. A commit that brings events of a flow writes one
    delivery of each event for every stored follower of that flow; the key is the job."""

    clock: Clock

    def keep_handlers(self, rows: Sequence[HandlerRow]) -> None:
        """Store handlers, or how they are declared now. From then on a message that is committed
        has a delivery for each stored handler that wants its topic, or one for the handler `""`
        when there is none."""

    def handlers(self) -> list[HandlerRow]:
        """Return every stored handler by name."""

    def forget_handler(self, name: str, *, actor: str, note: str) -> int | None:
        """Drop a handler and discard its open deliveries; audited, of the subject `handler/NAME`.

        Returns how many were discarded; None, and writes nothing, when there is no such handler.
        """

    def post_messages(self, messages: Sequence[Message]) -> None:
        """Write messages that no change brings."""

    def has_due(self, handler: str) -> bool:
        """Tell whether there may be something to take; a look in vain writes nothing."""

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        """Take the head of up to `limit` keys of a handler for this relay alone, for `hold_us`.

        The head of a key is its oldest open delivery; a key whose head is not due, is taken, or
        gave up and blocks, gives nothing: order per key is kept and no key waits for another.
        """

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        """Hold what was taken for `hold_us` from now; return what is held, as it is now.

        A delivery that has ended, or that another relay has taken or tried since, is left as it
        is: its `not_before` is not that of the row.
        """

    def settle_messages(self, settled: Sequence[Settled]) -> None:
        """Record how tries have ended; the next delivery of a key comes forward.

        What was sent is recorded however late, of a delivery that gave up meanwhile too. A failure
        is recorded only while the delivery is pending.
        """

    def deliveries(
        self, where: DeliveryFilter, *, after: int = 0, limit: int = 100
    ) -> list[OutboxRow]:
        """Return deliveries by position upward."""

    def count_deliveries(self) -> list[DeliveryCount]:
        """Count the deliveries that are pending, dead or refused, by handler and state."""

    def redrive_message(
        self, row: OutboxRow, *, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        """Let a dead or refused delivery be tried again, with all its tries, before everything
        younger of its key; audited, of the subject `message/JOB/SEQ/N`.

        Returns False, and writes nothing, when it is neither.
        """

    def discard_message(self, row: OutboxRow, *, actor: str, note: str) -> bool:
        """Give up a delivery that is pending, dead or refused; audited as a redrive is. One that is
        on its way at this moment may still arrive, and counts as sent then.

        Returns False, and writes nothing, when it is none of them.
        """

    def expire_messages(self, limit: int) -> int:
        """Remove deliveries of messages without a job that were sent or discarded, seven days after
        their messages, and discard those of handlers that are not stored as late, with what they
        carry: about `limit` of each. Return how many."""


REDRIVE: Final = "redrive"
DISCARD: Final = "discard"
FORGET: Final = "forget"


def message_subject(message: Message) -> str:
    """Return the subject of a line of audit about a message."""
    return f"message/{to_text(message.job_id)}/{message.seq}/{message.n}"


def message_details(row: OutboxRow) -> str:
    """Write which delivery it was; what it carries may be a secret."""
    facts = {"topic": row.message.topic, "key": row.message.key, "handler": row.handler}
    return json.dumps(facts, separators=(",", ":"))


def handler_subject(name: str) -> str:
    """Return the subject of a line of audit about a handler."""
    return f"handler/{name}"


def handler_details(discarded: int) -> str:
    """Write how many deliveries went with a handler."""
    return json.dumps({"discarded": discarded}, separators=(",", ":"))


EventLine = tuple[str, int, Event]

NO_FLOWS: Final[frozenset[str]] = frozenset()


def choose_heads(heads: Sequence[OutboxRow]) -> dict[str, OutboxRow]:
    """Return the heads that are taken together, by key, of those that are due, the longest first.

    One that failed before is alone, so that it fails for itself.
    """
    if heads and heads[0].error is not None:
        return {heads[0].message.key: heads[0]}
    return {head.message.key: head for head in heads if head.error is None}


def gather_events(
    lines: Iterable[EventLine], heads: Mapping[str, OutboxRow], jobs: Mapping[bytes, JobRow]
) -> list[Followed]:
    """Put together what is taken: lines are by key and position, and one more than `MOST_EVENTS`
    at least if there are so many."""
    taken: list[Followed] = []
    room = MOST_EVENTS
    for key, own in groupby(lines, key=lambda line: line[0]):
        positions, events = zip(*((position, event) for _, position, event in own), strict=True)
        n = count_whole(events, room)
        is_parted = 0 < n < len(events) and events[n - 1].commit_id == events[n].commit_id
        if not room or (taken and is_parted):
            break  # the next batch has room for it
        taken.append(Followed(heads[key], jobs[events[0].job_id], events[:n], positions[:n]))
        room -= n
    return taken


def read_flows(text: str | None) -> frozenset[str]:
    """Read the flows that are followed, as a store has joined them: a name has no space."""
    return frozenset(text.split()) if text else NO_FLOWS
