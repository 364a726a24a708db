"""Stops in a database: each verb is a list of steps, for a transaction of ours or of a caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ulak.clock import Clock
from ulak.core.admission import StopRow, Waiting
from ulak.store import flow_control as control
from ulak.store.caller import Rows, Steps

T = TypeVar("T")

Pair = tuple[str, str]
"""A flow and a tenant."""
Stops = Mapping[Pair, StopRow]
NO_STOPS: Final[Stops] = MappingProxyType({})


class Statements(NamedTuple):
    """What a store says in its own SQL."""

    find: str
    """By flow and tenant."""
    put: str
    """Takes the fields of a `StopRow`."""
    end: str
    """By flow and tenant."""
    every: str
    note: str
    """A line of audit: at, actor, act, subject, note, details."""
    read: Callable[[tuple[Any, ...]], StopRow]
    waiting: Callable[[Waiting], Steps[int]]


class StopVerbs(ABC):
    """The verbs of a store that say whether new jobs are taken."""

    clock: Clock
    stop_sql: Statements

    @abstractmethod
    def _write_steps(self, make: Callable[[], Steps[T]]) -> T:
        """Take steps in a write transaction of the kind `stop`."""

    @abstractmethod
    def _read_steps(self, make: Callable[[], Steps[T]]) -> T:
        """Take steps that only read."""

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        return self._write_steps(lambda: self.stop_steps(stop))

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        return self._write_steps(lambda: self.accept_steps(flow, tenant, actor=actor, note=note))

    def stops(self) -> list[StopRow]:
        return self._read_steps(self._list_steps)

    def count_waiting(self, waiting: Waiting) -> int:
        return self._read_steps(lambda: self.stop_sql.waiting(waiting))

    def stop_steps(self, stop: StopRow) -> Steps[StopRow | None]:
        before = yield from find_steps(self.stop_sql, self.stop_sql.find, stop.flow, stop.tenant)
        yield self.stop_sql.put, tuple(stop)
        details = control.stop_details(stop, before)
        subject = control.stop_subject(stop.flow, stop.tenant)
        line = (stop.at, stop.actor, control.STOPPED, subject, stop.note, details)
        yield self.stop_sql.note, line
        return before

    def accept_steps(
        self, flow: str, tenant: str, *, actor: str, note: str
    ) -> Steps[StopRow | None]:
        before = yield from find_steps(self.stop_sql, self.stop_sql.find, flow, tenant)
        if before is not None:
            yield self.stop_sql.end, (flow, tenant)
            details = control.stop_details(None, before)
            subject = control.stop_subject(flow, tenant)
            line = (self.clock.now(), actor, control.ACCEPTED, subject, note or None, details)
            yield self.stop_sql.note, line
        return before

    def _list_steps(self) -> Steps[list[StopRow]]:
        rows: Rows = yield self.stop_sql.every, ()
        return [self.stop_sql.read(row) for row in rows]


def find_steps(sql: Statements, statement: str, flow: str, tenant: str) -> Steps[StopRow | None]:
    """Find a stop by a statement that takes a flow and a tenant."""
    found: Rows = yield statement, (flow, tenant)
    return sql.read(found[0]) if found else None
