"""Metrics of every process of a store, in a small table: each publishes its own, any may read all.

    process_metrics     one row for each process and metric family, its data as JSON:
                        {"labels": ["flow"], "bounds": [], "series": [[["greet"], [3.0]]]}

A process is the main one of a command, `HOST-PID-RANDOM`, or one of its children, which has the id
of the main one before its own name. A child that takes the place of one that has ended goes on with
its counters: what is added up over children never falls while their main process lives.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final, NamedTuple

from ulak.clock import SECOND, Instant
from ulak.control.tallies import Family
from ulak.engine.engine import Engine
from ulak.tables import Schema, Tables

log = logging.getLogger("ulak.metrics")

SCHEMA: Final = Schema(
    "metrics of processes",
    folder=files("ulak.control") / "sql",
    version_table="process_metrics_schema",
    why="other processes read them there",
)

# Guesses. Scrapes come every 15 s, mostly; whoever has nothing new to say still says that it lives.
EVERY_S = 5.0
AT_LEAST_EVERY_S = 20.0
# A gauge of a process that has been silent for so long is nobody's any more.
FRESH_US: Final = 60 * SECOND
# Main processes that are away from their store come back much earlier.
LONG_GONE_US: Final = 24 * 3600 * SECOND
CLEAR_EVERY_S = 3600.0
# How long the end of a process waits for its last numbers to be written.
LAST_S = 2.0


class Pace(NamedTuple):
    """How often a process publishes."""

    every_s: float
    """What has changed."""
    at_least_s: float
    """And that it lives, when nothing has."""


USUAL_PACE: Final = Pace(EVERY_S, AT_LEAST_EVERY_S)


def make_process_id() -> str:
    """Return a name that no other process has had."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def is_published(engine: Engine) -> bool:
    """Tell whether a store has a place for metrics: other processes see it, and it has tables."""
    features = engine.store.features
    return features.shared and features.open_transactions and bool(features.dialect)


class Published(NamedTuple):
    """A row of the table."""

    process: str
    family: Family
    at: Instant


class ProcessMetrics:
    """The table. Raises `NotSupported`: the store has none that other processes see."""

    def __init__(self, engine: Engine) -> None:
        self._tables = Tables(engine, SCHEMA)

    def ensure(self) -> None:
        """Make the table, if need be, as a role that may."""
        self._tables.ensure()

    @property
    def now(self) -> Instant:
        """The store's time."""
        return self._tables.now

    def read(self, supervisor: str | None = None) -> list[Published]:
        """Return every row, or those of one main process and its children."""
        if supervisor is None:
            rows = self._tables.read(_READ)
        else:
            rows = self._tables.read(f"{_READ} WHERE supervisor = ?", supervisor)
        return [
            Published(process, _decode(name, kind, data), at)
            for process, name, kind, data, at in rows
        ]

    def read_families(self, names: Sequence[str]) -> list[Published]:
        """Return the rows of some families, of every process."""
        marks = ", ".join("?" * len(names))
        rows = self._tables.read(f"{_READ} WHERE family IN ({marks})", *names)
        return [
            Published(process, _decode(name, kind, data), at)
            for process, name, kind, data, at in rows
        ]

    def publish(
        self, process: str, supervisor: str, families: Iterable[Family], *, keep: int
    ) -> bool:
        """Write families of a process, and that all of its others stand as they did. Return False,
        and write nothing, if those are not `keep` rows: then all must be written again."""
        tables, now = self._tables, self._tables.now
        with tables.writing(quiet=True) as connection:
            touched = tables.execute(connection, _TOUCH, now, process)
            if len(touched) < keep:
                return False
            for family in families:
                row = process, family.name, supervisor, family.kind, _encode(family), now
                tables.execute(connection, _WRITE, *row)
        return True

    def clear(self) -> None:
        """Remove the rows of main processes of which nobody has been heard for a day."""
        with self._tables.writing(quiet=True) as connection:
            self._tables.execute(connection, _CLEAR, self._tables.now - LONG_GONE_US)


_READ: Final = "SELECT process, family, kind, data, at FROM {schema}.process_metrics"
_TOUCH: Final = "UPDATE {schema}.process_metrics SET at = ? WHERE process = ? RETURNING family"
_WRITE: Final = """
    INSERT INTO {schema}.process_metrics (process, family, supervisor, kind, data, at)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (process, family) DO UPDATE SET
        supervisor = excluded.supervisor, kind = excluded.kind, data = excluded.data,
        at = excluded.at
"""
_CLEAR: Final = """
    DELETE FROM {schema}.process_metrics WHERE supervisor IN (
        SELECT supervisor FROM {schema}.process_metrics GROUP BY supervisor HAVING max(at) < ?
    )
"""


def _encode(family: Family) -> str:
    series = [[list(labels), list(numbers)] for labels, numbers in family.series.items()]
    return json.dumps({"labels": family.labels, "bounds": family.bounds, "series": series})


def _decode(name: str, kind: str, data: str) -> Family:
    found = json.loads(data)
    series = {tuple(labels): tuple(numbers) for labels, numbers in found["series"]}
    return Family(name, kind, tuple(found["labels"]), series, tuple(found["bounds"]))  # type: ignore[arg-type]


class Publisher:
    """Publishes what a process counts, on a thread of its own: nothing else waits for the store,
    however long it is away."""

    def __init__(
        self,
        engine: Engine,
        read: Callable[[], Iterable[Family]],
        *,
        process: str,
        supervisor: str | None = None,
        pace: Callable[[], Pace] = lambda: USUAL_PACE,
    ) -> None:
        self._pace = pace
        self._metrics = ProcessMetrics(engine)
        self._read = read
        self._process = process
        self._supervisor = supervisor or process
        self._base: Mapping[str, Family] | None = None
        """What the one before has counted whose place this process takes; None until it is read."""
        self._written: dict[str, Family] = {}
        self._every_s = EVERY_S
        self._silent_s = 0.0
        self._until_clear_s = 0.0
        self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ulak-publisher", daemon=True)

    def start(self) -> None:
        """Begin; the engine is open."""
        self._thread.start()

    def stop(self) -> None:
        """Publish once more, and end; a store that does not answer is not waited for."""
        self._stopping.set()
        self._thread.join(LAST_S)

    def _run(self) -> None:
        while True:
            is_last = self._stopping.is_set()
            self._try()
            if is_last:
                return
            self._stopping.wait(self._every_s)

    def _try(self) -> None:
        try:
            self.publish()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may do better
            if not self._is_failing:
                facts = {"publisher": self._process, "error": str(error)}
                log.warning("the metrics of this process cannot be published now", extra=facts)
            self._is_failing = True
        else:
            self._is_failing = False

    def publish(self) -> None:
        """Publish what has changed since the last time."""
        self._every_s, at_least_s = self._pace()
        if self._base is None:
            self._base = self._read_base()
        now = {family.name: self._with_base(family) for family in self._read()}
        changed = [family for name, family in now.items() if self._written.get(name) != family]
        if changed or self._silent_s >= at_least_s:
            kept = len(self._written)
            # Unknown until it is confirmed: then everything is written, and nothing is lost.
            self._written = {}
            publish = self._metrics.publish
            if not publish(self._process, self._supervisor, changed, keep=kept):
                publish(self._process, self._supervisor, now.values(), keep=0)
            self._written, self._silent_s = now, 0.0
        self._silent_s += self._every_s
        if self._process == self._supervisor:
            self._clear()

    def _read_base(self) -> dict[str, Family]:
        if self._process == self._supervisor:
            return {}
        return {
            row.family.name: row.family
            for row in self._metrics.read(self._supervisor)
            if row.process == self._process and row.family.kind != "gauge"
        }

    def _with_base(self, family: Family) -> Family:
        return family.plus((self._base or {}).get(family.name))

    def _clear(self) -> None:
        self._until_clear_s -= self._every_s
        if self._until_clear_s <= 0:
            self._until_clear_s = CLEAR_EVERY_S
            self._metrics.clear()


class Children:
    """What the children of a main process have published, added up. What was read stays: a store
    that is away, or a row that is gone, takes nothing from a counter."""

    def __init__(self, engine: Engine, process: str) -> None:
        self._metrics = ProcessMetrics(engine)
        self._process = process
        self._known: dict[tuple[str, str], Published] = {}
        self._heard_at: Instant = 0

    def look(self) -> None:
        """Read the table. Raises `StoreError`: the store does not answer."""
        rows = self._metrics.read(self._process)
        known = {(row.process, row.family.name): row for row in rows}
        self._known = {**self._known, **known}
        self._heard_at = self._metrics.now

    def read(self) -> dict[str, Family]:
        """Return the families of all children by name: counters and histograms of all that there
        were, gauges of those that were heard lately."""
        found: dict[str, Family] = {}
        for (process, name), row in self._known.items():
            is_over = row.family.kind == "gauge" and row.at < self._heard_at - FRESH_US
            if process != self._process and not is_over:
                found[name] = row.family.plus(found.get(name))
        return found
