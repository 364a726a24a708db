"""Verbs of a store that are one function each, run in a transaction or on a reading connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ulak.clock import Clock, Instant

P = ParamSpec("P")
T = TypeVar("T")
Db = TypeVar("Db")
Tx = TypeVar("Tx")
Db_co = TypeVar("Db_co", covariant=True)
Tx_co = TypeVar("Tx_co", covariant=True)


class Writing(Protocol[Tx_co]):
    """A store that runs work in a transaction of its own and commits it."""

    def _write(self, kind: str, work: Callable[[Tx_co], T], *, urgent: bool = False) -> T: ...


class Reading(Protocol[Db_co]):
    """A store that runs work on a connection that only reads."""

    clock: Clock

    def _read(self, read: Callable[[Db_co], T]) -> T: ...


def written(
    kind: str, work: Callable[Concatenate[Tx, P], T], *, urgent: bool = False
) -> Callable[Concatenate[Writing[Tx], P], T]:
    """Make the verb that runs `work` in a transaction; `kind` names it in `ulak.store.faults`."""

    def verb(self: Writing[Tx], /, *args: P.args, **options: P.kwargs) -> T:
        return self._write(kind, lambda t: work(t, *args, **options), urgent=urgent)

    return verb


def read(work: Callable[Concatenate[Db, P], T]) -> Callable[Concatenate[Reading[Db], P], T]:
    """Make the verb that runs `work` on a connection that only reads."""

    def verb(self: Reading[Db], /, *args: P.args, **options: P.kwargs) -> T:
        return self._read(lambda db: work(db, *args, **options))

    return verb


def read_now(
    work: Callable[Concatenate[Db, Instant, P], T],
) -> Callable[Concatenate[Reading[Db], P], T]:
    def verb(self: Reading[Db], /, *args: P.args, **options: P.kwargs) -> T:
        return self._read(lambda db: work(db, self.clock.now(), *args, **options))

    return verb
