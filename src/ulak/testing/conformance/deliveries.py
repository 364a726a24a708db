"""Handlers and their deliveries: each its own, in order per key, with its own end."""

from __future__ import annotations

import json
import os
import time
from functools import partial

import pytest

from ulak.clock import SECOND
from ulak.core.delivery import DEAD, DISCARDED, GAVE_UP, NOBODY, PENDING, REFUSED, SENT
from ulak.core.job import Message
from ulak.ids import to_text
from ulak.store.protocol import DeliveryCount, DeliveryFilter, HandlerRow, OutboxRow, Settled
from ulak.testing.conformance.desk import PATIENCE_S, Desk, Reopen, Suite, at_once
from ulak.testing.conformance.outbox import failed, sent

HOLD = 60 * SECOND
POSTED = 40
"""How many messages each of two writers posts."""
OLGA = {"actor": "olga", "note": "seen"}


class TestDeliveries(Suite):
    """A message has a delivery for each stored handler of its topic."""

    @pytest.mark.shows("E-70")
    def test_every_handler_of_the_topic_gets_its_own_delivery(self, desk: Desk) -> None:
        keep(desk, "books", "mail", "other/elsewhere", "all/*")
        first, second = emit(desk, "key", "key")
        assert desk.store.handlers() == [
            HandlerRow("all", "*"), HandlerRow("books", "topic"), HandlerRow("mail", "topic"),
            HandlerRow("other", "elsewhere"),
        ]  # fmt: skip
        assert [take(desk, name) for name in ("books", "mail", "all", "other", NOBODY)] == [
            [first], [first], [first], [], [],
        ]  # fmt: skip
        sent(desk, first, handler="mail")
        assert take(desk, "mail") == [second], "it does not wait for the others"
        assert take(desk, "books") == []
        failed(desk, first, DEAD, handler="books")
        assert take(desk, "books") == [second]
        assert states(desk, first) == {"all": PENDING, "books": DEAD, "mail": SENT}

    @pytest.mark.shows("E-70")
    def test_a_new_handler_gets_messages_from_then_on(self, desk: Desk) -> None:
        (before,) = emit(desk, "key")
        keep(desk, "mail")
        (after,) = emit(desk, "key")
        assert take(desk, "mail") == [after]
        assert take(desk, NOBODY) == [before]
        keep(desk, "mail/elsewhere")
        (later,) = emit(desk, "another")
        assert take(desk, NOBODY) == [later], "it is declared for another topic now"

    @pytest.mark.shows("E-70")
    def test_a_process_that_knows_no_handler_writes_their_deliveries(
        self, desk: Desk, reopen: Reopen
    ) -> None:
        keep(desk, "mail")
        if not desk.store.features.shared:
            return
        elsewhere = reopen()
        elsewhere.open()
        try:
            (message,) = emit(Desk(elsewhere, os.urandom), "key")
        finally:
            elsewhere.close()
        assert take(desk, "mail") == [message]

    @pytest.mark.shows("E-70")
    def test_a_handler_that_is_forgotten_gets_nothing_more(self, desk: Desk) -> None:
        keep(desk, "books", "mail")
        done, waits = emit(desk, "a", "b")
        sent(desk, done, handler="mail")
        assert desk.store.forget_handler("mail", **OLGA) == 1
        assert desk.store.forget_handler("mail", **OLGA) is None
        assert take(desk, "mail") == []
        assert states(desk, done)["mail"] == SENT
        assert states(desk, waits) == {"books": PENDING, "mail": DISCARDED}
        emit(desk, "c")
        assert take(desk, "mail") == []
        (line,) = desk.store.audit_trail(subject="handler/mail")
        assert (line.actor, line.act, line.details) == ("olga", "forget", '{"discarded":1}')

    @pytest.mark.shows("E-70")
    @pytest.mark.parametrize("state", [DEAD, REFUSED])
    def test_a_delivery_that_blocks_stops_its_key_until_it_is_redriven(
        self, desk: Desk, state: str
    ) -> None:
        bad, behind, other = self._blocked(desk, state)
        assert take(desk, "mail") == [other], "the other key goes on"
        (later,) = emit(desk, "key")
        assert take(desk, "mail") == []
        row = find(desk, bad)
        assert (row.state, row.error, row.tries) == (state, "no answer", 1)
        until = desk.now + 60 * SECOND
        assert desk.store.redrive_message(row, give_up_at=until, **OLGA)
        (again,) = desk.store.take_messages("mail", 9, hold_us=HOLD)
        assert (again.message, again.tries, again.give_up_at) == (bad, 0, until)
        sent(desk, bad, handler="mail")
        assert take(desk, "mail") == [behind]
        sent(desk, behind, handler="mail")
        assert take(desk, "mail") == [later]

    @pytest.mark.shows("E-70")
    def test_a_delivery_that_blocks_stops_its_key_until_it_is_discarded(self, desk: Desk) -> None:
        bad, behind, _ = self._blocked(desk, DEAD)
        assert behind not in take(desk, "mail")
        row = find(desk, bad)
        assert desk.store.discard_message(row, **OLGA)
        assert not desk.store.discard_message(row, **OLGA)
        assert not desk.store.redrive_message(row, give_up_at=None, **OLGA)
        assert take(desk, "mail") == [behind]
        assert find(desk, bad).state == DISCARDED
        subject = f"message/{to_text(bad.job_id)}/{bad.seq}/{bad.n}"
        (line,) = desk.store.audit_trail(subject=subject)
        assert (line.actor, line.act, line.note) == ("olga", "discard", "seen")
        assert '"handler":"mail"' in line.details

    def _blocked(self, desk: Desk, state: str) -> list[Message]:
        keep(desk, "mail")
        messages = emit(desk, "key", "key", "other")
        (head,) = desk.store.take_messages("mail", 1, hold_us=HOLD)
        assert head.message == messages[0]
        failed(desk, head.message, state, handler="mail", blocks=True)
        return messages

    @pytest.mark.shows("E-70")
    def test_what_blocks_one_handler_does_not_block_another(self, desk: Desk) -> None:
        keep(desk, "books", "mail")
        first, second = emit(desk, "key", "key")
        failed(desk, first, REFUSED, handler="mail", blocks=True)
        sent(desk, first, handler="books")
        assert take(desk, "books") == [second]
        assert take(desk, "mail") == []

    @pytest.mark.shows("E-70")
    def test_answer_error_and_unspent_tries_are_kept(self, desk: Desk) -> None:
        keep(desk, "mail")
        (message,) = emit(desk, "key")
        for spends in (True, False, True):
            end = Settled(message, "mail", PENDING, desk.now, spends, error=f"spent {spends}")
            desk.store.settle_messages([end])
        row = find(desk, message)
        assert (row.state, row.tries, row.error, row.answer) == (PENDING, 2, "spent True", None)
        desk.store.settle_messages([Settled(message, "mail", SENT, answer=b'{"id":7}')])
        row = find(desk, message)
        assert (row.state, row.tries, row.answer) == (SENT, 2, b'{"id":7}')
        assert row.sent_at == desk.now

    @pytest.mark.shows("E-70")
    def test_a_delivery_is_tried_for_as_long_as_its_handler_said(self, desk: Desk) -> None:
        desk.store.keep_handlers([HandlerRow("brief", "topic", 5), HandlerRow("long", "topic")])
        (message,) = emit(desk, "key")
        rows = desk.store.scan_messages(message.job_id)
        assert {row.handler: row.give_up_at for row in rows} == {
            "brief": message.at + 5,
            "long": None,
        }

    @pytest.mark.shows("E-70")
    def test_messages_without_a_job_keep_their_place_among_the_others(self, desk: Desk) -> None:
        keep(desk, "mail")
        (before,) = emit(desk, "key")
        lone = post(desk, "key")
        (after,) = emit(desk, "key")
        order = []
        while found := take(desk, "mail"):
            order += found
            sent(desk, *found, handler="mail")
        assert order == [before, lone, after]
        assert desk.store.scan_orphans() == []

    @pytest.mark.shows("E-70")
    def test_what_is_posted_while_others_are_settled_is_never_stuck(self, desk: Desk) -> None:
        keep(desk, "mail")
        got: list[tuple[int, int]] = []
        give_up = time.monotonic() + PATIENCE_S

        def send(writer: int) -> None:
            for n in range(POSTED):
                data = json.dumps([writer, n]).encode()
                message = Message(os.urandom(16), 0, 0, "key", "topic", data, desk.now)
                desk.store.post_messages([message])

        def deliver() -> None:
            while len(got) < 2 * POSTED:
                assert time.monotonic() < give_up, f"it stands after {len(got)} messages"
                for row in desk.store.take_messages("mail", 9, hold_us=HOLD):
                    got.append(tuple(json.loads(row.message.data)))
                    sent(desk, row.message, handler="mail")

        at_once(partial(send, 0), partial(send, 1), deliver)
        for writer in (0, 1):
            assert [n for other, n in got if other == writer] == list(range(POSTED))

    @pytest.mark.shows("E-70")
    def test_a_message_rings(self, desk: Desk) -> None:
        rings: list[int] = []
        desk.store.on_commit(lambda: rings.append(1))

        def has_rung() -> bool:
            rung = bool(rings)
            rings.clear()
            return rung

        for keys in ((), ("key",)):
            (row,) = desk.leased(1)
            desk.write(desk.emit(row))
            row = desk.lease()
            rings.clear()
            desk.write(desk.emit(row, *keys))  # the job ends: nothing else is due
            assert has_rung() == bool(keys)
        post(desk, "key")
        assert has_rung()
        failed(desk, desk.store.take_messages(NOBODY, 1, hold_us=HOLD)[0].message, DEAD)
        rings.clear()
        (lost,) = desk.store.deliveries(DeliveryFilter(states=GAVE_UP))
        desk.store.redrive_message(lost, give_up_at=None, **OLGA)
        assert has_rung()

    @pytest.mark.shows("E-70")
    def test_a_message_without_a_handler_is_counted_and_kept_for_seven_days(
        self, desk: Desk
    ) -> None:
        messages = emit(desk, "a", "a", "b")
        at, lone = messages[0].at, post(desk, "c")
        assert desk.store.count_deliveries() == [DeliveryCount(NOBODY, PENDING, 4, at)]
        desk.turn(days=7)
        assert desk.store.expire_messages(10) == 0
        desk.turn(seconds=1)
        (young,) = emit(desk, "a")
        assert desk.store.expire_messages(10) == 4
        assert desk.store.count_deliveries() == [DeliveryCount(NOBODY, PENDING, 1, young.at)]
        rows = desk.store.scan_messages(messages[0].job_id)
        old = [row for row in rows if row.message.at < young.at]
        assert {(row.state, row.message.data) for row in old} == {(DISCARDED, b"null")}
        assert desk.store.expire_messages(10) == 1
        assert desk.store.scan_messages(lone.job_id) == [], "it has no job to be pruned with"
        assert take(desk, NOBODY) == [young]

    @pytest.mark.shows("E-70")
    def test_what_a_handler_has_not_got_is_kept_however_old(self, desk: Desk) -> None:
        keep(desk, "mail")
        (waits,) = emit(desk, "a")
        lost, done = post(desk, "b"), post(desk, "c")
        failed(desk, lost, DEAD, handler="mail")
        sent(desk, done, handler="mail")
        desk.turn(days=400)
        assert desk.store.expire_messages(10) == 1
        assert desk.store.scan_messages(done.job_id) == []
        assert [row.message for row in listed(desk)] == [waits, lost]
        desk.store.forget_handler("mail", **OLGA)
        assert desk.store.expire_messages(10) == 0, "what was lost is for a person to look at"
        assert states(desk, waits) == {"mail": DISCARDED}

    @pytest.mark.shows("E-70")
    def test_a_job_stays_while_a_delivery_is_open(self, desk: Desk) -> None:
        keep(desk, "mail")
        (row,) = desk.leased(1)
        desk.write(desk.emit(row, "key"))
        desk.finish(desk.lease())
        desk.turn(days=1)
        (first,) = desk.store.take_messages("mail", 9, hold_us=1)
        assert desk.store.prune(before=desk.now, limit=9) == 0
        failed(desk, first.message, DEAD, handler="mail", blocks=True)
        assert desk.store.prune(before=desk.now, limit=9) == 0, "it stops its key"
        desk.store.discard_message(find(desk, first.message), **OLGA)
        assert desk.store.prune(before=desk.now, limit=9) == 1
        assert desk.store.scan_messages(row.id) == []

    @pytest.mark.shows("E-70")
    def test_what_arrives_after_a_discard_counts_as_sent(self, desk: Desk) -> None:
        keep(desk, "mail")
        message, other = emit(desk, "key", "another")
        for one in (message, other):
            desk.store.discard_message(find(desk, one), **OLGA)
        failed(desk, other, handler="mail")
        sent(desk, message, handler="mail")
        assert (find(desk, message).state, find(desk, other).state) == (SENT, DISCARDED)
        assert take(desk, "mail") == []

    @pytest.mark.shows("E-70")
    def test_deliveries_are_found_by_handler_state_and_key_a_page_at_a_time(
        self, desk: Desk
    ) -> None:
        keep(desk, "books", "mail")
        a, b, c = emit(desk, "a", "b", "c")
        sent(desk, a, handler="mail")
        failed(desk, b, DEAD, handler="mail")
        failed(desk, c, REFUSED, handler="mail", blocks=True)

        def find_all(**where: object) -> list[tuple[str, str]]:
            found = desk.store.deliveries(DeliveryFilter(**where))  # type: ignore[arg-type]
            return sorted((row.message.key, row.handler) for row in found)

        assert find_all(handler="books") == [("a", "books"), ("b", "books"), ("c", "books")]
        assert find_all(key="a") == [("a", "books"), ("a", "mail")]
        assert find_all(states=(DEAD,)) == [("b", "mail")]
        assert find_all(states=GAVE_UP) == [("b", "mail"), ("c", "mail")]
        assert find_all(states=(SENT, REFUSED), handler="mail", key="c") == [("c", "mail")]
        pages: list[OutboxRow] = []
        while page := desk.store.deliveries(
            DeliveryFilter(), after=pages[-1].position if pages else 0, limit=4
        ):
            pages += page
        assert pages == listed(desk)
        assert len(pages) == 6
        assert desk.store.count_deliveries() == [
            DeliveryCount("books", PENDING, 3, a.at), DeliveryCount("mail", DEAD, 1, a.at),
            DeliveryCount("mail", REFUSED, 1, a.at),
        ]  # fmt: skip


def keep(desk: Desk, *names: str) -> None:
    """Store handlers, `name` of the usual topic or `name/topic`."""
    parts = [name.partition("/") for name in names]
    desk.store.keep_handlers([HandlerRow(name, topic or "topic") for name, _, topic in parts])


def emit(desk: Desk, *keys: str) -> list[Message]:
    """Commit a move that leaves these messages."""
    (row,) = desk.leased(1)
    change = desk.emit(row, *keys)
    desk.write(change)
    return list(change.messages)


def post(desk: Desk, key: str) -> Message:
    """Write a message that no job sends."""
    message = Message(os.urandom(16), 0, 0, key, "topic", b"{}", desk.now)
    desk.store.post_messages([message])
    return message


def take(desk: Desk, handler: str) -> list[Message]:
    """Take every due head of a handler."""
    return [row.message for row in desk.store.take_messages(handler, 9, hold_us=HOLD)]


def find(desk: Desk, message: Message, handler: str = "mail") -> OutboxRow:
    """Read a delivery."""
    rows = desk.store.scan_messages(message.job_id)
    (row,) = [row for row in rows if (row.message[:3], row.handler) == (message[:3], handler)]
    return row


def states(desk: Desk, message: Message) -> dict[str, str]:
    """Read how the deliveries of a message stand."""
    rows = desk.store.scan_messages(message.job_id)
    return {row.handler: row.state for row in rows if row.message[:3] == message[:3]}


def listed(desk: Desk) -> list[OutboxRow]:
    """Read every delivery."""
    return desk.store.deliveries(DeliveryFilter(), limit=99)
