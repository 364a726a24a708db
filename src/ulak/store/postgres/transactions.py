"""Transactions that a program or a stage writes its own rows in: they and ours are one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ulak.clock import Clock
from ulak.core.change import Change, Committed, Receipt
from ulak.errors import BadInput, StoreError
from ulak.store import faults
from ulak.store.postgres import commits, outbox, records, timeouts
from ulak.store.postgres.connections import LentConnections
from ulak.store.postgres.pipeline import LateRows
from ulak.store.postgres.session import (
    BEGIN,
    FOREIGN,
    IDLE,
    IN_ORDER,
    LOCK,
    TRANSLATING,
    Session,
    Transaction,
    settings,
    translated,
)
from ulak.store.protocol import Followed, Settled
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.sql.session import Row

T = TypeVar("T")


class Complaints(NamedTuple):
    """What the program is told whose connection is gone, who has caught the error of a statement,
    or who has ended the transaction already."""

    lost: str
    swallowed: str
    ended_by_hand: str


def begin_block(session: Session) -> psycopg.Transaction:
    """Begin a transaction, or a savepoint in one, in which psycopg refuses to end it by hand."""
    session.pipeline.stop_preparing()
    block = psycopg.Transaction(session.connection)
    block.__enter__()
    return block


def end_block(block: psycopg.Transaction) -> None:
    block.__exit__(None, None, None)


def undo_block(block: psycopg.Transaction) -> None:
    """Take back what a block wrote; after an error the transaction must not be committed."""
    undo = psycopg.Rollback(block)
    block.__exit__(type(undo), undo, None)


def must_be_open(connection: psycopg.Connection[Any], complaints: Complaints) -> None:
    """Refuse to go on with a transaction that is not there any more, or that cannot commit."""
    status = connection.info.transaction_status
    if connection.broken:
        raise StoreError(complaints.lost)
    if status == TransactionStatus.INERROR:
        raise BadInput(complaints.swallowed)
    if status != TransactionStatus.INTRANS:
        raise BadInput(complaints.ended_by_hand)


# A program that stands still in the middle holds a key that others wait for. Longer than a handler
# should take between two statements, and as long as a lease that nobody renews.
LONGEST_IDLE_MS = 60_000

COMPLAINTS = Complaints(
    lost="the connection of an open transaction was lost",
    swallowed="a statement failed, and the transaction with it: what was written is gone; let the "
    "error out, or run what may fail inside `with connection.transaction():`",
    ended_by_hand="the transaction was ended by whoever wrote in it; leave COMMIT, ROLLBACK and "
    "close() to ulak",
)


class _Lost(psycopg.OperationalError):
    """The connection was gone before anything was done with it."""


class PostgresTransaction:
    """An `OpenTransaction`; it begins with the first thing that is done in it, in one message."""

    def __init__(
        self,
        lent: LentConnections,
        clock: Clock,
        tell: Callable[[Transaction], None],
        patience_ms: int | None,
    ) -> None:
        chosen: dict[str, object] = {IDLE: LONGEST_IDLE_MS}
        if patience_ms is not None:
            chosen["lock_timeout"] = max(patience_ms, 1)  # 0 would be for ever
        self._start = f"SELECT {settings(chosen)}"
        self._lent = lent
        self._clock = clock
        self._tell = tell
        self._session: Session | None = None
        self._claimed: str | None = None
        self._ended: tuple[RecordRow, int] | None = None
        self._block: psycopg.Transaction | None = None
        self._was_used = False
        self._is_over = False
        faults.point(faults.POINTS["transaction"].before)

    @property
    def connection(self) -> psycopg.Connection[Row]:
        session = self._begun()
        if self._block is None:
            self._was_used = True
            # The savepoint that `undo` goes back to.
            self._block = begin_block(session)
        return session.connection

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        run = self._first if self._session is None else self._run
        claimed = run(lambda t: records.claim(t, row, ttl_us, lease_us))
        if claimed.is_mine:
            self._claimed = row.owner_token
        return claimed

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._run(lambda t: records.mark(t, row, lease_us))

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        if row.owner_token == self._claimed:
            # Locked by this transaction since its claim, it cannot be lost: it goes with COMMIT.
            must_be_open(self._begun().connection, COMPLAINTS)
            self._ended = (row, ttl_us)
            return True
        return self._run(lambda t: records.finish(t, row, ttl_us))

    def take_events(self, handler: str, limit: int, *, hold_us: int) -> list[Followed]:
        run = self._first if self._session is None else self._run
        return run(lambda t: outbox.take_events(t.db, t.now, handler, limit))

    def finish_events(self, taken: Sequence[Followed]) -> None:
        self._run(lambda t: outbox.finish_events(t.db, taken))

    def settle_events(self, settled: Sequence[Settled]) -> None:
        self._run(lambda t: outbox.settle(t, settled))

    def undo(self) -> None:
        self._end_block(undo_block)

    def commit(self) -> None:
        points = faults.POINTS["transaction"]
        if self._is_over:
            raise BadInput("this transaction is over")
        if self._session is None:
            self._is_over = True
            return
        try:
            must_be_open(self._session.connection, COMPLAINTS)
            self._end_block(end_block)
            faults.point(points.inside)
            self._finish(self._session)
        finally:
            self.roll_back()
        faults.point(points.after)
        if self._was_used:
            transaction = Transaction(self._session, self._clock)
            transaction.made_due = True
            self._tell(transaction)

    @property
    def was_used(self) -> bool:
        return self._was_used

    async def claim_record_on_loop(
        self, row: RecordRow, *, ttl_us: int, lease_us: int | None
    ) -> RecordClaim:
        with TRANSLATING:
            try:
                claim = await self._claim_with(await self._lent.take(), row, ttl_us, lease_us)
            except _Lost:
                session = await self._lent.take(new=True)
                claim = await self._claim_with(session, row, ttl_us, lease_us)
        if claim.is_mine:
            self._claimed = row.owner_token
        return claim

    async def _claim_with(
        self, session: Session, row: RecordRow, ttl_us: int, lease_us: int | None
    ) -> RecordClaim:
        def send() -> records.LateClaim:
            session.execute(BEGIN)
            session.execute(self._start)
            return records.LateClaim(Transaction(session, self._clock), row, ttl_us, lease_us)

        claim = await self._exchange(session, send)
        if not claim.is_mine:
            await self._exchange(session, claim.ask)
        self._session = session
        return claim.answer()

    async def commit_record_on_loop(self, row: RecordRow, *, ttl_us: int) -> None:
        session = self._begun()
        points = faults.POINTS["transaction"]
        faults.point(points.inside)
        self._is_over = True

        def send() -> LateRows:
            finished = records.finish_later(Transaction(session, self._clock), row, ttl_us)
            session.execute("COMMIT")
            return finished

        with TRANSLATING:
            finished = await self._exchange(session, send)
        self._lent.give_back(session)
        faults.point(points.after)
        if not finished.rows:
            raise StoreError("the record of this transaction is gone")

    async def _exchange(self, session: Session, send: Callable[[], T]) -> T:
        """Send statements in one message and wait for their end; a connection that was refused
        or interrupted is given up."""
        session.pipeline.enter()
        try:
            sent = send()
            await session.pipeline.leave()
        except BaseException as error:
            if self._lent.drop(session) and isinstance(error, psycopg.OperationalError):
                raise _Lost(str(error)) from error
            raise
        return sent

    def roll_back(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        session = self._session
        if session is None:
            return
        try:
            self.undo()
        except StoreError:
            # The program has left a block of its own open; the server takes everything back.
            session.connection.close()
        self._lent.give_back(session)

    def _begun(self) -> Session:
        if self._session is None:
            self._first(lambda t: None)
        session = self._session
        if session is None or self._is_over:
            raise BadInput("this transaction is over")
        return session

    def _first(self, work: Callable[[Transaction], T]) -> T:
        """Begin, and do the first thing, in one message."""
        if self._is_over:
            raise BadInput("this transaction is over")

        def begin(session: Session) -> T:
            with session.pipeline:
                session.execute(BEGIN)
                session.execute(self._start)
                answer = work(Transaction(session, self._clock))
            self._session = session
            return answer

        return self._lent.lend(begin)

    def _run(self, work: Callable[[Transaction], T]) -> T:
        session = self._begun()
        must_be_open(session.connection, COMPLAINTS)
        with TRANSLATING, session.pipeline:
            return work(Transaction(session, self._clock))

    def _finish(self, session: Session) -> None:
        try:
            with session.pipeline:
                transaction = Transaction(session, self._clock)
                finished = None
                if self._ended is not None:
                    finished = records.finish_later(transaction, *self._ended)
                session.execute("COMMIT")
        except psycopg.IntegrityError:
            raise  # a row of theirs, by a constraint that is checked only now
        except FOREIGN as error:
            raise translated(error) from error
        if finished is not None and not finished.rows:
            raise StoreError("the record was removed by whoever wrote in its transaction")

    def _end_block(self, end: Callable[[psycopg.Transaction], None]) -> None:
        block, self._block = self._block, None
        if block is not None:
            with TRANSLATING:
                end(block)


STAGE_COMPLAINTS = Complaints(
    lost="the connection of a stage was lost",
    swallowed="a statement of the stage failed, and its transaction with it: what was written is "
    "gone; let the error out, or run what may fail inside `with run.connection.transaction():`",
    ended_by_hand="the stage has ended its transaction itself; leave COMMIT, ROLLBACK and close() "
    "to the worker",
)


class PostgresStage:
    """A `StageTransaction`: rows of the program and the stage's move are one commit."""

    def __init__(
        self, lent: LentConnections, clock: Clock, tell: Callable[[Transaction], None]
    ) -> None:
        self._session, self._block = lent.lend(
            lambda session: (session, begin_block(session)), to_program=True
        )
        self.connection = self._session.connection
        self._clock = clock
        self._tell = tell
        self._give_back = lent.give_back
        self._is_over = False

    def commit(self, change: Change) -> Receipt:
        points = faults.POINTS["commit"]
        faults.point(points.before)
        try:
            must_be_open(self.connection, STAGE_COMPLAINTS)
            transaction, receipt = self._write(change)
            if not isinstance(receipt, Committed):
                return receipt
            faults.point(points.inside)
            self._finish()
        finally:
            self.roll_back()
        faults.point(points.after)
        self._tell(transaction)
        return receipt

    def roll_back(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        try:
            undo_block(self._block)
        except psycopg.Error:
            # The stage has left a block of its own open; the server takes everything back.
            self.connection.close()
        self._give_back(self._session)

    def _write(self, change: Change) -> tuple[Transaction, Receipt]:
        with TRANSLATING:
            # What the stage writes may wait for as long as the program likes; its move may not.
            own = IN_ORDER | {LOCK: str(timeouts.LOCK_TIMEOUT_MS)}
            self._session.execute(f"SELECT {settings(own)}")
            transaction = Transaction(self._session, self._clock)
            (receipt,) = commits.commit(transaction, [change])
            if isinstance(receipt, Committed):
                transaction.finish()
        return transaction, receipt

    def _finish(self) -> None:
        """Commit. What is refused only now is something that the stage wrote."""
        self._is_over = True
        try:
            end_block(self._block)
        except psycopg.OperationalError as error:
            raise translated(error) from error
        finally:
            # The stage has left a block of its own open; psycopg would count it for the next one.
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.close()
            self._give_back(self._session)
