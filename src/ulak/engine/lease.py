"""A worker's lease, renewed by a thread of its own so that no stage can hold it up."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ulak.core.job import Request
from ulak.engine.telemetry import NOBODY, Telemetry
from ulak.engine.threads import guarded
from ulak.errors import StoreError
from ulak.store.protocol import LeaseStore

log = logging.getLogger("ulak.lease")

LONGEST_GOODBYE_S = 2.0
# Of a lease: silent for no longer, nobody can have lapsed. The rest is for renewals that were slow.
SAFE_SHARE = 0.8
# How often a worker looks whether a store that did not answer is back. Short, because it may not
# claim before: after a restart the former rate must be there within a few hundred milliseconds.
LONGEST_TROUBLED_PAUSE_S = 0.3


class Listener(Protocol):
    """Whom the lease tells what it learns; called on the lease's thread."""

    def asked(self, requests: list[Request]) -> None:
        """Something is asked of jobs that this worker runs."""
        return

    def lease_lost(self) -> None:
        """The lease was taken away, or is left to lapse because the loop is stuck."""
        return

    def failed(self, error: BaseException) -> None:
        """The thread has ended by an error that no repetition mends: nobody renews any more."""
        return


class Lease:
    """Renews at a third of the lease, and stops when the worker's loop has stopped.

    A loop that has not ticked for two leases is stuck: going on to renew would keep its jobs
    from everybody else for ever. Without a loop (`must_tick=False`) the process is all there is.
    One that begins after an outage leaves the others the time to renew.
    """

    def __init__(
        self,
        store: LeaseStore,
        worker: str,
        lease_s: float,
        listener: Listener,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        telemetry: Telemetry = NOBODY,
        must_tick: bool = True,
        after_outage: bool = False,
    ) -> None:
        self._store = store
        self._worker = worker
        self._lease_s = lease_s
        self._hurried_pause_s = min(lease_s / 3, LONGEST_TROUBLED_PAUSE_S)
        self._listener = listener
        self._monotonic = monotonic
        self._telemetry = telemetry
        self._must_tick = must_tick
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._troubled = False
        self._calm_at = monotonic() + 2 * self._hurried_pause_s if after_outage else 0.0
        self._draw = random.Random()  # noqa: S311 - spreads reconnects, decides nothing else
        self._ticked_at = self.renewed_at = monotonic()
        """When the loop has ticked and the lease was renewed last, by the monotonic clock."""
        serve = guarded(self._serve, listener.failed)
        self._thread = threading.Thread(target=serve, name="ulak-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tick(self) -> None:
        """The loop says that it is alive."""
        self._ticked_at = self._monotonic()

    def is_late(self) -> bool:
        """Whether no renewal has succeeded for a whole lease: others may take the jobs by now."""
        return self._monotonic() - self.renewed_at > self._lease_s

    def complaint(self) -> str | None:
        """Say that the lease is too old, and what that means; None while it is not."""
        if not self.is_late():
            return None
        return (
            f"the worker's lease of {self._lease_s:g} s was renewed "
            f"{self._monotonic() - self.renewed_at:.0f} s ago; others may take its jobs"
        )

    def trouble(self) -> None:
        """The store did not answer the worker: see soon whether the lease can be renewed."""
        self._troubled = True
        self._wake.set()

    def is_calm(self) -> bool:
        """Whether the worker may claim.

        A claim takes lapsed leases away. After a long outage every lease has lapsed, and workers
        that are alive must have the time to renew before the first claim. After a short one none
        has: everybody renewed at a third of the lease while the store answered.
        """
        return not self._troubled and self._monotonic() >= self._calm_at

    def stop(self) -> None:
        """Stop renewing; the lease is left to end by itself or to be ended."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            # A renewal that hangs must not hold up a drain; its thread is a daemon.
            self._thread.join(LONGEST_GOODBYE_S)

    def _serve(self) -> None:
        pause, failed = self._lease_s / 3, False
        while not self._has_stopped_after(pause):
            now = self._monotonic()
            if self._must_tick and now - self._ticked_at > 2 * self._lease_s:
                log.error("the worker's loop is stuck; its lease is left to lapse")
                self._listener.lease_lost()
                return
            try:
                renewal = self._store.renew(self._worker, lease_us=int(self._lease_s * 1e6))
            except StoreError as error:
                self._telemetry.failed("renew")
                if not failed:
                    log.warning("the lease could not be renewed", extra={"error": str(error)})
                self._troubled = failed = True
                pause = self._hurried_pause_s
                continue
            pause, failed = self._lease_s / 3, False
            if not renewal.alive:
                log.warning("the lease was taken away")
                self._listener.lease_lost()
                return
            silent_s = now - self.renewed_at
            self.renewed_at = now
            if self._troubled:
                if silent_s + self._lease_s / 3 > SAFE_SHARE * self._lease_s:
                    # Twice the pause after which a worker in trouble tries again.
                    self._calm_at = self._monotonic() + 2 * self._hurried_pause_s
                self._troubled = False
            if renewal.requests:
                self._listener.asked(renewal.requests)

    def _has_stopped_after(self, pause: float) -> bool:
        if self._troubled:
            # Not all at once: every worker of the store is waiting for the same moment.
            pause = min(pause, self._hurried_pause_s) * (1 + self._draw.random()) / 2
        self._wake.wait(pause)
        self._wake.clear()
        return self._stop.is_set()
