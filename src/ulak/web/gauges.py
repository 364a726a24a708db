"""How the store stands, read when somebody scrapes: bounded in time, and once for everybody."""

from __future__ import annotations

import logging
import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

import ulak
from ulak.core.delivery import GAVE_UP
from ulak.core.schedule import LATE
from ulak.engine.engine import Engine
from ulak.errors import UlakError
from ulak.store.flow_control import PAUSABLE, QUEUE
from ulak.store.protocol import DeliveryFilter
from ulak.web.labels import Labels

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
"""Every metric here: what it says, and its labels."""
COUNTERS: Final = frozenset({"ulak_rings_heard"})

OfLabels = dict[tuple[str, ...], float]
Values = dict[str, OfLabels]
"""For each metric its values, by labels."""
Brought = Sequence[Callable[[], Iterable[Metric]]]
"""What services read when somebody scrapes."""


class Gauges:
    """Answers what a store that answers says, and that it does not when it hangs.

    However many scrape at once, one look is under way, on a thread that keeps no process alive.
    """

    def __init__(self, engine: Engine, labels: Labels, brought: Brought = ()) -> None:
        self._engine = engine
        self._labels = labels
        self._brought = brought
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
            answer.set_result((self._read(), list(self._read_brought())))
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
        late = [
            row for row in store.schedules() if row.paused_at is None and row.next_at + LATE < now
        ]
        found: Values = {
            "ulak_jobs": dict(jobs),
            "ulak_workers": _alone(sum(w.expires_at > now for w in store.workers())),
            "ulak_pauses": {(kind,): sum(p.kind == kind for p in pauses) for kind in PAUSABLE},
            "ulak_queue_paused": {(queue,): float(queue in paused) for queue in labels.queues()},
            "ulak_dead_messages": _alone(len(store.deliveries(DEAD_ONES, limit=MOST_DEAD))),
            "ulak_schedules_late": _alone(len(late)),
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
