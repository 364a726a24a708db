"""Dwell, cooldown and oscillation: why a mode does not change too often."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ulak.control.config import AdaptiveControlConfig
from ulak.control.decision import FAR_ABOVE
from ulak.control.signals import DEPTH, MODES, ControlSignal, Outcome, SignalType

OSCILLATION_DWELLS: Final = 10
"""Transitions older than so many dwell times are forgotten."""

_RECOVERING: Final = SignalType.RESUME_ACCEPTING_JOBS
_STOPPING: Final = SignalType.STOP_ACCEPTING_JOBS


@dataclass
class HysteresisState:
    """The timers of one subsystem."""

    last_transition_ms: int = 0
    last_signal_ms: int = 0
    current_mode: str = ""
    transition_history: list[tuple[int, str, str]] = field(default_factory=list)


class Suppressed(NamedTuple):
    """A signal that was not let through, why, and how long that will last."""

    signal: ControlSignal
    outcome: Outcome
    left_ms: int


class HysteresisFilter:
    """Lets a signal through when its subsystem has stood still long enough. What it lets through
    counts as done: `take_back` undoes that for a change that could not be made."""

    def __init__(self, config: AdaptiveControlConfig) -> None:
        self.config = config
        self.states: dict[str, HysteresisState] = {}
        self.suppressed: list[Suppressed] = []
        """Of the last `apply`."""
        # A timer that runs keeps the length that it began with, whatever the configuration says.
        self._dwell_ms: dict[str, int] = {}
        self._cooldowns: dict[tuple[str, str], tuple[int, int]] = {}
        self._before: dict[str, tuple[HysteresisState, int | None]] = {}

    def state(self, subsystem_id: str) -> HysteresisState:
        return self.states.setdefault(subsystem_id, HysteresisState())

    def apply(self, signals: list[ControlSignal], now_ms: int) -> list[ControlSignal]:
        """Return the signals that may act now; `suppressed` has the others."""
        self.suppressed = []
        passed = []
        self._before = {}
        for signal in signals:
            self._forget(signal.subsystem_id, now_ms)
            held = self._find_hold(signal, now_ms)
            if held is not None:
                self.suppressed.append(held)
                continue
            passed.append(signal)
            self._take(signal, now_ms)
        return passed

    def detect_oscillation(self, subsystem_id: str) -> bool:
        """Tell whether a subsystem has changed more often than it may."""
        history = self.state(subsystem_id).transition_history
        return len(history) > self.config.oscillation_max_transitions

    def dwell_left_ms(self, subsystem_id: str, now_ms: int) -> int:
        """Return how long a subsystem must not change yet."""
        state = self.state(subsystem_id)
        if not state.last_transition_ms and not state.transition_history:
            return 0
        # A clock that was set back must neither shorten the timer nor hold it for days.
        state.last_transition_ms = min(state.last_transition_ms, now_ms)
        usual = self.config.dwell_time_seconds * 1000
        return max(0, state.last_transition_ms + self._dwell_ms.get(subsystem_id, usual) - now_ms)

    def cooldown_left_ms(
        self, subsystem_id: str, now_ms: int, kind: SignalType | None = None
    ) -> int:
        """Return how long no second signal of a type, or of the latest one, may come."""
        kinds = SignalType if kind is None else (kind,)
        left = 0
        for each in kinds:
            at, length = self._cooldowns.get((subsystem_id, each), (now_ms, 0))
            if at > now_ms:
                at = now_ms
                self._cooldowns[subsystem_id, each] = (at, length)
            left = max(left, at + length - now_ms)
        return left

    def record_transition(self, subsystem_id: str, before: str, after: str, now_ms: int) -> None:
        """Begin the dwell time of a change."""
        state = self.state(subsystem_id)
        state.last_transition_ms = now_ms
        state.current_mode = after
        state.transition_history.append((now_ms, before, after))
        most = max(self.config.oscillation_window_size, self.config.oscillation_max_transitions + 1)
        del state.transition_history[:-most]
        self._dwell_ms[subsystem_id] = self.config.dwell_time_seconds * 1000

    def restart_dwell(self, subsystem_id: str, at_ms: int) -> None:
        """Begin the dwell time at an act of a person that changed no mode of the loop, as a kill
        switch; what began later stays."""
        state = self.state(subsystem_id)
        if at_ms > state.last_transition_ms:
            state.last_transition_ms = at_ms
            self._dwell_ms[subsystem_id] = self.config.dwell_time_seconds * 1000

    def take_back(self, signal: ControlSignal) -> None:
        """Forget that a signal was let through by the last `apply`: its change was not made."""
        state, dwell_ms = self._before.pop(signal.subsystem_id, (HysteresisState(), None))
        self.states[signal.subsystem_id] = state
        self._cooldowns.pop((signal.subsystem_id, signal.signal_type), None)
        if dwell_ms is None:
            self._dwell_ms.pop(signal.subsystem_id, None)
        else:
            self._dwell_ms[signal.subsystem_id] = dwell_ms

    def document(self) -> dict[str, Any]:
        """Return every timer as JSON has it; `load` takes it back."""
        return {
            "states": {name: vars(state) for name, state in self.states.items()},
            "dwells": self._dwell_ms,
            "cooldowns": [[*key, *value] for key, value in self._cooldowns.items()],
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on with timers that another filter has left."""
        for name, values in data.get("states", {}).items():
            history = [
                (int(at), before, after) for at, before, after in values["transition_history"]
            ]
            self.states[name] = HysteresisState(**{**values, "transition_history": history})
        self._dwell_ms = {name: int(ms) for name, ms in data.get("dwells", {}).items()}
        self._cooldowns = {
            (subsystem_id, kind): (at, length)
            for subsystem_id, kind, at, length in data.get("cooldowns", [])
        }

    def _find_hold(self, signal: ControlSignal, now_ms: int) -> Suppressed | None:
        subsystem_id, kind = signal.subsystem_id, signal.signal_type
        dwell_ms = self.dwell_left_ms(subsystem_id, now_ms)
        if dwell_ms:
            return Suppressed(signal, Outcome.SUPPRESSED_DWELL, dwell_ms)
        cooldown_ms = self.cooldown_left_ms(subsystem_id, now_ms, kind)
        if cooldown_ms:
            return Suppressed(signal, Outcome.SUPPRESSED_COOLDOWN, cooldown_ms)
        is_far = signal.trigger_value > FAR_ABOVE * signal.threshold
        is_urgent = kind == _STOPPING and signal.metric_name == DEPTH and is_far
        if self.detect_oscillation(subsystem_id) and kind != _RECOVERING and not is_urgent:
            oldest = min(at for at, _, _ in self.state(subsystem_id).transition_history)
            left = oldest + self._memory_ms(subsystem_id) - now_ms
            return Suppressed(signal, Outcome.SUPPRESSED_OSCILLATION, max(0, left))
        return None

    def _take(self, signal: ControlSignal, now_ms: int) -> None:
        subsystem_id, kind = signal.subsystem_id, signal.signal_type
        state = self.state(subsystem_id)
        self._before[subsystem_id] = copy.deepcopy(state), self._dwell_ms.get(subsystem_id)
        state.last_signal_ms = now_ms
        cooldown_ms = self.config.cooldown_period_seconds * 1000
        self._cooldowns[subsystem_id, kind] = (now_ms, cooldown_ms)
        # A restored enforcement is a proposal: the mode changes when a person confirms it.
        if kind != SignalType.RESTORE_ENFORCE:
            self.record_transition(subsystem_id, *MODES[kind], now_ms)

    def _forget(self, subsystem_id: str, now_ms: int) -> None:
        state = self.state(subsystem_id)
        horizon = now_ms - self._memory_ms(subsystem_id)
        kept = [change for change in state.transition_history if change[0] > horizon]
        state.transition_history = kept

    def _memory_ms(self, subsystem_id: str) -> int:
        usual = self.config.dwell_time_seconds * 1000
        return math.ceil(OSCILLATION_DWELLS * max(usual, self._dwell_ms.get(subsystem_id, 0)))
