"""Every error that ulak raises, one tree.

    UlakError
    ├── FlowError               a declaration is wrong; raised before anything runs
    ├── BadInput                an argument cannot be used; nothing was changed
    │   └── PayloadTooLarge     a payload has more bytes than its flow allows
    ├── NotFound                (also a LookupError) nothing has this name
    │   ├── UnknownName         (also a BadInput) no limit, queue, flow or schedule is called so
    │   └── JobNotFound         no job has this id, or it belongs to another tenant
    ├── ResultNotReady          (also a LookupError) the stage has not finished in this round
    ├── JobFailed               the job has no result: it failed, was cancelled or expired
    ├── TransitionNotAllowed    the lifecycle or a guard says no
    ├── StaleJob                someone else moved first; reread and decide again
    ├── KeyTaken                another job holds this dedup key; its id is in the error
    ├── Overloaded              intake is full, or a flow takes no jobs now; carries retry_after
    ├── UnknownOutcome          the commit was not acknowledged in time; carries the job id
    ├── Unauthenticated         no credential, or none that is good; carries why
    ├── Forbidden               the caller is known and may not do this
    ├── IdempotencyError        a protected operation was not executed by this request
    │   ├── BadKey              (also a BadInput) the idempotency key is missing or no key
    │   ├── InProgress          the first execution has not ended; carries retry_after
    │   ├── ClaimLost           it took so long that somebody else has taken over
    │   ├── AnswerNotStored     it was executed; its answer was too large to be kept
    │   ├── IdempotencyConflict same key, different request
    │   └── GuardUnavailable    the store could not be asked, so nothing was executed
    ├── ArtifactError           bytes that a job has left could not be read, stored or deleted
    │   ├── ArtifactMissing     (also a LookupError) nothing is stored under this key
    │   ├── ArtifactUnreadable  it is damaged, or the storage does not answer
    │   └── ArtifactWriteFailed the storage has not confirmed it; the same again may help
    ├── NotSupported            this store cannot do that; names the call and the cure
    ├── ServiceError            an error of a service, with a code and an HTTP status of its own
    └── StoreError              the store could not answer; retrying may help
        ├── Contended           somebody else holds what the write needs; try the rest without it
        └── WriteRefused        the store answered and will not write this; retrying will not help
            └── Misconfigured   the database lacks a table, a column or a right that ulak needs

Each class has a stable `code` that every surface shows, and fields besides its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

__all__ = [
    "AnswerNotStored",
    "ArtifactError",
    "ArtifactMissing",
    "ArtifactUnreadable",
    "ArtifactWriteFailed",
    "BadInput",
    "BadKey",
    "ClaimLost",
    "Contended",
    "FlowError",
    "Forbidden",
    "GuardUnavailable",
    "IdempotencyConflict",
    "IdempotencyError",
    "InProgress",
    "JobFailed",
    "JobNotFound",
    "KeyTaken",
    "Misconfigured",
    "NotFound",
    "NotSupported",
    "Overloaded",
    "PayloadTooLarge",
    "ResultNotReady",
    "ServiceError",
    "StaleJob",
    "StoreError",
    "TransitionNotAllowed",
    "UlakError",
    "Unauthenticated",
    "UnknownName",
    "UnknownOutcome",
    "WriteRefused",
]


class UlakError(Exception):
    """The root of the tree; catching it catches everything ulak raises on purpose."""

    code = "error"


class FlowError(UlakError):
    """A flow's declaration is wrong. The message names the flow, the state and the cure."""

    code = "flow-invalid"


class BadInput(UlakError, ValueError):
    """An argument cannot be used as given; nothing was changed."""

    code = "bad-input"


class PayloadTooLarge(BadInput):
    """The payload has more bytes than its flow allows; nothing was changed."""

    code = "payload-too-large"


class NotFound(UlakError, LookupError):
    """Nothing has this name, or the caller may not know of it."""

    code = "not-found"


class UnknownName(NotFound, BadInput):
    """No limit, rate, queue, flow or schedule is called so; the message names those that are."""


class JobNotFound(NotFound):
    """No job has this id, or it belongs to another tenant."""

    code = "job-not-found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id}")
        self.job_id = job_id


class ResultNotReady(UlakError, LookupError):
    """The stage asked for has no result in this round of the job."""

    code = "result-not-ready"


class JobFailed(UlakError):
    """A job has no result, because it failed, was cancelled or expired."""

    code = "job-failed"

    def __init__(self, text: str, *, job_id: str, state: str, code: str, message: str) -> None:
        super().__init__(text)
        self.job_id = job_id
        self.state = state
        """Where it has ended, in the flow's own words."""
        self.code = code
        """The code of the failure; `cancelled` or `expired` where nothing else was said."""
        self.message = message
        """What the failure, or the person who ended the job, has said; '' when nothing."""


class TransitionNotAllowed(UlakError):
    """The lifecycle or a guard refuses this move; the job is as it was."""

    code = "transition-not-allowed"

    def __init__(
        self, message: str, *, code: str | None = None, state: str = "", decided_by: str = ""
    ) -> None:
        super().__init__(message)
        self.state = state
        self.decided_by = decided_by
        """Who has answered the gate that somebody else would answer now."""
        if code is not None:
            self.code = code


class StaleJob(UlakError):
    """Someone else moved the job first; reread it and decide again."""

    code = "stale-job"

    def __init__(self, message: str, *, job_id: str, decided_by: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.decided_by = decided_by


class KeyTaken(UlakError):
    """Another job holds the dedup key that this one would need."""

    code = "key-taken"

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class Overloaded(UlakError):
    """Nothing was accepted; try again after `retry_after`.

    The code is `overloaded` when the intake is full, `backpressure-active` when the flow takes no
    new jobs now.
    """

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: timedelta, code: str = code) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code


class UnknownOutcome(UlakError):
    """The commit was not acknowledged in time: the job may or may not be stored.

    Submitting again with the same dedup key, or reading `job_id`, tells which.
    """

    code = "unknown-outcome"

    def __init__(self, message: str, *, job_id: str, job_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.job_id = job_id
        """The first job that was not acknowledged."""
        self.job_ids = tuple(job_ids) or (job_id,)
        """Every job of the call, in the order of its payloads; those before `job_id` are stored."""


class Unauthenticated(UlakError):
    """There is no credential, or it is not good; `reason` says which, the message no more."""

    code = "unauthenticated"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """`missing`, `malformed`, `unknown`, `expired` or `revoked`."""


class Forbidden(UlakError):
    """The caller is known and may not do this."""

    code = "forbidden"


class IdempotencyError(UlakError):
    """A protected operation was not executed by this request, or not to its end."""

    code = "idempotency_error"


class BadKey(IdempotencyError, BadInput):
    """The idempotency key is missing, is no key, or there are two; `code` says which."""

    code = "idempotency_key_invalid"

    def __init__(self, message: str, *, code: str = code) -> None:
        super().__init__(message)
        self.code = code


class InProgress(IdempotencyError):
    """The first execution under this key has not ended; try again after `retry_after`."""

    code = "idempotency_in_progress"

    def __init__(self, message: str, *, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClaimLost(IdempotencyError):
    """The execution outlived its lease and somebody else has taken over; nothing was stored."""

    code = "idempotency_lease_lost"


class AnswerNotStored(IdempotencyError):
    """It was executed once; what was answered then was too large to be kept."""

    code = "idempotency_response_not_stored"


class IdempotencyConflict(IdempotencyError):
    """The key was used for another request; the first answer stays what it was."""

    code = "idempotency_key_reused"


class GuardUnavailable(IdempotencyError):
    """The store of idempotency records could not be asked: nothing was executed."""

    code = "idempotency_store_unavailable"


class ArtifactError(UlakError):
    """Bytes that a job has left could not be read, stored or deleted; `key` says which."""

    code = "artifact-error"

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key
        """'' when the storage itself was asked."""


class ArtifactMissing(ArtifactError, LookupError):
    """Nothing is stored under this key: it never was, or it has been deleted."""

    code = "artifact-missing"

    def __init__(self, key: str) -> None:
        super().__init__(f"nothing is stored under {key}", key=key)


class ArtifactUnreadable(ArtifactError):
    """What is stored is damaged or not an artifact, or the storage does not answer."""

    code = "artifact-unreadable"


class ArtifactWriteFailed(ArtifactError):
    """The storage has not confirmed a write or a deletion; doing the same again may help."""

    code = "artifact-write-failed"


class NotSupported(UlakError):
    """This store cannot do what was asked; the message names the call and the cure."""

    code = "not-supported"


class ServiceError(UlakError):
    """An error of a service: each kind is a subclass with the code and the HTTP status that the
    service's specification names.

        class AlreadySent(ServiceError):
            code, status = "already-sent", 409

        raise AlreadySent("letter 7 was sent on Monday", letter=7, sent_at="2026-01-05")

    Args:
        message: What was asked, why not, and what would work.
        retry_after: When the same request may succeed; the answer has it as `Retry-After`.
        members: Facts besides, as members of the problem document.

    Raises:
        FlowError: the code or the status of a subclass is none, or a member has a name that every
            problem document has already.
    """

    code = "service-error"
    status: int = 400
    """The HTTP status of the answer, from 400 to 599."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Further headers of the answer."""

    def __init_subclass__(cls) -> None:
        """Refuse a code or a status that no surface could show."""
        super().__init_subclass__()
        if not re.fullmatch(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*", cls.code):
            raise FlowError(
                f"{cls.__name__}: {cls.code!r} is no code; write words as already-sent"
            )  # fmt: skip
        if not 400 <= cls.status <= 599:
            raise FlowError(f"{cls.__name__}: {cls.status} is no status of an error, 400 to 599")

    def __init__(
        self, message: str, *, retry_after: timedelta | None = None, **members: Any
    ) -> None:
        if taken := STANDARD_MEMBERS.intersection(members):
            names = ", ".join(sorted(taken))
            raise FlowError(f"{type(self).__name__}: every problem has {names}; choose other names")
        super().__init__(message)
        self.retry_after = retry_after
        self.members = members


STANDARD_MEMBERS: Final = frozenset(
    {"type", "title", "status", "detail", "code", "retryable", "correlation_id"}
)
"""What every problem document has."""


class StoreError(UlakError):
    """The store could not answer and wrote nothing that it did not report; retrying may help."""

    code = "store-error"


class Contended(StoreError):
    """A transaction of somebody else holds what this write needs; nothing was written.

    A batch is parted until the one that must wait stands alone, so that its neighbours need not.
    """

    code = "store-contended"

    def __init__(self, message: str, *, holder: bytes | None = None) -> None:
        super().__init__(message)
        self.holder = holder
        """What the other transaction has said of its purpose; None when it is not known."""


class WriteRefused(StoreError):
    """The store answered and refused this write itself; the same write will be refused again.

    Of the data, or of something else in the database that one row may have met alone: a trigger
    that raises, a constraint, a right that is missing.
    """

    code = "store-refused"


class Misconfigured(WriteRefused):
    """The database lacks a table, a column or a right; an operator must mend it, not the caller.

    It is older or newer than this program, or was changed by hand. A batch is parted all the same:
    one row alone may meet it, by a trigger that names what is not there.
    """

    code = "store-misconfigured"
