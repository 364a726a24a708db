"""Protected routes of a FastAPI application: a dependency says what, a route class does it.

Protected = Annotated[
    Execution, Depends(idempotent_route(guard, Scope("orders.create"), identify=who))
]
router = APIRouter(route_class=IdempotentRoute)

@router.post("/orders", status_code=201)
def create(order: Order, protected: Protected) -> Created: ...
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from ulak.clock import Duration
from ulak.errors import IdempotencyError, UlakError
from ulak.idempotency import HEADER, REPLAYED, Answer, Execution, Guard, Scope
from ulak.idempotency.aio import AsyncGuard
from ulak.web import problems
from ulak.web.access import each_route
from ulak.web.idempotency.visit import Fingerprint, Policy, Protection, Visit

_PENDING: Final = object()
"""Stands for the execution among what a handler is called with, until there is one."""

_MARK: Final = "__ulak_idempotent_route__"
_LACKING: Final = (
    "{} declares idempotent_route(...) and is no IdempotentRoute, so nothing would be stored; "
    "make its router with route_class=IdempotentRoute"
)

_visit: ContextVar[Visit | None] = ContextVar("ulak-idempotent-visit", default=None)


@dataclass(frozen=True, slots=True)
class _Protecting:
    """What a dependency of ours says of its route."""

    guard: AsyncGuard
    rule: Protection
    identify: Callable[[Request], Any] | None
    """Tells who asks of the request alone; None when FastAPI must be asked."""


def idempotent_route(
    guard: Guard,
    scope: Scope,
    *,
    identify: Callable[..., Any],
    policy: Policy = "required",
    in_body: str | None = None,
    fingerprint: Fingerprint | None = None,
    wait: Duration = 0,
) -> Callable[..., Any]:
    """Make the dependency that protects a route of the class `IdempotentRoute`.

    The key is claimed after every dependency has been solved and everything that was sent has been
    validated, right before the handler is called: a caller without a right, and a request that
    cannot be read, are refused as without it, also when repeated. The handler gets the execution,
    or None when it runs without a key.

    Args:
        guard: Where the records are.
        scope: What the operation is called in them.
        identify: A dependency of its own that returns the tenant and the actor. One that takes
            nothing but the request is asked last, so it may read what others have left there.
        policy: This and the rest as in `Protection`.
    """
    rule = Protection("", scope, policy=policy, in_body=in_body, fingerprint=fingerprint, wait=wait)
    takes_request = _takes_only_the_request(identify)
    protecting = _Protecting(guard.aio, rule, identify if takes_request else None)

    async def protect(
        request: Request,
        who: Any = None if takes_request else Depends(identify),  # noqa: B008 - so FastAPI has it
    ) -> Any:
        if policy == "off":
            return None
        visit = _visit.get()
        if visit is None:
            raise UlakError(_LACKING.format(request.url.path))
        if not takes_request:
            await _read(visit, request, who)
        return _PENDING

    if takes_request:
        # What FastAPI does not find in a signature it does not ask for in a request.
        protect.__signature__ = inspect.signature(_request_only)  # type: ignore[attr-defined]
    setattr(protect, _MARK, protecting)
    return protect


async def _request_only(request: Request) -> None: ...


def _takes_only_the_request(identify: Callable[..., Any]) -> bool:
    """Tell whether a dependency can be called without FastAPI, and on the loop."""
    signature = inspect.signature(identify, eval_str=True)
    kinds = [parameter.annotation for parameter in signature.parameters.values()]
    return len(kinds) == 1 and inspect.isclass(kinds[0]) and issubclass(kinds[0], HTTPConnection)


async def _read(visit: Visit, request: Request, who: Any) -> None:
    """Read what is asked, as soon as it is known who asks."""
    if visit.body is None:  # nothing of the handler's has asked for it
        await request.body()
    tenant, actor = who
    visit.asked = await visit.rule.read(request.scope, visit.body or b"", tenant, actor)


class IdempotentRoute(APIRoute):
    """A route that `idempotent_route(...)` can protect; without it, as any other.

    An exception of the handler takes back what it did and frees the key. Only `HTTPException` is an
    answer, stored like any other of its status. A handler that is a generator raises `UlakError`:
    its answer would begin before it is stored.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        is_generator = inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint)
        # Of those that need nothing of FastAPI's, FastAPI need not know: to solve one takes it
        # longer than all that is done here.
        given = list(options.pop("dependencies", None) or ())
        ours = [mark for one in given if (mark := _mark_of(one.dependency)) and mark.identify]
        kept = [one for one in given if _mark_of(one.dependency) not in ours]
        super().__init__(
            path, endpoint if is_generator else _claiming(endpoint), dependencies=kept, **options
        )
        self._protecting = next(iter(ours), None) or next(_marks_of(self.dependant), None)
        if self._protecting is not None and is_generator:
            raise UlakError(f"{path}: a protected handler returns its answer, it does not yield it")

    async def handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Serve one request, also when its client goes away."""
        if self._protecting is None or self._protecting.rule.policy == "off":
            await super().handle(scope, receive, send)
            return
        visit = Visit(self._protecting.guard, self._protecting.rule, scope, receive, send)
        visit.identify = self._protecting.identify
        await visit.guard.carry_out(visit.see_through(self._serve(visit)))

    async def _serve(self, visit: Visit) -> None:
        _visit.set(visit)
        try:
            await super().handle(visit.connection, visit.receive, visit.send)
        except IdempotencyError as error:
            # An application that is not ours has no words for it.
            await visit.refuse(error)


class KeyedRoute(APIRoute):
    """A route whose handler keeps keys by a guard of its own. Every answer but the handler's says
    that it is no replay, also one to a caller that is refused; while its caller cannot be looked
    up, the answer is that of a store that cannot be asked."""

    async def handle(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Serve one request."""
        marks = scope[problems.EXTRA] = {REPLAYED: "false"}
        keys = Request(scope).headers.getlist(HEADER)
        if len(keys) == 1 and keys[0].strip():
            marks[HEADER] = keys[0]
        scope[problems.UNCLAIMED] = True
        await super().handle(scope, receive, send)


def check(app: FastAPI) -> None:
    """Refuse to start with a route that wants to be protected and would not be: `UlakError`
    names them."""
    lacking = [
        str(route.path)
        for route in each_route(app.routes)
        if not isinstance(getattr(route, "original_route", route), IdempotentRoute)
        and next(_marks_of(getattr(route, "dependant", None)), None) is not None
    ]
    if lacking:
        raise UlakError(_LACKING.format(", ".join(lacking)))


def _claiming(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Have a handler called only once its key is claimed, and not for a repetition."""

    @functools.wraps(endpoint)
    async def claim(**values: Any) -> Any:
        visit = _visit.get()
        if visit is not None and visit.identify is not None:
            request = Request(visit.connection, visit.receive)
            who = visit.identify(request)
            await _read(visit, request, await who if inspect.isawaitable(who) else who)
        if visit is None or visit.asked is None:
            return await _called(endpoint, _with(values, None))
        begun = await visit.guard.begin(visit.asked, wait=visit.rule.patience(visit.connection))
        if isinstance(begun, Answer):
            return visit.replayed(begun)
        visit.begin(begun)
        try:
            with begun.as_current():
                return await _called(endpoint, _with(values, begun))
        except HTTPException:
            raise  # an answer, which the application writes
        except BaseException:
            await asyncio.shield(visit.abandon())
            raise

    return claim


def _with(values: dict[str, Any], execution: Execution | None) -> dict[str, Any]:
    return {name: execution if value is _PENDING else value for name, value in values.items()}


async def _called(endpoint: Callable[..., Any], values: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(endpoint):
        return await endpoint(**values)
    return await run_in_threadpool(endpoint, **values)


def _marks_of(dependant: Any) -> Iterator[_Protecting]:
    if dependant is None:
        return
    found = _mark_of(dependant.call)
    if found is not None:
        yield found
    for inner in dependant.dependencies:
        yield from _marks_of(inner)


def _mark_of(dependency: Any) -> _Protecting | None:
    found: _Protecting | None = getattr(dependency, _MARK, None)
    return found
