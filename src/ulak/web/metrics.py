"""Metrics for Prometheus: what an engine tells, how its store stands, what is asked over HTTP."""

from __future__ import annotations

import logging
import threading
from collections import Counter as Counted
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

import ulak
from ulak.core import event as kinds
from ulak.core.change import Change, Committed, KeyTaken, LeaseLost, Receipt, SlotTaken, Stale
from ulak.core.delivery import GAVE_UP
from ulak.core.job import NewJob
from ulak.core.schedule import LATE
from ulak.engine.engine import Engine
from ulak.engine.telemetry import Verb, run_of
from ulak.errors import UlakError
from ulak.store.flow_control import PAUSABLE, QUEUE
from ulak.store.protocol import LARGEST_BATCH, Added, Claimed, DeliveryFilter, Tick
from ulak.web.tallies import ALONE, OTHER, Counter, Gauge, Histogram, Labels, LabelValues


class Metrics:
    """Everything that one application, or one worker, shows of an engine. It listens to the engine
    from now on. `registry` is its own: two applications in one process do not notice each other,
    and a program may register collectors of its own there. Services bring what they read at each
    scrape, and what they have `counted` in this process."""

    def __init__(self, engine: Engine, brought: Brought = (), counted: Brought = ()) -> None:
        labels = Labels(engine)
        self.requests = Requests()
        self._instruments = Instruments(labels)
        self._gauges = Gauges(engine, labels, brought)
        self._counted = counted
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.close = engine.kernel.telemetry.add(self._instruments)

    def collect(self) -> Iterator[Metric]:
        """Return every metric of ulak; takes no longer than `PATIENCE_S`."""
        yield from self._instruments.families()
        yield from self.requests.families()
        for read in self._counted:
            yield from read()
        yield from self._gauges.families()

    def text(self) -> bytes:
        return generate_latest(self.registry)


REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Requests:
    """The tallies of one application. A path that no route has is `other`, as is its method."""

    def __init__(self) -> None:
        self._requests = Counter(
            "ulak_requests", "Requests, by route and class of status.",
            ("method", "route", "status"),
        )  # fmt: skip
        self._seconds = Histogram(
            "ulak_request_seconds", "How long requests took until their answer had ended.",
            REQUEST_SECONDS, ("method", "route"),
        )  # fmt: skip
        self._in_flight = Gauge("ulak_requests_in_flight", "Requests that are being answered now.")

    def families(self) -> Iterator[Metric]:
        yield self._requests.family()
        yield self._seconds.family()
        yield self._in_flight.family()

    def begun(self) -> None:
        self._in_flight.add(1)

    def ended(self, method: str, route: str, status: str, seconds: float) -> None:
        self._in_flight.add(-1)
        self._requests.add((method, route, status))
        self._seconds.observe((method, route), (seconds,))


# Of what the store does: from a flush of a fast disk to a server that is in trouble.
STORE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Of what people and stages do: from a moment to an hour.
LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
BATCHES: Final = (1, 2, 5, 10, 25, 50, 100, 250, LARGEST_BATCH)

CREATED, REPEAT, OVERLOADED = "created", "repeat", "overloaded"
RECEIPTS: Mapping[type[Receipt], str] = {
    Committed: "committed",
    Stale: "stale",
    LeaseLost: "lease-lost",
    SlotTaken: "slot-taken",
    KeyTaken: "key-taken",
}
SENT, FAILED, DEAD = "sent", "failed", "dead"
WRITTEN, OUTRUN = "written", "outrun"


class Instruments:
    """Counts what one engine tells: an `ulak.engine.telemetry.Telemetry`."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.submits = Counter(
            "ulak_submits",
            "Jobs offered by submit: stored, answered with the holder of their key, or refused.",
            ("flow", "answer"),
        )
        self.submit_seconds = Histogram(
            "ulak_submit_batch_seconds",
            "How long the store took to write new jobs that shared a commit.",
            STORE_SECONDS,
        )
        self.spawns = Counter("ulak_spawns", "Jobs submitted by stages of other jobs.", ("flow",))
        self.claims = Counter("ulak_claimed_jobs", "Jobs taken by workers here.", ("flow",))
        self.claim_seconds = Histogram(
            "ulak_claim_seconds", "How long the store took to answer a claim.", STORE_SECONDS
        )
        self.wait_seconds = Histogram(
            "ulak_wait_seconds", "From when a job was due until it was taken.", LONG_SECONDS,
            ("flow",),
        )  # fmt: skip
        self.lapses = Counter(
            "ulak_lapses", "Jobs taken over here because their worker vanished.", ("flow",)
        )
        self.commit_seconds = Histogram(
            "ulak_commit_seconds", "How long the store took to write a batch of changes.",
            STORE_SECONDS,
        )  # fmt: skip
        self.commit_changes = Histogram(
            "ulak_commit_changes", "How many changes shared a commit.", BATCHES
        )
        self.receipts = Counter(
            "ulak_receipts", "Changes by the store's answer.", ("receipt",),
            known=[(receipt,) for receipt in RECEIPTS.values()],
        )  # fmt: skip
        self.runs = Counter(
            "ulak_runs", "Runs of stages and undos, by the event they ended with.",
            ("flow", "state", "outcome"),
        )  # fmt: skip
        self.run_seconds = Histogram(
            "ulak_run_seconds", "How long runs of stages and undos took.", LONG_SECONDS,
            ("flow", "state"),
        )  # fmt: skip
        self.moves = Counter("ulak_moves", "Jobs that entered a state.", ("flow", "state", "role"))
        self.messages = Counter(
            "ulak_messages", "Outbox messages sent, failed to be tried again, or given up.",
            ("outcome",), known=[(SENT,), (FAILED,), (DEAD,)],
        )  # fmt: skip
        self.ticks = Counter(
            "ulak_schedule_ticks",
            "Dates of schedules seen to here, or by another process that was faster.",
            ("schedule", "answer"),
        )
        self.failures = Counter(
            "ulak_store_failures", "Questions that the store did not answer.", ("verb",),
            known=[(verb,) for verb in get_args(Verb)],
        )  # fmt: skip

    def families(self) -> Iterator[Metric]:
        for tally in vars(self).values():
            if isinstance(tally, Counter | Histogram):
                yield tally.family()

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        if seconds is not None:
            self.submit_seconds.observe(ALONE, (seconds,))
        flow = self._labels.flow
        self.submits.add_all(
            Counted((flow(row.flow), CREATED if created else REPEAT) for row, created, _ in added)
        )

    def refused(self, jobs: Sequence[NewJob]) -> None:
        flow = self._labels.flow
        self.submits.add_all(Counted((flow(job.row.flow), OVERLOADED) for job in jobs))

    def claimed(self, claimed: Claimed, seconds: float) -> None:
        self.claim_seconds.observe(ALONE, (seconds,))
        waited: defaultdict[str, list[float]] = defaultdict(list)
        for row, _, _ in claimed.claims:
            waited[row.flow].append(max(0, claimed.now - row.not_before) / 1e6)
            if row.lapsed:
                self.lapses.add((self._labels.flow(row.flow),))
        for flow, values in waited.items():
            labels = (self._labels.flow(flow),)
            self.claims.add(labels, len(values))
            self.wait_seconds.observe(labels, values)

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        if seconds is not None:
            self.commit_seconds.observe(ALONE, (seconds,))
            self.commit_changes.observe(ALONE, (len(changes),))
        self.receipts.add_all(Counted((RECEIPTS[type(receipt)],) for receipt in receipts))
        written = [c for c, r in zip(changes, receipts, strict=True) if type(r) is Committed]
        self._count_runs(written)
        self._count_moves(written)

    # Gathered under their own names first: what is the same for a whole batch is labelled once.

    def _count_runs(self, changes: Sequence[Change]) -> None:
        took: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        for change in changes:
            ran = run_of(change)
            if ran is not None:
                state, outcome, seconds = ran
                took[change.row.flow, state, outcome].append(seconds)
        for (flow, state, outcome), values in took.items():
            place = self._labels.place(flow, state)
            self.runs.add((*place, outcome if outcome in kinds.KINDS else OTHER), len(values))
            self.run_seconds.observe(place, values)

    def _count_moves(self, changes: Sequence[Change]) -> None:
        moved = Counted(
            (c.row.flow, c.row.state, c.row.role) for c in changes if c.moved_from is not None
        )
        for (flow, state, role), n in moved.items():
            self.moves.add((*self._labels.place(flow, state), role), n)
        spawned = Counted(job.row.flow for change in changes for job in change.spawns)
        for flow, n in spawned.items():
            self.spawns.add((self._labels.flow(flow),), n)

    def published(self, sent: int, failed: int, dead: int) -> None:
        self.messages.add_all({(SENT,): sent, (FAILED,): failed, (DEAD,): dead})

    def ticked(self, ticks: Sequence[Tick], written: Sequence[bool]) -> None:
        schedule = self._labels.schedule
        self.ticks.add_all(
            Counted(
                (schedule(tick.row.name), WRITTEN if is_ours else OUTRUN)
                for tick, is_ours in zip(ticks, written, strict=True)
            )
        )

    def failed(self, verb: Verb) -> None:
        self.failures.add((verb,))


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
