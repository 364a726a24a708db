"""Stores for tests of protected routes, and an application that counts what it does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.places import place_of
from ulak.clock import ManualClock
from ulak.idempotency import Guard, Scope
from ulak.store.protocol import RecordKeeper
from ulak.store.redis import RedisRecords
from ulak.web.idempotency import IdempotencyMiddleware, Protection
from ulak.wiring import store_of

STORES = ("memory", "sqlite", "postgres")
RECORD_STORES = (*STORES, "redis")
"""Redis keeps records alone."""


@contextmanager
def opened(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """An open store of records, on a clock that is turned by hand."""
    if name == "redis":
        records = RedisRecords(request.getfixturevalue("redis_url"), clock=ManualClock())
        records.open()
        yield records
        records.close()
        return
    with place_of(name, request, folder) as where:
        url = {"memory": "memory://", "sqlite": f"sqlite:///{where}"}.get(name, where)
        store = store_of(url, clock=ManualClock())
        store.open()
        try:
            yield store
        finally:
            store.close()


def scope_of(store: RecordKeeper, name: str = "orders.create", **options: Any) -> Scope:
    """A scope of the mode that the store can have."""
    mode = "transactional" if store.features.open_transactions else "lease"
    return Scope(name, **{"mode": mode, **options})


@dataclass
class Shop:
    """A plain ASGI application: what it answers next, and what it was asked."""

    status: int = 201
    headers: list[tuple[bytes, bytes]] = field(
        default_factory=lambda: [(b"content-type", b"application/json")]
    )
    chunks: list[bytes] | None = None
    error: Exception | None = None
    seen: list[bytes] = field(default_factory=list)
    executions: list[Any] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.seen.append(body)
        self.executions.append(scope.get("ulak.idempotency"))
        if self.error is not None:
            raise self.error
        chunks = self.chunks or [json.dumps({"ok": True, "number": len(self.seen)}).encode()]
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def who(scope: Any) -> tuple[str, str]:
    """The tenant and the actor, as two headers tell them."""
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
    return headers.get("x-tenant", ""), headers.get("x-actor", "ada")


def protect(shop: Any, store: RecordKeeper, scope: Scope | None = None, **options: Any) -> Any:
    """The application behind the middleware."""
    line = Protection("/orders", scope or scope_of(store), **options)
    return IdempotencyMiddleware(shop, Guard(store), routes=[line], identify=who)


def same(first: httpx.Response, again: httpx.Response) -> bool:
    """Whether the second is the first, to the byte, and says that it is."""
    return (
        again.status_code == first.status_code
        and again.content == first.content
        and first.headers["idempotent-replayed"] == "false"
        and again.headers["idempotent-replayed"] == "true"
    )
