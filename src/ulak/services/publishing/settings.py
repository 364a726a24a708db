"""The settings of publishing, by the names that its specification gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from ulak import connect
from ulak.errors import BadInput
from ulak.settings import (
    header_text,
    is_placeholder,
    number,
    read_variables,
    span,
    web_address,
    whole_number,
)

WORKERS: Final = ("moderation", "preview", "publish", "dlq")
"""The workers that have a key each: of the first three tasks, and of compensation."""
SHORTEST_SECRET: Final = 32
BACKEND_URL: Final = "http://127.0.0.1:8000"
NOTIFICATIONS_QUEUE: Final = "article-notifications"
NOTIFY_MESSAGE: Final = "Пользователь {author_id} выпустил новый пост: {title:.10}..."

_KEY: Final = "INTERNAL_API_KEY"
# As the specification writes what `str.format` calls `{title:.10}`.
_SLICE: Final = re.compile(r"\{(\w+)\[:(\d+)\]\}")
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_YES_NO: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """What is in force. `load` reads it; tests and programs may make one."""

    _: KW_ONLY
    database_url: str = field(default="", repr=False)
    """The store of the posts; '' for the one that has the queue."""
    users_database_url: str = field(default="", repr=False)
    """The store of the users; '' for the one that has the posts."""
    notifications_queue: str = NOTIFICATIONS_QUEUE
    dlq_queue: str = "dlq"
    saga_queue: str = "article-saga"
    push_service_url: str = "http://127.0.0.1:8002/api/v1/notify"
    push_timeout_s: float = 5.0
    backend_url: str = BACKEND_URL
    internal_api_key: str = field(default="", repr=False)
    internal_api_keys: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(WORKERS, ""), repr=False
    )
    """The key of each of `WORKERS`: its own, else `internal_api_key`."""
    secret_key: str = field(default="", repr=False)
    """What the tokens of users are signed with; '' when nobody has said it."""
    access_token_expire: timedelta = timedelta(minutes=30)
    approve_rate: float = 0.7
    moderation_seed: str | None = None
    saga_max_retries: int | None = None
    """None, as of the next and of `retry_jitter`: what is declared beside the handler holds."""
    notify_max_retries: int | None = None
    retry_base: timedelta = timedelta(seconds=1)
    retry_max: timedelta = timedelta(seconds=600)
    retry_jitter: bool | None = None
    visibility: timedelta = timedelta(seconds=60)
    """How long the tasks of a vanished worker stay taken."""
    stuck_after: timedelta = timedelta(seconds=900)
    notify_concurrency: int = 20
    notify_message: str = NOTIFY_MESSAGE
    """Of a push, by `str.format` with `author_id` and `title`."""

    def must_have_keys(self, *workers: str) -> None:
        """Refuse to start workers without a key. Raises `BadInput`: a variable is not set, or holds
        a placeholder."""
        for worker in workers:
            key = self.internal_api_keys[worker]
            if not key or is_placeholder(key):
                name = _KEY if key == self.internal_api_key else f"{_KEY}_{worker.upper()}"
                why = "holds a placeholder that opens nothing" if key else "is not set"
                raise BadInput(
                    f"{name} {why}: the worker calls the backend with a service key; make keys "
                    "with `python scripts/generate_api_keys.py`"
                )

    def must_have_secret(self) -> None:
        """Refuse to serve users without a secret. Raises `BadInput`: SECRET_KEY is not set."""
        if not self.secret_key:
            raise BadInput(
                "SECRET_KEY is not set: outside dev it must be, the same for backend and users-api;"
                " make one with `openssl rand -hex 32`"
            )

    @property
    def secrets(self) -> list[str]:
        """What no log may show."""
        return [self.secret_key, self.internal_api_key, *self.internal_api_keys.values()]


def load(
    environ: Mapping[str, str] | None = None, *, env: str = "dev", backend_url: str = BACKEND_URL
) -> PublishingSettings:
    """Read the settings of this process; `backend_url` is where the backend is when BACKEND_URL
    does not say it. Raises `BadInput`: naming every value that cannot be used; outside dev a
    placeholder or a short text as SECRET_KEY is one."""
    own = {f"{_KEY}_{worker.upper()}": worker for worker in WORKERS}
    readers = {name: reader for name, (_, reader) in _VARIABLES.items()}
    readers |= {**dict.fromkeys(own, header_text), "REDIS_URL": _refuse_redis}
    found = read_variables(readers | ({} if env == "dev" else {"SECRET_KEY": _secret}), environ)
    keys = {own[name]: found.pop(name) for name in own if name in found}
    if "NOTIFICATIONS_QUEUE" in found:
        found.setdefault("SAGA_QUEUE", found["NOTIFICATIONS_QUEUE"])
    values = {_VARIABLES[name][0]: value for name, value in found.items()}
    made = PublishingSettings(**{"backend_url": backend_url} | values)
    if made.retry_base > made.retry_max:
        raise BadInput("RETRY_BASE_SECONDS: it is more than RETRY_MAX_SECONDS; write less")
    own_keys = {worker: keys.get(worker, made.internal_api_key) for worker in WORKERS}
    return replace(made, internal_api_keys=own_keys)


def describe(settings: PublishingSettings) -> Mapping[str, tuple[str, str]]:
    """Return each variable with its value as it may be printed, and where that is from."""
    said = read_variables(dict.fromkeys(_VARIABLES, str))
    shown = {}
    for name, (attribute, _) in _VARIABLES.items():
        value = getattr(settings, attribute)
        if isinstance(value, timedelta):
            value = f"{value.total_seconds():g} s"
        elif value and name.endswith(("_KEY", "DATABASE_URL")):
            value = "set"
        text = "not set" if value in (None, "") else str(value)
        shown[name] = text, name if name in said else "default"
    return shown


def _secret(text: str) -> str:
    if is_placeholder(text) or len(text) < SHORTEST_SECRET:
        raise ValueError(
            f"it is a placeholder, or has less than {SHORTEST_SECRET} characters; outside dev make "
            "one with `openssl rand -hex 32`"
        )
    return text


def _refuse_redis(text: str) -> str:
    raise ValueError(
        "it is set, and the queue cannot be in Redis yet; leave it out, and the queue is in the "
        "database of the posts, or in that of ULAK_STORE"
    )


def _store(text: str) -> str:
    connect(text)  # nothing is opened; what it raises says how URLs look, and shows no password
    return text


def _queue(text: str) -> str:
    if not _QUEUE.fullmatch(text):
        raise ValueError(f"it is {text[:100]!r}; write letters, digits and . _ : -")
    return text


def _yes_no(text: str) -> bool:
    if text.lower() not in _YES_NO:
        raise ValueError(f"it is {text[:20]!r}; write true or false")
    return _YES_NO[text.lower()]


def _message(text: str) -> str:
    text = _SLICE.sub(r"{\1:.\2}", text)
    try:
        text.format(author_id="", title="")
    except (LookupError, ValueError, AttributeError):
        raise ValueError("write a text with {author_id} and {title}, and no other braces") from None
    return text


_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "DATABASE_URL": ("database_url", _store),
    "USERS_DATABASE_URL": ("users_database_url", _store),
    "NOTIFICATIONS_QUEUE": ("notifications_queue", _queue),
    "DLQ_QUEUE": ("dlq_queue", _queue),
    "SAGA_QUEUE": ("saga_queue", _queue),
    "PUSH_SERVICE_URL": ("push_service_url", web_address),
    "PUSH_TIMEOUT_SECONDS": ("push_timeout_s", number(0.05, 600)),
    "BACKEND_URL": ("backend_url", web_address),
    "INTERNAL_API_KEY": ("internal_api_key", header_text),
    "SECRET_KEY": ("secret_key", str),
    "ACCESS_TOKEN_EXPIRE_MINUTES": ("access_token_expire", span(number(0.05, 525_600), "minutes")),
    "MODERATION_APPROVE_RATE": ("approve_rate", number(0, 1)),
    "MODERATION_SEED": ("moderation_seed", str),
    "SAGA_MAX_RETRIES": ("saga_max_retries", whole_number(0, 100)),
    "NOTIFY_MAX_RETRIES": ("notify_max_retries", whole_number(0, 100)),
    "RETRY_BASE_SECONDS": ("retry_base", span(number(0.001, 86_400))),
    "RETRY_MAX_SECONDS": ("retry_max", span(number(0.001, 86_400))),
    "RETRY_JITTER": ("retry_jitter", _yes_no),
    "TASK_VISIBILITY_SECONDS": ("visibility", span(number(1, 3600))),
    "SAGA_STUCK_SECONDS": ("stuck_after", span(number(1, 86_400))),
    "NOTIFY_CONCURRENCY": ("notify_concurrency", whole_number(1, 1000)),
    "NOTIFY_MESSAGE": ("notify_message", _message),
}  # fmt: skip
