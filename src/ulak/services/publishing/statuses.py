"""Statuses of a post, the moves between them, and the errors that say why one is refused.

`MOVES` is the table of section 2 of the specification; every line of a post's history is one of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from ulak.errors import ServiceError

Status = Literal["DRAFT", "PENDING_PUBLISH", "PUBLISHED", "REJECTED", "ERROR"]

DRAFT: Final = "DRAFT"
PENDING_PUBLISH: Final = "PENDING_PUBLISH"
PUBLISHED: Final = "PUBLISHED"
REJECTED: Final = "REJECTED"
ERROR: Final = "ERROR"
STATUSES: Final = (DRAFT, PENDING_PUBLISH, PUBLISHED, REJECTED, ERROR)

# Causes, as the history has them.
BY_AUTHOR: Final = "author-published"
BY_EDIT: Final = "author-edited"
RETURNED: Final = "author-returned"
"""The author took the post back to draft: withdrew it, or means to revise it."""
BY_PUBLISH: Final = "internal-publish"
BY_REJECT: Final = "internal-reject"
BY_ERROR: Final = "internal-error"
DEAD_LETTER: Final = "dead-letter"
"""A task of the saga gave up, and its dead letter was compensated."""
STUCK: Final = "stuck"
"""The sweep started the missing step so often that it gave up."""
RESUMED: Final = "operator-resumed"

MOVES: Final[Mapping[tuple[str, str], frozenset[str]]] = MappingProxyType(
    {
        (DRAFT, PENDING_PUBLISH): frozenset({BY_AUTHOR}),
        (PENDING_PUBLISH, PUBLISHED): frozenset({BY_PUBLISH}),
        (PENDING_PUBLISH, REJECTED): frozenset({BY_REJECT, DEAD_LETTER}),
        (PENDING_PUBLISH, ERROR): frozenset({BY_ERROR, DEAD_LETTER, STUCK}),
        (PENDING_PUBLISH, DRAFT): frozenset({RETURNED}),
        (REJECTED, DRAFT): frozenset({RETURNED, BY_EDIT}),
        (ERROR, DRAFT): frozenset({RETURNED, BY_EDIT}),
        (ERROR, PENDING_PUBLISH): frozenset({RESUMED}),
    }
)
"""Which status may follow which, and by which causes."""

MODERATE: Final = "post.moderate"
GENERATE_PREVIEW: Final = "post.generate_preview"
PUBLISH: Final = "post.publish"
NOTIFY: Final = "post.notify"
SAGA_TASKS: Final = (MODERATE, GENERATE_PREVIEW, PUBLISH)
"""The tasks that a pending post waits for, in their order."""

APPROVED: Final = "approve"
REFUSED: Final = "reject"
"""The verdicts of a publication."""


class PostNotFound(ServiceError):
    """There is no such post, or no such comment below it."""

    code, status = "not_found", 404


class NotAuthor(ServiceError):
    code, status = "not_author", 403


class Refused(ServiceError):
    """The post does not stand where this change begins; it was left as it is."""

    code, status = "invalid_status", 409

    def __init__(self, message: str, current_status: str) -> None:
        super().__init__(message, current_status=current_status)


class InvalidStatus(Refused):
    """The status of the post does not allow this."""


class LockedForPublication(Refused):
    code = "locked_for_publication"


class StalePublication(Refused):
    """The call is about another publication or revision of the post."""

    code = "stale_publication"


class AlreadyApproved(Refused):
    code = "already_approved"


class AlreadyRejected(Refused):
    code = "already_rejected"


class StepDone(Refused):
    """The step that is said to have failed has its effect: only its answer was lost."""

    code = "step_done"


class PreviewMissing(Refused):
    code = "preview_missing"
