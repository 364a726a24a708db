"""The backend as workers call it: a call returns data, or raises what becomes of the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from ulak.kit import read_retry_after
from ulak.kit.clock import Instant, to_instant
from ulak.services.publishing.events import Event, step
from ulak.services.publishing.settings import PublishingSettings

# Two calls fit into the timeout of a stage.
TIMEOUT_S: Final = 10.0
# Servers close connections that are idle for five seconds.
KEPT_S: Final = 2.0
LONGEST_TEXT: Final = 500
"""Of a reason or a message that is stored with a post."""
LONGEST_RETRY_AFTER: Final = timedelta(hours=1)

CALLS: Final = (
    "moderation.read", "moderation.approve", "moderation.reject", "preview.read",
    "preview.preview", "publish.read", "publish.publish", "notify.read", "dlq.reject",
    "dlq.error", "dlq.publish",
)  # fmt: skip
IN_PROGRESS: Final = "idempotency_in_progress"
DONE: Final = (
    "not_found", "stale_publication", "invalid_status", "already_approved", "already_rejected",
    "step_done",
)  # fmt: skip
"""The post is gone, or past this step."""
_PASSING: Final = frozenset({404, 408, 425, 429})
_METHODS: Final = {"read": "GET", "preview": "PUT"}


class Failure(Exception):
    """A call that did not do what was asked, by a code that is kept with the task."""

    def __init__(
        self, text: str, *, code: str, status: int = 0, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(text)
        self.code, self.status, self.retry_after = code, status, retry_after


class StepPassed(Failure):
    """The post is past this step, or gone: nothing is left to do, and nothing is wrong."""


class KeyRefused(Failure):
    """The key is refused, or the same call is under way: wait, and spend no retry."""


class BackendAway(Failure):
    """The backend cannot answer now; a retry may help."""


class CallRefused(Failure):
    """The backend will never take this call; no retry will mend it."""


def classify(status: int, code: str) -> type[Failure]:
    """Return what an answer that is no success means, by its code before its status."""
    if code == IN_PROGRESS or status in (401, 403):
        return KeyRefused
    if code in DONE and status in (404, 409):
        return StepPassed
    # A redirect, or a 404 without that code, comes from something else that has this address.
    if status < 400 or status in _PASSING or status >= 500:
        return BackendAway
    return CallRefused


def make_client(
    timeout_s: float, *, connections: int | None = None, **options: Any
) -> httpx.AsyncClient:
    """Return a client for calls that carry keys: never by a proxy of the environment."""
    limits = httpx.Limits(max_connections=connections, keepalive_expiry=KEPT_S)
    timeout = httpx.Timeout(timeout_s, pool=None)
    return httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, **options)


class Backend:
    """A client of the internal endpoints, for one event loop. `now` tells the time of answers that
    name one; by default it is that of this machine."""

    def __init__(
        self,
        settings: PublishingSettings,
        now: Callable[[], Instant] = lambda: to_instant(datetime.now(UTC)),
    ) -> None:
        self._keys, self._now = settings.internal_api_keys, now
        base_url = f"{settings.backend_url}/internal/articles/"
        self.client = make_client(TIMEOUT_S, connections=100, base_url=base_url)

    async def call(self, name: str, event: Event, **body: str) -> Mapping[str, Any]:
        """Make one of `CALLS`, whose names say which key it takes and what it does, about the post
        of an event; return the data of its answer. Raises a `Failure`."""
        worker, _, operation = name.partition(".")
        method = _METHODS.get(operation, "POST")
        path = event.post_id if operation == "read" else f"{event.post_id}/{operation}"
        # Notifications have no key of their own: they read with that of the task before them.
        headers = {"Authorization": f"Token {self._keys[worker.replace('notify', 'publish')]}"}
        if method != "GET":
            headers["Idempotency-Key"] = f"{event.event_id}:{operation}"
            body["publication_id"] = event.publication_id
        with step(name):
            try:
                about: Any = {"headers": headers, "json": body or None}
                response = await self.client.request(method, path, **about)
            except httpx.HTTPError as error:
                why = f"{name}: no answer from the backend: {type(error).__name__}: {error}"
                raise BackendAway(why[:LONGEST_TEXT], code="backend_away") from error
        return _read(name, response, self._now())


def _read(name: str, response: httpx.Response, now: Instant) -> Mapping[str, Any]:
    """Return the data of an answer, or raise what it means."""
    said: Any = {}
    with suppress(ValueError, RecursionError):
        said = json.loads(response.content)
    said, status = said if isinstance(said, dict) else {}, response.status_code
    if response.is_success and isinstance(data := said.get("data"), dict):
        return data
    code, message = str(said.get("code", "")), said.get("message", said.get("detail"))
    # What is said of a key is not repeated.
    why = f"{name}: {status} {code}: {'' if status in (401, 403) else message}"
    if not code:
        why = f"{name}: {status} without a code; is BACKEND_URL the address of the backend?"
    wait = read_retry_after(response.headers.get("Retry-After"), now, longest=LONGEST_RETRY_AFTER)
    code = code or f"http_{status}"
    raise classify(status, code)(why[:LONGEST_TEXT], code=code, status=status, retry_after=wait)
