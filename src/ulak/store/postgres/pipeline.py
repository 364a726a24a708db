"""A transaction on its way to the server by libpq's pipeline: nobody waits for an empty answer.

What only writes is sent and left; whoever needs rows waits for them, and for all that was sent
before. So a write that reads nothing is one round trip, its BEGIN and its COMMIT included.

psycopg has a pipeline too. Its books on each statement took a quarter of the time of a lone submit,
and it rewrites the placeholders of a statement with more than fifty values each time. Here each
statement is rewritten once for the program and prepared once for the connection. Every place needs
a cast: a NULL says nothing of its type.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import AdaptContext, PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from ulak.store.postgres import timeouts
from ulak.store.postgres.timeouts import NoAnswer, TimedConnection
from ulak.store.sql.session import Row

T = TypeVar("T")

_PLACE = re.compile(r"%\((\w+)\)s|%(s)|%(%)")


@cache
def numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement whose places have numbers, and the names that they had, if any."""
    numbers: dict[str, int] = {}
    places = 0

    def number(place: re.Match[str]) -> str:
        nonlocal places
        name, _, percent = place.groups()
        if percent:
            return "%"
        if name is None:
            places += 1
            return f"${places}"
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PLACE.sub(number, statement).encode(), tuple(numbers)


class LateRows:
    """The rows of a query that nobody has waited for yet; they are there after the next wait."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Row] = []


class Pipeline:
    """Sends statements of one connection while it is entered; used by one thread at a time."""

    __slots__ = (
        "_awaited", "_connection", "_names", "_new_names", "_numbers", "_transformer", "is_open",
        "is_preparing",
    )  # fmt: skip

    def __init__(self, connection: TimedConnection, *, prepare: bool, values: AdaptContext) -> None:
        self._connection = connection
        self.is_preparing = prepare
        self._transformer = Transformer(values)
        self._names: dict[str, bytes] = {}
        self._new_names: dict[str, bytes] = {}
        """What is prepared only if nothing that was sent before it is refused."""
        self._numbers = itertools.count()
        self._awaited: list[LateRows | None] = []
        """For each statement that was sent and not answered, who wants its rows."""
        self.is_open = False

    def __enter__(self) -> Self:
        self.enter()
        return self

    def enter(self) -> None:
        self._connection.pgconn.enter_pipeline_mode()
        self._awaited.clear()
        self.is_open = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Wait for everything. After a refusal the transaction is still open: to be rolled back.

        Raises:
            psycopg.Error: the server refused a statement, or it is gone.
        """
        self.is_open = False
        if self._connection.closed:
            self._new_names = {}
            if kind is None:
                raise psycopg.OperationalError("the connection is lost")
            return
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        self._awaited.append(None)
        self._leave(self._wait(pgconn), is_well=kind is None)

    async def leave(self) -> None:
        """Wait for everything as the end of a block does, while the event loop goes on."""
        self.is_open = False
        if self._connection.closed:
            raise psycopg.OperationalError("the connection is lost")
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        self._awaited.append(None)
        awaited, self._awaited = self._awaited, []
        try:
            results = await _on_loop(_results(pgconn, len(awaited)), self._connection)
        except BaseException:
            # Interrupted in the middle of the answers: nobody can tell the next ones from them.
            self._connection.close()
            raise
        self._hand_out(awaited, results)
        self._leave(results, is_well=True)

    def _leave(self, results: Sequence[PGresult], *, is_well: bool) -> None:
        names, self._new_names = self._new_names, {}
        self._connection.pgconn.exit_pipeline_mode()
        if is_well:
            self._refuse(results)
            self._names |= names

    def stop_preparing(self) -> None:
        """Send every statement in full from now on: somebody else uses the connection too, and
        what psycopg does for them may deallocate what was prepared here."""
        self.is_preparing = False

    def part(self) -> None:
        """End here what is refused or not as a whole; what becomes of the rest is not told."""
        self._connection.pgconn.pipeline_sync()
        self._awaited.append(None)

    def send(
        self,
        statement: str,
        facts: Mapping[str, Any] | Sequence[Any] = (),
        answer: LateRows | None = None,
    ) -> None:
        """Send a statement and wait for nothing; what it is refused for, the next wait raises."""
        text, names = numbered(statement)
        values = formats = None
        if facts:
            if isinstance(facts, Mapping):
                facts = [facts[name] for name in names]
            values = self._transformer.dump_sequence(facts, [PyFormat.AUTO] * len(facts))
            formats = self._transformer.formats
        pgconn = self._connection.pgconn
        if not self.is_preparing:
            pgconn.send_query_params(text, values, None, formats, Format.BINARY)
            self._awaited.append(answer)
            return
        name = self._names.get(statement) or self._new_names.get(statement)
        if name is None:
            name = b"ulak_%d" % next(self._numbers)
            pgconn.send_prepare(name, text)
            self._new_names[statement] = name
            self._awaited.append(None)
        pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        self._awaited.append(answer)

    def later(self, statement: str, facts: Mapping[str, Any] | Sequence[Any] = ()) -> LateRows:
        answer = LateRows()
        self.send(statement, facts, answer)
        return answer

    def ask(self, statement: str, facts: Mapping[str, Any] | Sequence[Any] = ()) -> list[Row]:
        answer = self.later(statement, facts)
        self.wait()
        return answer.rows

    def read(self, answer: LateRows) -> Iterator[Row]:
        """Yield the rows of an answer; the first one is waited for if nobody has done so yet."""
        if any(awaited is answer for awaited in self._awaited):
            self.wait()
        yield from answer.rows

    def touch(self, statement: str, facts: Mapping[str, Any] | Sequence[Any] = ()) -> int:
        self.send(statement, facts)
        return self.wait().command_tuples or 0

    def wait(self) -> PGresult:
        """Wait for all that was sent; answer the last result.

        With a sync, not a flush: to the server we are between two statements then, so it can see
        how long nothing comes.
        """
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        self._awaited.append(None)
        *results, _ = self._wait(pgconn)
        self._refuse(results)
        return results[-1]

    def _wait(self, pgconn: PGconn) -> list[PGresult]:
        awaited, self._awaited = self._awaited, []
        try:
            results = self._connection.wait(_results(pgconn, len(awaited)))
        except BaseException:
            # Interrupted in the middle of the answers: nobody can tell the next ones from them.
            self._connection.close()
            raise
        self._hand_out(awaited, results)
        return results

    def _hand_out(
        self, awaited: Sequence[LateRows | None], results: Sequence[PGresult]
    ) -> None:  # fmt: skip
        for answer, result in zip(awaited, results, strict=True):
            if answer is not None and result.status == ExecStatus.TUPLES_OK:
                self._transformer.set_pgresult(result)
                answer.rows = self._transformer.load_rows(0, result.ntuples, tuple)

    def _refuse(self, results: Sequence[PGresult]) -> None:
        for result in results:
            if result.status == ExecStatus.PIPELINE_SYNC:
                return
            if result.status == ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(result)
                if isinstance(error, errors.InvalidSqlStatementName):
                    # psycopg deallocates everything after some rollbacks, also what it does not
                    # know.
                    self._names.clear()
                raise error


def _results(pgconn: PGconn, number: int) -> PQGen[list[PGresult]]:
    while pgconn.flush():
        # The server may have to get rid of answers before it takes more.
        ready = yield Wait.RW
        if ready & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while len(results) < number:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            raise psycopg.OperationalError("the connection is lost")
        results.append(result)
        if result.status != ExecStatus.PIPELINE_SYNC:
            pgconn.get_result()  # the end of this statement's answers
    return results


def exchange(connection: TimedConnection, statement: bytes) -> PGresult:
    """Send a statement outside a pipeline and wait for its result, as libpq's own call does."""
    connection.pgconn.send_query(statement)
    return connection.wait(_last_result(connection.pgconn))


def _last_result(pgconn: PGconn) -> PQGen[PGresult]:
    """Read to the end of an answer. psycopg's own would take the notifications with it."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    result = None
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        following = pgconn.get_result()
        if following is None:
            break
        result = following
    if result is None:
        raise psycopg.OperationalError("the connection is lost")
    return result


async def _on_loop(answers: PQGen[T], connection: TimedConnection) -> T:
    """Run a generator that waits for a connection; others have the loop meanwhile."""
    loop = asyncio.get_running_loop()
    socket = connection.pgconn.socket
    try:
        wanted = next(answers)
        while True:
            ready: asyncio.Future[Ready] = loop.create_future()
            probe = loop.call_later(timeouts.PROBE_AFTER_S, _is_ready, ready, Ready.NONE)
            if wanted & Wait.R:
                loop.add_reader(socket, _is_ready, ready, Ready.R)
            if wanted & Wait.W:
                loop.add_writer(socket, _is_ready, ready, Ready.W)
            try:
                state = await ready
            finally:
                probe.cancel()
                if wanted & Wait.R:
                    loop.remove_reader(socket)
                if wanted & Wait.W:
                    loop.remove_writer(socket)
            if state == Ready.NONE and await asyncio.to_thread(connection.has_lost_its_server):
                raise NoAnswer("the server does not answer")
            wanted = answers.send(state)
    except StopIteration as end:
        answer: T = end.value
        return answer


def _is_ready(ready: asyncio.Future[Ready], state: Ready) -> None:
    if not ready.done():
        ready.set_result(state)
