"""Codes: why a job is held or has failed, upper-case as the specification has them; and why a
request is refused, lower-case as every code of an answer is: the envelope writes it upper-case."""

from __future__ import annotations

from typing import Any, Final

from ulak.errors import ServiceError

HOLD_ERROR_CODES: Final = frozenset({
    "E_TEMPLATE_INVALID", "E_CRM_NO_MATCH", "E_PLATE_SIZE_MISSING",
    "E_OPERATOR_TRIGGER_REQUIRED", "E_BACKING_THICKNESS_UNKNOWN", "E_TRIM_RULE_MISSING",
    "E_PART_OVERSIZE", "E_NO_PARTS", "E_OSI_STATE_UNKNOWN", "E_EDGE_MAPPING_UNKNOWN",
    "E_INVALID_GRAIN",
})  # fmt: skip
"""A job waits for its approval."""
PERMANENT_ERROR_CODES: Final = frozenset({
    "E_TEMPLATE_INVALID", "E_CRM_NO_MATCH", "E_PLATE_SIZE_MISSING", "E_XML_INVALID",
    "E_PLAN_INVALID", "E_CANCELLED",
})  # fmt: skip
"""No retry: of the first three, the approval is the only way on."""
TRANSIENT_ERROR_CODES: Final = frozenset({
    "E_OPTI_XML_TIMEOUT", "E_OSI_ACK_TIMEOUT", "E_OSI_ACK_FAILED", "E_OPTI_RUNNER_FAILED",
    "E_OPTI_MODE_A_RUNNER_MISSING", "E_OPTI_MODE_B_MACRO_MISSING", "E_UNKNOWN",
})  # fmt: skip
"""An operator may retry."""


class CuttingError(Exception):
    """A job fails with a code of the tables above; `ValueError` for another code. That of a
    permanent one makes a `PermanentError`, as `OSError` makes the class of its number."""

    def __new__(cls, code: str, message: str) -> CuttingError:
        if code not in TRANSIENT_ERROR_CODES | PERMANENT_ERROR_CODES:
            raise ValueError(f"{code!r} is no code of a failure")
        return super().__new__(PermanentError if code in PERMANENT_ERROR_CODES else CuttingError)

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class PermanentError(CuttingError):
    """A failure that no retry helps."""


class HoldCode(Exception):
    """A job must wait for a person; `ValueError` for a code that is not in the table of holds."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        if code not in HOLD_ERROR_CODES:
            raise ValueError(f"{code!r} is no code of a hold")
        super().__init__(message)
        self.code, self.message, self.details = code, message, details or {}


class InvalidInput(ServiceError):
    """What was sent cannot be used; the message has `path.with.dots: text` of every problem."""

    code, status = "e_validation", 422


class JobNotFound(ServiceError):
    code, status = "e_job_not_found", 404


class Refused(ServiceError):
    """What is asked is refused with a code of the table, or with that of a job's failure."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code.lower()


class ConfigUnavailable(ServiceError):
    code, status = "e_config_unavailable", 503
