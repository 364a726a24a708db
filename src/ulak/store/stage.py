"""A stage's own transaction: what a store with `Features.stage_transactions` has besides."""

from __future__ import annotations

from typing import Any, Protocol

from ulak.core.change import Change, Receipt


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
