"""Who calls: finds the credential of a request, and refuses what its principal may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from ulak.auth.principal import ANONYMOUS, ANYBODY, CURRENT_REQUEST, METRICS_READ, Principal
from ulak.engine.engine import Engine
from ulak.engine.view import Job
from ulak.errors import Forbidden, JobNotFound, UlakError, Unauthenticated
from ulak.web.access import PUBLIC, Access, Authenticate, Authenticator, each_route
from ulak.web.problems import SCHEME, http_problem

PRINCIPAL = "ulak.principal"
"""Where the scope of a connection has who calls, once that is known."""
_KNOWN_CALLER = "ulak.known-caller"
"""Where it has the caller whom the guard has found before the body was read."""
_ADMITTED = "ulak.admitted"
"""Set once the request guard has let the request in."""
SESSION = "ulak_session"
"""The cookie of whoever has logged in with a browser."""

# One system under several names: programs that were written for other servers go on working.
ALIASES = ("X-Admin-Key",)
_SCHEMES = ("Bearer", "Token")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class _Function:
    """A function in the place of an authenticator: it remembers nobody."""

    def __init__(self, function: Authenticate) -> None:
        self._function = function

    def recall(self, credential: str) -> Principal | None:
        return None

    def authenticate(self, credential: str) -> Principal | None:
        return self._function(credential)


def _authenticator_of(line: Access, identity: Authenticator | None) -> Authenticator | None:
    """Return who is asked about the callers of a route; None when nobody is. Raises `UlakError`:
    the line names something that cannot be asked."""
    if line.authenticate is None:
        return None if line.is_public else identity
    if isinstance(line.authenticate, Authenticator):
        return line.authenticate
    if not callable(line.authenticate):
        raise UlakError(
            f"{line.method} {line.path}: authenticate= takes a function of the credential, or an "
            "object that has recall and authenticate"
        )
    return _Function(line.authenticate)


class Guard:
    """Stands before every route of one application. The platform's own routes have the lines of
    `own`: to them, a parameter that they do not have is an error. It `asks` who calls unless the
    application has no identity."""

    def __init__(
        self,
        identity: Authenticator | None,
        access: Mapping[tuple[str, str], Access],
        *,
        own: Mapping[tuple[str, str], Access],
        open: Callable[[], object],
    ) -> None:
        self.own = own
        self.asks = identity is not None
        self._open = open
        self._access = access
        self._authenticators = {at: _authenticator_of(x, identity) for at, x in access.items()}

    def check(self, app: FastAPI) -> None:
        """Refuse to start with a route that nobody has thought about. Raises `UlakError`: naming
        the routes."""
        unlisted = routes_of(app) - self._access.keys()
        if forgotten := sorted(f"{method} {path}" for method, path in unlisted):
            raise UlakError(f"nobody has said who may call {', '.join(forgotten)}")

    async def __call__(self, request: Request) -> Principal:
        """Return who calls. Raises `Unauthenticated`: nobody who is known; `Forbidden`: somebody
        who may not."""
        method = "GET" if request.method == "HEAD" else request.method
        at = method, request.scope["route"].path
        line, authenticator = self._access[at], self._authenticators[at]
        if authenticator is None or (line.is_public and "Authorization" not in request.headers):
            return ANYBODY
        if line.takes:
            request.scope[SCHEME] = line.takes[0]
        credential = _credential(request, line)
        principal = authenticator.recall(credential)
        if principal is None:
            principal = await asyncio.to_thread(self._ask, authenticator, credential)
        if (current := CURRENT_REQUEST.get()) is not None:
            current.principal = principal.name
        if (needed := line.needed) is not None:
            principal.must(needed)
        return principal

    def _ask(self, authenticator: Authenticator, credential: str) -> Principal:
        self._open()  # the first request may be the first that anybody asks of the store
        principal = authenticator.authenticate(credential)
        if principal is None:
            raise Unauthenticated("nobody has this credential", reason="unknown")
        return principal


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    return {
        (method, str(getattr(route, "path", "")))
        for route in each_route(app.routes)
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD"
    }


def not_allowed(request: Request, error: HTTPException) -> JSONResponse:
    """Return a response with status 405 that names every method of the path."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    methods = {
        method
        for route in each_route(request.app.routes)
        if compile_path(route.path)[0].match(path) or compile_path(route.path)[0].match(path[:-1])
        for method in route.methods or ()
    }
    return http_problem(
        request, HTTPException(405, error.detail, {"Allow": ", ".join(sorted(methods))})
    )


async def is_stranger(request: Request) -> bool:
    """Return whether the caller is unknown, in an application that knows callers. It is called
    before the body is read. Raises as the guard does."""
    if "route" not in request.scope:
        return True
    guard: Guard = request.app.state.guard
    principal = request.scope[_KNOWN_CALLER] = await guard(request)
    await _enter(request, principal)
    return principal is ANYBODY and guard.asks


async def caller(request: Request) -> Principal:
    guard: Guard = request.app.state.guard
    principal = request.scope.pop(_KNOWN_CALLER, None) or await guard(request)
    await _enter(request, principal)
    request.scope[PRINCIPAL] = principal
    if request.query_params:
        _refuse_unknown_parameters(request)
    return principal


async def _enter(request: Request, principal: Principal) -> None:
    """Have the request guard let a request in, once, if the application has one. Raises
    `ServiceError`: it does not."""
    chain = request.app.state.chain
    if chain is not None and _ADMITTED not in request.scope:
        request.scope[_ADMITTED] = True
        await chain.admit(request, principal)


def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter that the route does not have: a misspelt one would be done without.
    Probes, scrapers and links may carry any; a service decides about its own routes."""
    route, guard = request.scope["route"], request.app.state.guard
    line = guard.own.get((request.method, route.path))
    if line is None or line.scope in (PUBLIC, METRICS_READ):
        return
    known: set[str] = set()
    for field in route.dependant.query_params:
        # Parameters that a model holds together are its fields.
        known |= getattr(field.field_info.annotation, "model_fields", {field.alias: field}).keys()
    if unknown := sorted(request.query_params.keys() - known):
        cure = f"write {', '.join(sorted(known))}" if known else "this route takes none"
        said = f"there is no such parameter; {cure}"
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("query", name), "msg": said} for name in unknown]
        )


Caller = Annotated[Principal, Depends(caller)]
"""What a route declares to know its caller: `principal: Caller`."""


def guarded_router(*, dependencies: Sequence[params.Depends] = (), **options: Any) -> APIRouter:
    """Make a router whose routes have the guard from the start; options as of `APIRouter`.

    FastAPI builds each route of an included router a second time, to give it the guard. That is
    half of the time in which an application starts, so routes of ours are built with it.
    """
    return APIRouter(dependencies=[Depends(caller), *dependencies], **options)


def serve(app: FastAPI, router: APIRouter, *, tag: str | None = None) -> None:
    """Serve the routes of a router behind the guard of an application."""
    if not any(given.dependency is caller for given in router.dependencies):
        app.include_router(router, tags=None if tag is None else [tag])
        return
    for route in router.routes:
        if tag is not None and isinstance(route, APIRoute):
            route.tags.append(tag)
        app.router.routes.append(route)


def _credential(request: Request, line: Access) -> str:
    headers = request.headers
    names = () if line.takes else (*ALIASES, *line.headers)
    found = [headers[name] for name in names if name in headers]
    schemes = line.takes or _SCHEMES
    if "Authorization" in headers:
        if len(headers.getlist("Authorization")) > 1:
            raise HTTPException(400, "the request has several Authorization headers; send one")
        scheme, _, text = headers["Authorization"].strip().partition(" ")
        if scheme.lower() not in map(str.lower, schemes) or not text.strip():
            raise Unauthenticated(
                f"write Authorization: {schemes[0]} CREDENTIAL, with an API key or a token",
                reason="malformed",
            )
        found.append(text)
    if len(found) > 1:
        raise Unauthenticated("the request has several credentials; send one", reason="malformed")
    if found:
        return found[0].strip()
    cookie = None if line.takes else request.cookies.get(SESSION)
    if cookie is None:
        raise Unauthenticated(
            f"send an API key or a token: Authorization: {schemes[0]} CREDENTIAL", reason="missing"
        )
    if request.method not in _SAFE and not _is_of_this_site(headers):
        # A browser sends the cookie along with whatever another site has it ask.
        raise Forbidden("a login of a browser may only act from this site's own pages")
    return cookie


def _is_of_this_site(headers: Mapping[str, Any]) -> bool:
    if "sec-fetch-site" in headers:
        return bool(headers["sec-fetch-site"] == "same-origin")
    origin = headers.get("origin", "")
    return bool(origin) and origin.partition("://")[2] == headers.get("host")


def get_visible_job(engine: Engine, job_id: str, principal: Principal) -> Job:
    """Return a job as it stands now. Raises `BadInput`: this is not the id of a job; `JobNotFound`:
    there is none, or it belongs to a tenant that the caller does not see."""
    job = engine.get(job_id)
    if not principal.sees(job.tenant):
        raise JobNotFound(job_id)
    return job


def actor_of(principal: Principal) -> str:
    """Name a caller in trails and the audit; whoever was not asked who they are is anonymous."""
    return principal.name or ANONYMOUS


def read_client_address(request: Request) -> str:
    """Return the address that a request comes from; '' where there is none."""
    return "" if request.client is None else request.client.host


def roles_of(principal: Principal) -> Collection[str] | None:
    """Return the roles that a gate checks; none where there is no login."""
    return None if principal is ANYBODY else principal.roles
