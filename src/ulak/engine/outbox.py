"""Messages that gave up, and another chance for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ulak.clock import to_datetime
from ulak.core.acts import must_act
from ulak.engine.ports import Publisher
from ulak.errors import NotFound
from ulak.ids import from_text, to_text
from ulak.store.protocol import OutboxRow

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

MESSAGE_ID = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{1,9})/([0-9]{1,9})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that nobody tries to send any more."""

    id: str
    """`job/seq/n`, as a publisher sees it."""
    job_id: str
    topic: str
    key: str
    tries: int
    at: datetime
    """When it was emitted."""


class Outbox:
    """`engine.outbox`: how messages are sent, and what becomes of those that cannot be."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def publish(self, publisher: Publisher) -> Publisher:
        """Declare the function that sends outbox messages; it may see a message twice."""
        self._kernel.publisher = publisher
        return publisher

    def dead(self, *, limit: int = 100) -> list[DeadMessage]:
        """Return messages that gave up, the oldest first."""
        return [_dead(row) for row in self._kernel.open().store.dead_messages(limit)]

    def revive(self, message_id: str, *, actor: str, note: str = "") -> DeadMessage:
        """Let a dead message be tried again; audited. It may come after younger ones of its key.

        Raises:
            NotFound: no dead message has this id.
            BadInput: nobody acts.
        """
        must_act(actor, note)
        row = self._dead_message(message_id)
        if row is None or not self._kernel.store.revive_message(
            row.message, actor=actor, note=note
        ):
            raise NotFound(f"no dead message is {message_id!r}; its id is job/seq/n")
        return _dead(row)

    def _dead_message(self, message_id: str) -> OutboxRow | None:
        parts = MESSAGE_ID.fullmatch(message_id)
        if parts is None:
            return None
        place = (int(parts[2]), int(parts[3]))
        rows = self._kernel.open().store.scan_messages(from_text(parts[1]))
        found = (row for row in rows if (row.message.seq, row.message.n) == place and row.dead)
        return next(found, None)


def _dead(row: OutboxRow) -> DeadMessage:
    message = row.message
    job_id = to_text(message.job_id)
    return DeadMessage(
        f"{job_id}/{message.seq}/{message.n}", job_id, message.topic, message.key, row.tries,
        to_datetime(message.at),
    )  # fmt: skip
