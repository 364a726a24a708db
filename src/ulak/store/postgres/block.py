"""The block in which a program writes its rows with a connection of ours.

Inside one psycopg refuses `commit()` and `rollback()` by hand; what the program does past psycopg
is found out before anything of ours is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from ulak.errors import BadInput, StoreError
from ulak.store.postgres.connections import Session


class Complaints(NamedTuple):
    """What whoever wrote is told, in the words of what it wrote in."""

    lost: str
    """The connection is gone."""
    swallowed: str
    """A statement failed, and the error was not let out."""
    ended_by_hand: str
    """The transaction has ended already."""


def begin_block(session: Session) -> psycopg.Transaction:
    """Begin a block: a transaction, or a savepoint where a transaction is open already."""
    session.pipeline.stop_preparing()
    block = psycopg.Transaction(session.connection)
    block.__enter__()
    return block


def undo_block(block: psycopg.Transaction) -> None:
    """Take back what was written in a block.

    Raises:
        psycopg.Error: the program has left a block of its own open inside, or the connection is
            lost; nothing is known of the transaction but that it must not be committed.
    """
    undo = psycopg.Rollback(block)
    block.__exit__(type(undo), undo, None)


def must_be_open(connection: psycopg.Connection[Any], complaints: Complaints) -> None:
    """Refuse to go on with a transaction that is not there any more, or that cannot commit.

    Raises:
        StoreError: the connection was lost.
        BadInput: whoever wrote has ended it, or has swallowed an error.
    """
    status = connection.info.transaction_status
    if connection.broken:
        raise StoreError(complaints.lost)
    if status == TransactionStatus.INERROR:
        raise BadInput(complaints.swallowed)
    if status != TransactionStatus.INTRANS:
        raise BadInput(complaints.ended_by_hand)
