"""The guard: of all requests with one key, one executes; every other is told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Final, cast

from ulak import errors
from ulak.clock import micros
from ulak.core.acts import must_act
from ulak.idempotency.execution import Execution, Leased, Renewals, Transactional
from ulak.idempotency.scope import Answer, Scope, answer_in
from ulak.store.protocol import Features, RecordKeeper
from ulak.store.records import PROCESSING, RecordId, RecordRow
from ulak.store.transaction import LoopTransaction, OpenTransaction, TransactionStore

if TYPE_CHECKING:
    from ulak.idempotency.aio import AsyncGuard

A_BATCH: Final = 1000
SOON: Final = timedelta(seconds=1)
"""When to ask again after somebody who executes: most have ended by then."""
TOO_LONG: Final = "others have been writing for too long, so nothing was done"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a protected operation."""

    scope: Scope
    key: str
    _: KW_ONLY
    request_hash: str
    """What is asked, as `fingerprint` answers it: under the same key it must be the same."""
    tenant: str = ""
    actor: str = ""

    @property
    def id(self) -> RecordId:
        """What its record is found by."""
        return RecordId(self.tenant, self.scope.name, self.key)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and whether it was given before."""

    answer: Answer
    is_replay: bool


class Guard:
    """Stands before protected operations; any number of threads and processes share one store.

    The store is the engine's, which opens it, or one for records alone; in a forked child its first
    use does.
    """

    def __init__(self, store: RecordKeeper) -> None:
        self._store = store
        self._renewals = Renewals(store)

    @property
    def features(self) -> Features:
        """What the store of the records can do."""
        return self._store.features

    def execute(self, asked: Asked, operation: Callable[[Execution], Answer]) -> Answered:
        """Run an operation unless it was run under this key; return its answer, of now or of then.

        An exception of the operation is let out: nothing of it is stored, and a repeated request
        runs it again. Raises as `begin` and `Execution.settle` do.
        """
        begun = self.begin(asked)
        if isinstance(begun, Answer):
            return Answered(begun, is_replay=True)
        try:
            with begun.as_current():
                answer = operation(begun)
            begun.settle(answer)
        finally:
            begun.abandon()
        return Answered(answer, is_replay=False)

    def begin(self, asked: Asked) -> Execution | Answer:
        """Claim a key, to be ended by the caller; or return what was answered before.

        Raises:
            InProgress: somebody else executes it now.
            IdempotencyConflict: the key was used for something else.
            AnswerNotStored: it was executed, and the answer was too large to be kept.
            GuardUnavailable: the store cannot be asked; nothing was executed.
        """
        with _asking():
            try:
                if asked.scope.mode == "lease":
                    return self._lease(asked)
                return self._claim_in(asked, self._open(asked))
            except errors.Contended as error:
                return self._without_waiting(asked, error)

    @cached_property
    def aio(self) -> AsyncGuard:
        """The same verbs for an event loop, where requests of one process share their questions."""
        from ulak.idempotency.aio import AsyncGuard

        return AsyncGuard(self)

    def open_at_once(self, asked: Asked) -> OpenTransaction | None:
        """Open a transaction for an operation without waiting; None when somebody is in the way.
        For a store with one writer, which asks no server."""
        with _asking():
            try:
                return self._open(asked, patience_ms=0)
            except errors.Contended:
                return None

    def open(self, asked: Asked) -> OpenTransaction | Answer:
        """Open a transaction for an operation, or return what was answered meanwhile; raises as
        `begin`."""
        with _asking():
            try:
                return self._open(asked)
            except errors.Contended as error:
                return self._without_waiting(asked, error)

    def begin_within(self, asked: Asked, transaction: OpenTransaction) -> Execution | Answer:
        """Begin an operation as `begin` does, in a transaction that is open. When nothing is to
        be executed, or it cannot be asked, the transaction is rolled back."""
        with _asking():
            return self._claim_in(asked, transaction)

    async def begin_on_loop(self, asked: Asked) -> Execution | Answer:
        """Begin a transactional operation as `begin` does, while the event loop goes on. For a
        store with `Features.on_loop`."""
        with _asking():
            try:
                transaction = cast(LoopTransaction, self._open(asked))
                claim = await transaction.claim_record_on_loop(
                    _new_row(asked), ttl_us=micros(asked.scope.ttl), lease_us=None
                )
            except errors.Contended as error:
                return await asyncio.to_thread(self._without_waiting, asked, error)
        if claim.is_mine:
            return Transactional(asked.scope, claim.row, self._store, transaction)
        await asyncio.to_thread(transaction.roll_back)
        return _told(asked, claim.row)

    def look(self, asked: Sequence[Asked]) -> list[Answer | errors.IdempotencyError | None]:
        """Return for each its answer, why it has none, or None when it is new or its execution
        has died. Claims nothing; so many at once cost one read. Raises `GuardUnavailable`: the
        store cannot be asked."""
        with _asking():
            rows = self._store.find_records([one.id for one in asked])
        now = self._store.clock.now()
        found: list[Answer | errors.IdempotencyError | None] = []
        for one, row in zip(asked, rows, strict=True):
            if row is None or (row.status == PROCESSING and (row.lease_until or 0) <= now):
                found.append(None)
                continue
            try:
                found.append(_told(one, row))
            except errors.IdempotencyError as refusal:
                found.append(refusal)
        return found

    @property
    def may_forget(self) -> bool:
        """Whether processes share records that the store may lose when it restarts or is full."""
        return self.features.shared and not self.features.durable

    def check(self) -> None:
        """Ask the store anything. Raises `StoreError`: it does not answer."""
        self._store.find_records([RecordId("", "", "")])

    def record(self, id: RecordId) -> RecordRow | None:
        """Return a record as it is stored, or None; one that has expired counts as absent."""
        return self._store.find_records([id])[0]

    def forget(self, id: RecordId, *, actor: str, note: str = "") -> bool:
        """Remove a record, so that the next request executes; audited. Return False when there
        is none."""
        return self._store.forget_record(id, actor=must_act(actor, note), note=note)

    def clean_up(self, batch: int = A_BATCH) -> int:
        """Remove every record that has expired, `batch` in a transaction; return how many."""
        if batch < 1:
            raise errors.BadInput(f"a batch of {batch} makes no sense; write 1 or more")
        removed = 0
        while gone := self._store.clean_records(batch):
            removed += gone
            if gone < batch:
                break
        return removed

    def _claim_in(self, asked: Asked, transaction: OpenTransaction) -> Execution | Answer:
        try:
            claim = transaction.claim_record(
                _new_row(asked), ttl_us=micros(asked.scope.ttl), lease_us=None
            )
            if claim.is_mine:
                return Transactional(asked.scope, claim.row, self._store, transaction)
        except BaseException:
            transaction.roll_back()
            raise
        transaction.roll_back()
        return _told(asked, claim.row)

    def _open(self, asked: Asked, patience_ms: int | None = None) -> OpenTransaction:
        if not self._store.features.open_transactions:
            raise errors.NotSupported(
                f'the scope "{asked.scope.name}" is transactional, and the '
                f"{self._store.features.name} store has no transaction to share; give it the mode "
                '"lease", or connect to SQLite or PostgreSQL'
            )
        if patience_ms is None:
            patience_ms = micros(asked.scope.lock_wait) // 1000
        return cast(TransactionStore, self._store).begin(
            patience_ms=patience_ms, purpose=digest_of(asked.id)
        )

    def _lease(self, asked: Asked) -> Execution | Answer:
        claim = self._store.claim_record(
            _new_row(asked), ttl_us=micros(asked.scope.ttl), lease_us=micros(asked.scope.lease)
        )
        if claim.is_mine:
            return Leased(asked.scope, claim.row, self._store, self._renewals)
        return _told(asked, claim.row)

    def _without_waiting(self, asked: Asked, error: errors.Contended) -> Answer:
        """Answer from the record if there is one: whoever is in the way may be another duplicate
        that reads its answer. Else tell who executes the same from who only writes beside."""
        (row,) = self._store.find_records([asked.id])
        if row is not None:
            return _told(asked, row)
        if error.holder in (None, digest_of(asked.id)):
            raise in_progress(asked) from error
        raise errors.GuardUnavailable(TOO_LONG) from error


def _new_row(asked: Asked) -> RecordRow:
    return RecordRow(
        asked.tenant, asked.scope.name, asked.key, PROCESSING, asked.request_hash, asked.actor,
        token_hex(16), None, 1, None, None, None, None, None, None, None, 0, 0, 0,
    )  # fmt: skip


def _told(asked: Asked, row: RecordRow) -> Answer:
    """Return the answer of another execution from its record; raises `IdempotencyError` when
    there is none."""
    if row.request_hash != asked.request_hash:
        raise errors.IdempotencyConflict(
            f"the key {asked.key!r} was used for another request; use a new key for a new request"
        )
    if row.status == PROCESSING:
        raise in_progress(asked)
    return answer_in(row)


@contextmanager
def _asking() -> Iterator[None]:
    """Say of a store that cannot be asked that nothing was done; what it refuses is let out."""
    try:
        yield
    except errors.WriteRefused:
        raise
    except errors.StoreError as error:
        raise errors.GuardUnavailable(
            f"the store of idempotency records cannot be asked, so nothing was done: {error}"
        ) from error


def in_progress(asked: Asked) -> errors.InProgress:
    return errors.InProgress(
        f"a request with the key {asked.key!r} is being executed; ask again in a moment",
        retry_after=SOON,
    )


def digest_of(id: RecordId) -> bytes:
    """Return the digest that identifies the lock holder."""
    return sha256("\0".join(id).encode("utf-8", "surrogatepass")).digest()[:16]
