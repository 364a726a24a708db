"""Awkward idempotency records: kept to the byte, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ulak.clock import SECOND
from ulak.errors import WriteRefused
from ulak.store.records import RecordClaim
from ulak.testing.conformance.awkward import TEXTS
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.records import (
    BY_ADA,
    LEASE,
    TTL,
    answered,
    claim,
    claimed,
    find,
    finish,
    record,
)

VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
"""Every character that a key may have."""

IDS = {
    "the longest key": {"key": "k" * 255},
    "every visible character": {"key": VISIBLE},
    "the longest id": {"key": VISIBLE[:85] * 3, "scope": "s" * 200, "tenant_id": "t" * 200},
    "no tenant": {"tenant_id": ""},
    "no scope": {"scope": ""},
    "neither": {"tenant_id": "", "scope": "", "actor_id": ""},
    "other scripts": {"tenant_id": "müşteri 客户 🧵", "scope": "šť", "actor_id": "Ωμέγα"},
    "right to left": {"tenant_id": "\u202eabc"},
    "quotes": {"tenant_id": "'; DROP TABLE jobs; --", "key": "\"'%s?$1\\"},
}

RESPONSES = {
    "no body": {"response_json": None},
    "empty text": {"response_json": ""},
    "white space": {"response_json": ' {"b" : 1,\r\n\t"a":1.0 }\n'},
    "other scripts": {"response_json": '"müşteri 客户 🧵"'},
    "big text": {"response_json": "ä" * 3_000_000},
    "no text": {"response_json": None, "response_bytes": bytes(range(256))},
    "no bytes": {"response_json": None, "response_bytes": b""},
    "big bytes": {"response_json": None, "response_bytes": b"\xff\0" * 3_000_000},
    "a digest": {"response_json": None, "response_digest": "0a" * 32},
    "no headers": {"response_headers": None, "response_status": 599},
}


class TestAwkwardRecords(Suite):
    """What a caller chose, or a handler answered, comes back as it was."""

    @pytest.mark.shows("I-5", "I-6")
    @pytest.mark.parametrize("facts", IDS.values(), ids=IDS)
    def test_an_id_is_found_as_it_was_given(self, desk: Desk, facts: dict[str, str]) -> None:
        row = claimed(desk, record(**facts))
        ended = finish(desk, row)
        assert {name: getattr(ended, name) for name in facts} == facts
        assert claim(desk, record(**facts)) == RecordClaim(ended, False, desk.now)
        assert desk.store.forget_record(row.id, **BY_ADA)

    @pytest.mark.shows("I-2", "I-30")
    @pytest.mark.parametrize("facts", RESPONSES.values(), ids=RESPONSES)
    def test_an_answer_is_kept_to_the_byte(self, desk: Desk, facts: dict[str, Any]) -> None:
        row = claimed(desk, record())
        ended = finish(desk, row, **facts)
        assert {name: getattr(ended, name) for name in facts} == facts
        assert claim(desk, record()).row == ended

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    @pytest.mark.parametrize("column", ["tenant_id", "actor_id", "request_hash"])
    def test_a_text_to_claim_with_is_stored_or_refused_whole(
        self, desk: Desk, column: str, text: str
    ) -> None:
        row = record(**{column: text})
        try:
            answer = claim(desk, row)
        except WriteRefused:
            assert self._is_empty(desk)
        else:
            assert getattr(answer.row, column) == text
            assert find(desk, answer.row) == answer.row

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    @pytest.mark.parametrize("column", ["response_json", "response_headers", "recovery_data"])
    def test_a_text_of_an_execution_is_stored_or_refused_whole(
        self, desk: Desk, column: str, text: str
    ) -> None:
        row = claimed(desk, record())
        new = answered(row._replace(recovery_point="first"), **{column: text})
        try:
            kept = (
                desk.store.mark_record(new, lease_us=LEASE)
                if column == "recovery_data"
                else desk.store.finish_record(new, ttl_us=TTL)
            )
        except WriteRefused:
            assert find(desk, row) == row
            finish(desk, row)
        else:
            assert kept
            (found,) = desk.store.find_records([row.id])
            assert getattr(found, column) == text

    @staticmethod
    def _is_empty(desk: Desk) -> bool:
        desk.turn(seconds=2 * TTL // SECOND)
        return desk.store.clean_records(10) == 0
