"""What an answer of the remote means for an event: every rule of it is here, and nothing else.

When and how often an event is tried again is the engine's affair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Literal

from ulak.kit.clock import SECOND, Instant, to_instant

Verdict = Literal["sent", "rejected", "dead", "retry"]

LONGEST_RETRY: Final = timedelta(days=3)
"""For how long an event is tried again; whoever remembers its key must do so for longer."""

SHORTEST_WAIT: Final = timedelta(seconds=1)
"""How long an execution that is under way is left alone at least."""
# Beyond this a wait is no number that anybody means, and no date that can be told.
_LONGEST_WAIT_S: Final = timedelta(days=366).total_seconds()
_LONGEST_QUOTE: Final = 200

IN_PROGRESS: Final = "idempotency_in_progress"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
PASSING: Final = frozenset(
    {SUBJECT_NOT_FOUND, "idempotency_lease_lost", "idempotency_store_unavailable"}
)
"""Codes and reasons that another attempt, later and with the same key, may find gone."""
LASTING: Final = frozenset(
    {
        "idempotency_key_reused", "idempotency_response_not_stored", "idempotency_key_required",
        "idempotency_key_invalid", "idempotency_key_conflict",
    }
)  # fmt: skip
"""Codes that the same request would be answered with for ever."""
PASSING_STATUSES: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
    }
)  # fmt: skip
"""Statuses below 500 that say nothing about the event itself: a key that is set anew, a pause."""
FOREIGN: Final = "no answer of the remote, which says ok or repeats the key; see HOS_BASE_URL"
"""Why an acceptance does not count."""
COMPARED: Final = ("from", "to", "contract_version")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from the remote."""

    status: int
    _: KW_ONLY
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""

    @property
    def retry_after(self) -> str | None:
        """When to ask again, as it was sent."""
        return self.headers.get("retry-after")

    @property
    def document(self) -> Mapping[str, Any]:
        """The body, if it is a JSON object; else an empty one."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Fault:
    """No answer came: why, for whoever reads `last_error`."""

    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is done with the event, and why."""

    verdict: Verdict
    _: KW_ONLY
    why: str = ""
    """What `last_error` says; '' for what was sent."""
    wait: timedelta = timedelta()
    """How long the next attempt must wait at least, of a retry."""
    is_counted: bool = True
    """Whether the attempt counts against the limit."""
    drift: str | None = None
    """In what the remote differs; None when it does not, or has not judged."""

    @property
    def is_failure(self) -> bool:
        """Whether the remote has not judged the event although it should have."""
        return self.verdict == "dead" or (self.verdict == "retry" and self.is_counted)


def judge(reply: Reply | Fault, payload: Mapping[str, Any], *, now: Instant) -> Outcome:
    """Decide what becomes of an event, by what the answer says before by its status.

    Args:
        reply: The answer to the attempt that has just ended.
        payload: What was sent.
        now: The store's time.
    """
    if isinstance(reply, Fault):
        return Outcome("retry", why=reply.why)
    document = reply.document
    why = _quote(reply, document)
    wait = timedelta(seconds=seconds_of(reply.retry_after, now))
    said = {word for word in (document.get("code"), document.get("reason")) if type(word) is str}
    if IN_PROGRESS in said:
        # What was not judged does not count.
        return Outcome("retry", why=why, wait=max(SHORTEST_WAIT, wait), is_counted=False)
    if said & LASTING:
        return Outcome("dead", why=why)
    if said & PASSING or is_passing(reply.status):
        return Outcome("retry", why=why, wait=wait)
    if document.get("ok") is False:
        return Outcome("rejected", why=why, drift=why)
    if reply.status == HTTPStatus.CONFLICT:  # with whom it does not say; conflicts pass
        return Outcome("retry", why=why, wait=wait)
    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome("dead", why=why)
    if is_of_the_remote(reply, payload["idempotency_key"]):
        return Outcome("sent", drift=_compare(payload, document))
    # A login page, a proxy, another program: nobody there has judged the event.
    why = f"{why}: {FOREIGN}"
    return Outcome("retry", why=why, wait=wait, drift=why)


def seconds_of(retry_after: str | None, now: Instant) -> float:
    """Read `Retry-After`, a number of seconds or an HTTP date; 0 when it says nothing usable."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return _LONGEST_WAIT_S if len(text) > 9 else min(float(text), _LONGEST_WAIT_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    if moment.tzinfo is None:  # "-0000": UTC, of which the sender says no more
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (to_instant(moment) - now) / SECOND), _LONGEST_WAIT_S)


def is_of_the_remote(reply: Reply, key: str, *, verdict: str = "ok") -> bool:
    """Whether an answer is the remote's and not a login page or a proxy's: it has the member of a
    verdict, repeats the key, or is a refusal that says why in a word.

    Args:
        reply: The answer.
        key: What was sent as the idempotency key; '' when there was none.
        verdict: The member that says yes or no.
    """
    document = reply.document
    if isinstance(document.get(verdict), bool):
        return True
    if key and key in (document.get("idempotency_key"), reply.headers.get("idempotency-key")):
        return True
    is_refusal = reply.status >= HTTPStatus.BAD_REQUEST
    return is_refusal and any(isinstance(document.get(word), str) for word in ("code", "reason"))


def _compare(payload: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Say in what an acceptance differs, of the members that both know: a remote that stood
    elsewhere has come to the same status by another way, and one with another contract version may
    not do so the next time."""
    local = {**payload, "contract_version": payload.get("meta", {}).get("local_contract_version")}
    differences = [
        f"{name} is {answer[name]!r} there and {local[name]!r} here"
        for name in COMPARED
        if name in answer and local.get(name) is not None and answer[name] != local[name]
    ]
    return "; ".join(differences) or None


def is_passing(status: int) -> bool:
    """Whether a status says nothing about what was sent: a redirect is an address that is wrong."""
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    return is_redirect or status in PASSING_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _quote(reply: Reply, document: Mapping[str, Any]) -> str:
    """Say in a line what was answered."""
    words = [document.get(name) for name in ("reason", "code", "detail")]
    said = ": ".join(dict.fromkeys(word for word in words if isinstance(word, str) and word))
    text = f"HTTP {reply.status}" + (f": {said}" if said else "")
    # A body is anybody's: lone surrogates, which no database takes, and lines without end.
    text = " ".join(text.encode("utf-8", "replace").decode().replace("\x00", " ").split())
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
