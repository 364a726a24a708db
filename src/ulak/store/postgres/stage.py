"""A stage's own transaction: rows of the program and the stage's move are one commit."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from ulak.clock import Clock
from ulak.core.change import Change, Committed, Receipt
from ulak.store import faults
from ulak.store.postgres import commits, timeouts
from ulak.store.postgres.block import Complaints, begin_block, must_be_open, undo_block
from ulak.store.postgres.connections import (
    IN_ORDER,
    LOCK,
    Session,
    Transaction,
    settings,
    translated,
)
from ulak.store.postgres.lent import LentConnections

COMPLAINTS = Complaints(
    lost="the connection of a stage was lost",
    swallowed="a statement of the stage failed, and its transaction with it: what was written is "
    "gone; let the error out, or run what may fail inside `with run.connection.transaction():`",
    ended_by_hand="the stage has ended its transaction itself; leave COMMIT, ROLLBACK and close() "
    "to the worker",
)


def begin_stage(
    lent: LentConnections, clock: Clock, tell: Callable[[Transaction], None]
) -> PostgresStage:
    """Begin a transaction.

    Raises:
        StoreError: the server does not answer.
    """

    def begin(session: Session) -> PostgresStage:
        return PostgresStage(session, begin_block(session), clock, tell, lent.give_back)

    return lent.lend(begin)


class PostgresStage:
    """One transaction of a stage (`ulak.store.stage.StageTransaction`)."""

    def __init__(
        self,
        session: Session,
        block: psycopg.Transaction,
        clock: Clock,
        tell: Callable[[Transaction], None],
        give_back: Callable[[Session], None],
    ) -> None:
        self.connection = session.connection
        self._session = session
        self._block = block
        self._clock = clock
        self._tell = tell
        self._give_back = give_back
        self._is_over = False

    def commit(self, change: Change) -> Receipt:
        points = faults.POINTS["commit"]
        faults.point(points.before)
        try:
            must_be_open(self.connection, COMPLAINTS)
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
        try:
            # What the stage writes may wait for as long as the program likes; its move may not.
            own = IN_ORDER | {LOCK: str(timeouts.LOCK_TIMEOUT_MS)}
            self._session.execute(f"SELECT {settings(own)}")
            transaction = Transaction(self._session, self._clock)
            (receipt,) = commits.commit(transaction, [change])
            if isinstance(receipt, Committed):
                transaction.finish()
        except (psycopg.Error, OverflowError, UnicodeEncodeError) as error:
            raise translated(error) from error
        return transaction, receipt

    def _finish(self) -> None:
        """Commit. What is refused only now is something that the stage wrote."""
        self._is_over = True
        try:
            self._block.__exit__(None, None, None)
        except psycopg.OperationalError as error:
            raise translated(error) from error
        finally:
            self._give_back(self._session)
