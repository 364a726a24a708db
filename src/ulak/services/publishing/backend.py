"""The backend as workers call it: a call returns data, or raises what becomes of the task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from ulak.services.publishing.events import Event
from ulak.services.publishing.points import step
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
DONE: Final = frozenset(
    {
        "not_found", "stale_publication", "invalid_status", "already_approved",
        "already_rejected", "step_done",
    }
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
        self.code = code
        self.status = status
        self.retry_after = retry_after


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


class Backend:
    """A client of the internal endpoints, for one event loop."""

    def __init__(self, settings: PublishingSettings) -> None:
        self._keys = settings.internal_api_keys
        # Never by a proxy of the environment: the calls carry keys, and stay inside.
        self.client = httpx.AsyncClient(
            base_url=f"{settings.backend_url}/internal/articles/",
            timeout=httpx.Timeout(TIMEOUT_S, pool=None),
            limits=httpx.Limits(max_connections=100, keepalive_expiry=KEPT_S),
            trust_env=False,
        )

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
                response = await self.client.request(
                    method, path, headers=headers, json=body or None
                )
            except httpx.HTTPError as error:
                why = f"{name}: no answer from the backend: {type(error).__name__}: {error}"
                raise BackendAway(why[:LONGEST_TEXT], code="backend_away") from error
        return _read(name, response)


def _read(name: str, response: httpx.Response) -> Mapping[str, Any]:
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
    raise classify(status, code)(
        why[:LONGEST_TEXT], code=code or f"http_{status}", status=status,
        retry_after=read_retry_after(response.headers.get("Retry-After", "")),
    )  # fmt: skip


def read_retry_after(text: str) -> timedelta | None:
    """Return what `Retry-After` says, seconds or a date; None when it says nothing usable."""
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    left = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)
    return min(max(left, timedelta()), LONGEST_RETRY_AFTER)
