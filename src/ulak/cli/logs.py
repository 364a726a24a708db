"""The log of a running process: lines for people in dev, JSON in production, on stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ulak.clock import rfc3339

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(env: str, *, child: str | None = None) -> None:
    """Send the log of this process to stderr, in the form of its environment.

    Several processes may write there: of a child, each line says which.
    """
    handler = logging.StreamHandler()
    if child is not None:
        handler.addFilter(partial(_sign, child=child))
    handler.setFormatter(JsonLines() if env == "production" else Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # uvicorn tells of every start and stop; `ulak up` does so itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class Lines(logging.Formatter):
    """Time, level, logger, message, and its facts as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {name}={value}" for name, value in _facts(record).items())
        said = f"{_at(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return said + facts + _stack(self, record)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if stack := _stack(self, record).strip():
            document["stack"] = stack
        return json.dumps(document, ensure_ascii=False, default=str)


def _sign(record: logging.LogRecord, *, child: str) -> bool:
    record.child = child
    return True


def _at(record: logging.LogRecord) -> str:
    return rfc3339(datetime.fromtimestamp(record.created, UTC), "milliseconds")


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
