"""Idempotency records: claimed by one, guarded by a token, answered until they expire."""

from __future__ import annotations

import json
from secrets import token_hex
from typing import Any

import pytest

from ulak.clock import SECOND
from ulak.store.records import (
    COMPLETED,
    FAILED,
    FORGOTTEN,
    PROCESSING,
    RecordClaim,
    RecordId,
    RecordRow,
)
from ulak.testing.conformance.desk import Desk, Suite, at_once

TTL = 3600 * SECOND
LEASE = 30 * SECOND
HASH, OTHER_HASH = "5f" * 32, "6e" * 32
BY_ADA = {"actor": "ada", "note": "sent by mistake"}


def record(key: str = "order-1", **facts: Any) -> RecordRow:
    """Make a record to claim a key with; its token is its own."""
    row = RecordRow(
        "acme", "orders.charge", key, PROCESSING, HASH, "ada", token_hex(8),
        None, 1, None, None, None, None, None, None, None, 0, 0, 0,
    )  # fmt: skip
    return row._replace(**facts)


def claim(
    desk: Desk, row: RecordRow, *, ttl_us: int = TTL, lease_us: int | None = LEASE
) -> RecordClaim:
    return desk.store.claim_record(row, ttl_us=ttl_us, lease_us=lease_us)


def claimed(
    desk: Desk, row: RecordRow, *, ttl_us: int = TTL, lease_us: int | None = LEASE
) -> RecordRow:
    """Claim what must be there to be claimed."""
    answer = claim(desk, row, ttl_us=ttl_us, lease_us=lease_us)
    assert answer.is_mine
    return answer.row


def answered(row: RecordRow, **facts: Any) -> RecordRow:
    """Make what an execution stores at its end."""
    ended = row._replace(
        status=COMPLETED, response_status=201, response_headers='[["etag","1"]]',
        response_json='{"ok": true}',
    )  # fmt: skip
    return ended._replace(**facts)


def finish(desk: Desk, row: RecordRow, *, ttl_us: int = TTL, **facts: Any) -> RecordRow:
    """Store an end that nobody may refuse, and answer the record."""
    assert desk.store.finish_record(answered(row, **facts), ttl_us=ttl_us)
    return stored(desk, row)


def find(desk: Desk, row: RecordRow) -> RecordRow | None:
    return desk.store.find_records([row.id])[0]


def stored(desk: Desk, row: RecordRow) -> RecordRow:
    """Read a record that must be there."""
    found = find(desk, row)
    assert found is not None
    return found


def removable(desk: Desk, number: int) -> int:
    """Return how many of so many expired records a cleaner removes: none where they go alone."""
    return 0 if desk.store.features.removes_expired else number


def changes_nothing(desk: Desk, row: RecordRow) -> None:
    """Try every verb that only the owner may use; each must be refused and leave no trace."""
    store, before = desk.store, find(desk, row)
    late = answered(row._replace(recovery_point="late", recovery_data="{}"))
    assert store.renew_records([row], lease_us=[LEASE]) == [False]
    assert store.mark_record(late, lease_us=LEASE) is False
    assert store.finish_record(late, ttl_us=TTL) is False
    assert store.release_record(row) is False
    assert find(desk, row) == before


class TestRecords(Suite):
    """Of all that ask under one key, one executes; the others are told what is stored."""

    # --- claims -------------------------------------------------------------------

    @pytest.mark.shows("I-6", "I-21")
    def test_a_new_key_is_claimed_as_the_row_says(self, desk: Desk) -> None:
        row = record(tenant_id="acme", scope="orders.charge", actor_id="eve", attempt=7)
        answer = claim(desk, row)
        assert answer == RecordClaim(
            row._replace(
                attempt=1, lease_until=desk.now + LEASE, created_at=desk.now,
                updated_at=desk.now, expires_at=desk.now + TTL,
            ),
            True,
            desk.now,
        )  # fmt: skip
        assert find(desk, row) == answer.row

    def test_a_claim_without_a_lease_has_none(self, desk: Desk) -> None:
        assert claimed(desk, record(), lease_us=None).lease_until is None

    @pytest.mark.shows("I-8")
    def test_what_is_being_executed_is_answered_as_it_is(self, desk: Desk) -> None:
        first = claimed(desk, record())
        desk.turn(seconds=1)
        for other in (record(), record(request_hash=OTHER_HASH)):
            assert claim(desk, other) == RecordClaim(first, False, desk.now)
        assert find(desk, first) == first

    @pytest.mark.shows("I-2", "I-7")
    @pytest.mark.parametrize("status", [COMPLETED, FAILED])
    def test_what_has_ended_is_answered_as_it_is(self, desk: Desk, status: str) -> None:
        ended = finish(desk, claimed(desk, record()), status=status)
        desk.turn(seconds=TTL // SECOND - 1)
        for other in (record(), record(request_hash=OTHER_HASH)):
            assert claim(desk, other) == RecordClaim(ended, False, desk.now)
        assert find(desk, ended) == ended

    @pytest.mark.shows("I-6")
    @pytest.mark.parametrize(
        "other",
        [
            {"tenant_id": "umbrella"}, {"tenant_id": ""}, {"tenant_id": "ACME"},
            {"scope": "orders.cancel"}, {"scope": ""}, {"scope": "Orders.Charge"},
            {"key": "order-2"}, {"key": "ORDER-1"}, {"key": "order-1/"},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_key_of_another_tenant_or_scope_is_another_record(
        self, desk: Desk, other: dict[str, Any]
    ) -> None:
        first = finish(desk, claimed(desk, record()))
        second = claimed(desk, record(**other))
        assert (find(desk, first), find(desk, second)) == (first, second)

    def test_the_parts_of_an_id_are_never_run_together(self, desk: Desk) -> None:
        for parts in (("a", "b", "c/d"), ("a", "b/c", "d"), ("a/b", "c", "d"), ("", "a/b", "c/d")):
            claimed(desk, record(**dict(zip(RecordId._fields, parts, strict=True))))

    # --- expiry -------------------------------------------------------------------

    @pytest.mark.shows("I-24")
    def test_from_the_instant_of_its_expiry_a_record_counts_as_absent(self, desk: Desk) -> None:
        ended = finish(desk, claimed(desk, record()), ttl_us=TTL)
        desk.turn(microseconds=TTL - 1)
        assert find(desk, ended) == ended
        assert not claim(desk, record()).is_mine
        desk.turn(microseconds=1)
        assert find(desk, ended) is None
        assert claim(desk, record()).is_mine

    @pytest.mark.shows("I-24")
    def test_an_expired_key_is_claimed_anew_and_nothing_is_left_of_before(self, desk: Desk) -> None:
        first = claimed(desk, record())
        marked = first._replace(recovery_point="charged", recovery_data='{"charged":1}')
        assert desk.store.mark_record(marked, lease_us=LEASE)
        finish(desk, first, response_bytes=b"\xff", response_digest="00" * 32)
        desk.turn(seconds=TTL // SECOND)
        row = record(request_hash=OTHER_HASH, actor_id="eve")
        new = claimed(desk, row)
        assert new == row._replace(
            lease_until=desk.now + LEASE, created_at=desk.now, updated_at=desk.now,
            expires_at=desk.now + TTL,
        )  # fmt: skip
        assert find(desk, row) == new
        changes_nothing(desk, first)

    @pytest.mark.shows("I-24")
    def test_an_execution_that_lapsed_and_expired_is_claimed_anew_whatever_is_asked(
        self, desk: Desk
    ) -> None:
        first = claimed(desk, record(), ttl_us=LEASE)
        desk.turn(seconds=LEASE // SECOND)
        assert find(desk, first) is None
        new = claimed(desk, record(request_hash=OTHER_HASH))
        assert (new.attempt, new.created_at) == (1, desk.now)

    @pytest.mark.shows("I-23")
    def test_what_is_executed_on_a_living_lease_never_counts_as_expired(self, desk: Desk) -> None:
        row = claimed(desk, record(), ttl_us=SECOND)
        desk.turn(microseconds=LEASE - 1)
        assert find(desk, row) == row
        assert claim(desk, record()) == RecordClaim(row, False, desk.now)
        assert desk.store.clean_records(10) == 0
        assert desk.store.renew_records([row], lease_us=[LEASE]) == [True]
        finish(desk, row)

    # --- takeovers ----------------------------------------------------------------

    @pytest.mark.shows("I-32")
    def test_who_takes_over_gets_the_recovery_point_and_a_token_of_his_own(
        self, desk: Desk
    ) -> None:
        first = claimed(desk, record())
        marked = first._replace(recovery_point="charged", recovery_data='{"charged": 7}')
        assert desk.store.mark_record(marked, lease_us=LEASE)
        begun_at = desk.now
        desk.turn(seconds=LEASE // SECOND)
        row = record()
        assert row.owner_token != first.owner_token
        answer = claim(desk, row)
        assert answer == RecordClaim(
            row._replace(
                attempt=2, recovery_point="charged", recovery_data='{"charged": 7}',
                lease_until=desk.now + LEASE, created_at=begun_at, updated_at=desk.now,
                expires_at=desk.now + TTL,
            ),
            True,
            desk.now,
        )  # fmt: skip
        assert find(desk, row) == answer.row
        changes_nothing(desk, first)

    def test_a_lease_lives_until_its_very_last_instant(self, desk: Desk) -> None:
        first = claimed(desk, record())
        desk.turn(microseconds=LEASE - 1)
        assert claim(desk, record()) == RecordClaim(first, False, desk.now)
        desk.turn(microseconds=1)
        assert claim(desk, record()).is_mine

    def test_each_takeover_counts_as_an_attempt(self, desk: Desk) -> None:
        attempts = []
        for _ in range(4):
            attempts.append(claimed(desk, record()).attempt)
            desk.turn(seconds=LEASE // SECOND)
        assert attempts == [1, 2, 3, 4]

    @pytest.mark.shows("I-7")
    def test_another_request_takes_nothing_over(self, desk: Desk) -> None:
        first = claimed(desk, record())
        desk.turn(seconds=LEASE // SECOND)
        assert claim(desk, record(request_hash=OTHER_HASH)) == RecordClaim(first, False, desk.now)
        assert find(desk, first) == first
        # So the owner may still end it.
        finish(desk, first)

    def test_what_is_executed_without_a_lease_is_taken_over_at_once(self, desk: Desk) -> None:
        claimed(desk, record(), lease_us=None)
        assert not claim(desk, record(request_hash=OTHER_HASH)).is_mine
        assert claimed(desk, record()).attempt == 2

    # --- what only the owner may do -----------------------------------------------

    def test_a_renewed_lease_counts_from_now(self, desk: Desk) -> None:
        row = claimed(desk, record())
        desk.turn(seconds=10)
        assert desk.store.renew_records([row], lease_us=[2 * LEASE]) == [True]
        assert find(desk, row) == row._replace(
            lease_until=desk.now + 2 * LEASE, updated_at=desk.now
        )

    def test_each_renewal_of_many_is_answered_in_order(self, desk: Desk) -> None:
        mine, lost, short = (claimed(desk, record(f"order-{n}")) for n in range(3))
        gone = record("nobody")
        assert desk.store.forget_record(lost.id, **BY_ADA)
        desk.turn(seconds=1)
        spans = [LEASE, LEASE, LEASE, SECOND]
        assert desk.store.renew_records([mine, lost, gone, short], lease_us=spans) == [
            True, False, False, True,
        ]  # fmt: skip
        ends = [stored(desk, row).lease_until for row in (mine, short)]
        assert ends == [desk.now + LEASE, desk.now + SECOND]
        assert desk.store.renew_records([], lease_us=[]) == []

    def test_who_lapsed_and_was_not_taken_over_may_go_on(self, desk: Desk) -> None:
        row = claimed(desk, record())
        desk.turn(seconds=LEASE // SECOND + 1)
        assert desk.store.renew_records([row], lease_us=[LEASE]) == [True]
        assert not claim(desk, record()).is_mine
        finish(desk, row)

    @pytest.mark.shows("I-32")
    def test_a_recovery_point_is_kept_and_extends_the_lease(self, desk: Desk) -> None:
        row = claimed(desk, record())
        desk.turn(seconds=10)
        for point in ("charged", "mailed"):
            row = row._replace(recovery_point=point, recovery_data=f'{{"{point}": "ä"}}')
            assert desk.store.mark_record(row, lease_us=LEASE)
            row = row._replace(lease_until=desk.now + LEASE, updated_at=desk.now)
            assert find(desk, row) == row

    @pytest.mark.shows("I-2", "I-21")
    def test_an_end_is_stored_whole_and_expires_counted_from_then(self, desk: Desk) -> None:
        row = claimed(desk, record())
        desk.turn(seconds=10)
        ended = answered(
            row, status=FAILED, response_status=409, response_bytes=b"\0\xff",
            response_digest="00" * 32,
        )  # fmt: skip
        assert desk.store.finish_record(ended, ttl_us=7 * TTL)
        assert find(desk, row) == ended._replace(
            lease_until=None, updated_at=desk.now, expires_at=desk.now + 7 * TTL
        )

    def test_the_second_end_is_refused(self, desk: Desk) -> None:
        row = claimed(desk, record())
        finish(desk, row)
        changes_nothing(desk, row)

    def test_a_claim_that_is_given_back_leaves_nothing(self, desk: Desk) -> None:
        row = claimed(desk, record())
        assert desk.store.release_record(row)
        assert find(desk, row) is None
        changes_nothing(desk, row)
        assert claimed(desk, record(request_hash=OTHER_HASH)).attempt == 1

    @pytest.mark.shows("I-32")
    def test_a_claim_with_a_recovery_point_that_is_given_back_may_be_taken_over_at_once(
        self, desk: Desk
    ) -> None:
        row = claimed(desk, record())
        marked = row._replace(recovery_point="charged", recovery_data="{}")
        assert desk.store.mark_record(marked, lease_us=LEASE)
        desk.turn(seconds=1)
        # What is stored decides, and not what whoever gives it back remembers.
        assert desk.store.release_record(row)
        left = stored(desk, row)
        assert (left.status, left.lease_until, left.recovery_point) == (
            PROCESSING, desk.now, "charged",
        )  # fmt: skip
        new = claimed(desk, record())
        assert (new.attempt, new.recovery_point) == (2, "charged")
        changes_nothing(desk, row)

    def test_of_what_was_forgotten_the_former_owner_changes_nothing(self, desk: Desk) -> None:
        row = claimed(desk, record())
        assert desk.store.forget_record(row.id, **BY_ADA)
        changes_nothing(desk, row)
        new = claimed(desk, record())
        changes_nothing(desk, row)
        assert find(desk, new) == new

    def test_of_what_has_expired_and_is_cleaned_up_the_former_owner_changes_nothing(
        self, desk: Desk
    ) -> None:
        if desk.store.features.removes_expired:
            pytest.skip("nobody cleans up: what has expired goes alone, by a clock of its own")
        row = claimed(desk, record(), ttl_us=LEASE)
        desk.turn(seconds=LEASE // SECOND)
        assert desk.store.clean_records(1) == 1
        changes_nothing(desk, row)

    def test_who_expired_and_was_not_missed_may_still_end(self, desk: Desk) -> None:
        row = claimed(desk, record(), ttl_us=LEASE)
        desk.turn(seconds=LEASE // SECOND)
        ended = finish(desk, row)
        # The effect has happened: to forget its answer now would be to repeat it.
        assert claim(desk, record()) == RecordClaim(ended, False, desk.now)

    def test_a_token_counts_for_its_own_record_only(self, desk: Desk) -> None:
        mine, other = claimed(desk, record("mine")), claimed(desk, record("other"))
        changes_nothing(desk, mine._replace(key="other"))
        changes_nothing(desk, mine._replace(tenant_id=""))
        changes_nothing(desk, other._replace(owner_token=None))

    # --- reads --------------------------------------------------------------------

    def test_records_are_found_in_the_order_in_which_they_are_asked_for(self, desk: Desk) -> None:
        a, b, over = (claimed(desk, record(key)) for key in "abc")
        over = finish(desk, over, ttl_us=SECOND)
        desk.turn(seconds=1)
        asked = [row.id for row in (b, over, a, record("nobody"), b)]
        assert desk.store.find_records(asked) == [b, None, a, None, b]
        assert desk.store.find_records([]) == []

    def test_many_records_are_found_at_once(self, desk: Desk) -> None:
        rows = [claimed(desk, record(f"order-{n}")) for n in range(120)]
        assert desk.store.find_records([row.id for row in reversed(rows)]) == rows[::-1]

    # --- forgetting ---------------------------------------------------------------

    @pytest.mark.shows("I-20")
    def test_a_forgotten_record_is_gone_and_its_key_is_free(self, desk: Desk) -> None:
        ended = finish(desk, claimed(desk, record()))
        beside = claimed(desk, record(tenant_id="umbrella"))
        assert desk.store.forget_record(ended.id, **BY_ADA)
        assert (find(desk, ended), find(desk, beside)) == (None, beside)
        assert claimed(desk, record(request_hash=OTHER_HASH)).attempt == 1

    @pytest.mark.shows("I-20")
    def test_forgetting_is_audited_without_what_was_answered(self, desk: Desk) -> None:
        created_at = desk.now
        row = claimed(desk, record())
        desk.turn(seconds=1)
        finish(desk, row, response_json='{"card": "4711"}', response_headers='[["etag","e"]]')
        desk.turn(seconds=1)
        assert desk.store.forget_record(row.id, **BY_ADA)
        (line,) = desk.store.audit_trail(subject="idempotency/orders.charge")
        assert (line.actor, line.act, line.note, line.at) == (
            "ada", FORGOTTEN, "sent by mistake", desk.now,
        )  # fmt: skip
        assert json.loads(line.details) == {
            "tenant": "acme", "key": "order-1", "status": COMPLETED, "response_status": 201,
            "attempt": 1, "created_at": created_at,
        }  # fmt: skip

    @pytest.mark.shows("I-20", "I-24")
    def test_forgetting_what_is_not_there_writes_nothing(self, desk: Desk) -> None:
        row = finish(desk, claimed(desk, record()), ttl_us=SECOND)
        desk.turn(seconds=1)
        for absent in (row, record("nobody"), record(scope="")):
            assert desk.store.forget_record(absent.id, **BY_ADA) is False
        assert desk.store.audit_trail() == []

    def test_of_many_threads_that_forget_one_record_one_does(self, desk: Desk) -> None:
        row = claimed(desk, record())
        assert sum(at_once(*[lambda: desk.store.forget_record(row.id, **BY_ADA)] * 4)) == 1
        assert len(desk.store.audit_trail()) == 1

    # --- cleaning -----------------------------------------------------------------

    @pytest.mark.shows("I-22", "I-23")
    def test_what_has_expired_is_removed_and_nothing_else(self, desk: Desk) -> None:
        over = finish(desk, claimed(desk, record("over")), ttl_us=LEASE)
        lapsed = claimed(desk, record("lapsed"), ttl_us=LEASE)
        unleased = claimed(desk, record("unleased"), ttl_us=LEASE, lease_us=None)
        alive = claimed(desk, record("alive"), ttl_us=LEASE, lease_us=2 * LEASE)
        later = finish(desk, claimed(desk, record("later")), ttl_us=LEASE + 1)
        left = claimed(desk, record("left"))
        desk.turn(seconds=LEASE // SECOND)
        assert desk.store.clean_records(100) == removable(desk, 3)
        assert desk.store.clean_records(100) == 0
        assert [find(desk, row) for row in (alive, later, left)] == [alive, later, left]
        for row in (over, lapsed, unleased):
            assert claimed(desk, record(row.key, request_hash=OTHER_HASH)).attempt == 1
        assert desk.store.audit_trail() == []

    @pytest.mark.shows("I-23")
    def test_a_cleaner_takes_no_more_than_it_is_told_to(self, desk: Desk) -> None:
        for n in range(7):
            finish(desk, claimed(desk, record(f"order-{n}")), ttl_us=SECOND)
        desk.turn(seconds=1)
        removed = [desk.store.clean_records(3) for _ in range(4)]
        assert removed == [removable(desk, n) for n in (3, 3, 1, 0)]
