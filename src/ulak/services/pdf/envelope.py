"""Errors as the specification draws them: members of the one problem document of every surface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from ulak.errors import GuardUnavailable, StoreError, UlakError, UnknownOutcome
from ulak.services.pdf.failsafe import Unavailable
from ulak.services.pdf.model import PdfErrorCode
from ulak.web import problems
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


class Refusal(UlakError):
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
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.code = error_code.lower().replace("_", "-")
        self.job_id = job_id
        self.retry_after_s = retry_after_s
        self.details = details
        self.headers = headers

    def answer(self, request: Request) -> Response:
        """Write it as a problem."""
        headers = dict(self.headers or {})
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        return problems.problem(
            request, self.status, code=self.code, detail=str(self), headers=headers,
            **self.members(),
        )  # fmt: skip

    def members(self) -> dict[str, Any]:
        """Return what the envelope of the specification has of it, besides the message."""
        members: dict[str, Any] = {"error_code": self.error_code}
        if self.job_id is not None:
            members["job_id"] = self.job_id
        if self.retry_after_s is not None:
            members["retry_after_seconds"] = self.retry_after_s
        if self.details is not None:
            members["details"] = dict(self.details)
        return members


def words(document: Mapping[str, Any]) -> Mapping[str, Any]:
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
    # What the document has already was said by somebody who knew more.
    return {name: value for name, value in added.items() if name not in document}


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnUnavailable = Callable[[Request, str], Awaitable[Response]]
"""Answers a request that could not be done now, and why."""


class PdfRoute(IdempotentRoute):
    """A route of the service: whatever goes wrong is answered in the specification's words."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope[problems.WORDS] = words
        await super().handle(scope, receive, send)


def answering(unavailable: OnUnavailable) -> type[PdfRoute]:
    """Make the class of routes whose refusals are answers, and that leave it to `unavailable`
    what is answered while the store cannot be asked or nobody works."""

    class Answering(PdfRoute):
        def get_route_handler(self) -> Handler:
            """Return what FastAPI calls: its own handler, and what becomes of its errors."""
            handler = super().get_route_handler()

            async def serve(request: Request) -> Response:
                try:
                    return await handler(request)
                except Refusal as refusal:
                    return refusal.answer(request)
                except Unavailable as error:
                    return await unavailable(request, str(error))
                except (StoreError, GuardUnavailable, UnknownOutcome):
                    # Not what it says: that names hosts and files of the inside.
                    return await unavailable(request, "the store of jobs does not answer")

            return serve

    return Answering
