"""Turns: executions that share the one writer's turn of a store, and its commit.

On such a store transactional executions follow one another anyway. Those that are waiting when
one ends go on in its transaction, each as a part that is kept or dropped by itself, and all are
answered after one commit. Who writes with the connection is alone in a transaction: what was
kept before is committed first, and nobody goes on after.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ulak.engine.threads import call_on
from ulak.errors import BadInput, GuardUnavailable, StoreError
from ulak.idempotency.guard import digest_of
from ulak.store.records import RecordClaim, RecordRow
from ulak.store.transaction import PartedTransaction

MOST_PARTS: Final = 64
"""How many executions share a commit at most. A guess: then a commit costs each next to nothing."""

LONGEST_S: Final = 0.01
"""After how long those who have ended are answered though somebody still executes. A guess: about
as long as a commit takes on a slow disk."""


class Turn:
    """One open transaction; everything but `commit` and `relieve` is for its loop, and what a
    handler does with its connection for whichever thread it runs on."""

    def __init__(self, transaction: PartedTransaction) -> None:
        self._transaction = transaction
        self._loop = asyncio.get_running_loop()
        self.lock = threading.RLock()
        self._part: Part | None = None
        self._kept: list[asyncio.Future[None]] = []
        self._parts = 0
        self._begun_at = self._loop.time()
        self._was_used = False
        self.is_timed = False
        """Whether somebody will look whether those who have ended wait for too long."""

    def begin_part(self) -> Part:
        self._parts += 1
        self._part = Part(self, self._transaction)
        return self._part

    @property
    def may_go_on(self) -> bool:
        is_young = self._loop.time() - self._begun_at < LONGEST_S / 2
        return is_young and not self._was_used and self._parts < MOST_PARTS

    @property
    def has_kept(self) -> bool:
        return bool(self._kept)

    def end_part(self, work: Callable[[], None]) -> asyncio.Future[None] | None:
        """Do what ends the part; return what is done with the commit, None when it was dropped."""
        with self.lock:
            part, self._part = self._part, None
            work()
            if part is None or not part.is_kept:
                return None
            self._was_used = part.was_used
            done: asyncio.Future[None] = self._loop.create_future()
            self._kept.append(done)
            return done

    def relieve(self) -> None:
        """Commit what has ended while somebody still executes, if nobody has written with the
        connection; on a thread."""
        with self.lock, suppress(StoreError):  # whoever executes finds out when it ends
            part = self._part
            if self._kept and part is not None and part.is_claimed and not part.was_used:
                part.begin_anew()

    def commit(self) -> None:
        """Commit what was kept and give the turn back; on a thread. Never raises: whoever waits
        is told."""
        with self.lock:
            try:
                if self._kept:
                    self._transaction.commit()
            except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
                self.tell(error)
            else:
                self.tell(None)
            finally:
                self._transaction.roll_back()

    def tell(self, error: BaseException | None) -> None:
        if error is not None:
            self._was_used = True  # it is over
        kept, self._kept = self._kept, []
        if kept:
            call_on(self._loop, _tell, kept, error)

    def use(self, part: Part) -> None:
        """Have a part alone in its transaction before it writes."""
        with self.lock:
            if self._kept:
                part.begin_anew()
            part.was_used = True


class Part:
    """The transaction of one execution: an `ulak.store.transaction.OpenTransaction` to it."""

    def __init__(self, turn: Turn, transaction: PartedTransaction) -> None:
        self.is_kept = False
        self.was_used = False
        self._turn = turn
        self._transaction = transaction
        self._is_over = False
        self._claim: Callable[[], RecordClaim] | None = None

    @property
    def is_claimed(self) -> bool:
        return self._claim is not None and not self._is_over

    @property
    def connection(self) -> Any:
        if self._is_over:
            raise BadInput("this execution is over")
        if not self.was_used:
            self._turn.use(self)
        return self._transaction.connection

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        def claim() -> RecordClaim:
            self._transaction.begin_part(digest_of(row.id))
            return self._transaction.claim_record(row, ttl_us=ttl_us, lease_us=lease_us)

        with self._turn.lock:
            claimed = claim()
        self._claim = claim
        return claimed

    def begin_anew(self) -> None:
        """Let what was kept before be committed, and claim again: nobody else could meanwhile.
        `StoreError`: one of both failed."""
        self._transaction.drop_part()
        try:
            self._transaction.commit_parts()
        except BaseException as error:
            self._turn.tell(error)
            raise
        self._turn.tell(None)
        if self._claim is None or not self._claim().is_mine:
            raise StoreError("the key was claimed by somebody who writes without ulak")

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        return self._transaction.mark_record(row, lease_us=lease_us)

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        return self._transaction.finish_record(row, ttl_us=ttl_us)

    def undo(self) -> None:
        self._transaction.undo()

    def commit(self) -> None:
        self._transaction.keep_part()
        self._is_over = self.is_kept = True

    def roll_back(self) -> None:
        if self._is_over:
            return
        with self._turn.lock:
            self._is_over = True
            try:
                self._transaction.drop_part()
            except (BadInput, StoreError):
                # It was ended by hand; there is nobody else whom that harms.
                self._transaction.roll_back()


def _tell(kept: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for done in kept:
        if done.done():  # whoever waited has gone
            continue
        if error is None:
            done.set_result(None)
        elif isinstance(error, StoreError):
            done.set_exception(GuardUnavailable(f"the answer could not be stored: {error}"))
        else:
            done.set_exception(error)
