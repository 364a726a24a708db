"""The loop: a scheduled job that reads what all processes count, and ticks the controller."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from ulak.clock import to_datetime
from ulak.control.collector import MetricsCollector
from ulak.control.config import AdaptiveControlConfig
from ulak.control.controller import AdaptiveController, install, make_controller
from ulak.control.event_counts import KEEP_MS, RAW_MS
from ulak.control.gathering import Gathering
from ulak.control.guard_state import GuardMode, GuardState
from ulak.control.overrides import INTAKE_MODES, Pinnable
from ulak.control.process_metrics import (
    USUAL_PACE,
    Pace,
    is_published,
    make_process_id,
)
from ulak.control.signals import BACKPRESSURE, PDF
from ulak.control.state import ControlState
from ulak.control.status import describe
from ulak.control.subsystems import Subsystem, registered
from ulak.core.flow import Flow
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import Limit
from ulak.core.run import Run
from ulak.engine.engine import Engine

log = logging.getLogger("ulak.control")

NAME: Final = "adaptive-control"
"""Of the flow, its queue and its schedule; stored."""
PINNED_S: Final = 60
"""The wait of refused clients while a person keeps the intake closed. A guess."""
LONGEST_TICK: Final = timedelta(seconds=30)
KEPT: Final = timedelta(days=1)
PRUNE_EVERY: Final = 100
A_BATCH: Final = 500


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
        gathering, known = Gathering(self.engine, collector), registered(self.engine)
        intakes = {each.name: each.admission for each in known.subsystems.values()}
        controller = make_controller(
            config, collector, self.switches, GuardMode(self.state.tables),
            intakes.pop(PDF, NO_INTAKE), intakes=intakes, journal=self.state,
            metrics=known.metrics, overridden=self.overrides.modes, collect=gathering.collect,
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
    """Schedule a tick for every interval of the configuration in force."""
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
