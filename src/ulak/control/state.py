"""What adaptive control remembers, in tables of its own beside the engine's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final, NamedTuple

from ulak.control.config import AdaptiveControlConfig, read_document
from ulak.control.decision import Mode, first_mode
from ulak.control.event_counts import BUCKET_MS, KEEP_MS, RAW_MS, bucket_start
from ulak.control.signals import LOOP, ControlDecisionEvent
from ulak.engine.engine import Engine
from ulak.errors import ServiceError, UlakError
from ulak.tables import Row, Schema, Tables

SCHEMA: Final = Schema(
    "adaptive control",
    folder=files("ulak.control") / "state_sql",
    version_table="adaptive_control_schema",
    why="a mode and its event are one transaction",
)

DAY_MS: Final = 24 * 3600 * 1000
ENVIRONMENT: Final = "environment"
"""The actor of a configuration that a start has read from variables."""


class Superseded(UlakError):
    """Another tick has begun, a person was faster, or a switch holds the subsystem: nothing was
    changed."""

    code = "superseded"


class StaleRevision(ServiceError):
    """The configuration has another revision by now."""

    code, status = "stale-revision", 409

    def __init__(self, revision: int) -> None:
        super().__init__(
            f"the configuration is at revision {revision}; read it and change that one",
            error_code="STALE_REVISION", revision=revision,
        )  # fmt: skip


class Revision(NamedTuple):
    """A configuration with its number."""

    revision: int
    config: AdaptiveControlConfig
    actor: str
    reason: str
    at_ms: int


class LastTick(NamedTuple):
    """The last tick that any process has run."""

    process: str
    at_ms: int
    state: str
    memory: Mapping[str, Any]
    report: Mapping[str, Any]


class SourceRow(NamedTuple):
    """What one tick has read of a source."""

    at_ms: int
    source_id: str
    data: Mapping[str, Any]


class ControlState:
    """The tables of adaptive control in an engine's store. Raises `NotSupported`: it has none."""

    def __init__(self, engine: Engine) -> None:
        self.tables = Tables(engine, SCHEMA)
        self._fence: int | None = None

    @property
    def now_ms(self) -> int:
        """The store's time."""
        return self.tables.now // 1000

    # --- the journal of the controller ------------------------------------------------

    def load(self) -> tuple[dict[str, Mode], dict[str, Any]]:
        """Return the modes, and the memory that the last tick has left."""
        last = self.find_last_tick()
        return self.read_modes(), {} if last is None else dict(last.memory)

    def begin_tick(self, fence: int, process: str, now_ms: int) -> bool:
        """Make this the tick that may write; False when a later one has begun."""
        with self.tables.writing(quiet=True) as connection:
            row = fence, process, now_ms
            if not self._run(connection, _TAKE_FENCE, *row, fence):
                self._run(connection, _FIRST_TICK, *row)
                if not self._run(connection, _HAS_FENCE, fence):
                    return False
        self._fence = fence
        return True

    def end_tick(
        self, *, state: str, memory: Mapping[str, Any], report: Mapping[str, Any],
        rows: Iterable[SourceRow],
    ) -> None:  # fmt: skip
        """Keep what a tick has seen, in one transaction. Raises `Superseded`."""
        with self.changing() as connection:
            texts = json.dumps(memory), json.dumps(report)
            self._run(connection, _END_TICK, state, *texts, self._fence)
            for row in rows:
                data = json.dumps(row.data, separators=(",", ":"))
                self._run(connection, _ADD_SAMPLE, row.at_ms, row.source_id, data)
            self._audit(connection, "tick", "", LOOP, report["at_ms"], report)

    @contextmanager
    def changing(self) -> Iterator[Any]:
        """Open a transaction of the tick that may write. Raises `Superseded`: it is over."""
        with self.tables.writing(quiet=True) as connection:
            self.tables.take_turns(connection)
            if self._fence is not None and not self._run(connection, _KEEP_FENCE, self._fence):
                raise Superseded("another process runs the loop by now; nothing was changed")
            yield connection

    def write_change(
        self, connection: Any, mode: Mode, event: ControlDecisionEvent, memory: Mapping[str, Any]
    ) -> None:
        """Write a mode and its event. Raises `Superseded`: a person or a switch was faster."""
        subsystem_id = event.subsystem_id
        if event.actor == LOOP:
            held = self._run(
                connection, _HOLDS, subsystem_id, subsystem_id, event.transition_timestamp_ms
            )
            if held:
                raise Superseded(f"{held[0][0]} holds {subsystem_id}; nothing was changed")
        before = self._run(connection, _MODE, subsystem_id)
        if before and before[0][0] != event.previous_mode:
            raise Superseded(f"{subsystem_id} is in {before[0][0]} by now; nothing was changed")
        self._run(
            connection, _WRITE_MODE, subsystem_id, mode.mode, mode.set_by, mode.trigger_metric,
            json.dumps(mode.targets), mode.since_ms,
        )  # fmt: skip
        self._run(
            connection, _ADD_EVENT, event.event_id, subsystem_id, event.reason, event.actor,
            event.transition_timestamp_ms, json.dumps(event.document()),
        )  # fmt: skip
        if self._fence is not None and event.actor == LOOP:
            last = self._run(connection, _LAST_MEMORY)[0][0]
            kept = {**json.loads(last), **memory}
            self._run(connection, _WRITE_MEMORY, json.dumps(kept))

    def write_audit(
        self, kind: str, subject: str, at_ms: int, data: Mapping[str, Any], *,
        actor: str = LOOP, connection: Any = None,
    ) -> None:  # fmt: skip
        """Write what an operator may want to know later."""
        if connection is not None:
            self._audit(connection, kind, subject, actor, at_ms, data)
            return
        with self.tables.writing(quiet=True) as own:
            self._audit(own, kind, subject, actor, at_ms, data)

    def read_modes(self) -> dict[str, Mode]:
        """Return the mode of every subsystem that was ever changed, and when anybody changed it
        last: an override leaves an event and not a mode."""
        with self.tables.reading() as connection:
            rows = self._run(connection, _MODES)
            touched = {name: int(at_ms) for name, at_ms in self._run(connection, _LAST_EVENTS)}
        found = {
            name: Mode(
                mode, set_by, metric, max(since_ms, touched.get(name, 0)),
                tuple((tenant, risk) for tenant, risk in json.loads(targets)),
            )
            for name, mode, set_by, metric, targets, since_ms in rows
        }  # fmt: skip
        others = touched.keys() - found.keys()
        return found | {n: replace(first_mode(n), since_ms=touched[n]) for n in others}

    def find_last_tick(self) -> LastTick | None:
        """Return the last tick; None before the first."""
        rows = self.tables.read(_LAST_TICK)
        if not rows:
            return None
        process, at_ms, state, memory, report = rows[0]
        return LastTick(process, at_ms, state, json.loads(memory), json.loads(report))

    # --- samples ----------------------------------------------------------------------

    def read_samples(self, after_ms: int, until_ms: int) -> list[SourceRow]:
        """Return what ticks have read between two times, in order: after the first one."""
        rows = self.tables.read(_SAMPLES, after_ms, until_ms)
        return [SourceRow(at_ms, source_id, json.loads(data)) for at_ms, source_id, data in rows]

    def read_buckets(self) -> list[tuple[str, int, int, int]]:
        """Return the metric, begin, bad and all events of every bucket."""
        rows = self.tables.read(_BUCKETS)
        return [(metric, start_ms, bad, total) for metric, start_ms, bad, total in rows]

    def fold(self, now_ms: int, *, keep_ms: int = KEEP_MS) -> None:
        """Put samples that are older than six hours into buckets, and forget what is older than
        `keep_ms`, or in the audit of ticks older than a day. By a clock that was set back samples
        are in the future: of those only the events count, when their time comes."""
        edge = bucket_start(now_ms - RAW_MS)
        with self.tables.writing(quiet=True) as connection:
            self.tables.take_turns(connection)
            sums: dict[tuple[str, int], tuple[int, int]] = {}
            for at_ms, data in self._run(connection, _OLD_SAMPLES, edge, now_ms):
                for metric, (bad, total) in json.loads(data).get("counts", {}).items():
                    key = metric, bucket_start(at_ms)
                    before = sums.get(key, (0, 0))
                    sums[key] = before[0] + bad, before[1] + total
            for (metric, start_ms), (bad, total) in sums.items():
                self._run(connection, _ADD_BUCKET, metric, start_ms, bad, total)
            self._run(connection, _DROP_SAMPLES, edge, now_ms)
            self._run(connection, _DROP_BUCKETS, now_ms - keep_ms - BUCKET_MS)
            self._run(connection, _DROP_TICKS, now_ms - DAY_MS)

    # --- configuration ----------------------------------------------------------------

    def adopt_environment(self, config: AdaptiveControlConfig) -> Revision:
        """Return the newest revision; variables that were changed since make one."""
        newest = self._find_newest()
        document = config.document()
        if newest is None or newest[1].get("environment") != document:
            number = 1 if newest is None else newest[0].revision + 1
            reason = "the variables of a start"
            row = self._make_row(number, config, document, ENVIRONMENT, reason, self.now_ms)
            with self.tables.writing(quiet=True) as connection:
                if self._run(connection, _ADD_CONFIG, *row):
                    old = {} if newest is None else newest[0].config.document()
                    self._audit_config(connection, old, document, ENVIRONMENT, reason, number)
        found = self._find_newest()
        if found is None:
            raise Superseded("the configuration was removed while it was read")
        return found[0]

    def find_config(self) -> Revision | None:
        """Return the newest revision; None before the first start."""
        newest = self._find_newest()
        return None if newest is None else newest[0]

    def change_config(
        self, revision: int, config: AdaptiveControlConfig, *, actor: str, reason: str
    ) -> Revision:
        """Make the revision after `revision`; the next tick takes it into force. The same
        configuration again changes nothing but the audit. Raises `StaleRevision`: another one was
        faster."""
        newest = self._find_newest()
        if newest is None or newest[0].revision != revision:
            raise StaleRevision(0 if newest is None else newest[0].revision)
        old, new = newest[0].config.document(), config.document()
        now_ms = self.now_ms
        if old == new:
            data = {"reason": reason, "revision": revision}
            self.write_audit("config-repeated", "", now_ms, data, actor=actor)
            return newest[0]
        row = self._make_row(
            revision + 1, config, newest[1].get("environment"), actor, reason, now_ms
        )
        with self.tables.writing() as connection:
            if not self._run(connection, _ADD_CONFIG, *row):
                raise StaleRevision(revision + 1)
            self._audit_config(connection, old, new, actor, reason, revision + 1)
        return Revision(revision + 1, config, actor, reason, now_ms)

    def _find_newest(self) -> tuple[Revision, Mapping[str, Any]] | None:
        rows = self.tables.read(_CONFIG)
        if not rows:
            return None
        revision, text, actor, reason, at_ms = rows[0]
        data = json.loads(text)
        found = Revision(revision, read_document(data["config"]), actor, reason, at_ms)
        return found, data

    def _make_row(
        self, revision: int, config: AdaptiveControlConfig, environment: Any, actor: str,
        reason: str, at_ms: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        data = json.dumps({"config": config.document(), "environment": environment})
        return revision, data, actor, reason, at_ms

    def _audit_config(
        self, connection: Any, old: Mapping[str, Any], new: Mapping[str, Any], actor: str,
        reason: str, revision: int,
    ) -> None:  # fmt: skip
        """Write a line for each field that has changed."""
        for name, value in new.items():
            if old.get(name) != value:
                kind = "allow-list" if name == "targets" else "config"
                data = {"old": old.get(name), "new": value, "reason": reason, "revision": revision}
                self._audit(connection, kind, name, actor, self.now_ms, data)

    # --- what operators read ----------------------------------------------------------

    def find_events(
        self, *, before: int | None = None, subsystem_id: str | None = None, limit: int = 100
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return decision events with their numbers, newest first."""
        rows = self.tables.read(
            _EVENTS,
            LAST if before is None else before,
            subsystem_id or "",
            subsystem_id or "",
            limit,
        )
        return [(number, json.loads(data)) for number, data in rows]

    def find_audit(
        self, *, before: int | None = None, kind: str | None = None, limit: int = 100
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return lines of the audit with their numbers, newest first."""
        last, wanted = LAST if before is None else before, kind or ""
        names = ("kind", "subject", "actor", "at_ms")
        return [
            (number, {**dict(zip(names, columns, strict=True)), **json.loads(data)})
            for number, *columns, data in self.tables.read(_AUDIT, last, wanted, wanted, limit)
        ]

    def _audit(
        self, connection: Any, kind: str, subject: str, actor: str, at_ms: int,
        data: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._run(connection, _ADD_AUDIT, kind, subject, actor, at_ms, json.dumps(data))

    def _run(self, connection: Any, statement: str, *values: Any) -> list[Row]:
        return self.tables.execute(connection, statement, *values)


LAST: Final = 2**62

_TAKE_FENCE: Final = """
    UPDATE {schema}.control_loop SET fence = ?, process = ?, ticked_ms = ?
    WHERE id = 1 AND fence < ? RETURNING fence
"""
_FIRST_TICK: Final = """
    INSERT INTO {schema}.control_loop (id, fence, process, ticked_ms, state, memory, report)
    VALUES (1, ?, ?, ?, 'running', '{{}}', '{{}}') ON CONFLICT (id) DO NOTHING
"""
_HAS_FENCE: Final = "SELECT 1 FROM {schema}.control_loop WHERE id = 1 AND fence = ?"
_KEEP_FENCE: Final = (
    "UPDATE {schema}.control_loop SET fence = fence WHERE id = 1 AND fence = ? RETURNING fence"
)
_END_TICK: Final = (
    "UPDATE {schema}.control_loop SET state = ?, memory = ?, report = ? WHERE id = 1 AND fence = ?"
)
_LAST_TICK: Final = (
    "SELECT process, ticked_ms, state, memory, report FROM {schema}.control_loop WHERE id = 1"
)
_LAST_MEMORY: Final = "SELECT memory FROM {schema}.control_loop WHERE id = 1"
_WRITE_MEMORY: Final = "UPDATE {schema}.control_loop SET memory = ? WHERE id = 1"
_HOLDS: Final = """
    SELECT 'kill switch ' || name FROM {schema}.control_switches
    WHERE enabled = 1 AND name IN ('global', ?)
    UNION ALL
    SELECT 'manual override' FROM {schema}.control_overrides
    WHERE subsystem_id = ? AND (expires_ms IS NULL OR expires_ms > ?)
"""
_MODE: Final = "SELECT mode FROM {schema}.control_modes WHERE subsystem_id = ?{for_update}"
_LAST_EVENTS: Final = (
    "SELECT subsystem_id, max(at_ms) FROM {schema}.control_events GROUP BY subsystem_id"
)
_MODES: Final = (
    "SELECT subsystem_id, mode, set_by, reason, targets, since_ms FROM {schema}.control_modes"
)
_WRITE_MODE: Final = """
    INSERT INTO {schema}.control_modes (subsystem_id, mode, set_by, reason, targets, since_ms)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (subsystem_id) DO UPDATE SET
        mode = excluded.mode, set_by = excluded.set_by, reason = excluded.reason,
        targets = excluded.targets, since_ms = excluded.since_ms
"""
_ADD_EVENT: Final = """
    INSERT INTO {schema}.control_events (event_id, subsystem_id, reason, actor, at_ms, data)
    VALUES (?, ?, ?, ?, ?, ?)
"""
_ADD_AUDIT: Final = """
    INSERT INTO {schema}.control_audit (kind, subject, actor, at_ms, data) VALUES (?, ?, ?, ?, ?)
"""
_ADD_SAMPLE: Final = """
    INSERT INTO {schema}.control_samples (at_ms, source_id, data) VALUES (?, ?, ?)
    ON CONFLICT (at_ms, source_id) DO NOTHING
"""
_SAMPLES: Final = """
    SELECT at_ms, source_id, data FROM {schema}.control_samples
    WHERE at_ms > ? AND at_ms <= ? ORDER BY at_ms
"""
_OLD_SAMPLES: Final = (
    "SELECT at_ms, data FROM {schema}.control_samples WHERE at_ms < ? OR at_ms > ?"
)
_DROP_SAMPLES: Final = "DELETE FROM {schema}.control_samples WHERE at_ms < ? OR at_ms > ?"
_BUCKETS: Final = (
    "SELECT metric, start_ms, bad, total FROM {schema}.control_buckets ORDER BY start_ms"
)
_ADD_BUCKET: Final = """
    INSERT INTO {schema}.control_buckets (metric, start_ms, bad, total) VALUES (?, ?, ?, ?)
    ON CONFLICT (metric, start_ms) DO UPDATE SET
        bad = control_buckets.bad + excluded.bad, total = control_buckets.total + excluded.total
"""
_DROP_BUCKETS: Final = "DELETE FROM {schema}.control_buckets WHERE start_ms < ?"
_DROP_TICKS: Final = "DELETE FROM {schema}.control_audit WHERE kind = 'tick' AND at_ms < ?"
_CONFIG: Final = """
    SELECT revision, data, actor, reason, at_ms FROM {schema}.control_config
    ORDER BY revision DESC LIMIT 1
"""
_ADD_CONFIG: Final = """
    INSERT INTO {schema}.control_config (revision, data, actor, reason, at_ms)
    VALUES (?, ?, ?, ?, ?) ON CONFLICT (revision) DO NOTHING RETURNING revision
"""
_EVENTS: Final = """
    SELECT id, data FROM {schema}.control_events
    WHERE id < ? AND (? = '' OR subsystem_id = ?) ORDER BY id DESC LIMIT ?
"""
_AUDIT: Final = """
    SELECT id, kind, subject, actor, at_ms, data FROM {schema}.control_audit
    WHERE id < ? AND (? = '' OR kind = ?) ORDER BY id DESC LIMIT ?
"""
