"""The thread that renews: when it does, when it stops, and what it says."""

import logging
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from ulak.engine.lease import Lease
from ulak.errors import StoreError
from ulak.store.memory import MemoryStore

LEASE_S = 1.5


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.requests: list[Any] = []

    def asked(self, requests: list[Any]) -> None:
        self.requests += requests

    def lease_lost(self) -> None:
        self.lost.set()

    def failed(self, error: BaseException) -> None:
        raise AssertionError(error)


class Flaky(MemoryStore):
    """A store whose renewals fail while it is away."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[float] = []

    @property
    def renewed(self) -> int:
        return len(self.renewals)

    def renew(self, worker: str, *, lease_us: int) -> Any:
        if self.away:
            raise StoreError("away")
        self.renewals.append(time.monotonic())
        return super().renew(worker, lease_us=lease_us)


def leased(monotonic: Any = time.monotonic) -> tuple[Flaky, Heard, Lease]:
    store, heard = Flaky(), Heard()
    store.register("w", lease_us=int(LEASE_S * 1e6), lanes=[], about="")
    lease = Lease(store, "w", LEASE_S, heard, monotonic)
    lease.start()
    return store, heard, lease


def until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.shows("E-24")
def test_a_lease_is_renewed_three_times_in_its_length() -> None:
    store, heard, lease = leased()
    try:
        until(lambda: (lease.tick(), len(store.renewals) > 6)[1])
        # The quickest: a machine that stands still delays the others.
        pause = min(later - earlier for earlier, later in pairwise(store.renewals))
        assert pause < LEASE_S / 2
        assert not heard.lost.is_set()
    finally:
        lease.stop()


@pytest.mark.shows("E-24")
def test_renewal_stops_when_the_loop_has_not_ticked_for_two_leases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    store, heard, lease = leased(lambda: now[0])
    try:
        now[0] = 1.9 * LEASE_S
        until(lambda: store.renewed >= 2)
        assert not heard.lost.is_set(), "blocked for less than two leases: it keeps its jobs"
        with caplog.at_level(logging.ERROR):
            now[0] = 2.1 * LEASE_S
            assert heard.lost.wait(120)
        assert "stuck" in caplog.text
        seen = store.renewed
        time.sleep(LEASE_S)
        assert store.renewed == seen
    finally:
        lease.stop()


@pytest.mark.shows("E-26")
def test_renewals_that_fail_for_a_whole_lease_make_it_late_and_no_more() -> None:
    store, heard, lease = leased()
    try:
        store.away = True
        assert not lease.is_late()
        until(lambda: (lease.tick(), lease.is_late())[1])
        assert not lease.is_calm()
        assert not heard.lost.is_set(), "nobody has taken it away"
        store.away = False
        until(lambda: (lease.tick(), not lease.is_late())[1])
        until(lambda: (lease.tick(), lease.is_calm())[1])
    finally:
        lease.stop()


@pytest.mark.shows("E-26")
def test_after_long_trouble_a_worker_claims_only_some_time_after_it_has_renewed() -> None:
    now = [0.0]
    store, _, lease = leased(lambda: now[0])
    try:
        store.away = True
        lease.trouble()
        assert not lease.is_calm()
        now[0] = 0.6 * LEASE_S
        seen, store.away = store.renewed, False
        until(lambda: store.renewed > seen)
        assert not lease.is_calm(), "the others have not had the time to renew"
        now[0] = 1.5 * LEASE_S
        until(lease.is_calm)
    finally:
        lease.stop()


@pytest.mark.shows("E-58")
def test_after_short_trouble_a_worker_claims_as_soon_as_it_has_renewed() -> None:
    now = [0.0]
    store, _, lease = leased(lambda: now[0])
    try:
        store.away = True
        lease.trouble()
        now[0] = 0.4 * LEASE_S
        assert not lease.is_calm()
        store.away = False
        until(lease.is_calm)
        assert now[0] == 0.4 * LEASE_S, "nobody can have lapsed yet, so nobody is waited for"
    finally:
        lease.stop()


@pytest.mark.shows("E-24")
def test_a_lease_that_was_taken_away_is_not_renewed() -> None:
    store, heard, lease = leased()
    try:
        store.unregister("w")
        assert heard.lost.wait(120)
    finally:
        lease.stop()
