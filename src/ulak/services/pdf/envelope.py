"""Errors as the specification draws them: members of the one problem document of every surface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response

from ulak.errors import GuardUnavailable, ServiceError, StoreError, UnknownOutcome
from ulak.services.pdf.failsafe import Unavailable
from ulak.services.pdf.model import PdfErrorCode
from ulak.web.idempotency import IdempotentRoute

UNAUTHORIZED: Final = "UNAUTHORIZED"
FORBIDDEN: Final = "FORBIDDEN"
PAYLOAD_TOO_LARGE: Final = "PAYLOAD_TOO_LARGE"
VALIDATION_ERROR: Final = "VALIDATION_ERROR"
JOB_NOT_FOUND: Final = "JOB_NOT_FOUND"
JOB_FAILED: Final = "JOB_FAILED"
JOB_EXPIRED: Final = "JOB_EXPIRED"
JOB_ENDED: Final = "JOB_ENDED"
ARTIFACT_MISSING: Final = "ARTIFACT_MISSING"
ARTIFACT_READ_FAILED: Final = "ARTIFACT_READ_FAILED"
RANGE_NOT_SATISFIABLE: Final = "RANGE_NOT_SATISFIABLE"
LINK_INVALID: Final = "LINK_INVALID"
NOT_ACCEPTABLE: Final = "NOT_ACCEPTABLE"
QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"

# What the rest of ulak refuses before a route is called, by status. A conflict of idempotency
# keys has a status that others have too, and a code that says all there is to say.
_OF_STATUS: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: FORBIDDEN,
    HTTPStatus.NOT_FOUND: JOB_NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: PAYLOAD_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY: VALIDATION_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE: str(PdfErrorCode.PDF_RENDER_UNAVAILABLE),
}
_OF_KEYS: Final = "idempotency_"


class Refusal(ServiceError):
    """A request is not done; every word of the answer is here.

    Args:
        message: For people; without variables, HTML, keys or tokens.
        status: Of the answer.
        error_code: What programs compare.
        job_id: The job that it is about, where its caller may know of it.
        retry_after_s: When to ask again.
        details: Facts besides.
        headers: Of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        error_code: str,
        job_id: str | None = None,
        retry_after_s: int | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        facts = {"job_id": job_id, "details": None if details is None else dict(details)}
        super().__init__(
            message,
            retry_after=None if retry_after_s is None else timedelta(seconds=retry_after_s),
            error_code=error_code,
            **{name: fact for name, fact in facts.items() if fact is not None},
        )
        self.status = status
        self.code = error_code.lower().replace("_", "-")
        self.headers = headers or {}


def envelope(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the specification's envelope adds to a problem of anybody's."""
    code, status = document["code"], document["status"]
    if code.startswith(_OF_KEYS):
        error_code = code.upper()
    else:
        error_code = _OF_STATUS.get(status, str(PdfErrorCode.UNKNOWN))
    added = {"error_code": error_code, "message": document["detail"]}
    if wrong := document.get("errors"):
        added["details"] = {
            "fields": [{"field": e["parameter"], "message": e["message"]} for e in wrong]
        }
    return added


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnUnavailable = Callable[[Request, str], Awaitable[Response]]
"""Answers a request that could not be done now, and why."""


def answering(unavailable: OnUnavailable) -> type[IdempotentRoute]:
    """Make the class of routes that leave it to `unavailable` what is answered while the store
    does not answer or nobody works."""

    class Answering(IdempotentRoute):
        def get_route_handler(self) -> Handler:
            """Return what FastAPI calls: its own handler, and what becomes of its errors."""
            handler = super().get_route_handler()

            async def serve(request: Request) -> Response:
                try:
                    return await handler(request)
                except Unavailable as error:
                    return await unavailable(request, str(error))
                except (StoreError, GuardUnavailable, UnknownOutcome):
                    # Not what it says: that names hosts and files of the inside.
                    return await unavailable(request, "the store of jobs does not answer")

            return serve

    return Answering
