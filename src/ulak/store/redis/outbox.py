"""The outbox: what is delivered, taken, settled and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ulak.clock import Instant
from ulak.core.delivery import EVENT, KEPT_US, MOST_EVENTS
from ulak.core.job import Message
from ulak.ids import to_text
from ulak.store.operators import Table
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
    handler_subject,
    message_details,
    message_subject,
)
from ulak.store.redis.base import MOST_READ
from ulak.store.redis.control import Draft, RedisControl
from ulak.store.redis.values import (
    delivery_of,
    raw,
    read_delivery,
    read_event,
    read_row,
    write_message,
)

HANDLERS = Table("handlers", HandlerRow)


class RedisOutbox(RedisControl):
    """Deliveries of messages, and of events to followers."""

    def keep_handlers(self, rows: Sequence[HandlerRow]) -> None:
        def work(draft: Draft) -> None:
            for row in rows:
                draft.find(HANDLERS, row.name)
                draft.put(HANDLERS, row)

        self._decide("handlers", work)

    def handlers(self) -> list[HandlerRow]:
        return self._rows(HANDLERS)

    def forget_handler(self, name: str, *, actor: str, note: str) -> int | None:
        subject = handler_subject(name)
        found: int = self.call(
            "forget_handler", name, actor, FORGET, subject, note or None, kind="handlers"
        )
        return None if found < 0 else found

    def post_messages(self, messages: Sequence[Message]) -> None:
        self.call("post", [write_message(message) for message in messages], kind="post")

    def has_due(self, handler: str) -> bool:
        return bool(self.call("has_due", handler))

    def take_messages(self, handler: str, limit: int, *, hold_us: int) -> list[OutboxRow]:
        return _read_all(self.call("take", handler, limit, hold_us, kind="take"))

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        asked = [(delivery_of(row), str(row.not_before)) for row in rows]
        return _read_all(self.call("hold", asked, hold_us, kind="take"))

    def settle_messages(self, settled: Sequence[Settled]) -> None:
        ends = [
            {
                "delivery": delivery_of(end), "state": end.state, "tries": int(end.spends_try),
                "not_before": str(end.not_before), "blocks": end.blocks,
                "answer": raw(end.answer or b""), "error": end.error or "",
            }
            for end in settled
        ]  # fmt: skip
        self.call("settle", ends, kind="settle")

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        """What others have taken meanwhile is left to them."""
        found = self.call("look_for_events", handler, limit, MOST_EVENTS)
        heads, jobs, lines = {}, {}, []
        for head, packed, events in found:
            first, job = read_delivery(head), read_row(packed)
            key = first.message.key
            heads[key], jobs[job.id] = first, job
            lines += [(key, int(position), read_event(job.id, line)) for position, line in events]
        taken = outbox.gather_events(lines, heads, jobs)
        held = {row.message for row in self.hold_messages([o.head for o in taken], hold_us=hold_us)}
        return [one for one in taken if one.head.message in held]

    def finish_events(self, taken: Sequence[Followed]) -> None:
        over = [
            f"{to_text(event.job_id)}:{event.seq}:{EVENT}:{one.head.handler}"
            for one in taken
            for event in one.events
        ]
        self.call("finish_events", over, kind="settle")

    def settle_events(self, settled: Sequence[Settled]) -> None:
        self.settle_messages(settled)

    def deliveries(
        self, where: DeliveryFilter, *, after: int = 0, limit: int = 100
    ) -> list[OutboxRow]:
        found: list[OutboxRow] = []
        while len(found) < limit:
            page = _read_all(self.call("deliveries", after, MOST_READ))
            if not page:
                break
            after = page[-1].position
            found += [
                row
                for row in page
                if where.handler in (None, row.handler)
                and (not where.states or row.state in where.states)
                and where.key in (None, row.message.key)
            ]
        return found[:limit]

    def count_deliveries(self) -> list[DeliveryCount]:
        found = self.call("count_deliveries")
        return sorted(
            DeliveryCount(handler.decode(), state.decode(), number, int(oldest))
            for handler, state, number, oldest in found
        )

    def redrive_message(
        self, row: OutboxRow, *, give_up_at: Instant | None, actor: str, note: str
    ) -> bool:
        until = "" if give_up_at is None else str(give_up_at)
        said = _said(row, REDRIVE, actor, note)
        return bool(self.call("redrive", delivery_of(row), until, *said, kind="redrive"))

    def discard_message(self, row: OutboxRow, *, actor: str, note: str) -> bool:
        said = _said(row, DISCARD, actor, note)
        return bool(self.call("discard", delivery_of(row), *said, kind="redrive"))

    def expire_messages(self, limit: int) -> int:
        return int(self.call("expire", limit, KEPT_US, kind="sweep"))

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        rows = _read_all(self.call("messages_of", to_text(job_id)))
        return sorted(rows, key=lambda row: (*row.message[1:3], row.handler))


def _read_all(found: Sequence[Any]) -> list[OutboxRow]:
    return [read_delivery(each) for each in found or ()]


def _said(row: OutboxRow, act: str, actor: str, note: str) -> tuple[str | None, ...]:
    """Return the line of audit of an act on a delivery."""
    return actor, act, message_subject(row.message), note or None, message_details(row)
