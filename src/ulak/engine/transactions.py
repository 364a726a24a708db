"""Transactions of the store's own database, for rows of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

from ulak.engine.reads import Reads
from ulak.errors import NotSupported
from ulak.store.transaction import TransactionStore, holding


class Transactions(Reads):
    """The part of the engine that lets others write with it."""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction of the store's database; answers the driver's connection.

        It commits at the end of the block, and an exception takes everything back. Jobs that are
        submitted with `connection=` are part of it. On SQLite nobody else writes meanwhile, so
        keep it short, and do not use the engine inside but by `connection=`.

        Raises:
            NotSupported: the store has no transaction to share.
            BadInput: the transaction was ended inside; nothing was written.
            Contended: others write for too long; nothing was written.
            StoreError: nothing was written, or it is not known.
        """
        opened = self._transactions("transaction").begin()
        try:
            store = self.kernel.store
            with holding(store) if store.features.one_writer else nullcontext():
                yield opened.connection
            opened.commit()
        finally:
            opened.roll_back()

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend the driver's connection for reading only: nobody waits for it, on SQLite neither.

        Raises:
            NotSupported: the store has no transaction to share.
            StoreError: the database does not answer.
        """
        with self._transactions("reading").reading() as connection:
            yield connection

    def _transactions(self, verb: str) -> TransactionStore:
        store = self.kernel.open().store
        if not store.features.open_transactions:
            raise NotSupported(
                f"engine.{verb}() is not to be had from the {store.features.name} store: it "
                "has no transaction that rows of yours could be in; connect to SQLite or "
                "PostgreSQL"
            )
        return cast(TransactionStore, store)
