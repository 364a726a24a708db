"""The kinds of events and the codes that ulak itself writes. Stored names are forever."""

from __future__ import annotations

from typing import Final

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

KINDS: Final = frozenset(
    {
        SUBMITTED, ENTERED, MOVED, RETRY, HELD, RELEASED, DECIDED, SIGNALLED, WAITED, FAILED,
        UNDONE, ENDED, CANCELLED, EXPIRED, RETRIED, LAPSED, GIVEN_BACK, OVERRAN, NOTED, TAKEN,
        MIGRATED,
    }
)  # fmt: skip

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
