"""Which run is under way here: for the log.

A context variable: whatever a stage calls, in tasks of its own and on threads that copy its
context, belongs to its run. It holds the row of the job alone: were it the run, then a task, its
context and its run would keep each other alive.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar, Token

from ulak.core.job import JobRow
from ulak.ids import to_text

_NOW: ContextVar[JobRow | None] = ContextVar("ulak_run", default=None)


def begin(row: JobRow) -> Token[JobRow | None]:
    """Say which job's stage runs in this context; returns what `end` takes."""
    return _NOW.set(row)


def end(token: Token[JobRow | None]) -> None:
    """The stage has ended."""
    _NOW.reset(token)


def run_facts(row: JobRow) -> dict[str, object]:
    """Return what a line of the log says of a run."""
    return {
        "job_id": to_text(row.id), "flow": row.flow, "state": row.state,
        "attempt": row.attempt + 1,
    }  # fmt: skip


class RunFilter(logging.Filter):
    """Adds to each line of a stage which run it belongs to; a fact that is there stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        row = _NOW.get()
        if row is not None:
            for name, value in run_facts(row).items():
                record.__dict__.setdefault(name, value)
        return True


def logger_of_runs() -> logging.Logger:
    """Return the logger of `run.log`: its lines carry their run in every program."""
    logger = logging.getLogger("ulak.run")
    if not any(isinstance(known, RunFilter) for known in logger.filters):
        logger.addFilter(RunFilter())
    return logger
