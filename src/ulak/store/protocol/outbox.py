"""The outbox: messages that stages emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ulak.clock import Clock, Instant
from ulak.core.job import Message


class OutboxRow(NamedTuple):
    """A message and how far it has come."""

    message: Message
    sent_at: Instant | None
    tries: int
    not_before: Instant
    dead: int


class OutboxStore(Protocol):
    """Messages, in order per key."""

    clock: Clock

    def take_messages(self, limit: int, *, hold_us: int) -> list[OutboxRow]:
        """Take the head of up to `limit` keys for this relay alone, for `hold_us`.

        The head of a key is its oldest message that is neither sent nor dead; a key whose head
        is not due, or is taken, gives nothing: order per key is kept and no key waits for another.
        """

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        """Hold taken messages for `hold_us` from now; return those that are held, as they are now.

        A message that was sent or is dead, or that another relay has taken or tried since, is left
        as it is: its `not_before` is not that of the row.
        """

    def settle_messages(
        self, sent: Sequence[Message], failed: Sequence[tuple[Message, Instant, bool]]
    ) -> None:
        """Record what was published, and for failures when to try again or that they are dead.

        What was published is recorded however late, of a message that is dead meanwhile too.
        """

    def dead_messages(self, limit: int) -> list[OutboxRow]:
        """Return messages that gave up, the oldest first."""

    def revive_message(self, message: Message, *, actor: str, note: str) -> bool:
        """Let a dead message be tried again; audited, of the subject `message/JOB/SEQ/N`.

        Returns False, and writes nothing, when it is not dead.
        """
