"""What people do to adaptive control: change its configuration, confirm a restore."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ulak.control.allowlist import AllowlistEntry
from ulak.control.config import AdaptiveControlConfig
from ulak.control.decision import Mode, first_mode
from ulak.control.hysteresis import HysteresisFilter
from ulak.control.loop import ControlLoop
from ulak.control.signals import (
    ENFORCE,
    GUARD,
    OPERATOR,
    P95,
    SHADOW,
    ControlDecisionEvent,
    Reason,
)
from ulak.control.state import LastTick, Revision, StaleRevision, Superseded
from ulak.control.subsystems import registered
from ulak.control.tallies import ALONE
from ulak.errors import BadInput, ServiceError

SILENT_INTERVALS: Final = 3
"""A loop that has not ticked for so many intervals is not running."""
TRIES: Final = 5


class InvalidConfig(ServiceError):
    """The configuration cannot be used; the one before stays."""

    code, status = "invalid-config", 422

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors), error_code="INVALID_CONFIG", errors=list(errors))


class RestoreRefused(ServiceError):
    """Enforcement cannot be restored now."""

    code, status = "restore-refused", 409


class Operations:
    """The acts of operators on one loop; each is audited in its own transaction."""

    def __init__(self, loop: ControlLoop) -> None:
        self._loop = loop
        self.state = self._state = loop.state

    def read_config(self) -> Revision:
        """Return the newest configuration."""
        return self._state.find_config() or self._state.adopt_environment(self._loop.config)

    def change_config(
        self, revision: int, changes: Mapping[str, Any], *, actor: str, reason: str
    ) -> Revision:
        """Change fields of the configuration; the next tick takes them into force.

        Raises `StaleRevision`: it was changed meanwhile; `InvalidConfig`, with every error.
        """
        now = self.read_config()
        if now.revision != revision:
            raise StaleRevision(now.revision)
        made = self._make_config(now.config, changes, actor)
        return self._state.change_config(revision, made, actor=actor, reason=reason)

    def replace_allowlist(
        self, entries: Sequence[Mapping[str, str]], *, actor: str, reason: str
    ) -> Revision:
        """Replace the allow-list; the next tick takes it into force. Raises `InvalidConfig`."""
        for _ in range(TRIES):
            now = self.read_config()
            made = self._make_config(now.config, {"targets": list(entries)}, actor)
            try:
                return self._state.change_config(now.revision, made, actor=actor, reason=reason)
            except StaleRevision:
                continue  # another field was changed meanwhile; the list is this one in any case
        raise StaleRevision(self.read_config().revision)

    def restore(self, *, actor: str, reason: str, force: bool = False) -> dict[str, Any]:
        """Confirm that the guard enforces again; return the event.

        Raises `RestoreRefused`: a switch holds the guard, it is not in shadow, its dwell time is
        not over, or the p95 has not recovered and `force` does not say to go on all the same.
        """
        loop, state = self._loop, self._state
        now_ms = state.now_ms
        loop.switches.refresh()
        mode = state.read_modes().get(GUARD, first_mode(GUARD))
        p95 = self._check_restore(mode, now_ms, force)
        event = ControlDecisionEvent(
            event_id=str(uuid.uuid4()), correlation_id=str(uuid.uuid4()),
            reason=Reason.MANUAL_OVERRIDE, previous_mode=SHADOW, new_mode=ENFORCE,
            subsystem_id=GUARD, transition_timestamp_ms=now_ms, trigger_metric=P95,
            trigger_value=p95, threshold=loop.config.p95_latency_exit_threshold, burn_rate=None,
            actor=OPERATOR,
        )  # fmt: skip
        document = event.document()
        with state.tables.writing() as connection:
            state.tables.take_turns(connection)
            try:
                state.write_change(connection, Mode(ENFORCE, OPERATOR, "", now_ms), event, {})
            except Superseded as faster:
                raise _refuse("NOT_IN_SHADOW", str(faster)) from None
            data = {"reason": reason, "force": force, "event_id": event.event_id}
            state.write_audit("restore", GUARD, now_ms, data, actor=actor, connection=connection)
        return document

    def _check_restore(self, mode: Mode, now_ms: int, force: bool) -> float | None:
        loop = self._loop
        switch = loop.switches.covers(GUARD)
        if switch is not None:
            raise _refuse("KILLSWITCH_ACTIVE", f"the kill switch {switch} holds the guard")
        if mode.mode != SHADOW:
            raise _refuse(
                "NOT_IN_SHADOW", f"the guard is in {mode.mode}; nothing is to be restored"
            )
        last = self._state.find_last_tick()
        timers = HysteresisFilter(loop.config)
        timers.load({} if last is None else last.memory.get("timers", {}))
        state = timers.state(GUARD)
        state.last_transition_ms = max(state.last_transition_ms, mode.since_ms)
        left_ms = timers.dwell_left_ms(GUARD, now_ms)
        if left_ms:
            raise _refuse(
                "DWELL_ACTIVE", f"the guard has just changed; wait {left_ms / 1000:.0f} s",
                dwell_left_ms=left_ms,
            )  # fmt: skip
        p95, bound = self._read_p95(last, now_ms), loop.config.p95_latency_exit_threshold
        if not force and (p95 is None or p95 >= bound):
            seen = "is not known" if p95 is None else f"is {p95:g} s"
            raise _refuse("NOT_RECOVERED", f"the p95 {seen}, and not below {bound:g} s; force=true")
        return p95

    def _read_p95(self, last: LastTick | None, now_ms: int) -> float | None:
        """Return the p95 of the last tick, None when it is no longer known."""
        silence_ms = SILENT_INTERVALS * self._loop.config.control_loop_interval_seconds * 1000
        if last is None or now_ms - last.at_ms > silence_ms:
            return None
        reading = last.report.get("readings", {}).get(GUARD, {})
        value = reading.get("p95_seconds")
        is_known = isinstance(value, int | float) and not reading.get("is_telemetry_insufficient")
        return float(value) if is_known else None

    def _make_config(
        self, config: AdaptiveControlConfig, changes: Mapping[str, Any], actor: str
    ) -> AdaptiveControlConfig:
        try:
            return config.changed(changes)
        except BadInput as error:
            errors = str(error).split("\n")
            registered(self._loop.engine).metrics.invalid.add(ALONE)
            now_ms = self._state.now_ms
            data = {"errors": errors}
            self._state.write_audit("config-refused", "", now_ms, data, actor=actor)
            raise InvalidConfig(errors) from None

    def summarize(self) -> dict[str, Any]:
        """Return the state and the modes, for an overview."""
        found = self.describe()
        modes = {name: each["mode"] for name, each in found["subsystems"].items()}
        kept = {name: found[name] for name in ("enabled", "state", "is_ticking", "proposals")}
        return {**kept, "modes": modes}

    def describe(self) -> dict[str, Any]:
        """Return how it stands with the loop."""
        now_ms, found = self._state.now_ms, self.read_config()
        last = self._state.find_last_tick()
        config = found.config
        silence_ms = SILENT_INTERVALS * config.control_loop_interval_seconds * 1000
        report: Mapping[str, Any] = {} if last is None else last.report
        return {
            "enabled": config.enabled,
            "state": "not-started" if last is None else last.state,
            "is_ticking": last is not None and now_ms - last.at_ms <= silence_ms,
            "last_tick": None if last is None else {"at_ms": last.at_ms, "process": last.process},
            "failsafe": {
                "reason": report.get("failure", ""), "since_ms": report.get("failed_at_ms"),
            },
            "revision": found.revision,
            "warnings": config.warnings(),
            "thresholds": {
                name: getattr(config, name)
                for name in (
                    "p95_latency_enter_threshold", "p95_latency_exit_threshold",
                    "queue_depth_enter_threshold", "queue_depth_exit_threshold",
                )
            },
            "modes": {name: asdict(mode) for name, mode in self._state.read_modes().items()},
            "overrides": self._loop.overrides.modes(now_ms),
            **{
                name: report.get(name, {})
                for name in (
                    "subsystems", "readings", "sufficiency", "budgets", "proposals", "holds",
                    "drift", "outcomes",
                )
            },
        }  # fmt: skip


def list_entries(targets: Sequence[AllowlistEntry]) -> list[dict[str, str]]:
    """Return the entries of an allow-list as JSON has them."""
    return [asdict(entry) for entry in targets]


def _refuse(error_code: str, message: str, **members: Any) -> RestoreRefused:
    return RestoreRefused(message, error_code=error_code, **members)
