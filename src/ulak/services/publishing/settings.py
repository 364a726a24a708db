"""The settings of publishing, by the names that its specification gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Final

from ulak import connect
from ulak.errors import BadInput
from ulak.settings import (
    header_text,
    is_placeholder,
    number,
    queue_name,
    read_settings,
    setting,
    span,
    web_address,
    whole_number,
    yes_no,
)

WORKERS: Final = ("moderation", "preview", "publish", "dlq")
"""The workers that have a key each: of the first three tasks, and of compensation."""
SHORTEST_SECRET: Final = 32
BACKEND_URL: Final = "http://127.0.0.1:8000"

_KEY: Final = "INTERNAL_API_KEY"
# As the specification writes what `str.format` calls `{title:.10}`.
_SLICE: Final = re.compile(r"\{(\w+)\[:(\d+)\]\}")


def _secret(text: str) -> str:
    if is_placeholder(text) or len(text) < SHORTEST_SECRET:
        raise ValueError(
            f"it is a placeholder, or has less than {SHORTEST_SECRET} characters; outside dev make "
            "one with `openssl rand -hex 32`"
        )
    return text


def _redis(text: str) -> str:
    if not text.startswith(("redis://", "rediss://")):
        raise ValueError("write redis://host/0, or rediss:// with TLS")
    return _store(text)


def _store(text: str) -> str:
    connect(text)  # nothing is opened; what it raises says how URLs look, and shows no password
    return text


def _message(text: str) -> str:
    text = _SLICE.sub(r"{\1:.\2}", text)
    try:
        text.format(author_id="", title="")
    except (LookupError, ValueError, AttributeError):
        raise ValueError("write a text with {author_id} and {title}, and no other braces") from None
    return text


# Each `setting` is a field, and no default that is shared.
# ruff: noqa: RUF009
@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """What is in force. `load` reads it; tests and programs may make one."""

    _: KW_ONLY
    redis_url: str = setting("REDIS_URL", _redis, secret=True)
    """The Redis that has the queue and nothing else; '' for the store of ulak."""
    database_url: str = setting("DATABASE_URL", _store, secret=True)
    """The store of the posts; '' for that of ulak."""
    users_database_url: str = setting("USERS_DATABASE_URL", _store, secret=True)
    """The store of the users; '' for the one that has the posts."""
    notifications_queue: str = setting("NOTIFICATIONS_QUEUE", queue_name, "article-notifications")
    dlq_queue: str = setting("DLQ_QUEUE", queue_name, "dlq")
    saga_queue: str = setting("SAGA_QUEUE", queue_name, "article-saga")
    push_service_url: str = setting(
        "PUSH_SERVICE_URL", web_address, "http://127.0.0.1:8002/api/v1/notify"
    )
    push_timeout_s: float = setting("PUSH_TIMEOUT_SECONDS", number(0.05, 600), "5")
    backend_url: str = setting("BACKEND_URL", web_address, BACKEND_URL)
    internal_api_key: str = setting(_KEY, header_text, secret=True)
    internal_api_keys: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(WORKERS, ""), repr=False
    )
    """The key of each of `WORKERS`: its own, else `internal_api_key`."""
    secret_key: str = setting("SECRET_KEY", str, secret=True)
    """What the tokens of users are signed with; '' when nobody has said it."""
    access_token_expire: timedelta = setting(
        "ACCESS_TOKEN_EXPIRE_MINUTES", span(number(0.05, 525_600), "minutes"), "30"
    )
    approve_rate: float = setting("MODERATION_APPROVE_RATE", number(0, 1), "0.7")
    moderation_seed: str | None = setting("MODERATION_SEED", str, None)
    saga_max_retries: int | None = setting("SAGA_MAX_RETRIES", whole_number(0, 100), None)
    """None, as of the next and of `retry_jitter`: what is declared beside the handler holds."""
    notify_max_retries: int | None = setting("NOTIFY_MAX_RETRIES", whole_number(0, 100), None)
    retry_base: timedelta = setting("RETRY_BASE_SECONDS", span(number(0.001, 86_400)), "1")
    retry_max: timedelta = setting("RETRY_MAX_SECONDS", span(number(0.001, 86_400)), "600")
    retry_jitter: bool | None = setting("RETRY_JITTER", yes_no, None)
    visibility: timedelta = setting("TASK_VISIBILITY_SECONDS", span(number(1, 3600)), "60")
    """How long the tasks of a vanished worker stay taken."""
    stuck_after: timedelta = setting("SAGA_STUCK_SECONDS", span(number(1, 86_400)), "900")
    notify_concurrency: int = setting("NOTIFY_CONCURRENCY", whole_number(1, 1000), "20")
    notify_message: str = setting(
        "NOTIFY_MESSAGE", _message, "Пользователь {author_id} выпустил новый пост: {title:.10}..."
    )
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
    readers = dict.fromkeys(own, header_text)
    if env != "dev":
        readers["SECRET_KEY"] = _secret
    found = read_settings(PublishingSettings, environ, readers=readers)
    keys = {own[name]: found.pop(name) for name in own if name in found}
    if "notifications_queue" in found:
        found.setdefault("saga_queue", found["notifications_queue"])
    made = PublishingSettings(**{"backend_url": backend_url} | found)
    if made.retry_base > made.retry_max:
        raise BadInput("RETRY_BASE_SECONDS: it is more than RETRY_MAX_SECONDS; write less")
    own_keys = {worker: keys.get(worker, made.internal_api_key) for worker in WORKERS}
    return replace(made, internal_api_keys=own_keys)
