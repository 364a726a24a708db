"""Executions: the one that a key allows, in either mode, from its claim to its record."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from ulak.clock import micros, seconds
from ulak.errors import BadInput, ClaimLost, GuardUnavailable, NotSupported, StoreError
from ulak.idempotency.scope import Answer, Scope
from ulak.store import codec
from ulak.store.protocol import RecordKeeper
from ulak.store.records import RecordRow, RecordStore
from ulak.store.transaction import LoopTransaction, OpenTransaction, TransactionStore, holding

log = logging.getLogger("ulak.idempotency")

T = TypeVar("T")

_current: ContextVar[Execution | None] = ContextVar("ulak-idempotent-execution", default=None)


def current() -> Execution:
    """Return the execution that this code is part of. Raises `BadInput`: it is part of none."""
    execution = _current.get()
    if execution is None:
        raise BadInput("this code runs outside of any protected operation")
    return execution


class Execution(ABC):
    """One claimed key. It ends by `settle` or `abandon`, whichever comes first."""

    def __init__(self, scope: Scope, row: RecordRow) -> None:
        self.scope = scope
        self.row = row
        self.is_over = False

    @property
    def attempt(self) -> int:
        """1, and one more each time the operation was taken over from an execution that died."""
        return self.row.attempt

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The connection whose rows commit with the record, or are taken back with it, also by a
        refusal that is stored. Do not commit or roll it back. Raises `BadInput`: the scope's
        mode has no such transaction."""

    @abstractmethod
    def phase(self, name: str, work: Callable[[Phase], T]) -> T:
        """Run a part of the operation; return its earlier answer where an execution before this one
        has ended it.

        What it returns must be JSON. It and what `work` writes with `phase.connection` are one
        commit. What it does elsewhere may happen again if the process dies before that. Raises
        `ClaimLost`: somebody else has taken over; nothing was kept.
        """

    def settle(self, answer: Answer) -> None:
        """End it with an answer: store what is to be replayed, and take back the rest. Raises
        `ClaimLost` when somebody else has taken over and nothing was stored, `GuardUnavailable`
        when nothing was stored or it is not known."""
        self._end()
        try:
            if answer.is_kept(self.scope):
                self._store(answer)
            else:
                self._give_up()
        except StoreError as error:
            raise GuardUnavailable(f"the answer could not be stored: {error}") from error

    def _end(self) -> None:
        if self.is_over:
            raise BadInput("this execution is over")
        self.is_over = True

    def abandon(self) -> None:
        """End it as if it had never been: another request may execute. Never raises."""
        if not self.is_over:
            self.is_over = True
            self._give_up()

    @contextmanager
    def as_current(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            with self._turn():
                yield
        finally:
            _current.reset(token)

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    @abstractmethod
    def _store(self, answer: Answer) -> None: ...

    @abstractmethod
    def _give_up(self) -> None: ...


class Transactional(Execution):
    """Everything is one transaction: rows, proofs, jobs and the record."""

    def __init__(
        self, scope: Scope, row: RecordRow, store: RecordKeeper, transaction: OpenTransaction
    ) -> None:
        super().__init__(scope, row)
        self._of = store
        self._transaction = transaction

    def _turn(self) -> AbstractContextManager[None]:
        return holding(self._of) if self._of.features.one_writer else nullcontext()

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def phase(self, name: str, work: Callable[[Phase], T]) -> T:
        # Nothing of it outlives the execution, so none has ended before.
        return work(Phase(name, lambda: self._transaction))

    def settles_on_loop(self, answer: Answer) -> bool:
        """Whether `settle_on_loop` can end it: the store can, and nobody has written with its
        connection."""
        if not self._of.features.on_loop or not answer.is_kept(self.scope):
            return False
        return not cast(LoopTransaction, self._transaction).was_used

    async def settle_on_loop(self, answer: Answer) -> None:
        """End it as `settle` does; the loop goes on meanwhile."""
        self._end()
        row = answer.in_row(self.row, self.scope)
        transaction = cast(LoopTransaction, self._transaction)
        try:
            await transaction.commit_record_on_loop(row, ttl_us=micros(self.scope.ttl))
        except StoreError as error:
            raise GuardUnavailable(f"the answer could not be stored: {error}") from error

    def _store(self, answer: Answer) -> None:
        try:
            if not answer.is_success:
                self._transaction.undo()
            row = answer.in_row(self.row, self.scope)
            if not self._transaction.finish_record(row, ttl_us=micros(self.scope.ttl)):
                raise ClaimLost("the record of this execution is gone")
            self._transaction.commit()
        finally:
            self._transaction.roll_back()

    def _give_up(self) -> None:
        self._transaction.roll_back()


class Leased(Execution):
    """The claim is committed before the work begins, and renewed while it goes on."""

    def __init__(
        self, scope: Scope, row: RecordRow, store: RecordKeeper, renewals: Renewals
    ) -> None:
        super().__init__(scope, row)
        self._records = store
        self._renewals = renewals
        renewals.watch(self)

    @property
    def connection(self) -> Any:
        raise BadInput(
            f'the scope "{self.scope.name}" has the mode "lease": its rows commit by phases; '
            "write them with execution.phase(name, lambda phase: ... phase.connection ...)"
        )

    @property
    def is_lost(self) -> bool:
        """Whether a renewal found that somebody else has taken over."""
        return self._renewals.has_lost(self)

    def phase(self, name: str, work: Callable[[Phase], T]) -> T:
        ended: dict[str, Any] = json.loads(self.row.recovery_data or "{}")
        if name in ended:
            return cast(T, ended[name])
        opened: list[OpenTransaction] = []
        turn = ExitStack()

        def begin() -> OpenTransaction:
            if not opened:
                opened.append(_begin(self._records))
                if self._records.features.one_writer:
                    turn.enter_context(holding(self._records))
            return opened[0]

        try:
            with turn:
                value = work(Phase(name, begin))
            ended[name] = json.loads(codec.encode(value))
            row = self.row._replace(recovery_point=name, recovery_data=json.dumps(ended))
            lease_us = micros(self.scope.lease)
            verbs = opened[0] if opened else self._records
            if not verbs.mark_record(row, lease_us=lease_us):
                raise ClaimLost(f'the phase "{name}" took so long that somebody else took over')
            if opened:
                opened[0].commit()
        finally:
            if opened:
                opened[0].roll_back()
        self.row = row
        return cast(T, ended[name])

    def _store(self, answer: Answer) -> None:
        self._renewals.unwatch(self)
        row = answer.in_row(self.row, self.scope)
        if not self._records.finish_record(row, ttl_us=micros(self.scope.ttl)):
            raise ClaimLost(
                "the operation took so long that somebody else took over; repeat the request to "
                "get their answer"
            )

    def _give_up(self) -> None:
        self._renewals.unwatch(self)
        try:
            self._records.release_record(self.row)
        except StoreError:
            # It is left alone until the lease ends, as after the death of the process.
            return


class Phase:
    """A part of an operation whose rows, and that it has ended, are one commit."""

    def __init__(self, name: str, begin: Callable[[], OpenTransaction]) -> None:
        self.name = name
        self._begin = begin

    @property
    def connection(self) -> Any:
        """The connection of the phase's transaction, which begins when it is first asked for: do
        what takes long elsewhere before."""
        return self._begin().connection


def _begin(store: RecordKeeper) -> OpenTransaction:
    if not store.features.open_transactions:
        raise NotSupported(f"the {store.features.name} store has no transaction for rows of yours")
    return cast(TransactionStore, store).begin()


class Renewals:
    """Renews each lease at a third of it; one thread, which lives while there is something to
    renew."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._due: dict[Leased, float] = {}
        self._lost: set[Leased] = set()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def watch(self, execution: Leased) -> None:
        if self._process != os.getpid():
            # A forked child: the lock, the thread and what it renews are the parent's.
            self._process, self._changed = os.getpid(), threading.Condition()
            self._due, self._lost, self._thread = {}, set(), None
        with self._changed:
            self._due[execution] = time.monotonic() + _third(execution)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ulak-idempotency-renewals", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def unwatch(self, execution: Leased) -> None:
        with self._changed:
            self._due.pop(execution, None)
            self._lost.discard(execution)
            self._changed.notify()

    def has_lost(self, execution: Leased) -> bool:
        with self._changed:
            return execution in self._lost

    def _run(self) -> None:
        while due := self._wait():
            try:
                alive = self._store.renew_records(
                    [execution.row for execution in due],
                    lease_us=[micros(execution.scope.lease) for execution in due],
                )
                with self._changed:
                    for execution, is_alive in zip(due, alive, strict=True):
                        if not is_alive and self._due.pop(execution, None) is not None:
                            self._lost.add(execution)
            except StoreError as error:
                log.warning("leases could not be renewed", extra={"error": str(error)})
            except BaseException:  # a worker loop: nothing else would renew them
                log.exception("leases could not be renewed")

    def _wait(self) -> list[Leased]:
        """Wait until leases are to be renewed; return none when nobody is left."""
        with self._changed:
            while self._due:
                now = time.monotonic()
                due = [execution for execution, at in self._due.items() if at <= now]
                if due:
                    for execution in due:
                        self._due[execution] = now + _third(execution)
                    return due
                self._changed.wait(min(self._due.values()) - now)
            self._thread = None
            return []


def _third(execution: Leased) -> float:
    return seconds(execution.scope.lease) / 3
