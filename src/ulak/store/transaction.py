"""Transactions that others write in: what a store with `Features.open_transactions` or
`Features.stage_transactions` has besides.

Rows of the program, jobs that are submitted with its connection, and an idempotency record are
one commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from ulak.core.change import Change, Receipt
from ulak.errors import BadInput
from ulak.store.protocol.outbox import EventSource
from ulak.store.records import RecordClaim, RecordRow, RecordTransaction


class OpenTransaction(RecordTransaction, Protocol):
    """A transaction that somebody else writes in too; used by one thread at a time."""

    @property
    def connection(self) -> Any:
        """The driver's connection, to write with; ending its transaction is not up to whoever
        writes. Rows that were written with it can be taken back by `undo`."""

    def undo(self) -> None:
        """Take back everything that was written with `connection`, and nothing else."""

    def commit(self) -> None:
        """Make everything durable. Whatever is raised, the transaction is over.

        Raises:
            BadInput: whoever wrote has ended the transaction, or has left it in an error;
                nothing was written.
            StoreError: nothing was written, or it is not known.
            Exception: what was written with `connection` was refused only now, by a constraint
                that is checked then; nothing was written.
        """

    def roll_back(self) -> None:
        """Take back everything; never raises, and doing so twice is nothing."""


class FollowTransaction(OpenTransaction, EventSource, Protocol):
    """One that a store begins: a follower gets its events in it."""


class LoopTransaction(OpenTransaction, Protocol):
    """One of a store with `Features.on_loop`: it may begin and end on an event loop."""

    @property
    def was_used(self) -> bool:
        """Whether somebody has asked for the connection: then it ends on a thread."""

    async def claim_record_on_loop(
        self, row: RecordRow, *, ttl_us: int, lease_us: int | None
    ) -> RecordClaim:
        """Begin, and claim as `claim_record` does."""

    async def commit_record_on_loop(self, row: RecordRow, *, ttl_us: int) -> None:
        """Store how the record ended, durably. Whatever is raised, the transaction is over."""


class PartedTransaction(OpenTransaction, Protocol):
    """One of a store with `one_writer`: parts follow one another in it, and share its commit."""

    def begin_part(self, purpose: bytes) -> None:
        """Begin a part; the last one was kept or dropped."""

    def keep_part(self) -> None:
        """End a part: it will be committed with the rest."""

    def drop_part(self) -> None:
        """End a part: whatever was done in it is taken back."""

    def commit_parts(self) -> None:
        """Make durable what was kept, and go on in the same turn: nobody writes in between.

        Raises:
            StoreError: nothing was written, or it is not known; the transaction is over.
        """


class TransactionStore(Protocol):
    """A store whose transactions others may write in."""

    def reading(self) -> AbstractContextManager[Any]:
        """Lend a connection that only reads, for as long as the block lasts; whatever is read
        stands for one moment as far as the database promises it, and nobody waits for it.

        Entering raises:
            StoreError: the database does not answer.
        """

    def begin(
        self, *, patience_ms: int | None = None, purpose: bytes = b"", quiet: bool = False
    ) -> FollowTransaction:
        """Begin a transaction on a connection of its own, which nobody else uses meanwhile.

        Args:
            patience_ms: How long it waits for what others have not committed; None is the
                store's own. A store with one writer waits so long for its turn; with 0 it
                waits for nobody, so that a loop may ask.
            purpose: At most 32 bytes, by which whoever waits in vain for this transaction can
                tell whom it waited for.
            quiet: Its commit rings for nobody: no job is due by what is written in it.

        Raises:
            Contended: others write for longer than that; its `holder` is their purpose, as far
                as that is known.
            StoreError: there is no transaction to be had now.
        """


@dataclass(slots=True)
class _Turn:
    store: object
    is_over: bool = False


# Tasks that are begun inside go on with a copy, so what it holds can be ended for all of them.
_turn: ContextVar[_Turn | None] = ContextVar("ulak-turn", default=None)


@contextmanager
def holding(store: object) -> Iterator[None]:
    """Remember that this code has the turn of a store with one writer."""
    turn = _Turn(store)
    token = _turn.set(turn)
    try:
        yield
    finally:
        turn.is_over = True
        _turn.reset(token)


def refuse_while_holding(store: object) -> None:
    """Refuse, by `BadInput`, to wait for a turn that this code has itself: it would be for ever."""
    turn = _turn.get()
    if turn is not None and turn.store is store and not turn.is_over:
        raise BadInput(
            "this code is inside of an open transaction, and on this store nobody else writes "
            "until it ends: submit with connection=, and do the rest before or after"
        )


class StageTransaction(Protocol):
    """An open transaction of the store, in which a stage writes rows of its program."""

    connection: Any
    """The driver's connection, for the stage to use; ending its transaction is not up to it."""

    def commit(self, change: Change) -> Receipt:
        """Write one change as `Store.commit` does, and with it everything that the stage wrote.

        With any other receipt than `Committed` everything is taken back. Whatever is answered or
        raised, the transaction is over.

        Raises:
            WriteRefused: the data of the change cannot be stored; nothing was written.
            StoreError: nothing was written, or it is not known: look with `find_commits`.
            Exception: the stage has ended the transaction itself, or what it wrote was refused
                at the commit, by a constraint that is checked then; nothing was written.
        """

    def roll_back(self) -> None:
        """Take back everything; never raises, and doing so twice is nothing."""


class StageStore(Protocol):
    """A store that lets stages write with it."""

    def begin_stage(self) -> StageTransaction:
        """Begin a transaction on a connection of its own, which nobody else uses meanwhile.

        Raises:
            StoreError: there is none to be had now.
        """
