"""Metrics for Prometheus: what an engine tells, how its store stands, what is asked over HTTP."""

from __future__ import annotations

import logging
import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

import ulak
from ulak.control.instruments import Instruments
from ulak.control.process_metrics import Children
from ulak.control.request_metrics import Requests
from ulak.control.tallies import Family, Labels, LabelValues, Tally
from ulak.core.delivery import GAVE_UP
from ulak.core.schedule import LATE
from ulak.engine.engine import Engine
from ulak.errors import UlakError
from ulak.store.flow_control import PAUSABLE, QUEUE
from ulak.store.protocol import DeliveryFilter


class Metrics:
    """Everything that one application, or one worker, shows of an engine. It listens to the engine
    from now on. `registry` is its own: two applications in one process do not notice each other,
    and a program may register collectors of its own there. Services bring what they read at each
    scrape, and what they have `counted` in this process."""

    def __init__(self, engine: Engine, brought: Brought = (), counted: Brought = ()) -> None:
        self.requests = Requests()
        self._instruments = Instruments(engine)
        self._gauges = Gauges(engine, self._instruments.labels, brought)
        self._counted = counted
        self._further: list[Tally] = []
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.close = engine.kernel.telemetry.add(self._instruments)

    def add_children(self, children: Children) -> None:
        """Show from now on what the children of this process count too."""
        self._gauges.children = children

    def add(self, tallies: Iterable[Tally]) -> None:
        """Show and publish further tallies from now on."""
        self._further += tallies

    def read(self) -> list[Family]:
        """Return what this process itself counts."""
        return [tally.read() for tally in self._tallies]

    def collect(self) -> Iterator[Metric]:
        """Return every metric of ulak; takes no longer than `PATIENCE_S`."""
        # First, since it looks at the children too.
        gauges = list(self._gauges.families())
        children = self._gauges.children
        others = {} if children is None else children.read()
        for tally in self._tallies:
            yield tally.family(others.get(tally.name))
        for read in self._counted:
            yield from read()
        yield from gauges

    @property
    def _tallies(self) -> list[Tally]:
        return [*self._instruments.tallies, *self.requests.tallies, *self._further]

    def text(self) -> bytes:
        return generate_latest(self.registry)


log = logging.getLogger("ulak.metrics")

# As long as the probes of readiness wait, and far below what a scrape may take.
PATIENCE_S = 2.0
# So many dead messages are counted: the alarm is that there is one.
MOST_DEAD: Final = 100
DEAD_ONES: Final = DeliveryFilter(states=GAVE_UP)

HELP: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ulak_info": ("The release of ulak and the kind of store; always 1.", ("version", "store")),
    "ulak_store_up": ("1 when the store answered in time; when not, what follows is absent.", ()),
    "ulak_jobs": ("Jobs that stand in each state now.", ("flow", "state", "role")),
    "ulak_workers": ("Workers of every process whose lease has not lapsed.", ()),
    "ulak_pauses": ("Pauses in force.", ("kind",)),
    "ulak_queue_paused": ("1 while a queue is paused.", ("queue",)),
    "ulak_slots": ("How many runs of a stage there may be at once.", ("limit",)),
    "ulak_slots_used": ("How many runs of a stage hold a slot.", ("limit",)),
    "ulak_dead_messages": (f"Outbox messages that gave up; {MOST_DEAD} means as many or more.", ()),
    "ulak_schedules_late": ("Schedules whose date has passed and that nobody has seen to.", ()),
    "ulak_sqlite_wal_bytes": ("How much of the write-ahead log is in use, on SQLite.", ()),
    "ulak_ring_up": ("1 when the last test of the ring was heard, on PostgreSQL.", ()),
    "ulak_rings_heard": ("Rings of other processes that were heard, on PostgreSQL.", ()),
}
COUNTERS: Final = frozenset({"ulak_rings_heard"})

OfLabels = dict[LabelValues, float]
Values = dict[str, OfLabels]
Brought = Sequence[Callable[[], Iterable[Metric]]]


class Gauges:
    """Answers what a store that answers says, and that it does not when it hangs. However many
    scrape at once, one look is under way, on a thread that keeps no process alive."""

    def __init__(self, engine: Engine, labels: Labels, brought: Brought = ()) -> None:
        self._engine = engine
        self._labels = labels
        self._brought = brought
        self.children: Children | None = None
        self._lock = threading.Lock()
        self._looking: Future[tuple[Values, list[Metric]]] | None = None

    def families(self) -> Iterator[Metric]:
        """Return everything, within `PATIENCE_S`."""
        values, brought = self._found()
        for name, (help, labels) in HELP.items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            family = kind(name, help, labels=labels)
            for of, value in values.get(name, {}).items():
                family.add_metric(of, value)
            yield family
        yield from brought

    def _found(self) -> tuple[Values, list[Metric]]:
        kind = self._engine.store.features.name
        known: Values = {"ulak_info": {(ulak.__version__, kind): 1.0}, "ulak_store_up": {(): 0.0}}
        try:
            found, brought = self._look().result(PATIENCE_S)
        except TimeoutError:
            log.warning("the store has not answered a scrape in time")
            return known, []
        except (UlakError, OSError) as error:
            log.warning("the store does not answer a scrape", extra={"error": str(error)})
            return known, []
        return {**known, "ulak_store_up": {(): 1.0}, **found}, brought

    def _look(self) -> Future[tuple[Values, list[Metric]]]:
        with self._lock:
            looking = self._looking
            if looking is None or looking.done():
                self._looking = looking = Future()
                threading.Thread(
                    target=self._answer, args=(looking,), name="ulak-metrics", daemon=True
                ).start()
            return looking

    def _answer(self, answer: Future[tuple[Values, list[Metric]]]) -> None:
        try:
            found = self._read(), list(self._read_brought())
            self._look_at_children()
            answer.set_result(found)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            answer.set_exception(error)

    def _read(self) -> Values:
        store, labels = self._engine.open().store, self._labels
        now = store.clock.now()
        jobs: Counted[tuple[str, ...]] = Counted()
        for count in store.counts():
            jobs[*labels.place(count.flow, count.state), count.role] += count.jobs
        pauses = store.pauses()
        paused = {pause.name for pause in pauses if pause.kind == QUEUE}
        due = [row for row in store.schedules() if row.paused_at is None]
        found: Values = {
            "ulak_jobs": dict(jobs),
            "ulak_workers": _alone(sum(w.expires_at > now for w in store.workers())),
            "ulak_pauses": {(kind,): sum(p.kind == kind for p in pauses) for kind in PAUSABLE},
            "ulak_queue_paused": {(queue,): float(queue in paused) for queue in labels.queues()},
            "ulak_dead_messages": _alone(len(store.deliveries(DEAD_ONES, limit=MOST_DEAD))),
            "ulak_schedules_late": _alone(sum(row.next_at + LATE < now for row in due)),
            **self._slots(labels.limits()),
        }
        # What only some stores have, they have under these names.
        store_: Any = store
        if hasattr(store, "wal_size"):
            found["ulak_sqlite_wal_bytes"] = _alone(store_.wal_size())
        if hasattr(store, "ring_heard"):
            is_well, heard = store_.ring_heard()
            found["ulak_ring_up"] = {} if is_well is None else _alone(is_well)
            found["ulak_rings_heard"] = _alone(heard)
        return found

    def _read_brought(self) -> Iterator[Metric]:
        for read in self._brought:
            try:
                yield from list(read())
            except (UlakError, OSError) as error:  # of one service; the rest is still true
                log.warning("a service does not answer a scrape", extra={"error": str(error)})

    def _look_at_children(self) -> None:
        if self.children is None:
            return
        try:
            self.children.look()
        except Exception as error:  # noqa: BLE001 - what was known of them is shown; the rest is true
            log.warning("the metrics of children cannot be read", extra={"error": str(error)})

    def _slots(self, limits: Iterable[str]) -> Values:
        """Return the slots of limits that are not for each key: of those there may be many."""
        slots: OfLabels = {}
        used: OfLabels = {}
        for limit in limits:
            rows = self._engine.store.slots(limit)
            slots[limit,] = float(sum(not row.closed for row in rows))
            used[limit,] = float(sum(row.job_id is not None for row in rows))
        return {"ulak_slots": slots, "ulak_slots_used": used}


def _alone(value: float) -> OfLabels:
    return {(): float(value)}
