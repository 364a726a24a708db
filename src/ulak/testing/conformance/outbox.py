"""The outbox: at least once, in order per key, and no key waits for another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ulak.clock import SECOND
from ulak.core.job import Message
from ulak.ids import to_text
from ulak.store.protocol import OutboxRow
from ulak.testing.conformance.desk import Desk, Suite

HOLD = 60 * SECOND


class TestOutbox(Suite):
    """Messages leave by per-key heads."""

    @pytest.mark.shows("E-45")
    def test_a_message_waits_until_the_one_before_it_in_its_key_is_sent(self, desk: Desk) -> None:
        a, b, c = _emit(desk, "key", "key", "key")
        assert _take(desk) == [a]
        assert _take(desk) == []
        desk.store.settle_messages([a], [])
        assert _take(desk) == [b]
        desk.store.settle_messages([b], [])
        assert _take(desk) == [c]
        desk.store.settle_messages([c], [])
        assert _take(desk) == []

    @pytest.mark.shows("E-45")
    def test_messages_of_one_job_keep_their_order_over_several_commits(self, desk: Desk) -> None:
        (row,) = desk.leased(1)
        (row,) = desk.write(desk.emit(row, "key", "key"))
        row = desk.lease()
        desk.write(desk.emit(row, "key"))
        sent: list[tuple[int, int]] = []
        while taken := _take(desk):
            sent += [(m.seq, m.n) for m in taken]
            desk.store.settle_messages(taken, [])
        assert sent == [(2, 0), (2, 1), (3, 0)]

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

    @pytest.mark.shows("E-45")
    def test_what_a_vanished_relay_took_is_taken_again_after_its_hold(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        assert _take(desk) == [message]
        desk.turn(seconds=59)
        assert _take(desk) == []
        desk.turn(seconds=1)
        assert _take(desk) == [message]

    @pytest.mark.shows("E-45")
    def test_a_hold_that_is_renewed_keeps_a_message_from_others_and_may_be_renewed_again(
        self, desk: Desk
    ) -> None:
        _emit(desk, "a", "b")
        held = desk.store.take_messages(10, hold_us=HOLD)
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
        held = desk.store.take_messages(10, hold_us=HOLD)
        sent, dead, tried, taken = messages
        again = desk.now + 120 * SECOND
        desk.store.settle_messages([sent], [(dead, desk.now, True), (tried, again, False)])
        desk.turn(seconds=60)
        (other,) = desk.store.take_messages(10, hold_us=HOLD)
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
        desk.store.settle_messages([], [(message, desk.now, True)])
        desk.store.settle_messages([message], [])
        (row, _) = desk.store.scan_messages(message.job_id)
        assert (row.sent_at, row.dead) == (desk.now, 0)
        assert desk.store.dead_messages(10) == []
        assert _take(desk) == [behind]

    @pytest.mark.shows("E-45")
    def test_a_failing_message_stops_its_own_key_only_until_it_is_due_again(
        self, desk: Desk
    ) -> None:
        bad, behind, other, further = _emit(desk, "bad", "bad", "good", "good")
        assert set(_take(desk)) == {bad, other}
        again = desk.now + 30 * SECOND
        desk.store.settle_messages([other], [(bad, again, False)])
        assert _take(desk) == [further]
        desk.store.settle_messages([further], [])
        desk.turn(seconds=30)
        (row,) = desk.store.take_messages(10, hold_us=HOLD)
        assert (row.message, row.tries, row.dead) == (bad, 1, 0)
        desk.store.settle_messages([bad], [])
        assert _take(desk) == [behind]

    @pytest.mark.shows("E-45")
    def test_a_dead_message_lets_its_key_go_on_and_may_be_revived(self, desk: Desk) -> None:
        bad, behind = _emit(desk, "key", "key")
        _take(desk)
        desk.store.settle_messages([], [(bad, desk.now, True)])
        assert [row.message for row in desk.store.dead_messages(10)] == [bad]
        assert _take(desk) == [behind]
        desk.store.settle_messages([behind], [])
        said = {"actor": "olga", "note": "the broker is back"}
        assert not desk.store.revive_message(behind, **said)
        assert desk.store.revive_message(bad, **said)
        assert not desk.store.revive_message(bad, **said)
        assert desk.store.dead_messages(10) == []
        (line,) = desk.store.audit_trail(subject=f"message/{to_text(bad.job_id)}/{bad.seq}/{bad.n}")
        assert (line.actor, line.act, line.note) == ("olga", "revive", "the broker is back")
        assert _take(desk) == [bad]

    def test_settling_is_recorded_and_settling_again_changes_nothing(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        _take(desk)
        sent_at = desk.now
        desk.store.settle_messages([message], [])
        desk.turn(seconds=5)
        desk.store.settle_messages([message], [(message, desk.now, True)])
        (row,) = desk.store.scan_messages(message.job_id)
        assert (row.sent_at, row.dead) == (sent_at, 0)
        assert desk.store.dead_messages(10) == []
        assert _take(desk) == []

    def test_a_message_begins_unsent_untried_and_due(self, desk: Desk) -> None:
        (message,) = _emit(desk, "key")
        assert desk.store.scan_messages(message.job_id) == [
            OutboxRow(message, None, 0, message.at, 0)
        ]
        assert desk.store.trail(message.job_id)[-1].emitted == 1

    @pytest.mark.shows("E-45")
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


def _emit(desk: Desk, *keys: str) -> list[Message]:
    """Commit a move that leaves these messages."""
    (row,) = desk.leased(1)
    change = desk.emit(row, *keys)
    desk.write(change)
    return list(change.messages)


def _take(desk: Desk, limit: int = 10) -> list[Message]:
    return [row.message for row in desk.store.take_messages(limit, hold_us=HOLD)]
