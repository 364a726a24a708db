"""Renewals: one thread that keeps the leases of every execution of a guard alive."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from ulak.clock import micros, seconds
from ulak.errors import StoreError
from ulak.store.records import RecordStore

if TYPE_CHECKING:
    from ulak.idempotency.execution import Leased

log = logging.getLogger("ulak.idempotency")


class Renewals:
    """Renews each lease at a third of it; the thread lives while there is something to renew."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._due: dict[Leased, float] = {}
        self._lost: set[Leased] = set()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def watch(self, execution: Leased) -> None:
        """Renew its lease from now on."""
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
        """Renew it no more."""
        with self._changed:
            self._due.pop(execution, None)
            self._lost.discard(execution)
            self._changed.notify()

    def has_lost(self, execution: Leased) -> bool:
        """Tell whether a renewal has found another owner."""
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
        """Wait until leases are to be renewed; answer none when nobody is left."""
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
