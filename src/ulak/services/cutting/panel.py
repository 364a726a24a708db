"""The worker panel: how the optimiser fares, and the breaker that gives it a rest."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ulak.kit.clock import SECOND, Instant, micros, rfc3339, to_datetime

if TYPE_CHECKING:
    from ulak import Engine
    from ulak.tables import Tables

RESTS: Final = micros(timedelta(seconds=300))
"""How long nothing is started after the third failure in a row."""
LOOKS_AGAIN: Final = timedelta(seconds=60)
"""How long other runs wait before they ask again how the probe has fared."""
PROBE_LASTS: Final = micros(timedelta(minutes=30))
"""Longer than a program and the wait for its plans take by default; then its place is free."""
_LONGEST_MESSAGE: Final = 500

_BREAKER: Final = ("failures", "opened_at", "probe", "reset_at", "reset_by")
_RUNS: Final = (
    "runs", "failed_runs", "last_run_at", "last_code", "last_message", "last_failed_at",
)  # fmt: skip
_READ: Final = f"SELECT {', '.join(_BREAKER + _RUNS)} FROM {{schema}}.cutting_breaker"  # noqa: S608
_PROBE: Final = """
UPDATE {schema}.cutting_breaker SET probe = ?, probe_at = ?
WHERE opened_at = ? AND (probe IS NULL OR probe_at <= ?) RETURNING id"""
# A run that is told twice is counted once.
_FAILED: Final = """
UPDATE {schema}.cutting_breaker
SET runs = runs + CASE WHEN last_key = ? THEN 0 ELSE 1 END, last_key = ?, last_run_at = ?,
    failures = failures + 1, failed_runs = failed_runs + 1,
    last_code = ?, last_message = ?, last_failed_at = ?,
    opened_at = CASE WHEN failures >= 2 THEN ? ELSE opened_at END,
    probe = CASE WHEN probe = ? THEN NULL ELSE probe END
WHERE failures = 0 OR last_key <> ?"""
_SUCCEEDED: Final = """
UPDATE {schema}.cutting_breaker
SET runs = runs + CASE WHEN last_key = ? THEN 0 ELSE 1 END, last_key = ?, last_run_at = ?,
    failures = 0, opened_at = NULL, probe = NULL"""
_LET_GO: Final = "UPDATE {schema}.cutting_breaker SET probe = NULL WHERE probe LIKE ?"
_RESET: Final = """
UPDATE {schema}.cutting_breaker
SET failures = 0, opened_at = NULL, probe = NULL, reset_at = ?, reset_by = ?"""


class Breaker:
    """The circuit breaker of the optimiser: one row, the same for every worker of the store.

    Three failures in a row open it for 300 s; then one run is the probe. `run_key` names a run of
    the optimiser, the same on every attempt of a round: `run.key("optimise")`. Every verb waits
    for the store.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def may_start(self, run_key: str) -> timedelta | None:
        """Return None when this run may start, also as the probe, else how long it has to wait.

        The same run may ask any number of times.
        """
        row, now = _read(self._tables), self._tables.now
        if row["opened_at"] is None or row["probe"] == run_key:
            return None
        if rest := _rest(row, now):
            return timedelta(seconds=rest / SECOND)
        values = run_key, now, row["opened_at"], now - PROBE_LASTS
        return None if self._write(_PROBE, *values) else LOOKS_AGAIN

    def failed(self, run_key: str, code: str, message: str) -> None:
        """Count a failure of the optimiser; the third in a row opens the breaker, and each after
        it makes the rest begin anew."""
        now, key, why = self._tables.now, run_key, message[:_LONGEST_MESSAGE]
        self._write(_FAILED, key, key, now, code, why, now, now, key, key)

    def succeeded(self, run_key: str) -> None:
        """Count a success, which closes the breaker."""
        self._write(_SUCCEEDED, run_key, run_key, self._tables.now)

    def let_go(self, job_id: str) -> None:
        """Free the place of the probe if this job has it: it has ended, and told neither."""
        if (_read(self._tables)["probe"] or "").startswith(f"{job_id}/"):
            self._write(_LET_GO, f"{job_id}/%")

    def reset(self, actor: str) -> None:
        """Close the breaker, as an administrator."""
        self._write(_RESET, self._tables.now, actor)

    def _write(self, statement: str, *values: Any) -> bool:
        """Run one statement, and tell whether it returned a row."""
        with self._tables.writing() as connection:
            return bool(self._tables.execute(connection, statement, *values))


def panel(engine: Engine, tables: Tables) -> dict[str, Any]:
    """Return the data of the worker panel (C-82), as JSON."""
    row, now = _read(tables), tables.now
    rest, state = _rest(row, now), "closed"
    if row["opened_at"] is not None:
        state = "open" if rest else "half-open"
    shown = {
        name: rfc3339(to_datetime(value), "milliseconds") if value and "_at" in name else value
        for name, value in (row | {"probe_from_at": now + rest if rest else None}).items()
    }
    lines = [line for line in engine.inspect.backlog() if line.flow == "cutting"]
    return {
        "queue_length": sum(line.due + line.delayed + line.parked for line in lines),
        "running": sum(line.leased for line in lines),
        **{name: shown[name] for name in _RUNS},
        "breaker": {"state": state, **{name: shown[name] for name in (*_BREAKER, "probe_from_at")}},
    }


def _read(tables: Tables) -> dict[str, Any]:
    return dict(zip(_BREAKER + _RUNS, tables.read(_READ)[0], strict=True))


def _rest(row: dict[str, Any], now: Instant) -> int:
    """Return for how many microseconds nothing starts, not even a probe."""
    rest: int = 0 if row["opened_at"] is None else row["opened_at"] + RESTS - now
    # Longer is nobody's rest: then the clock was set back.
    return rest if 0 < rest <= RESTS else 0
