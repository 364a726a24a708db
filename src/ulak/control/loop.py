"""The loop: a scheduled job that reads what all processes count, and ticks the controller."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from ulak.clock import to_datetime
from ulak.control.budget import BUDGET_METRICS, ErrorBudgetCalculator, ErrorBudgetConfig
from ulak.control.collector import MetricsCollector
from ulak.control.config import AdaptiveControlConfig
from ulak.control.controller import COMPLETIONS, WINDOW_MS, AdaptiveController, install
from ulak.control.decision import DecisionEngine
from ulak.control.event_counts import KEEP_MS, RAW_MS
from ulak.control.guard_state import GuardMode, GuardState
from ulak.control.hysteresis import HysteresisFilter
from ulak.control.overrides import INTAKE_MODES, Pinnable
from ulak.control.process_metrics import (
    USUAL_PACE,
    Pace,
    ProcessMetrics,
    Published,
    is_published,
    make_process_id,
)
from ulak.control.quantile import histogram_quantile
from ulak.control.rate import snapshot_family
from ulak.control.samples import MetricSample, SloEvaluator
from ulak.control.signals import BACKPRESSURE, DEPTH, GUARD, PDF
from ulak.control.state import ControlState, SourceRow
from ulak.control.status import describe
from ulak.control.subsystems import Subsystem, registered
from ulak.control.sufficiency import (
    SufficiencyConfig,
    TelemetrySufficiencyChecker,
    required_samples,
)
from ulak.control.tallies import ALONE, Family
from ulak.core.flow import Flow
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import Limit
from ulak.core.run import Run
from ulak.engine.engine import Engine
from ulak.errors import UlakError

log = logging.getLogger("ulak.control")

NAME: Final = "adaptive-control"
"""Of the flow, its queue and its schedule; stored."""
PINNED_S: Final = 60
"""What refused clients are told while a person keeps the intake closed. A guess."""
LONGEST_TICK: Final = timedelta(seconds=30)
KEPT: Final = timedelta(days=1)
PRUNE_EVERY: Final = 100
A_BATCH: Final = 500

REQUESTS: Final = "ulak_requests"
REQUEST_SECONDS: Final = "http_request_duration_seconds"
"""What every process that serves requests publishes."""
EVALUATED, BLOCKS, UNMADE = (
    "ulak_guard_evaluated", "ulak_guard_blocks", "ulak_guard_snapshot_failures",
)  # fmt: skip
EVENT_COUNTERS: Final = (REQUESTS, EVALUATED, BLOCKS, UNMADE)
GUARD_METRICS: Final = ("5xx_rate", "block_rate", "snapshot_failure_rate")
FAILED_STATUSES: Final = frozenset({"5xx", "0xx"})


class Gathering:
    """Brings what all processes have counted to a collector, once for each tick."""

    def __init__(self, engine: Engine, collector: MetricsCollector) -> None:
        self._collector = collector
        self._processes = ProcessMetrics(engine)
        self._subsystems = registered(engine).subsystems
        self._seen: dict[str, list[int]] = {}
        """What each counter stood at in the last tick, by its source, process and metric."""
        self._is_first = True
        self._buckets: dict[str, tuple[float, ...]] = {}
        self.rows: list[SourceRow] = []
        """What the last tick has brought, to be stored."""

    def load(self, seen: Mapping[str, list[int]]) -> None:
        """Go on with the counters that the tick before has left, in whatever process."""
        if seen:
            self._seen, self._is_first = {name: list(n) for name, n in seen.items()}, False

    @property
    def seen(self) -> Mapping[str, list[int]]:
        return self._seen

    def replay(self, rows: Iterable[SourceRow]) -> None:
        """Take in what ticks of other processes have stored."""
        for row in rows:
            self._take(row)

    def collect(self, now_ms: int) -> None:
        """Read every source. One that does not answer is not heard, and stale soon."""
        self.rows = []
        present: set[str] = set()
        published = self._processes.read_families((REQUEST_SECONDS, *EVENT_COUNTERS))
        self._collect_guard(published, now_ms, present)
        for each in list(self._subsystems.values()):
            self._collector.register(each.name)
            try:
                self._collect_subsystem(each, published, now_ms, present)
            except (UlakError, OSError) as error:
                facts = {"source": each.name, "error": str(error)}
                log.warning("a source of adaptive control does not answer", extra=facts)
                present |= {key for key in self._seen if key.startswith(f"{each.name}/")}
        # A process that has ended comes back under another name.
        self._seen = {key: numbers for key, numbers in self._seen.items() if key in present}
        self._is_first = False
        for row in self.rows:
            self._take(row)

    def _collect_guard(
        self, published: Iterable[Published], now_ms: int, present: set[str]
    ) -> None:
        serving = {row.process for row in published if row.family.name == REQUEST_SECONDS}
        if not serving:
            return
        counts = dict.fromkeys(GUARD_METRICS, (0, 0))
        histograms: dict[str, list[Any]] = {}
        at_ms = 0
        for row in published:
            if row.process not in serving:
                continue
            key = f"{GUARD}/{row.process}/{row.family.name}"
            if row.family.name == REQUEST_SECONDS:
                heard_ms = min(now_ms, row.at // 1000)
                at_ms = max(at_ms, heard_ms)
                if now_ms - heard_ms <= WINDOW_MS:
                    histograms[row.process] = _histogram(row.family, heard_ms)
                continue
            for metric, numbers in _count_events(row.family).items():
                gained = self._gain(f"{key}/{metric}", numbers, present)
                counts[metric] = _add(counts[metric], gained)
        bad, total = counts["5xx_rate"]
        sample = [at_ms, total, total - bad, self._find_p99(GUARD, histograms)]
        data = {"sample": sample, "counts": counts, "histograms": histograms}
        self.rows.append(SourceRow(now_ms, GUARD, data))

    def _collect_subsystem(
        self, each: Subsystem, published: Iterable[Published], now_ms: int, present: set[str]
    ) -> None:
        depth = each.depth()
        data: dict[str, Any] = {"gauges": {DEPTH: depth.due, COMPLETIONS: depth.ended_per_second}}
        sample: list[Any] = [now_ms, 0, 0, 0.0]
        counts: dict[str, tuple[int, int]] = {}
        if each.telemetry is not None:
            found = each.telemetry()
            numbers = (found.failed, found.finished)
            # A failed job that a person retries is a failure no more: these may fall.
            key = f"{each.name}/store/jobs"
            bad, total = self._gain(key, numbers, present, is_monotonic=False)
            counts["failed_jobs_rate"] = bad, total
            data["histograms"] = {"store": _histogram(found.histogram, now_ms)}
            p99 = self._find_p99(each.name, data["histograms"])
            sample = [now_ms, total, total - bad, p99]
        for row in published:
            if each.creates and row.family.name == REQUESTS:
                made = _count_requests(row.family, each.creates)
                gained = self._gain(f"{each.name}/{row.process}/creates", made, present)
                before = counts.get("queue_unavailable_rate", (0, 0))
                counts["queue_unavailable_rate"] = _add(before, gained)
        data |= {"sample": sample, "counts": counts}
        self.rows.append(SourceRow(now_ms, each.name, data))

    def _gain(
        self, key: str, numbers: tuple[int, int], present: set[str], *, is_monotonic: bool = True
    ) -> tuple[int, int]:
        """Return by how much two counters rose since the last tick. A monotonic one that fell has
        begun anew; what had been counted before the very first tick does not count."""
        present.add(key)
        before = self._seen.get(key)
        self._seen[key] = list(numbers)
        if before is None:
            return (0, 0) if self._is_first else numbers
        if is_monotonic and any(now < was for now, was in zip(numbers, before, strict=True)):
            return numbers
        return max(0, numbers[0] - before[0]), max(0, numbers[1] - before[1])

    def _find_p99(self, source_id: str, histograms: Mapping[str, list[Any]]) -> float:
        """Return the 99th percentile of what was observed since the last tick, 0 of nothing."""
        sums: dict[float, float] = {}
        for process, (_, bounds, cumulative) in histograms.items():
            key = f"{source_id}/{process}"
            before = self._buckets.get(key, ())
            is_same = len(before) == len(cumulative) and before[-1] <= cumulative[-1]
            start = before if is_same else [0.0] * len(cumulative)
            self._buckets[key] = tuple(cumulative)
            for edge, count, was in zip((*bounds, math.inf), cumulative, start, strict=True):
                sums[edge] = sums.get(edge, 0.0) + count - was
        found = histogram_quantile(0.99, sums.items()).value
        return 0.0 if math.isnan(found) else found

    def _take(self, row: SourceRow) -> None:
        """Hand a row to the collector; what it has heard already is not said twice."""
        collector, data = self._collector, row.data
        for metric, (bad, total) in data.get("counts", {}).items():
            if total:
                collector.count(metric, row.at_ms, bad, total)
        at_ms, total, successful, p99 = data["sample"]
        last = {h.source_id: h.last_sample_ms for h in collector.check_health(row.at_ms)}
        if at_ms != last.get(row.source_id):
            collector.ingest(row.source_id, MetricSample(at_ms, total, successful, p99))
        for process, (heard_ms, bounds, cumulative) in data.get("histograms", {}).items():
            collector.ingest_histogram(
                row.source_id, process, heard_ms, (*bounds, math.inf), {ALONE: tuple(cumulative)}
            )
        for name, value in data.get("gauges", {}).items():
            collector.ingest_gauge(row.source_id, name, row.at_ms, value)


def _histogram(family: Family, at_ms: int) -> list[Any]:
    """Return a histogram with all its labels added up: its time, edges and cumulative counts."""
    nothing = (0.0,) * (len(family.bounds) + 1)
    series = [nothing, *snapshot_family(family, at_ms).series.values()]
    return [at_ms, family.bounds, [sum(counts) for counts in zip(*series, strict=True)]]


def _count_requests(family: Family, routes: Iterable[tuple[str, str]] | None) -> tuple[int, int]:
    """Return how many requests failed, and all, of some routes or of every one."""
    bad = total = 0.0
    places = [family.labels.index(name) for name in ("method", "route", "status")]
    for labels, (value,) in family.series.items():
        method, route, status = (labels[place] for place in places)
        if routes is None or (method, route) in routes:
            total += value
            bad += value if status in FAILED_STATUSES else 0.0
    return int(bad), int(total)


def _count_events(family: Family) -> dict[str, tuple[int, int]]:
    """Return bad and all events of the guard's budget metrics that a counter tells of."""
    if family.name == REQUESTS:
        return {"5xx_rate": _count_requests(family, None)}
    n = int(sum(value for (value,) in family.series.values()))
    return {
        EVALUATED: {"block_rate": (0, n), "snapshot_failure_rate": (0, n)},
        BLOCKS: {"block_rate": (n, 0)},
        UNMADE: {"snapshot_failure_rate": (n, n)},
    }[family.name]


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


class ControlLoop:
    """Adaptive control of one engine in one process: its configuration, and its ticks."""

    def __init__(self, engine: Engine, config: AdaptiveControlConfig, guard: GuardState) -> None:
        self.engine = engine
        self.state = ControlState(engine)
        self.switches = guard.switches
        self.overrides = guard.overrides
        self.config = config
        self.revision = 0
        self.process = make_process_id()
        self.is_attached = False
        """Whether workers of this process tick."""
        self._environment = config
        self._made: tuple[AdaptiveController, Gathering] | None = None
        self._prepared_for: AdaptiveControlConfig | None = None
        """What the parts were made with; None: they are to be made anew."""
        self._loaded_ms = 0
        self._ticks = 0

    @property
    def interval(self) -> timedelta:
        return timedelta(seconds=self.config.control_loop_interval_seconds)

    def refresh(self) -> None:
        """Take over the newest configuration. Raises `StoreError`: the last known one stays."""
        found = self.state.find_config() if self.revision else None
        if found is None:
            found = self.state.adopt_environment(self._environment)
        if found.revision != self.revision:
            before = self.interval
            self.config, self.revision = found.config, found.revision
            if self.interval != before and self.is_attached:
                declare(self.engine, self)

    def tick(self, scheduled_for: datetime, token: int) -> str:
        """Tick once, unless a later tick has begun; return the state. Raises `StoreError`."""
        state = self.state
        scheduled_ms, now_ms = int(scheduled_for.timestamp() * 1000), state.now_ms
        # By its date, so that a tick which is a little late neither shortens nor lengthens a timer.
        if 0 <= now_ms - scheduled_ms < self.interval.total_seconds() * 1000:
            now_ms = scheduled_ms
        fence = scheduled_ms * 1000 + token
        if not state.begin_tick(fence, self.process, now_ms):
            return "superseded"
        self.refresh()
        self.switches.refresh()
        self.overrides.refresh()
        self.overrides.release_expired(now_ms)
        controller, gathering = self._prepare(now_ms)
        # What was counted and cannot be stored is counted again: only a tick that ended is known.
        self._prepared_for = None
        controller.tick(now_ms)
        memory = {**controller.memory(), "counters": gathering.seen}
        report = {**controller.report.document(), **describe(controller, now_ms)}
        state.end_tick(
            state=controller.state.value, memory=memory, report=report, rows=gathering.rows
        )
        self._loaded_ms, self._prepared_for = now_ms, controller.config
        if self._ticks % PRUNE_EVERY == 0:
            self._clean_up(now_ms)
        self._ticks += 1
        return controller.state.value

    def _prepare(self, now_ms: int) -> tuple[AdaptiveController, Gathering]:
        """Return the controller as the last tick has left it, in whatever process that ran."""
        last, config = self.state.find_last_tick(), self.config
        # What others have stored meanwhile may be in buckets by now, or before that time by a clock
        # that was set back.
        is_lost = not 0 <= now_ms - self._loaded_ms <= RAW_MS
        if is_lost:
            self.state.fold(now_ms, keep_ms=find_keep_ms(config))
        if self._made is None or config != self._prepared_for or is_lost:
            self._made = self._make(config)
            for bucket in self.state.read_buckets():
                self._made[0].collector.fold_in(*bucket)
            self._loaded_ms = 0
            install(self._made[0])
        controller, gathering = self._made
        controller.reload()
        gathering.load({} if last is None else last.memory.get("counters", {}))
        gathering.replay(self.state.read_samples(self._loaded_ms, now_ms))
        return controller, gathering

    def _make(self, config: AdaptiveControlConfig) -> tuple[AdaptiveController, Gathering]:
        interval_ms = config.control_loop_interval_seconds * 1000
        collector = MetricsCollector(interval_ms, keep_ms=find_keep_ms(config))
        gathering = Gathering(self.engine, collector)
        needed = required_samples(WINDOW_MS, interval_ms, config.min_sample_ratio)
        targets = {GUARD: config.guard_slo_target, PDF: config.pdf_slo_target}
        budgets = [
            ErrorBudgetConfig(
                metric, config.error_budget_window_seconds, targets[subsystem_id],
                config.burn_rate_threshold,
            )
            for metric, subsystem_id in BUDGET_METRICS.items()
        ]  # fmt: skip
        intakes = {s.name: s.admission for s in registered(self.engine).subsystems.values()}
        controller = AdaptiveController(
            config, collector, SloEvaluator(), ErrorBudgetCalculator(budgets),
            DecisionEngine(self.switches, config), HysteresisFilter(config),
            TelemetrySufficiencyChecker(
                SufficiencyConfig(needed, config.min_bucket_coverage_pct, check_source_stale=True)
            ),
            GuardMode(self.state.tables), intakes.pop(PDF, NO_INTAKE), intakes=intakes,
            journal=self.state, metrics=registered(self.engine).metrics,
            overridden=self.overrides.modes, collect=gathering.collect,
        )  # fmt: skip
        return controller, gathering

    def _clean_up(self, now_ms: int) -> None:
        self.state.fold(now_ms, keep_ms=find_keep_ms(self.config))
        before = to_datetime(now_ms * 1000) - KEPT
        for ended in ("done", "expired", "failed"):
            self.engine.retention.prune(ended_before=before, of=(NAME, ended), limit=A_BATCH)


def find_keep_ms(config: AdaptiveControlConfig) -> int:
    """Return how long events are counted: 30 days, or as long as the budgets ask for."""
    return max(KEEP_MS, config.error_budget_window_seconds * 1000)


class NoIntake:
    """The intake of a service that is not installed."""

    def set_backpressure(
        self, active: bool, retry_after_seconds: int, *, connection: Any = None
    ) -> None:
        """There is nothing to stop."""


NO_INTAKE: Final = NoIntake()


def find_loop(
    engine: Engine, config: AdaptiveControlConfig, guard: GuardState | None
) -> ControlLoop | None:
    """Return the loop of an engine in this process; None where its store has no place for it."""
    known = registered(engine)
    if known.loop is None and guard is not None and is_published(engine):
        known.loop = ControlLoop(engine, config, guard)
        for each in known.subsystems.values():
            pinnable = Pinnable(INTAKE_MODES, partial(_pin, each))
            guard.overrides.subsystems.setdefault(each.name, pinnable)
    return known.loop


def attach(
    engine: Engine, config: AdaptiveControlConfig, guard: GuardState | None
) -> ControlLoop | None:
    """Have the workers of an engine run the loop; None where the store has no place for it, or
    where nothing could be controlled: no service has registered, and the guard is off.

    `ulak up` and `ulak worker` do so for the program that they load; a program that runs workers
    itself calls it before it opens the engine. Twice is nothing.
    """
    loop = find_loop(engine, config, guard)
    if loop is None or guard is None or loop.is_attached:
        return loop
    if not registered(engine).subsystems and not guard.config.decision_layer_enabled:
        return None
    loop.is_attached = True

    def tick(run: Run[None]) -> str:
        return loop.tick(run.scheduled_for or run.now, run.token)

    flow: Flow[Any] = Flow(NAME, Lifecycle("due", {"due": ["done"]}), retry=0, queue=NAME)
    flow.stage("due", limit=Limit(1), timeout=LONGEST_TICK)(tick)
    engine.add(flow)

    @engine.resource(ControlLoop, queue=NAME, places=1)
    @asynccontextmanager
    async def open_loop() -> AsyncIterator[ControlLoop]:
        yield loop

    declare(engine, loop)
    return loop


def _pin(pinned: Subsystem, mode: str, connection: Any) -> None:
    """Bring the mode that a person has pinned into force."""
    pinned.admission.set_backpressure(mode == BACKPRESSURE, PINNED_S, connection=connection)


def declare(engine: Engine, loop: ControlLoop) -> None:
    """Have a tick in every interval, as the configuration in force says."""
    engine.kernel.schedules.pop(NAME, None)
    flow = next(flow for flow in engine.inspect.flows if flow.name == NAME)
    engine.schedules.add(
        NAME, flow, None, every=loop.interval, catch_up="none", expires=loop.interval
    )


def find_pace(engine: Engine) -> Pace:
    """Return how often a process publishes: three times in an interval. The newest configuration
    is in force from then on. Raises `StoreError`."""
    loop = registered(engine).loop
    if loop is None or not loop.is_attached:
        return USUAL_PACE
    loop.refresh()
    third_s = loop.config.control_loop_interval_seconds / 3
    return Pace(min(USUAL_PACE.every_s, third_s), min(USUAL_PACE.at_least_s, third_s))
