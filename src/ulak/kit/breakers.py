"""Circuit breakers: what fails several times in a row gets a rest, from every worker of a store.

    breaker = CircuitBreaker(tables, "acme_breakers", "printer")

    if (wait := breaker.may_start(run.key("print"))) is not None:
        return RetryLater(wait, why="the printer has failed three times in a row")
    async with breaker.counting(run.key("print"), PrinterError):
        await print_letter()

A breaker is a row of a table of the service, which the SQL of its `Schema` makes:

    CREATE TABLE {schema}.acme_breakers (
        name text NOT NULL PRIMARY KEY, failures integer NOT NULL DEFAULT 0, opened_at {bigint},
        probe text, probe_at {bigint}, runs integer NOT NULL DEFAULT 0,
        failed_runs integer NOT NULL DEFAULT 0, last_key text, last_run_at {bigint},
        last_code text, last_message text, last_failed_at {bigint}, reset_at {bigint}, reset_by text
    ){by_key};
    INSERT INTO {schema}.acme_breakers (name) VALUES ('printer');
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from ulak.clock import SECOND, Instant, micros, rfc3339, to_datetime
from ulak.errors import BadInput, StoreError
from ulak.tables import Tables
from ulak.tables.views import NAME, PLAIN

__all__ = ["CircuitBreaker"]

log = logging.getLogger("ulak.breakers")

LOOKS_AGAIN: Final = timedelta(seconds=60)
"""How long other runs wait before they ask again how the probe has fared."""
PROBE_LASTS: Final = timedelta(minutes=30)
"""How long the place of a probe is kept for one that never tells its end. A guess."""
_LONGEST_MESSAGE: Final = 500

_STATE: Final = ("failures", "opened_at", "probe", "reset_at", "reset_by")
_RUNS: Final = (
    "runs", "failed_runs", "last_run_at", "last_code", "last_message", "last_failed_at",
)  # fmt: skip
_READ: Final = f"SELECT {', '.join(_STATE + _RUNS)} FROM {{{{schema}}}}.{{table}} WHERE name = ?"  # noqa: S608 - names of ours
_PROBE: Final = """
UPDATE {{schema}}.{table} SET probe = ?, probe_at = ?
WHERE name = ? AND opened_at = ? AND (probe IS NULL OR probe_at <= ?) RETURNING name"""
# A run that is told twice is counted once.
_FAILED: Final = """
UPDATE {{schema}}.{table}
SET runs = runs + CASE WHEN last_key = ? THEN 0 ELSE 1 END, last_key = ?, last_run_at = ?,
    failures = failures + 1, failed_runs = failed_runs + 1,
    last_code = ?, last_message = ?, last_failed_at = ?,
    opened_at = CASE WHEN failures >= ? THEN ? ELSE opened_at END,
    probe = CASE WHEN probe = ? THEN NULL ELSE probe END
WHERE name = ? AND (failures = 0 OR last_key <> ?)"""
_SUCCEEDED: Final = """
UPDATE {{schema}}.{table}
SET runs = runs + CASE WHEN last_key = ? THEN 0 ELSE 1 END, last_key = ?, last_run_at = ?,
    failures = 0, opened_at = NULL, probe = NULL
WHERE name = ?"""
_LET_GO: Final = "UPDATE {{schema}}.{table} SET probe = NULL WHERE name = ? AND probe LIKE ?"
_RESET: Final = """
UPDATE {{schema}}.{table}
SET failures = 0, opened_at = NULL, probe = NULL, reset_at = ?, reset_by = ?
WHERE name = ?"""


class CircuitBreaker:
    """The breaker of one thing that may fail, the same for every worker of the store.

    Some failures in a row open it for a rest; then one run is the probe. `run_key` names a run, the
    same on every attempt of a round: `run.key("print")`. Every verb but `counting` waits for the
    store.

    Args:
        table: The table of the service's breakers. `BadInput`: it is no plain name in lower case.
        name: What is guarded; the table has its row.
        failures: How many failures in a row open it.
        rest: For how long nothing starts then.
    """

    def __init__(
        self, tables: Tables, table: str, name: str, *, failures: int = 3,
        rest: timedelta = timedelta(minutes=5),
    ) -> None:  # fmt: skip
        if not NAME.fullmatch(table):  # it becomes part of statements
            raise BadInput(f"{table!r} cannot be the table of a breaker: {PLAIN}")
        self._tables, self._table, self._name = tables, table, name
        self._failures, self._rest = failures, micros(rest)

    def may_start(self, run_key: str) -> timedelta | None:
        """Return None when this run may start, also as the probe, else how long it has to wait.

        The same run may ask any number of times.
        """
        row, now = self._read(), self._tables.now
        if row["opened_at"] is None or row["probe"] == run_key:
            return None
        if left := self._find_left(row["opened_at"], now):
            return timedelta(seconds=left / SECOND)
        values = run_key, now, self._name, row["opened_at"], now - micros(PROBE_LASTS)
        return None if self._write(_PROBE, *values) else LOOKS_AGAIN

    @asynccontextmanager
    async def counting(self, run_key: str, *errors: type[Exception]) -> AsyncIterator[None]:
        """Count a run by the end of the block: its success, or its failure by one of these errors,
        with the error's `code`. Another error counts as neither.

        What has run is not run again because it could not be counted: when the store fails, that is
        a line in the log.
        """
        try:
            yield
        except errors as error:
            code = str(getattr(error, "code", type(error).__name__))
            await self._tell(self.failed, run_key, code, str(error))
            raise
        await self._tell(self.succeeded, run_key)

    async def _tell(self, how: Callable[..., None], run_key: str, *about: str) -> None:
        try:
            await asyncio.to_thread(how, run_key, *about)
        except StoreError as error:
            facts = {"breaker": self._name, "run": run_key, "error": str(error)}
            log.warning("the end of a run was not counted", extra=facts)

    def failed(self, run_key: str, code: str, message: str) -> None:
        """Count a failure; the last of so many in a row begins the rest, and so does each after
        it."""
        now, key, why = self._tables.now, run_key, message[:_LONGEST_MESSAGE]
        most = self._failures - 1
        self._write(_FAILED, key, key, now, code, why, now, most, now, key, self._name, key)

    def succeeded(self, run_key: str) -> None:
        """Count a success, which closes the breaker."""
        self._write(_SUCCEEDED, run_key, run_key, self._tables.now, self._name)

    def let_go(self, job_id: str) -> None:
        """Free the place of the probe if a run of this job has it: it has ended, and told
        neither."""
        if (self._read()["probe"] or "").startswith(f"{job_id}/"):
            self._write(_LET_GO, self._name, f"{job_id}/%")

    def reset(self, actor: str) -> None:
        """Close the breaker, as an administrator."""
        self._write(_RESET, self._tables.now, actor, self._name)

    def describe(self) -> dict[str, Any]:
        """Return how the guarded thing fares, ready for JSON: counts of its runs, the last error,
        and as `breaker` the state (`closed`, `open` or `half-open`) with its times."""
        row, now = self._read(), self._tables.now
        left = 0 if row["opened_at"] is None else self._find_left(row["opened_at"], now)
        row["probe_from_at"] = now + left if left else None
        state = "closed" if row["opened_at"] is None else "open" if left else "half-open"
        shown = {
            name: rfc3339(to_datetime(value), "milliseconds") if value and "_at" in name else value
            for name, value in row.items()
        }
        breaker = {"state": state, **{name: shown[name] for name in (*_STATE, "probe_from_at")}}
        return {**{name: shown[name] for name in _RUNS}, "breaker": breaker}

    def _find_left(self, opened_at: Instant, now: Instant) -> int:
        """Return for how many microseconds nothing starts, not even a probe."""
        left = opened_at + self._rest - now
        # Longer is nobody's rest: then the clock was set back.
        return left if 0 < left <= self._rest else 0

    def _read(self) -> dict[str, Any]:
        (row,) = self._tables.read(_READ.format(table=self._table), self._name)
        return dict(zip(_STATE + _RUNS, row, strict=True))

    def _write(self, statement: str, *values: Any) -> bool:
        """Run one statement, and tell whether it returned a row."""
        return bool(self._tables.write(statement.format(table=self._table), *values))
