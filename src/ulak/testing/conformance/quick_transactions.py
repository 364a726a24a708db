"""Ways to have a record's transaction without a thread: on an event loop, or as parts of one."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ulak.errors import Contended
from ulak.store.protocol import Store
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.transaction import LoopTransaction, PartedTransaction
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.open_transactions import (
    SHORT_MS,
    begin,
    claimed_in,
    desk_with_ledger,
    finish_in,
    opened,
    words,
    write,
)
from ulak.testing.conformance.records import TTL, answered, find, record


class TestLoopTransactions(Suite):
    """A store may let them begin and end on an event loop, if it says so."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.on_loop:
            pytest.skip("this store has no transaction for an event loop")
        return Desk(store)

    @pytest.mark.shows("I-2", "I-8")
    def test_a_claim_is_nobodys_to_see_until_it_has_ended(self, desk: Desk) -> None:
        async def story() -> None:
            transaction, claim = await claim_on_loop(desk, record())
            assert claim.is_mine
            assert not transaction.was_used
            assert find(desk, record()) is None
            await transaction.commit_record_on_loop(answered(claim.row), ttl_us=TTL)
            row = find(desk, record())
            assert row is not None
            assert row.response_json == answered(claim.row).response_json

        asyncio.run(story())

    @pytest.mark.shows("I-8")
    def test_many_are_open_at_once_on_one_loop(self, desk: Desk) -> None:
        async def one(n: int) -> None:
            transaction, claim = await claim_on_loop(desk, record(f"key-{n}"))
            assert claim.is_mine
            await transaction.commit_record_on_loop(answered(claim.row), ttl_us=TTL)

        async def story() -> None:
            await asyncio.gather(*(one(n) for n in range(12)))

        asyncio.run(story())
        assert all(find(desk, record(f"key-{n}")) for n in range(12))

    @pytest.mark.shows("I-8")
    def test_a_duplicate_waits_for_its_patience_while_the_loop_goes_on(self, desk: Desk) -> None:
        async def story() -> None:
            first, claim = await claim_on_loop(desk, record())
            second = asyncio.create_task(claim_on_loop(desk, record(), patience_ms=SHORT_MS))
            other, beside = await claim_on_loop(desk, record("beside"))
            await other.commit_record_on_loop(answered(beside.row), ttl_us=TTL)
            assert not second.done()
            with pytest.raises(Contended):
                await second
            await first.commit_record_on_loop(answered(claim.row), ttl_us=TTL)
            late, known = await claim_on_loop(desk, record())
            assert not known.is_mine
            late.roll_back()

        asyncio.run(story())

    @pytest.mark.shows("I-8")
    def test_one_who_goes_away_while_it_claims_has_claimed_nothing(self, desk: Desk) -> None:
        async def story() -> None:
            first, claim = await claim_on_loop(desk, record())
            second = asyncio.create_task(claim_on_loop(desk, record()))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            first.roll_back()
            third, claim = await claim_on_loop(desk, record())
            assert claim.is_mine
            third.roll_back()

        asyncio.run(story())


class TestPartedTransactions(Suite):
    """With one writer, parts of a transaction follow one another and share its commit."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.one_writer:
            pytest.skip("this store has more than one writer")
        return desk_with_ledger(store)

    @pytest.mark.shows("I-2", "I-17")
    def test_each_part_is_kept_or_dropped_by_itself(self, desk: Desk) -> None:
        with opened(desk) as opened_one:
            transaction = cast(PartedTransaction, opened_one)
            for key, is_kept in (("a", True), ("b", False), ("c", True)):
                transaction.begin_part(key.encode())
                finish_in(transaction, claimed_in(transaction, record(key)))
                write(transaction, key)
                if is_kept:
                    transaction.keep_part()
                else:
                    transaction.drop_part()
            assert find(desk, record("a")) is None
            transaction.commit()
        assert [find(desk, record(key)) is not None for key in "abc"] == [True, False, True]
        assert words(desk) == ["a", "c"]

    @pytest.mark.shows("I-2")
    def test_what_was_kept_may_be_committed_in_between(self, desk: Desk) -> None:
        with opened(desk) as opened_one:
            transaction = cast(PartedTransaction, opened_one)
            transaction.begin_part(b"a")
            finish_in(transaction, claimed_in(transaction, record("a")))
            transaction.keep_part()
            transaction.commit_parts()
            assert find(desk, record("a")) is not None
            with pytest.raises(Contended):
                begin(desk, patience_ms=0)
            transaction.begin_part(b"b")
            claimed_in(transaction, record("b"))
            transaction.drop_part()
        assert find(desk, record("b")) is None

    @pytest.mark.shows("I-8")
    def test_whoever_waits_in_vain_is_told_of_the_part_that_is_under_way(self, desk: Desk) -> None:
        with opened(desk, purpose=b"first") as opened_one:
            transaction = cast(PartedTransaction, opened_one)
            transaction.begin_part(b"second")
            with pytest.raises(Contended) as refusal:
                begin(desk, patience_ms=0)
            assert refusal.value.holder == b"second"


async def claim_on_loop(
    desk: Desk, row: RecordRow, *, patience_ms: int = 30_000
) -> tuple[LoopTransaction, RecordClaim]:
    """Begin and claim."""
    transaction = cast(LoopTransaction, begin(desk, patience_ms=patience_ms))
    claim = await transaction.claim_record_on_loop(row, ttl_us=TTL, lease_us=None)
    return transaction, claim
