"""The log of a running process: lines for people in dev, JSON in production, on stderr.

Every line of a request has its correlation id and its actor, every line of a stage its job, flow,
state and attempt. No line has a secret.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ulak.auth import asking
from ulak.cli.hiding import Hiding
from ulak.clock import rfc3339
from ulak.engine.engine import Engine
from ulak.settings import SECRETS, Settings

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(env: str, secrets: Iterable[str] = (), *, child: str | None = None) -> None:
    """Send the log of this process to stderr, in the form of its environment.

    Several processes may write there: of a child, each line says which.

    Args:
        env: `production` for JSON.
        secrets: What is hidden wherever it stands, besides what looks like a secret.
        child: Which child of `ulak up` this is.
    """
    handler = logging.StreamHandler()
    if child is not None:
        handler.addFilter(partial(_sign, child=child))
    handler.setFormatter(JsonLines() if env == "production" else Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # uvicorn tells of every start and stop; `ulak up` does so itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    guard(Hidden(Hiding(secrets)))


def secrets_of(found: Settings, engine: Engine) -> list[str]:
    """Return the secrets that a process knows by their value: of its settings and of its store."""
    of_store: list[str] = getattr(engine.store, "secrets", list)()
    of_settings: list[str] = [getattr(found, name) for name in sorted(SECRETS)]
    return [secret for secret in (*of_store, *of_settings) if secret]


def guard(hidden: Hidden) -> None:
    """Let no handler that there is write a line before it was looked through.

    Handlers, not loggers: a filter of a logger does not see the lines of those below it.
    """
    for handler in _handlers():
        for filter in [f for f in handler.filters if isinstance(f, Hidden)]:
            handler.removeFilter(filter)
        handler.addFilter(hidden)


def _handlers() -> Iterator[logging.Handler]:
    yield from logging.getLogger().handlers
    for logger in list(logging.Logger.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from logger.handlers


class Hidden(logging.Filter):
    """Adds to each line which request it belongs to, and takes from it what is secret."""

    def __init__(self, hiding: Hiding) -> None:
        super().__init__()
        self._hiding = hiding

    def filter(self, record: logging.LogRecord) -> bool:
        request = asking.now()
        if request is not None:
            record.__dict__.setdefault("correlation_id", request.correlation_id)
            if request.principal:
                record.__dict__.setdefault("principal", request.principal)
        self._hide_message(record)
        self._hide_stack(record)
        for name, value in _facts(record).items():
            setattr(record, name, self._hiding.fact(name, value))
        return True

    def _hide_message(self, record: logging.LogRecord) -> None:
        hide = self._hiding.text
        # Each by itself first, since formatters such as uvicorn's read the arguments.
        if isinstance(record.args, tuple):
            record.args = tuple(hide(a) if isinstance(a, str) else a for a in record.args)
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001 - of whatever class, and a log line must not fail over it
            said = f"{record.msg} (its arguments do not fit)"
            record.msg, record.args = said, None
        hidden = hide(said)
        if hidden != said:
            record.msg, record.args = hidden, None

    def _hide_stack(self, record: logging.LogRecord) -> None:
        hide = self._hiding.text
        if record.stack_info:
            record.stack_info = hide(record.stack_info)
        if record.exc_info or record.exc_text:
            text = record.exc_text or _usual.formatException(record.exc_info)  # type: ignore[arg-type] # a record has made a tuple of it
            hidden = hide(text)
            if hidden != text:
                # Whoever formats it next must not do so from the error itself.
                record.exc_text, record.exc_info = hidden, None


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


_usual = logging.Formatter()


def _sign(record: logging.LogRecord, *, child: str) -> bool:
    # Before the run, which is there already: a line names its process first.
    record.__dict__ = {"child": child, **record.__dict__}
    return True


def _at(record: logging.LogRecord) -> str:
    return rfc3339(datetime.fromtimestamp(record.created, UTC), "milliseconds")


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.exc_text
    if not text and record.exc_info:
        text = formatter.formatException(record.exc_info)
    return "".join(f"\n{part}" for part in (text, record.stack_info) if part)
