"""What the request guard of one process knows: the state that all processes share, as it was last
read, and what it has counted."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from ulak.control.breaker import FailureRateBreaker
from ulak.control.guard import NOTHING_SET, Denial, GuardConfig, GuardModes, GuardSnapshot, Verdict
from ulak.control.limiter import RateLimiter
from ulak.control.overrides import GUARD_MODES, Overrides, Pinnable
from ulak.control.signals import ENFORCE, GUARD, SHADOW
from ulak.control.state import SCHEMA
from ulak.control.switches import NAMES, TENANT, KillSwitchManager
from ulak.control.tallies import ALONE, Counter, Family, Tally, View
from ulak.engine.engine import Engine
from ulak.tables import Tables

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

log = logging.getLogger("ulak.guard")

EVERY_S: Final = 1.0
"""The shared state is read once a second while requests come."""
OLD_S: Final = 3.0
"""After so long without a request the state is read again before the next one goes on."""


class Refresher:
    """Has something read again on a thread of its own, which keeps no process alive. However many
    ask, one reading is under way."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._ended_s = float("-inf")
        self._is_slow = self._is_failing = False

    def look(self, now_s: float) -> Future[None] | None:
        """Have it read if it is time. Return what to wait for where the state is too old to go by;
        None: go on with what is known."""
        age_s = now_s - self._ended_s
        if age_s < EVERY_S:
            return None
        with self._lock:
            running = self._running
            if running is None:
                self._running = running = Future()
                threading.Thread(
                    target=self._run, args=(running,), name="ulak-guard", daemon=True
                ).start()
        return running if age_s > OLD_S and not self._is_slow else None

    def give_up(self) -> None:
        """End the waiting for the reading that is under way."""
        self._is_slow = True

    def _run(self, running: Future[None]) -> None:
        try:
            self._refresh()
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - the last known state stays, and the next reading comes
            if not self._is_failing:
                log.warning("the state of the guard cannot be read", extra={"error": str(error)})
            self._is_failing = True
        with self._lock:
            self._running, self._is_slow, self._ended_s = None, False, time.monotonic()
        running.set_result(None)


class GuardTallies:
    """What the guard counts."""

    def __init__(self) -> None:
        self.evaluated = View(
            "ulak_guard_evaluated", "Requests that the decision layer has judged.",
            lambda: self._count("ulak_guard_evaluated", lambda mode, verdict: True),
        )  # fmt: skip
        self.blocks = View(
            "ulak_guard_blocks", "Requests that it has refused, in mode enforce.",
            lambda: self._count(
                "ulak_guard_blocks", lambda mode, verdict: mode == ENFORCE and verdict.blocks
            ),
        )  # fmt: skip
        self.failures = Counter(
            "ulak_guard_snapshot_failures",
            "Requests that passed because no snapshot of them could be made.", known=[ALONE],
        )  # fmt: skip
        self.verdicts = Counter(
            "ulak_guard_verdicts",
            "Verdicts of the decision layer; tenants that are not allowed as labels are _other.",
            ("tenant", "mode", "verdict"),
        )
        self.denials = Counter(
            "ulak_guard_denials", "Requests refused before the decision layer, by reason.",
            ("reason",), known=[(denial.value,) for denial in Denial],
        )  # fmt: skip
        self.faults = Counter(
            "ulak_guard_faults", "Faults inside a part of the guard.", ("part",),
            known=[(part,) for part in ("kill-switch", "limiter", "breaker")],
        )  # fmt: skip

    @property
    def tallies(self) -> Iterator[Tally]:
        return (tally for tally in vars(self).values() if isinstance(tally, Tally))

    def count_verdict(self, config: GuardConfig, snapshot: GuardSnapshot, verdict: Verdict) -> None:
        labels = config.find_label(snapshot.tenant_id), snapshot.effective_mode, verdict.value
        self.verdicts.add(labels)

    def _count(self, name: str, is_one: Callable[[str, Verdict], bool]) -> Family:
        """Return how many verdicts were of a kind."""
        counted = self.verdicts.read().series.items()
        n = sum(value for (_, mode, verdict), (value,) in counted if is_one(mode, Verdict(verdict)))
        return Family(name, "counter", (), {ALONE: (float(n),)})


class GuardState:
    """The guard of an engine in one process, whichever of its applications a request comes to.
    Raises `NotSupported`: the store has no tables."""

    def __init__(self, engine: Engine, config: GuardConfig) -> None:
        self.engine = engine
        self.config = config
        self.config_hash = config.hash
        self.clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)
        """The time by which requests are judged: a request does not ask the store for it."""
        self.started_ms = self.clock_ms()
        self.tables = Tables(engine, SCHEMA)
        self.switches = KillSwitchManager(self.tables, defaults=config.kill_switches)
        pinnable = Pinnable(GUARD_MODES.modes, starts=config.decision_layer_default_mode)
        self.overrides = Overrides(self.tables, self.switches, subsystems={GUARD: pinnable})
        self.modes: GuardModes = NOTHING_SET
        self.is_known = False
        """Whether the shared state was read at least once."""
        self.limiter = RateLimiter()
        self.limits: dict[str, int] = dict(config.rate_limits)
        """Requests per minute and principal, by route group; none or 0 is no limit."""
        self.breakers: dict[str, FailureRateBreaker] = {}
        self.tallies = GuardTallies()
        self.refresher = Refresher(self._refresh_if_open)
        self._limits_of_services: dict[str, Callable[[], int]] = {}

    @property
    def now_ms(self) -> int:
        """The store's time."""
        return self.tables.now // 1000

    def add_limit(self, group: str, per_minute: Callable[[], int]) -> None:
        """Have a limit of a service read with the rest, so that a change of it is noticed."""
        self._limits_of_services[group] = per_minute

    def breaker(self, dependency: str) -> FailureRateBreaker:
        """Return the breaker of a dependency."""
        found = self.breakers.get(dependency)
        if found is None:
            found = self.breakers.setdefault(dependency, FailureRateBreaker(self.config.breaker))
        return found

    def refresh(self) -> None:
        """Read everything that others may have changed. Raises `StoreError`: what was known of the
        store stays."""
        self._read_limits()
        with self.tables.reading() as connection:
            self.switches.refresh(connection)
            self.overrides.refresh(connection)
            found = self.tables.execute(connection, _READ_MODE, GUARD)
        mode, targets = found[0] if found else (ENFORCE, "[]")
        shadowed = tuple((str(t), str(r)) for t, r in json.loads(targets)) if mode == SHADOW else ()
        self.modes = GuardModes(
            self.overrides.modes(self.now_ms).get(GUARD, ""), shadowed,
            GUARD if self.switches.is_active(GUARD) else "",
        )  # fmt: skip
        self.is_known = True

    def _refresh_if_open(self) -> None:
        # A program that has closed its engine does not want it opened by a request of before.
        if self.engine.kernel.is_open or not self.is_known:
            self.refresh()

    def _read_limits(self) -> None:
        for group, per_minute in self._limits_of_services.items():
            try:
                self.limits[group] = per_minute()
            except Exception as error:  # noqa: BLE001 - a service's own; the last known limit stays
                facts = {"group": group, "error": str(error)}
                log.warning("a rate limit cannot be read", extra=facts)

    def show_breakers(self) -> list[dict[str, Any]]:
        """Return every breaker that has been used here, by the name of its dependency."""
        now_ms = self.clock_ms()
        return [
            {"dependency": name, "state": str(breaker.state(now_ms))}
            for name, breaker in sorted(self.breakers.items())
        ]

    def read_metrics(self) -> list[Metric]:
        """Return the gauge of the switches, as the store has them; nothing while they are not
        known."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001 - a role that may not read must not fail a scrape
            log.warning("the state of the guard cannot be read", extra={"error": str(error)})
        if not self.is_known:
            return []
        active = self.switches.active
        gauge = GaugeMetricFamily(
            "ulak_kill_switch", "1 while a kill switch is on; tenant: that of any tenant.",
            labels=["switch"],
        )  # fmt: skip
        for name in NAMES:
            gauge.add_metric([name], float(name in active))
        gauge.add_metric(["tenant"], float(any(name.startswith(TENANT) for name in active)))
        return [gauge]


class GuardMode:
    """The mode of the guard as the loop sets it; fits `GuardDecision`. The loop has written the
    row with its targets in the same transaction; every process reads it within a second."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def set_mode(self, mode: str, *, connection: Any = None) -> None:
        """Set the mode, in the transaction of a connection or in one of its own."""
        if connection is None:
            self._tables.write(_SET_MODE, mode, GUARD)
        else:
            self._tables.execute(connection, _SET_MODE, mode, GUARD)


def guard_state(engine: Engine, config: GuardConfig) -> GuardState:
    """Return the one guard that an engine has in this process with these settings."""
    shared: dict[Any, Any] = engine.kernel.shared
    key = "request guard", config.hash
    found: GuardState | None = shared.get(key)
    if found is None:
        found = shared.setdefault(key, GuardState(engine, config))
    return found


_READ_MODE: Final = "SELECT mode, targets FROM {schema}.control_modes WHERE subsystem_id = ?"
_SET_MODE: Final = "UPDATE {schema}.control_modes SET mode = ? WHERE subsystem_id = ?"
