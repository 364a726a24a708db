"""Protected functions: plain ones and stages of jobs, run once per key."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

from ulak.core.run import Run
from ulak.idempotency.execution import Execution
from ulak.idempotency.guard import Asked, Guard
from ulak.idempotency.key import fingerprint, read_key
from ulak.idempotency.scope import Answer, Scope
from ulak.store import codec

P = ParamSpec("P")
R = TypeVar("R")


def idempotent(
    guard: Guard,
    scope: Scope,
    *,
    key: Callable[P, str],
    tenant: Callable[P, str] | None = None,
    actor: Callable[P, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Protect a function, or a stage of a job: under one key it is run once, and a repeated call
    gets what it returned.

    What it returns must be JSON of the type that it declares. An exception is let out and stores
    nothing. `ulak.idempotency.current()` returns the execution inside, with its connection.
    Decorate a stage below `@flow.stage(...)`.

    Args:
        guard: Where the records are.
        scope: What the function is called in them.
        key: Makes the key of a call from its arguments.
        tenant: Makes the tenant; of a stage it is that of the job, else ''.
        actor: Makes who asks, '' without it.

    A call raises `BadKey` where `key` made none, and as `Guard.begin` and `Execution.settle` do.
    """

    def protect(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        returned = get_type_hints(function).get("return", Any)

        def asked(*args: P.args, **kwargs: P.kwargs) -> Asked:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            facts = {name: _fact(value) for name, value in bound.arguments.items()}
            who = "" if actor is None else actor(*args, **kwargs)
            whose = _tenant(bound) if tenant is None else tenant(*args, **kwargs)
            digest = fingerprint(
                path=scope.name, actor=who, media_type="application/json",
                body=codec.encode(facts), fields=scope.fingerprint_fields,
            )  # fmt: skip
            return Asked(
                scope, read_key((), key(*args, **kwargs)) or "", request_hash=digest,
                tenant=whose, actor=who,
            )  # fmt: skip

        def read(answer: Answer) -> R:
            value: R = codec.decode(answer.body, returned)
            return value

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def protected_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                begun = await guard.aio.begin(asked(*args, **kwargs))
                if isinstance(begun, Answer):
                    return read(begun)
                try:
                    with begun.as_current():
                        value = await function(*args, **kwargs)
                    await guard.aio.settle(begun, Answer(body=codec.encode(value)))
                finally:
                    await asyncio.shield(guard.aio.abandon(begun))
                return value

            return protected_async  # type: ignore[return-value] # R is its coroutine

        @functools.wraps(function)
        def protected(*args: P.args, **kwargs: P.kwargs) -> R:
            values: list[R] = []

            def operation(_: Execution) -> Answer:
                values.append(function(*args, **kwargs))
                return Answer(body=codec.encode(values[0]))

            answered = guard.execute(asked(*args, **kwargs), operation)
            return read(answered.answer) if answered.is_replay else values[0]

        return protected

    return protect


def _fact(value: Any) -> Any:
    """Return what of an argument says what is asked: of a run, the job's payload."""
    return json.loads(codec.encode(value.payload if isinstance(value, Run) else value))


def _tenant(bound: inspect.BoundArguments) -> str:
    runs = [value for value in bound.arguments.values() if isinstance(value, Run)]
    return runs[0].tenant if runs else ""
