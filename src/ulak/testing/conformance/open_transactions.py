"""Open transactions: rows of a program, jobs and an idempotency record are one commit, or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any, cast

import pytest

from ulak.clock import SECOND
from ulak.errors import BadInput, Contended, StoreError
from ulak.store import caller
from ulak.store.caller import Guest
from ulak.store.protocol import Store
from ulak.store.records import COMPLETED, RecordClaim, RecordRow
from ulak.store.transaction import OpenTransaction, TransactionStore
from ulak.testing.children import forked
from ulak.testing.conformance.desk import Desk, Reopen, Suite, at_once
from ulak.testing.conformance.processes import CHILDREN, PATIENCE, in_children
from ulak.testing.conformance.records import (
    LEASE,
    OTHER_HASH,
    TTL,
    answered,
    claimed,
    find,
    finish,
    record,
    stored,
)

THREADS = 8
SHORT_MS, LONG_MS = 150, 30_000
SLACK_S = 25.0
"""How much longer than its patience a wait may take on a machine that is busy with other tests."""
PURPOSE = b"of 32 bytes, the last ones zero\0"
KEYS = [f"race-{n}" for n in range(10)]


def begin(
    desk: Desk, *, patience_ms: int | None = LONG_MS, purpose: bytes = b""
) -> OpenTransaction:
    store = cast(TransactionStore, desk.store)
    return store.begin(patience_ms=patience_ms, purpose=purpose)


@contextmanager
def opened(
    desk: Desk, *, patience_ms: int = LONG_MS, purpose: bytes = b""
) -> Iterator[OpenTransaction]:
    """Begin a transaction, and leave none behind whatever the test finds."""
    transaction = begin(desk, patience_ms=patience_ms, purpose=purpose)
    try:
        yield transaction
    finally:
        transaction.roll_back()


def claim_in(
    transaction: OpenTransaction, row: RecordRow, *, lease_us: int | None = None
) -> RecordClaim:
    return transaction.claim_record(row, ttl_us=TTL, lease_us=lease_us)


def claimed_in(transaction: OpenTransaction, row: RecordRow) -> RecordRow:
    """Claim what must be there to be claimed."""
    answer = claim_in(transaction, row)
    assert answer.is_mine
    return answer.row


def finish_in(transaction: OpenTransaction, row: RecordRow) -> None:
    """Store an end that nobody may refuse."""
    assert transaction.finish_record(answered(row), ttl_us=TTL)


def desk_with_ledger(store: Store) -> Desk:
    """Make a desk on a store whose database has a table of the program's own."""
    desk = Desk(store)
    with opened(desk) as transaction:
        transaction.connection.execute("CREATE TABLE ledger (word TEXT)")
        transaction.commit()
    return desk


def write(transaction: OpenTransaction, word: str) -> None:
    """Write a row of the program's own."""
    transaction.connection.execute(f"INSERT INTO ledger VALUES ('{word}')")  # noqa: S608 - ours


def words(desk: Desk) -> list[str]:
    """Read the rows of the program that are committed."""
    with opened(desk) as transaction:
        rows = transaction.connection.execute("SELECT word FROM ledger ORDER BY word").fetchall()
    return [word for (word,) in rows]


def submit(desk: Desk, transaction: OpenTransaction) -> bytes:
    """Submit a job in the transaction."""
    guest = cast(Guest, desk.store)
    connection = transaction.connection
    return caller.write(guest, connection, lambda: guest.add_steps(desk.new())).row.id


class TestOpenTransactions(Suite):
    """A store may let others write in its transactions, if it says so."""

    @pytest.fixture
    def desk(self, store: Store) -> Desk:
        if not store.features.open_transactions:
            pytest.skip("this store has no transaction to share")
        return desk_with_ledger(store)

    @pytest.fixture
    def shared(self, desk: Desk) -> Desk:
        if not desk.store.features.shared:
            pytest.skip("this store serves one process")
        return desk

    # --- one commit, or nothing -----------------------------------------------------

    def test_the_store_says_which_sql_its_connections_speak(self, desk: Desk) -> None:
        assert desk.store.features.dialect in ("sqlite", "postgresql")

    @pytest.mark.shows("I-35")
    def test_rows_a_record_and_a_job_are_one_commit(self, desk: Desk) -> None:
        rung: list[str] = []
        desk.store.on_commit(lambda: rung.append("ring"))
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "paid")
            job_id = submit(desk, transaction)
            finish_in(transaction, row)
            assert find(desk, row) is None
            assert desk.store.find_job(job_id) is None
            transaction.commit()
        ended = stored(desk, row)
        assert ended == answered(row)._replace(
            lease_until=None, updated_at=desk.now, expires_at=desk.now + TTL
        )
        assert words(desk) == ["paid"]
        assert desk.job(job_id).id == job_id
        assert rung

    @pytest.mark.shows("I-35")
    def test_of_what_is_rolled_back_nothing_is_left(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "paid")
            submit(desk, transaction)
            finish_in(transaction, row)
            transaction.roll_back()
        assert find(desk, row) is None
        assert words(desk) == []
        assert desk.jobs() == []
        assert claimed(desk, record(request_hash=OTHER_HASH)).attempt == 1

    def test_who_only_claims_and_commits_leaves_the_claim(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            transaction.commit()
        assert find(desk, row) == row

    def test_rolling_back_twice_or_after_a_commit_is_nothing(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            write(transaction, "kept")
            transaction.commit()
            transaction.roll_back()
        with opened(desk) as transaction:
            write(transaction, "lost")
            transaction.roll_back()
            transaction.roll_back()
        assert words(desk) == ["kept"]

    def test_whoever_writes_may_set_savepoints_of_his_own(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            db = transaction.connection
            write(transaction, "kept")
            db.execute("SAVEPOINT mine")
            write(transaction, "lost")
            db.execute("ROLLBACK TO SAVEPOINT mine")
            finish_in(transaction, row)
            transaction.commit()
        assert words(desk) == ["kept"]
        assert stored(desk, row).status == COMPLETED

    def test_a_transaction_may_pass_from_thread_to_thread(self, desk: Desk) -> None:
        def in_a_thread(act: Any, *arguments: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(act, *arguments).result()

        for end in ("commit", "roll_back"):
            transaction = in_a_thread(begin, desk)
            row = in_a_thread(claimed_in, transaction, record(end))
            in_a_thread(write, transaction, end)
            in_a_thread(finish_in, transaction, row)
            in_a_thread(getattr(transaction, end))
        assert words(desk) == ["commit"]

    # --- undo -----------------------------------------------------------------------

    @pytest.mark.shows("I-17")
    def test_undo_takes_back_what_was_written_with_the_connection_and_nothing_else(
        self, desk: Desk
    ) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "undone")
            submit(desk, transaction)
            transaction.undo()
            write(transaction, "undone too")
            transaction.undo()
            write(transaction, "kept")
            finish_in(transaction, row)
            transaction.commit()
        assert stored(desk, row).status == COMPLETED
        assert words(desk) == ["kept"]
        assert desk.jobs() == []

    def test_undo_of_nothing_is_nothing(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            transaction.undo()
            finish_in(transaction, row)
            transaction.commit()
        assert stored(desk, row).status == COMPLETED

    @pytest.mark.shows("I-17")
    def test_undo_mends_a_transaction_that_was_left_in_an_error(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "undone")
            fail_to_write(transaction)
            transaction.undo()
            finish_in(transaction, row)
            transaction.commit()
        assert stored(desk, row).status == COMPLETED
        assert words(desk) == []

    # --- what whoever writes may do wrong ---------------------------------------------

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_who_ends_the_transaction_by_hand_is_told_so(self, desk: Desk, end: str) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "by hand")
            try:
                getattr(transaction.connection, end)()
            except Exception:  # noqa: BLE001 - the driver's own: it has let nobody end it
                transaction.roll_back()
            else:
                with pytest.raises(BadInput):
                    finish_in(transaction, row)
                with pytest.raises(BadInput):
                    transaction.commit()
        left = find(desk, row)
        assert left is None or left.status != COMPLETED
        self._is_over(desk)

    def test_who_closes_the_connection_is_told_so(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "lost")
            transaction.connection.close()
            with pytest.raises(BadInput):
                transaction.commit()
        assert find(desk, row) is None
        assert words(desk) == []
        self._is_over(desk)

    def test_an_error_that_is_left_behind_costs_everything_or_nothing(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            write(transaction, "half")
            fail_to_write(transaction)
            try:
                finish_in(transaction, row)
                transaction.commit()
            except (BadInput, StoreError):
                assert find(desk, row) is None
                assert words(desk) == []
            else:
                assert stored(desk, row).status == COMPLETED
                assert words(desk) == ["half"]
        self._is_over(desk)

    def test_a_row_that_is_refused_only_at_the_commit_takes_everything_back(
        self, desk: Desk
    ) -> None:
        if desk.store.features.dialect == "sqlite":
            pytest.skip("SQLite checks a reference late only where the connection asks for it")
        with opened(desk) as transaction:
            transaction.connection.execute(
                "CREATE TABLE numbers (n INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)"
            )
            transaction.commit()
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            transaction.connection.execute("INSERT INTO numbers VALUES (1), (1)")
            finish_in(transaction, row)
            with pytest.raises(Exception, match="numbers") as raised:
                transaction.commit()
            assert not isinstance(raised.value, StoreError)
        assert find(desk, row) is None
        self._is_over(desk)

    def test_what_is_over_is_not_written_with(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            transaction.commit()
            for act in (
                lambda: transaction.connection,
                transaction.commit,
                lambda: finish_in(transaction, row),
                lambda: claimed_in(transaction, record("other")),
            ):
                with pytest.raises(BadInput):
                    act()
        assert find(desk, row) == row

    # --- the verbs on records ---------------------------------------------------------

    @pytest.mark.shows("I-24")
    def test_an_expired_key_is_claimed_anew(self, desk: Desk) -> None:
        finish(desk, claimed(desk, record()), ttl_us=SECOND)
        desk.turn(seconds=1)
        with opened(desk) as transaction:
            row = claimed_in(transaction, record(request_hash=OTHER_HASH))
            assert (row.attempt, row.created_at) == (1, desk.now)
            finish_in(transaction, row)
            transaction.commit()
        assert stored(desk, row).status == COMPLETED

    def test_what_lapsed_is_taken_over_with_its_recovery_point(self, desk: Desk) -> None:
        first = claimed(desk, record())
        marked = first._replace(recovery_point="charged", recovery_data="{}")
        assert desk.store.mark_record(marked, lease_us=LEASE)
        desk.turn(seconds=LEASE // SECOND)
        with opened(desk) as transaction:
            row = claimed_in(transaction, record())
            assert (row.attempt, row.recovery_point, row.lease_until) == (2, "charged", None)
            transaction.commit()
        assert desk.store.finish_record(answered(first), ttl_us=TTL) is False

    @pytest.mark.shows("I-7", "I-8")
    def test_what_is_executed_or_has_ended_is_answered_as_it_is(self, desk: Desk) -> None:
        running = claimed(desk, record("running"))
        ended = finish(desk, claimed(desk, record("ended")))
        with opened(desk) as transaction:
            for row in (running, ended):
                for hash in (row.request_hash, OTHER_HASH):
                    answer = claim_in(transaction, record(row.key, request_hash=hash))
                    assert answer == RecordClaim(row, False, desk.now)

    @pytest.mark.shows("I-32")
    def test_a_recovery_point_commits_with_the_rows_or_not_at_all(self, desk: Desk) -> None:
        row = claimed(desk, record())
        marked = row._replace(recovery_point="charged", recovery_data="{}")
        with opened(desk) as transaction:
            write(transaction, "lost")
            assert transaction.mark_record(marked, lease_us=LEASE)
        assert (find(desk, row), words(desk)) == (row, [])
        desk.turn(seconds=1)
        with opened(desk) as transaction:
            write(transaction, "kept")
            assert transaction.mark_record(marked, lease_us=LEASE)
            transaction.commit()
        assert stored(desk, row) == marked._replace(
            lease_until=desk.now + LEASE, updated_at=desk.now
        )
        assert words(desk) == ["kept"]

    @pytest.mark.shows("I-32")
    def test_who_was_taken_over_marks_and_ends_nothing(self, desk: Desk) -> None:
        first = claimed(desk, record())
        desk.turn(seconds=LEASE // SECOND)
        second = claimed(desk, record())
        with opened(desk) as transaction:
            assert not transaction.mark_record(first, lease_us=LEASE)
            assert not transaction.finish_record(answered(first), ttl_us=TTL)
            transaction.commit()
        assert find(desk, second) == second

    # --- beside each other ------------------------------------------------------------

    def test_several_are_open_beside_each_other_or_in_turn(self, desk: Desk) -> None:
        beside = not desk.store.features.one_writer
        with opened(desk, purpose=PURPOSE) as first:
            write(first, "first")
            if beside:
                with opened(desk, patience_ms=SHORT_MS) as second:
                    assert second.connection is not first.connection
                    write(second, "second")
                    second.commit()
            else:
                with pytest.raises(Contended) as raised:
                    begin(desk, patience_ms=SHORT_MS)
                assert raised.value.holder == PURPOSE
            first.commit()
        with opened(desk, patience_ms=SHORT_MS) as third:
            write(third, "third")
            third.commit()
        assert words(desk) == (["first", "second", "third"] if beside else ["first", "third"])

    @pytest.mark.shows("I-8")
    def test_a_duplicate_waits_for_no_longer_than_its_patience(self, desk: Desk) -> None:
        with opened(desk, purpose=PURPOSE) as first:
            claimed_in(first, record())
            self._waits_in_vain(desk, at_least_ms=SHORT_MS)

    @pytest.mark.shows("I-8")
    def test_a_duplicate_waits_for_no_longer_than_its_patience_for_another_process(
        self, shared: Desk, reopen: Reopen
    ) -> None:
        with _holding(reopen, PURPOSE):
            self._waits_in_vain(shared, at_least_ms=SHORT_MS)
        # Whoever held it has died without an end.
        with opened(shared) as transaction:
            assert claimed_in(transaction, record()).attempt == 1

    def test_purposes_come_back_to_the_byte(self, desk: Desk) -> None:
        for purpose in (b"", b"\0", b"a\0", b"\0" * 32, PURPOSE, b"x" * 32):
            with opened(desk, purpose=purpose) as first:
                claimed_in(first, record())
                assert _holder(desk) in (None, purpose)
                if desk.store.features.one_writer:
                    assert _holder(desk) == purpose

    @pytest.mark.shows("I-2")
    @pytest.mark.parametrize("end", ["commit", "roll_back"])
    def test_a_duplicate_that_waited_is_told_how_it_ended(self, desk: Desk, end: str) -> None:
        asked = threading.Event()

        def duplicate() -> RecordClaim:
            asked.set()
            with opened(desk) as transaction:
                return claim_in(transaction, record())

        with ThreadPoolExecutor(1) as pool, opened(desk) as first:
            row = claimed_in(first, record())
            waiting = pool.submit(duplicate)
            asked.wait()
            finish_in(first, row)
            getattr(first, end)()
            answer = waiting.result(PATIENCE)
        assert answer.is_mine is (end == "roll_back")
        if end == "commit":
            assert answer.row == stored(desk, row)

    @pytest.mark.shows("I-10")
    def test_of_many_threads_one_executes_and_the_others_are_told(self, desk: Desk) -> None:
        told = [row for rows in at_once(*[lambda: _execute_each(desk)] * THREADS) for row in rows]
        assert words(desk) == sorted(KEYS)
        assert len(set(told)) == len(KEYS)

    @pytest.mark.shows("I-10")
    def test_of_many_processes_one_executes_and_the_others_are_told(
        self, shared: Desk, reopen: Reopen
    ) -> None:
        told = [row for rows in in_children(_execute_in_a_child, reopen) for row in rows]
        assert len(told) == CHILDREN * len(KEYS)
        assert words(shared) == sorted(KEYS)
        assert len(set(told)) == len(KEYS)

    def test_jobs_are_written_while_nothing_is_open(self, desk: Desk) -> None:
        with opened(desk) as transaction:
            write(transaction, "first")
            transaction.commit()
            job = desk.submit()
        assert desk.job(job.id) == job

    def _waits_in_vain(self, desk: Desk, *, at_least_ms: int) -> None:
        began = time.monotonic()
        with (
            pytest.raises(Contended) as raised,
            opened(desk, patience_ms=at_least_ms) as transaction,
        ):
            claim_in(transaction, record())
        waited = time.monotonic() - began
        assert at_least_ms / 1000 <= waited < at_least_ms / 1000 + SLACK_S
        if desk.store.features.one_writer:
            assert raised.value.holder == PURPOSE
        else:
            # Here only a duplicate waits, so that there is nobody to be told from it.
            assert raised.value.holder in (None, PURPOSE)

    def _is_over(self, desk: Desk) -> None:
        """Nobody waits for a transaction that went wrong."""
        with opened(desk, patience_ms=SHORT_MS) as transaction:
            write(transaction, "after")
            transaction.commit()
        assert "after" in words(desk)
        desk.submit()


def fail_to_write(transaction: OpenTransaction) -> None:
    """Do what the database refuses."""
    with pytest.raises(Exception, match="nowhere"):
        transaction.connection.execute("INSERT INTO nowhere VALUES (1)")


def _holder(desk: Desk) -> bytes | None:
    """Wait in vain for the transaction that is open, and answer whose it is said to be."""
    with pytest.raises(Contended) as raised, opened(desk, patience_ms=1) as transaction:
        claim_in(transaction, record())
    return raised.value.holder


def _execute_each(desk: Desk) -> list[RecordRow]:
    """Execute each key unless it was executed; answer the record of each."""
    for key in KEYS:
        with opened(desk) as transaction:
            answer = claim_in(transaction, record(key))
            if answer.is_mine:
                write(transaction, key)
                finish_in(transaction, answer.row)
                transaction.commit()
    return [stored(desk, record(key)) for key in KEYS]


def _execute_in_a_child(desk: Desk, worker: str) -> list[RecordRow]:
    return _execute_each(desk)


@contextmanager
def _holding(reopen: Reopen, purpose: bytes) -> Iterator[None]:
    """Have another process claim the key in a transaction, which dies with it in the end."""
    context = forked()
    is_open = context.Event()
    child = context.Process(target=_hold, args=(reopen, purpose, is_open), daemon=True)
    child.start()
    try:
        assert is_open.wait(PATIENCE)
        yield
    finally:
        child.kill()
        child.join(PATIENCE)


def _hold(reopen: Reopen, purpose: bytes, is_open: Event) -> None:
    store = reopen()
    store.open()
    with opened(Desk(store), purpose=purpose) as transaction:
        claimed_in(transaction, record())
        is_open.set()
        time.sleep(PATIENCE)  # until it is killed
