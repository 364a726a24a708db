"""Which run is under way here: for the log.

A context variable: whatever a stage calls, in tasks of its own and on threads that copy its
context, belongs to its run. It holds the row of the job alone: were it the run, then a task, its
context and its run would keep each other alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Final

from ulak.core.job import JobRow
from ulak.ids import to_text

_FACTS: Final = ("job_id", "flow", "state", "attempt")
_NOW: ContextVar[JobRow | None] = ContextVar("ulak_run", default=None)


begin: Final[Callable[[JobRow], Token[JobRow | None]]] = _NOW.set
"""Say which job's stage runs in this context; returns what `end` takes."""


def end(token: Token[JobRow | None]) -> None:
    """The stage has ended."""
    _NOW.reset(token)


def run_facts(row: JobRow) -> dict[str, object]:
    """Return what a line of the log says of a run."""
    return {
        "job_id": to_text(row.id), "flow": row.flow, "state": row.state,
        "attempt": row.attempt + 1,
    }  # fmt: skip


def mark_records() -> None:
    """Have every record that a stage makes carry its run, whichever logger makes it.

    For the whole process, and once: handlers and formats stay as the program has set them up.
    """
    usual = logging.getLogRecordFactory()
    if not isinstance(usual, _Marking):
        logging.setLogRecordFactory(_Marking(usual))


class _Marking:
    """Makes records as the program does, and adds which run is under way."""

    def __init__(self, usual: Callable[..., logging.LogRecord]) -> None:
        self._usual = usual

    def __call__(self, *arguments: Any, **options: Any) -> logging.LogRecord:
        record = self._usual(*arguments, **options)
        row = _NOW.get()
        if row is not None:
            record.__dict__ = _Attributes(run_facts(row) | record.__dict__)
        return record


class _Attributes(dict[str, Any]):
    """The attributes of a record. Logging refuses an `extra=` that is there already, and a line
    may well say another state: that of the run does not count as being there."""

    def __contains__(self, name: object) -> bool:
        return name not in _FACTS and super().__contains__(name)
