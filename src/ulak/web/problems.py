"""Every error as one `application/problem+json` document (RFC 9457)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import responses
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ulak import errors
from ulak.web.schemas import PROBLEM_JSON

log = logging.getLogger("ulak.web")

CORRELATION_HEADER: Final = "X-Correlation-ID"
CORRELATION_KEY: Final = "ulak_correlation_id"

# A class stands for its subclasses unless they have a line of their own.
STATUS: Mapping[type[errors.UlakError], HTTPStatus] = {
    errors.BadInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.ResultNotReady: HTTPStatus.CONFLICT,
    errors.JobFailed: HTTPStatus.CONFLICT,
    errors.TransitionNotAllowed: HTTPStatus.CONFLICT,
    errors.StaleJob: HTTPStatus.CONFLICT,
    errors.KeyTaken: HTTPStatus.CONFLICT,
    errors.Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.UnknownOutcome: HTTPStatus.GATEWAY_TIMEOUT,
    errors.NotSupported: HTTPStatus.NOT_IMPLEMENTED,
    errors.WriteRefused: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Misconfigured: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.BadKey: HTTPStatus.BAD_REQUEST,
    errors.InProgress: HTTPStatus.CONFLICT,
    errors.ClaimLost: HTTPStatus.CONFLICT,
    errors.AnswerNotStored: HTTPStatus.CONFLICT,
    errors.IdempotencyConflict: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.GuardUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
# A guard of the flow that looks at who asks: the job would take the act from somebody else.
STATUS_OF_CODE: Mapping[str, HTTPStatus] = {"not-permitted": HTTPStatus.FORBIDDEN}

# Fields that programs act on, as members of the problem; one that says nothing is left out.
MEMBERS: Mapping[type[errors.UlakError], tuple[str, ...]] = {
    errors.JobNotFound: ("job_id",),
    errors.JobFailed: ("job_id", "state"),
    errors.TransitionNotAllowed: ("state", "decided_by"),
    errors.StaleJob: ("job_id", "decided_by"),
    errors.KeyTaken: ("holder",),
    errors.UnknownOutcome: ("job_id",),
    errors.Unauthenticated: ("reason",),
}
RETRYABLE = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
# Whoever executes will have ended, or somebody will have taken over.
RETRYABLE_CODES = frozenset({errors.InProgress.code, errors.ClaimLost.code})
# When to ask a store again that did not answer. A guess.
SOON_S = 1
INTERNAL = "internal-error"
OUTAGES = frozenset({errors.StoreError.code, errors.Contended.code})

EXTRA = "ulak.problem-headers"
"""Where the scope of a connection may have headers that every problem of it carries."""
UNCLAIMED = "ulak.unclaimed"
"""Where the scope of a connection says that its request is protected by an idempotency key that is
not claimed yet: a store that does not answer now has executed nothing."""
SCHEME = "ulak.scheme"
"""Where the scope of a connection may have the scheme by which its route wants a credential."""

Envelope = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns, for a problem document, the members that a service's specification names. They take the
place of those that the document has; only `status` stays, which is that of the response."""


def correlation_id(request: Request) -> str:
    """Return the id of a request, '' outside the middleware."""
    found: str = request.scope.get(CORRELATION_KEY, "")
    return found


def problem_document(
    status: int, code: str, *, detail: str, members: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the problem document of a status and a code, of media type `application/problem+json`.
    `members` are added to the usual ones, or take their place."""
    return {
        "type": f"urn:ulak:problem:{code}",
        "title": responses.get(status, "Error"),
        "status": int(status),
        "detail": detail,
        "code": code,
        "retryable": status in RETRYABLE or code in RETRYABLE_CODES,
        **(members or {}),
    }


def problem(
    request: Request,
    status: int,
    *,
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> JSONResponse:
    """Write one problem document; `members` are added to the usual ones."""
    return _written(request, status, code, detail, headers or {}, members)


def _written(
    request: Request,
    status: int,
    code: str,
    detail: str,
    headers: Mapping[str, str],
    members: Mapping[str, Any],
) -> JSONResponse:
    identity = correlation_id(request)
    said = {**request.scope.get(EXTRA, {}), **headers}
    document = problem_document(status, code, detail=detail, members=members)
    if identity:  # an application that is not ours may know none
        document["correlation_id"] = said[CORRELATION_HEADER] = identity
    app, route = request.scope.get("app"), request.scope.get("route")
    envelopes: dict[str, Envelope] = getattr(getattr(app, "state", None), "envelopes", {})
    # The members that the specification of a service names for its own routes.
    if (envelope := envelopes.get(getattr(route, "path", ""))) is not None:
        document |= {**envelope(document), "status": status}
    return ProblemResponse(document, status, headers=said)


class ProblemResponse(JSONResponse):
    """A problem document. What it quotes may be no text at all: half a surrogate pair is shown."""

    media_type = PROBLEM_JSON

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
        return text.encode("utf-8", "backslashreplace")


def install(app: FastAPI) -> None:
    handlers: dict[type[Exception], Any] = {
        errors.UlakError: problem_of,
        RequestValidationError: _bad_parameters,
        HTTPException: http_problem,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, unforeseen)


def problem_of(request: Request, error: errors.UlakError) -> JSONResponse:
    if error.code in OUTAGES and request.scope.get(UNCLAIMED):
        error = errors.GuardUnavailable(f"the store cannot be asked: {error}")
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, errors.UlakError)]
    # What a flow calls its failures is no name of a problem: it is said beside it.
    is_failure = isinstance(error, errors.JobFailed)
    code = errors.JobFailed.code if is_failure else error.code
    status: int = STATUS_OF_CODE.get(code) or next(
        (STATUS[kind] for kind in kinds if kind in STATUS), HTTPStatus.INTERNAL_SERVER_ERROR
    )
    names = next((MEMBERS[kind] for kind in kinds if kind in MEMBERS), ())
    members = {name: value for name in names if (value := getattr(error, name))}
    if is_failure:
        members["reason"] = error.code
    headers: dict[str, str] = {}
    if isinstance(error, errors.ServiceError):
        status, members = error.status, dict(error.members)
        headers |= error.headers
    if isinstance(error, errors.Unauthenticated):
        scheme = request.scope.get(SCHEME, "Bearer")
        headers["WWW-Authenticate"] = challenge(error.reason, scheme)
    if isinstance(error, errors.Overloaded | errors.InProgress | errors.ServiceError):
        wait = error.retry_after
        if wait is not None:
            members["retry_after_seconds"] = wait_s = math.ceil(wait.total_seconds())
            headers["Retry-After"] = str(wait_s)
    if isinstance(error, errors.GuardUnavailable):
        headers["Retry-After"] = str(SOON_S)
    # Not by keywords: a member of a service may have any name.
    return _written(request, status, code, str(error), headers, members)


def challenge(reason: str, scheme: str = "Bearer") -> str:
    """Say how to authenticate (RFC 6750); whoever has sent nothing has made no mistake yet."""
    realm = f'{scheme} realm="ulak"'
    return realm if reason == "missing" else f'{realm}, error="invalid_token"'


def _bad_parameters(request: Request, error: RequestValidationError) -> JSONResponse:
    found = [_bad_parameter(e) for e in error.errors()]
    detail = "; ".join(f"{e['parameter']}: {e['message']}" for e in found)
    return problem(
        request, HTTPStatus.UNPROCESSABLE_ENTITY, code=errors.BadInput.code, detail=detail,
        errors=found,
    )  # fmt: skip


def _bad_parameter(found: Any) -> dict[str, str]:
    where, *path = found["loc"]
    if found["type"] == "json_invalid":
        return {"parameter": "body", "message": f"not JSON at character {path[0]}"}
    return {"parameter": ".".join(map(str, path)) or str(where), "message": found["msg"]}


def http_problem(request: Request, error: HTTPException) -> JSONResponse:
    if isinstance(error.__cause__, errors.UlakError):
        return problem_of(request, error.__cause__)
    status = HTTPStatus(error.status_code)
    return problem(
        request, status, code=status.phrase.lower().replace(" ", "-"),
        detail=f"{request.method} {request.url.path}: {error.detail}", headers=error.headers,
    )  # fmt: skip


def unforeseen(request: Request, error: Exception) -> JSONResponse:
    """Say nothing of the inside; the server logs the error itself, with its stack."""
    log.error("a request failed", extra={"path": request.url.path, "id": correlation_id(request)})
    return problem(
        request, HTTPStatus.INTERNAL_SERVER_ERROR, code=INTERNAL,
        detail="something went wrong that ulak did not foresee; the log has the correlation id",
    )  # fmt: skip
