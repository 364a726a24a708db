"""The middleware: protects routes of any ASGI application, whatever it is made with."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from ulak.errors import UlakError
from ulak.idempotency import Answer, Guard
from ulak.web import problems
from ulak.web.idempotency.visit import Protection, Visit

Identify = Callable[[Connection], tuple[str, str] | Awaitable[tuple[str, str]]]
"""Answers the tenant and the actor of a request, or raises `Unauthenticated` or `Forbidden`."""


class IdempotencyMiddleware:
    """Lets every request with a key have one effect, and answers its repetitions from the record.

    Place it inside of what authenticates: a repetition is answered without the application, so a
    caller without a right must be refused before, or by `identify`. That returns for a connection's
    scope the tenant and the actor, `("", "")` where there are none; it may be async, and may refuse
    by an error of ulak.
    """

    def __init__(
        self, app: ASGIApp, guard: Guard, *, routes: Iterable[Protection], identify: Identify
    ) -> None:
        self._app = app
        self._guard = guard.aio
        self._identify = identify
        self._lines = [
            (compile_path(line.path)[0], frozenset(line.methods), line) for line in routes
        ]

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        rule = self._rule_of(scope) if scope["type"] == "http" else None
        if rule is None:
            await self._app(scope, receive, send)
            return
        visit = Visit(self._guard, rule, scope, receive, send)
        await self._guard.carry_out(self._serve(visit))

    def _rule_of(self, scope: Connection) -> Protection | None:
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"]
        below = path[len(root) :] if root and path.startswith(f"{root}/") else path
        for pattern, methods, rule in self._lines:
            if scope["method"] in methods and pattern.match(below):
                return None if rule.policy == "off" else rule
        return None

    async def _serve(self, visit: Visit) -> None:
        connection, rule = visit.connection, visit.rule
        try:
            who = self._identify(connection)
            tenant, actor = await who if inspect.isawaitable(who) else who
            while visit.body is None:
                if (await visit.receive())["type"] == "http.disconnect":
                    return
            asked = await rule.read(connection, visit.body, tenant, actor)
            begun = None
            if asked is not None:
                begun = await self._guard.begin(asked, wait=rule.patience(connection))
        except UlakError as error:
            await visit.answer(problems.problem_of(Request(connection), error))
            return
        except HTTPException as error:
            await visit.answer(problems.http_problem(Request(connection), error))
            return
        if isinstance(begun, Answer):
            await visit.answer(visit.replayed(begun))
            return
        receive = _again(visit.body, visit.receive)
        if begun is None:
            await self._app(connection, receive, visit.send)
            return
        visit.begin(begun)
        try:
            with begun.as_current():
                await self._app(connection, receive, visit.send)
        finally:
            await visit.abandon()


def _again(body: bytes, receive: Receive) -> Receive:
    """Hand on a body that was read already, then what else there is to hear."""
    waiting = [body]

    async def again() -> dict[str, object]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return dict(await receive())

    return again
