"""The outbox: at least once, in order per key, and no key waits for another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ulak.clock import SECOND
from ulak.core.delivery import DEAD, GAVE_UP, NOBODY, PENDING, SENT
from ulak.core.job import Message
from ulak.ids import to_text
from ulak.store.protocol import DeliveryFilter, OutboxRow, Settled
from ulak.testing.conformance.desk import Desk, Suite

HOLD = 60 * SECOND


class TestOutbox(Suite):
    """Messages leave by per-key heads."""

    @pytest.mark.shows("E-45")
    def test_a_message_waits_until_the_one_before_it_in_its_key_is_sent(self, desk: Desk) -> None:
        a, b, c = _emit(desk, "key", "key", "key")
        assert _take(desk) == [a]
        assert _take(desk) == []
        sent(desk, a)
        assert _take(desk) == [b]
        sent(desk, b)
        assert _take(desk) == [c]
        sent(desk, c)
        assert _take(desk) == []

    @pytest.mark.shows("E-45")
    def test_messages_of_one_job_keep_their_order_over_several_commits(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.emit(row, "key", "key"))
        row = desk.lease()
        desk.write(desk.emit(row, "key"))
        order: list[tuple[int, int]] = []
        while taken := _take(desk):
            order += [(m.seq, m.n) for m in taken]
            sent(desk, *taken)
        assert order == [(2, 0), (2, 1), (3, 0)]

    def test_one_take_brings_the_heads_of_several_keys_and_no_more_than_asked(
        self, desk: Desk
    ) -> None:
        messages = _emit(desk, "a", "a", "b", "c")
        heads = {messages[0], messages[2], messages[3]}
        first = _take(desk, 2)
        assert len(first) == 2
        rest = _take(desk)
        assert len(rest) == 1
        assert {*first, *rest} == heads

    @pytest.mark.shows("E-45", "E-70")
    def test_what_a_vanished_relay_took_is_taken_again_after_its_hold(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        assert _take(desk) == [message]
        desk.turn(seconds=59)
        assert _take(desk) == []
        desk.turn(seconds=1)
        assert _take(desk) == [message]

    @pytest.mark.shows("E-45", "E-70")
    def test_a_hold_that_is_renewed_keeps_a_message_from_others_and_may_be_renewed_again(
        self, desk: Desk
    ) -> None:
        _emit(desk, "a", "b")
        held = desk.store.take_messages(NOBODY, 10, hold_us=HOLD)
        for _ in range(3):
            desk.turn(seconds=40)
            held = desk.store.hold_messages(held, hold_us=HOLD)
            assert {row.not_before for row in held} == {desk.now + HOLD}
            assert len(held) == 2
            assert _take(desk) == []
        desk.turn(seconds=60)
        assert len(_take(desk)) == 2
        assert desk.store.hold_messages([], hold_us=HOLD) == []

    @pytest.mark.shows("E-45")
    def test_only_who_holds_a_message_renews_its_hold(self, desk: Desk) -> None:
        messages = _emit(desk, "sent", "dead", "tried", "taken")
        held = desk.store.take_messages(NOBODY, 10, hold_us=HOLD)
        went, dead, tried, taken = messages
        again = desk.now + 120 * SECOND
        sent(desk, went)
        failed(desk, dead, DEAD)
        failed(desk, tried, again=again)
        desk.turn(seconds=60)
        (other,) = desk.store.take_messages(NOBODY, 10, hold_us=HOLD)
        assert other.message == taken
        assert desk.store.hold_messages(held, hold_us=HOLD) == []
        rows = {row.message: row for row in desk.store.scan_messages(taken.job_id)}
        assert (rows[tried].not_before, rows[taken]) == (again, other)

    @pytest.mark.shows("E-45")
    def test_what_was_sent_is_recorded_however_late(self, desk: Desk) -> None:
        message, behind = _emit(desk, "key", "key")
        _take(desk)
        desk.turn(seconds=60)
        assert _take(desk) == [message]
        failed(desk, message, DEAD)
        sent(desk, message)
        (row, _) = desk.store.scan_messages(message.job_id)
        assert (row.sent_at, row.state) == (desk.now, SENT)
        assert dead_ones(desk) == []
        assert _take(desk) == [behind]

    @pytest.mark.shows("E-45")
    def test_a_failing_message_stops_its_own_key_only_until_it_is_due_again(
        self, desk: Desk
    ) -> None:
        bad, behind, other, further = _emit(desk, "bad", "bad", "good", "good")
        assert set(_take(desk)) == {bad, other}
        again = desk.now + 30 * SECOND
        sent(desk, other)
        failed(desk, bad, again=again)
        assert _take(desk) == [further]
        sent(desk, further)
        desk.turn(seconds=30)
        (row,) = desk.store.take_messages(NOBODY, 10, hold_us=HOLD)
        assert (row.message, row.tries, row.state) == (bad, 1, PENDING)
        sent(desk, bad)
        assert _take(desk) == [behind]

    @pytest.mark.shows("E-45")
    def test_a_dead_message_lets_its_key_go_on_and_may_be_redriven(self, desk: Desk) -> None:
        bad, behind = _emit(desk, "key", "key")
        _take(desk)
        failed(desk, bad, DEAD)
        assert [row.message for row in dead_ones(desk)] == [bad]
        assert _take(desk) == [behind]
        sent(desk, behind)
        said = {"actor": "olga", "note": "the broker is back"}
        done, lost = desk.store.scan_messages(bad.job_id)[::-1]
        assert not desk.store.redrive_message(done, give_up_at=None, **said)
        assert desk.store.redrive_message(lost, give_up_at=None, **said)
        assert not desk.store.redrive_message(lost, give_up_at=None, **said)
        assert dead_ones(desk) == []
        (line,) = desk.store.audit_trail(subject=f"message/{to_text(bad.job_id)}/{bad.seq}/{bad.n}")
        assert (line.actor, line.act, line.note) == ("olga", "redrive", "the broker is back")
        assert _take(desk) == [bad]

    @pytest.mark.shows("E-45", "E-70")
    def test_a_redriven_message_goes_before_everything_younger_of_its_key(self, desk: Desk) -> None:
        bad, behind = _emit(desk, "key", "key")
        _take(desk)
        failed(desk, bad, DEAD)
        assert _take(desk) == [behind]
        failed(desk, behind, again=desk.now + 30 * SECOND)
        (lost,) = dead_ones(desk)
        assert desk.store.redrive_message(lost, give_up_at=None, actor="olga", note="")
        desk.turn(seconds=30)
        assert _take(desk) == [bad]
        sent(desk, bad)
        assert _take(desk) == [behind]

    def test_settling_is_recorded_and_settling_again_changes_nothing(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        _take(desk)
        sent_at = desk.now
        sent(desk, message)
        desk.turn(seconds=5)
        sent(desk, message)
        failed(desk, message, DEAD)
        (row,) = desk.store.scan_messages(message.job_id)
        assert (row.sent_at, row.state) == (sent_at, SENT)
        assert dead_ones(desk) == []
        assert _take(desk) == []

    def test_a_message_begins_unsent_untried_and_due(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        (row,) = desk.store.scan_messages(message.job_id)
        assert row == OutboxRow(message, NOBODY, not_before=message.at, position=row.position)
        assert desk.store.trail(message.job_id)[-1].emitted == 1

    @pytest.mark.shows("E-45", "E-70")
    def test_four_relays_at_once_take_each_head_once(self, desk: Desk) -> None:
        rows = desk.leased(40)
        desk.write(*(desk.emit(row, row.id.hex()) for row in rows))

        def relay(_: int) -> list[Message]:
            taken: list[Message] = []
            while some := _take(desk, 3):
                taken += some
            return taken

        with ThreadPoolExecutor(4) as pool:
            taken = [message for page in pool.map(relay, range(4)) for message in page]
        assert len(taken) == 40
        assert {message.job_id for message in taken} == {row.id for row in rows}


def sent(desk: Desk, *messages: Message, handler: str = NOBODY) -> None:
    """Record that messages have arrived."""
    desk.store.settle_messages([Settled(message, handler, SENT) for message in messages])


def failed(
    desk: Desk,
    message: Message,
    state: str = PENDING,
    *,
    handler: str = NOBODY,
    again: int | None = None,
    blocks: bool = False,
) -> None:
    """Record that a message has not arrived."""
    not_before = desk.now if again is None else again
    end = Settled(message, handler, state, not_before, blocks=blocks, error="no answer")
    desk.store.settle_messages([end])


def dead_ones(desk: Desk) -> list[OutboxRow]:
    """Return the deliveries that gave up."""
    return desk.store.deliveries(DeliveryFilter(states=GAVE_UP), limit=10)


def _emit(desk: Desk, *keys: str) -> list[Message]:
    """Commit a move that leaves these messages."""
    (row,) = desk.leased(1)
    change = desk.emit(row, *keys)
    desk.write(change)
    return list(change.messages)


def _take(desk: Desk, limit: int = 10) -> list[Message]:
    return [row.message for row in desk.store.take_messages(NOBODY, limit, hold_us=HOLD)]
