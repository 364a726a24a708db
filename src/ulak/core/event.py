"""The kinds of events and the codes that ulak itself writes. Stored names are forever."""

from __future__ import annotations

import re
from typing import Final

from ulak.errors import BadInput

SUBMITTED: Final = "submitted"
ENTERED: Final = "entered"
MOVED: Final = "moved"
RETRY: Final = "retry"
HELD: Final = "held"
RELEASED: Final = "released"
DECIDED: Final = "decided"
SIGNALLED: Final = "signalled"
WAITED: Final = "waited"
FAILED: Final = "failed"
UNDONE: Final = "undone"
ENDED: Final = "ended"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
RETRIED: Final = "retried"
LAPSED: Final = "lapsed"
GIVEN_BACK: Final = "given-back"
OVERRAN: Final = "overran"
NOTED: Final = "noted"
TAKEN: Final = "taken"
MIGRATED: Final = "migrated"
ON_END_FAILED: Final = "on-end-failed"

KINDS: Final = frozenset(
    {
        SUBMITTED, ENTERED, MOVED, RETRY, HELD, RELEASED, DECIDED, SIGNALLED, WAITED, FAILED,
        UNDONE, ENDED, CANCELLED, EXPIRED, RETRIED, LAPSED, GIVEN_BACK, OVERRAN, NOTED, TAKEN,
        MIGRATED, ON_END_FAILED,
    }
)  # fmt: skip

SERVICE_KIND: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)+")
LONGEST_KIND: Final = 100
NOTE: Final = "note"
"""The kind of a request: a line for the trail of a job that is leased."""

WORKER_DIED: Final = "worker-died"
COMMIT_REJECTED: Final = "commit-rejected"
PAYLOAD_UNREADABLE: Final = "payload-unreadable"
UNDO_FAILED: Final = "undo-failed"
RESULT_TOO_LARGE: Final = "result-too-large"
RESULT_UNWRITABLE: Final = "result-unwritable"
BAD_OUTCOME: Final = "bad-outcome"
NOT_RUN: Final = "not-run"
STATE_UNKNOWN: Final = "state-unknown"
TIMEOUT: Final = "timeout"
AFTER_STOP: Final = "after-stop"
GAVE_UP: Final = "gave-up"
TOO_LATE: Final = "too-late"
EXPIRED_CODE: Final = "expired"
CANCELLED_CODE: Final = "cancelled"

ENGINE: Final = "ulak"
"""The actor of what nobody in particular did."""
SUBMITTED_AGAIN: Final = "submitted again"


def is_known(kind: str) -> bool:
    return kind in KINDS or is_of_service(kind)


def is_of_service(kind: str) -> bool:
    """Tell whether a kind is one that programs and services may write."""
    return SERVICE_KIND.fullmatch(kind) is not None and len(kind) <= LONGEST_KIND


def check_kind(kind: str) -> str:
    """Return a kind that a service may write, else raise `BadInput`."""
    if not isinstance(kind, str) or not is_of_service(kind):
        raise BadInput(
            f"{kind!r} cannot be the kind of a note: use lower-case words with a dot, such as "
            f'"orders.repeated", of at most {LONGEST_KIND} characters'
        )
    return kind
