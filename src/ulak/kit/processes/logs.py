"""The log of a running process: lines for people in dev, JSON in production, on stderr.

Every line of a request has its correlation id and its actor, every line of a stage its job, flow,
state and attempt. No line has a secret.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote, quote_plus

from ulak.auth.principal import CURRENT_REQUEST
from ulak.clock import rfc3339
from ulak.engine.engine import Engine
from ulak.settings import SECRETS, Settings

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(env: str, secrets: Iterable[str] = (), *, child: str | None = None) -> None:
    """Send the log of this process to stderr: in `production` as JSON, without these secrets and
    what looks like one. Several processes may write there: of a child, each line says which."""
    handler = logging.StreamHandler()
    if child is not None:
        handler.addFilter(partial(_sign, child=child))
    handler.setFormatter(JsonLines() if env == "production" else Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # uvicorn tells of every start and stop, as whoever starts it does, and httpx of every request.
    for name in ("uvicorn", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    guard(Hidden(Hiding(secrets)))


def secrets_of(found: Settings, *engines: Engine) -> list[str]:
    """Return the secrets that a process knows by their value: of its settings and of its stores."""
    own: list[str] = [getattr(found, name) for name in sorted(SECRETS)]
    for engine in engines:
        own += getattr(engine.store, "secrets", list)()
    return [*filter(None, own)]


def guard(hidden: Hidden) -> None:
    """Let no handler that there is write a line before it was looked through. Handlers, not
    loggers: a filter of a logger does not see the lines of those below it."""
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
        request = CURRENT_REQUEST.get()
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


HIDDEN: Final = "***"

SHORTEST: Final = 6
"""A literal that is shorter cannot be told from ordinary words; it is hidden where its place says
that it is a secret, and nowhere else."""
DEEPEST: Final = 8

_HEADERS = r"(?:proxy-)?authorization|x-(?:\w+-)*key|(?:set-)?cookie"
_NAMES = r"password|passwd|passphrase|secret|api[_-]?key|(?:access_|refresh_)?token"
_VALUE = r"""(?:b?"[^"]*"|b?'[^']*'|[^\s&;,"'}\]]+)"""

SECRET_NAME: Final = re.compile(rf"(?:\w*[_-])?(?:{_HEADERS}|password|passwd|passphrase)", re.I)
"""The names of facts that are secret whatever they hold. Not `token`: a lease has one."""

KEY: Final = re.compile(r"(ulak_[a-z0-9]{8}_)[0-9A-Za-z_-]{8,}")
"""A key, or the code of a link: the part by which it is found may be seen."""
JWT: Final = re.compile(r"eyJ[0-9A-Za-z_-]{5,}(?:\.[0-9A-Za-z_-]*){1,4}")

_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"(/auth/link)[?#/][^\s\"'<>]*"), rf"\1?{HIDDEN}"),
    # Up to the last @, since a password that was not encoded may have one of its own.
    (re.compile(r"(://[^:/@?\s]*):\S*@"), rf"\1:{HIDDEN}@"),
    (
        re.compile(
            rf"({_HEADERS})((?:[\"']?\s*[:=]\s*|[\"']\s*,\s*)(?:b?[\"'])?)(?!\s)[^\r\n\"']+", re.I
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"\b(bearer)\s+[^\s\"',;)]{8,}", re.I), rf"\1 {HIDDEN}"),
    (re.compile(rf"({_NAMES})=(?!=){_VALUE}", re.I), rf"\1={HIDDEN}"),
    (re.compile(rf"([\"'](?:\w*[_-])?(?:{_NAMES})[\"']\s*:\s*){_VALUE}", re.I), rf'\1"{HIDDEN}"'),
    (KEY, rf"\1{HIDDEN}"),
    (JWT, HIDDEN),
)


class Hiding:
    """Hides what looks like a secret, and the secrets that it was told of, however written."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        written = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        # The longest first: a form that is part of another must not leave the rest of it.
        ordered = sorted(written, key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return a text without its secrets. What is hidden already stays as it is."""
        if self._literals is not None:
            # Before the patterns, one of which might hide a part of a literal and leave the rest.
            text = self._literals.sub(HIDDEN, text)
        for pattern, shown in _PATTERNS:
            text = pattern.sub(shown, text)
        return text

    def fact(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return a fact without its secrets: by its name, and by what it holds at any depth."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if SECRET_NAME.fullmatch(name):
            return HIDDEN
        if isinstance(value, str):
            return self.text(value)
        if depth < DEEPEST and isinstance(value, Mapping):
            return {
                self.text(str(key)): self.fact(str(key), held, depth + 1)
                for key, held in value.items()
            }
        if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
            return [self.fact(name, held, depth + 1) for held in value]
        try:
            text = str(value)
        except Exception:  # noqa: BLE001 - of whatever class, and a log line must not fail over it
            return f"({type(value).__name__} cannot be printed)"
        hidden = self.text(text)
        return value if hidden == text else hidden


def _forms(secret: str) -> Iterable[str]:
    """Return how a text may be written in a line: as it is, escaped, or percent-encoded."""
    encoded = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield repr(secret)[1:-1]
    yield ascii(secret)[1:-1]
    yield repr(encoded)[2:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(encoded)
    yield quote(encoded, safe="")
    yield quote_plus(encoded)
