"""Races for idempotency records: threads and processes want one key at the same moment."""

from __future__ import annotations

from functools import partial

import pytest

from ulak.clock import SECOND
from ulak.store.records import RecordClaim
from ulak.testing.conformance.desk import Desk, Reopen, Suite, at_once
from ulak.testing.conformance.processes import CHILDREN, in_children
from ulak.testing.conformance.records import (
    LEASE,
    TTL,
    answered,
    claim,
    claimed,
    find,
    finish,
    record,
    removable,
    stored,
)

THREADS = 16
KEYS = [f"race-{n}" for n in range(8)]
CHILDRENS_KEYS = [f"race-{n}" for n in range(25)]

SITUATIONS = ("new", "expired", "lapsed")
"""Each way in which a key is there to be claimed."""


def make_claimable(desk: Desk, situation: str, keys: list[str]) -> None:
    """Bring keys, and the clock, to where one of those who ask for each must get it."""
    for key in keys if situation != "new" else ():
        row = claimed(desk, record(key))
        if situation == "expired":
            finish(desk, row, ttl_us=LEASE)
    # At this very instant the lease has lapsed, and what was finished has expired.
    desk.turn(seconds=LEASE // SECOND)


class TestRecordRaces(Suite):
    """However many ask at once, in whatever order they arrive, one executes."""

    @pytest.fixture
    def shared(self, desk: Desk) -> Desk:
        if not desk.store.features.shared:
            pytest.skip("this store serves one process")
        return desk

    @pytest.mark.shows("I-10")
    @pytest.mark.parametrize("situation", SITUATIONS)
    def test_of_sixteen_threads_exactly_one_claims_a_key(self, desk: Desk, situation: str) -> None:
        make_claimable(desk, situation, KEYS)
        for key in KEYS:
            answers = at_once(*(partial(claim, desk, record(key)) for _ in range(THREADS)))
            (winner,) = [answer.row for answer in answers if answer.is_mine]
            assert {answer.row for answer in answers} == {winner}
            assert winner.attempt == (2 if situation == "lapsed" else 1)
            assert find(desk, winner) == winner

    @pytest.mark.shows("I-10")
    @pytest.mark.parametrize("situation", SITUATIONS)
    def test_of_four_processes_exactly_one_claims_a_key(
        self, shared: Desk, reopen: Reopen, situation: str
    ) -> None:
        make_claimable(shared, situation, CHILDRENS_KEYS)
        answers = [
            answer for page in in_children(_claim_each, reopen, prepare=_look) for answer in page
        ]
        assert len(answers) == CHILDREN * len(CHILDRENS_KEYS)
        for key in CHILDRENS_KEYS:
            about = [answer for answer in answers if answer.row.key == key]
            (winner,) = [answer.row for answer in about if answer.is_mine]
            assert {answer.row for answer in about} == {winner}

    def test_of_an_end_and_a_takeover_at_once_one_counts(self, desk: Desk) -> None:
        for key in KEYS:
            row = claimed(desk, record(key))
            desk.turn(seconds=LEASE // SECOND)
            ended, taken = at_once(
                partial(desk.store.finish_record, answered(row), ttl_us=TTL),
                lambda key=key: claim(desk, record(key)).is_mine,  # type: ignore[misc]
            )
            assert ended is not taken

    def test_another_process_sees_a_claim_and_its_end_at_once(
        self, shared: Desk, reopen: Reopen
    ) -> None:
        other = reopen()
        other.open()
        try:
            row = claimed(shared, record())
            assert other.find_records([row.id]) == [row]
            ended = finish(shared, row)
            assert other.claim_record(record(), ttl_us=TTL, lease_us=LEASE).row == ended
            assert other.finish_record(answered(row), ttl_us=TTL) is False
        finally:
            other.close()

    @pytest.mark.shows("I-23")
    def test_cleaners_beside_each_other_remove_each_record_once(self, desk: Desk) -> None:
        for n in range(60):
            finish(desk, claimed(desk, record(f"order-{n}")), ttl_us=SECOND)
        alive = claimed(desk, record("alive"), ttl_us=SECOND)
        desk.turn(seconds=1)
        assert sum(at_once(*[partial(_clean_all, desk)] * 4)) == removable(desk, 60)
        assert find(desk, alive) == alive

    @pytest.mark.shows("I-23", "I-24")
    def test_a_cleaner_never_removes_what_was_claimed_anew_meanwhile(self, desk: Desk) -> None:
        for key in KEYS:
            finish(desk, claimed(desk, record(key)), ttl_us=SECOND)
            desk.turn(seconds=1)
            ask = partial(claim, desk, record(key))
            clean = partial(_clean_all, desk)
            claims = [a for a in at_once(clean, ask, clean) if isinstance(a, RecordClaim)]
            assert [answer.is_mine for answer in claims] == [True]
            assert stored(desk, record(key)) == claims[0].row


def _clean_all(desk: Desk) -> int:
    total = 0
    while removed := desk.store.clean_records(10):
        total += removed
    return total


def _look(desk: Desk, worker: str) -> None:
    """Connect: whoever claims records need not be a worker."""
    find(desk, record())


def _claim_each(desk: Desk, worker: str) -> list[RecordClaim]:
    desk.turn(seconds=LEASE // SECOND)
    return [claim(desk, record(key, owner_token=f"{worker}-{key}")) for key in CHILDRENS_KEYS]
