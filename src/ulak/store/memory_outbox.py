"""The outbox of the store in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ulak.clock import Instant
from ulak.core.delivery import (
    DISCARDED,
    EVENT,
    GAVE_UP,
    KEPT_US,
    PENDING,
    SENT,
)
from ulak.core.job import Message
from ulak.store.memory_tables import Delivery, MemoryTables
from ulak.store.protocol import (
    DeliveryCount,
    DeliveryFilter,
    Followed,
    HandlerRow,
    OutboxRow,
    Settled,
    outbox,
)
from ulak.store.protocol.outbox import (
    DISCARD,
    FORGET,
    REDRIVE,
    handler_details,
    handler_subject,
    message_details,
    message_subject,
)


class MemoryOutbox(MemoryTables):
    """What delivers messages."""

    def keep_handlers(self, rows: Sequence[HandlerRow]) -> None:
        with self._transaction():
            self._handlers.update({row.name: row for row in rows})

    def handlers(self) -> list[HandlerRow]:
        with self._lock:
            return sorted(self._handlers.values())

    def forget_handler(self, name: str, *, actor: str, note: str) -> int | None:
        with self._transaction() as now:
            if self._handlers.pop(name, None) is None:
                return None
            own = [delivery for delivery in self._open if delivery[3] == name]
            for delivery in own:
                self._close(self._messages[delivery]._replace(state=DISCARDED))
            self._note(now, actor, FORGET, handler_subject(name), note, handler_details(len(own)))
            return len(own)

    def post_messages(self, messages: Sequence[Message]) -> None:
        with self._transaction():
            self._post(messages)

    def has_due(self, handler: str) -> bool:
        with self._lock:
            now = self.clock.now()
            return any(row.not_before <= now for row in self._heads(handler))

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        with self._transaction() as now:
            due = [row for row in self._heads(handler) if row.not_before <= now]
            heads = outbox.choose_heads(sorted(due, key=lambda row: row.not_before)[:limit])
            lines = [
                (row.message.key, row.position, self._trails[m[0]][m[1] - 1])
                for m in self._open
                if m[3] == handler and (row := self._messages[m]).message.key in heads
            ]
            taken = outbox.gather_events(sorted(lines), heads, self._jobs)
            for one in taken:
                self._write(one.head._replace(not_before=now + hold_us))
            return taken

    def finish_events(self, taken: Sequence[Followed]) -> None:
        with self._transaction():
            self._drop_messages(
                [
                    (event.job_id, event.seq, EVENT, one.head.handler)
                    for one in taken
                    for event in one.events
                ]
            )

    def settle_events(self, settled: Sequence[Settled]) -> None:
        self.settle_messages(settled)

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        with self._transaction() as now:
            due = [row for row in self._heads(handler) if row.not_before <= now]
            return [self._write(row._replace(not_before=now + hold_us)) for row in due[:limit]]

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        with self._transaction() as now:
            held = [row for row in rows if self._messages.get(_identity(row)) == row]
            return [
                self._write(row._replace(not_before=now + hold_us))
                for row in held
                if row.state == PENDING
            ]

    def settle_messages(self, settled: Sequence[Settled]) -> None:
        with self._transaction() as now:
            for end in settled:
                row = self._messages.get(_identity(end))
                if row is None or row.state == SENT:
                    continue
                if end.state == SENT:
                    self._close(row._replace(state=SENT, sent_at=now, answer=end.answer))
                elif row.state == PENDING:
                    failed = row._replace(
                        state=end.state, tries=row.tries + end.spends_try,
                        not_before=end.not_before, error=end.error,
                    )  # fmt: skip
                    is_open = end.state == PENDING or end.blocks
                    self._write(failed) if is_open else self._close(failed)

    def deliveries(
        self, where: DeliveryFilter, *, after: int = 0, limit: int = 100
    ) -> list[OutboxRow]:
        with self._lock:
            return [
                row
                for row in sorted(self._messages.values(), key=lambda row: row.position)
                if row.position > after
                and where.handler in (None, row.handler)
                and (not where.states or row.state in where.states)
                and where.key in (None, row.message.key)
            ][:limit]

    def count_deliveries(self) -> list[DeliveryCount]:
        with self._lock:
            found: dict[tuple[str, str], list[Instant]] = {}
            for row in self._messages.values():
                if row.state == PENDING or row.state in GAVE_UP:
                    found.setdefault((row.handler, row.state), []).append(row.message.at)
            return sorted(DeliveryCount(*kind, len(at), min(at)) for kind, at in found.items())

    def redrive_message(
        self, row: OutboxRow, *, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        with self._transaction() as now:
            found = self._messages.get(_identity(row))
            if found is None or found.state not in GAVE_UP:
                return False
            again = found._replace(state=PENDING, tries=0, not_before=now, give_up_at=give_up_at)
            self._open[_identity(self._write(again))] = None
            by_position = sorted(self._open, key=lambda found: self._messages[found].position)
            self._open = dict.fromkeys(by_position)
            self._made_due = True
            self._note(
                now, actor, REDRIVE, message_subject(row.message), note, message_details(row)
            )
            return True

    def discard_message(self, row: OutboxRow, *, actor: str, note: str) -> bool:
        with self._transaction() as now:
            found = self._messages.get(_identity(row))
            if found is None or found.state not in (PENDING, *GAVE_UP):
                return False
            self._close(found._replace(state=DISCARDED))
            self._made_due = True
            self._note(
                now, actor, DISCARD, message_subject(row.message), note, message_details(row)
            )
            return True

    def expire_messages(self, limit: int) -> int:
        with self._transaction() as now:
            old = [m for m, row in self._messages.items() if row.message.at < now - KEPT_US]
            over = (SENT, DISCARDED)
            lone = [m for m in old if m[1] == 0 and self._messages[m].state in over][:limit]
            unwanted = [m for m in old if m in self._open and m[3] not in self._handlers][:limit]
            self._drop_messages(lone)
            for delivery in unwanted:
                row = self._messages[delivery]
                message = row.message._replace(data=b"null")
                self._close(row._replace(message=message, state=DISCARDED))
            return len(unwanted) + len(lone)

    def _heads(self, handler: str) -> Iterator[OutboxRow]:
        """Return the oldest delivery of each key, unless it gave up and blocks."""
        keys: set[str] = set()
        for delivery in self._open:
            row = self._messages[delivery]
            if delivery[3] == handler and row.message.key not in keys:
                keys.add(row.message.key)
                if row.state == PENDING:
                    yield row

    def _write(self, row: OutboxRow) -> OutboxRow:
        self._messages[_identity(row)] = row
        return row

    def _close(self, row: OutboxRow) -> None:
        self._open.pop(_identity(self._write(row)), None)


def _identity(row: OutboxRow | Settled) -> Delivery:
    return row.message.job_id, row.message.seq, row.message.n, row.handler
