"""Begin, write and commit in one round trip, by libpq's pipeline itself.

psycopg has a pipeline too. Its books on each statement took a quarter of the time of a lone submit,
and it rewrites the placeholders of a statement with more than fifty values each time; so statements
here have $1, $2 and so on, each with a cast: a NULL says nothing of its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.generators import fetch
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Wait


class AtOnce:
    """Sends transactions of one connection this way; used by one thread at a time."""

    __slots__ = ("_connection", "_names", "_prepare", "_unnamed")

    def __init__(self, connection: psycopg.Connection[Any], *, prepare: bool) -> None:
        self._connection = connection
        self._prepare = prepare
        self._names: dict[str, bytes] = {}
        self._unnamed: set[str] = set()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[None]:
        """Send what the block sends between `begin` and COMMIT, then wait for all the answers.

        After an error the transaction may still be open: whoever called rolls it back.

        Raises:
            psycopg.Error: the server refused a statement or the commit, or it is gone.
        """
        pgconn = self._connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            self.send(begin)
            yield
            self.send("COMMIT")
        finally:
            refused = self._end_pipeline(pgconn)
        if refused is not None:
            error = errors.error_from_result(refused)
            if isinstance(error, errors.InvalidSqlStatementName):
                # psycopg deallocates everything after some rollbacks, also what it does not know.
                self._names.clear()
            raise error
        while self._unnamed:
            self._name(self._unnamed.pop())

    def send(self, statement: str, facts: Sequence[Any] = ()) -> None:
        """Send a statement and wait for nothing."""
        pgconn = self._connection.pgconn
        values = formats = None
        if facts:
            transformer = Transformer(self._connection)
            values = transformer.dump_sequence(facts, [PyFormat.AUTO] * len(facts))
            formats = transformer.formats
        name = self._names.get(statement)
        if name is not None:
            pgconn.send_query_prepared(name, values, formats)
        else:
            pgconn.send_query_params(statement.encode(), values, None, formats)
            if self._prepare:
                self._unnamed.add(statement)
        pgconn.flush()

    def _end_pipeline(self, pgconn: PGconn) -> PGresult | None:
        try:
            pgconn.pipeline_sync()
            refused = self._connection.wait(_answers(pgconn))
            pgconn.exit_pipeline_mode()
        except BaseException:
            # Interrupted in the middle of the answers: nobody can tell the next ones from them.
            self._connection.close()
            raise
        return refused

    def _name(self, statement: str) -> None:
        """Prepare a statement that was sent before, for the times to come."""
        name = f"ulak_{len(self._names)}".encode()
        result = self._connection.pgconn.prepare(name, statement.encode())
        if result.status == ExecStatus.COMMAND_OK:
            self._names[statement] = name


def _answers(pgconn: PGconn) -> PQGen[PGresult | None]:
    """Read every answer; give back the first refusal."""
    refused: PGresult | None = None
    while pgconn.flush():
        yield Wait.W
    while True:
        result = yield from fetch(pgconn)
        if result is None:  # the end of one statement's answers, or of everything
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return refused
        elif result.status == ExecStatus.FATAL_ERROR and refused is None:
            refused = result
