"""Awkward data: stored as it is, or refused by name; never half written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ulak.core.change import Change, Committed
from ulak.core.job import Message, Result
from ulak.core.outcome import Finished, Left, Raised
from ulak.errors import WriteRefused
from ulak.testing.conformance.desk import Desk, Suite, snapshot

TEXTS = {
    "NUL": "a\x00b",
    "surrogate": "a\ud800b",
    "over-long": "x" * 2_000_000,
    "emoji": "a\U0001f9f5b",
    "right-to-left": "\u202eabc",
    "quotes": "'; DROP TABLE jobs; --",
}
DATA = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "not UTF-8": b"\xff\xfe\x00",
    "empty": b"",
    "big": bytes(3_000_000),
}

Spoil = Callable[[Change, str], Change]


def _message(change: Change, text: str) -> Change:
    events = (*change.events[:-1], change.events[-1]._replace(message=text))
    return change._replace(events=events)


def _details(change: Change, text: str) -> Change:
    events = (*change.events[:-1], change.events[-1]._replace(details=text))
    return change._replace(events=events)


def _code(change: Change, text: str) -> Change:
    return change._replace(row=change.row._replace(code=text))


def _name(change: Change, text: str) -> Change:
    row = change.row
    return change._replace(results=(Result(row.id, row.round, "first", text, b"1"),))


def _topic(change: Change, text: str) -> Change:
    row = change.row
    return change._replace(messages=(Message(row.id, row.seq, 0, text, text, b"1", 0),))


class TestAwkwardData(Suite):
    """One bad value costs its own job a hold, and nobody else anything."""

    @pytest.mark.shows("E-19")
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    @pytest.mark.parametrize("spoil", [_message, _details, _code, _name, _topic])
    def test_an_awkward_text_is_stored_or_refused_whole(
        self, desk: Desk, text: str, spoil: Spoil
    ) -> None:
        good, odd = desk.leased(2)
        fine, awkward = desk.end(good), spoil(desk.end(odd, Raised("boom", "")), text)
        before = snapshot(desk, [good.id, odd.id])
        try:
            receipts = desk.store.commit([fine, awkward])
        except WriteRefused:
            assert snapshot(desk, [good.id, odd.id]) == before
            with pytest.raises(WriteRefused):
                desk.store.commit([awkward])
            assert snapshot(desk, [good.id, odd.id]) == before
            desk.write(fine)
            desk.write(desk.end(odd, Raised("commit-rejected", "")))
            return
        assert receipts == [Committed(), Committed()]
        assert desk.job(odd.id) == awkward.row
        assert desk.store.trail(odd.id)[1:] == list(awkward.events)
        assert desk.store.find_results(odd.id) == list(awkward.results)
        assert [o.message for o in desk.store.scan_messages(odd.id)] == list(awkward.messages)

    @pytest.mark.shows("E-19")
    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_awkward_bytes_come_back_as_they_went(self, desk: Desk, data: bytes) -> None:
        (added,) = desk.store.add([desk.new(payload=data)])
        desk.hire("w")
        (claim,) = desk.claim()
        assert claim.payload.data == data
        message = Message(added.row.id, 2, 0, "key", "topic", data, desk.now)
        desk.write(desk.end(claim.row, Finished(Left(result=data, messages=(message,)))))
        assert [r.data for r in desk.store.find_results(added.row.id)] == [data]
        assert [o.message.data for o in desk.store.scan_messages(added.row.id)] == [data]
        (claim,) = desk.claim()
        assert [r.data for r in claim.results] == [data]

    @pytest.mark.shows("E-19")
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    def test_an_awkward_submission_is_stored_or_refused_with_its_batch(
        self, desk: Desk, text: str
    ) -> None:
        fine, odd = desk.new(dedup_key="a"), desk.new(dedup_key="b")
        odd = odd._replace(row=odd.row._replace(submitter=text))
        before = snapshot(desk, [fine.row.id, odd.row.id])
        try:
            added = desk.store.add([fine, odd])
        except WriteRefused:
            assert snapshot(desk, [fine.row.id, odd.row.id]) == before
            assert desk.store.add([fine])[0].created
            return
        assert [a.created for a in added] == [True, True]
        assert desk.job(odd.row.id).submitter == text

    @pytest.mark.shows("E-19")
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    def test_an_awkward_spawn_is_stored_or_refused_with_its_change(
        self, desk: Desk, text: str
    ) -> None:
        good, odd = desk.leased(2)
        child = desk.new()
        child = child._replace(event=child.event._replace(message=text))
        spawning = desk.end(odd, Finished(Left(result=b"1", spawns=(child,))))
        ids = [good.id, odd.id, child.row.id]
        before = snapshot(desk, ids)
        try:
            desk.store.commit([desk.end(good), spawning])
        except WriteRefused:
            assert snapshot(desk, ids) == before
            return
        assert desk.store.trail(child.row.id) == [child.event]
        assert desk.job(odd.id) == spawning.row
