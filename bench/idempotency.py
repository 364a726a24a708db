"""Protected requests over HTTP: the same no-op `POST` with a key and without, side by side.

One server process serves both, with the same credentials to check, the same body and the same
answer; the protected ones are of the default mode, so each first one is a transaction that is
durable when it is answered.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

import ulak
import ulak.web
from bench import postgres
from bench.measure import Figure, alternate, scratch
from bench.served import CONNECTIONS, Place, serve, served
from ulak.auth.principal import JOBS_SUBMIT
from ulak.engine.engine import Engine
from ulak.engine.worker import settle_in
from ulak.idempotency import Guard, Scope
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import Access, Routes
from ulak.web.idempotency import IdempotentRoute, idempotent_route
from ulak.web.routes.jobs import tenant_and_actor

REQUESTS = 4_000
FIRST = 0.5
REPLAYS = 0.8

PLAIN, PROTECTED = "/bench/plain", "/bench/protected"
BODY = b'{"order": 4711, "lines": [{"article": "A-1", "amount": 2}]}'
ANSWER = b'{"ok": true, "order": 4711, "state": "accepted"}'

COMMAND = "python -m bench.figures idempotency"


# --- the server, in a process of its own ------------------------------------------


class Order(BaseModel):
    """What is sent: both sides read and validate it."""

    order: int
    lines: list[dict[str, Any]]


def routes_of(engine: Engine, _: None) -> Routes:
    """A route that does nothing, twice: plain, and protected."""
    routes = APIRouter(route_class=IdempotentRoute)
    protect = idempotent_route(
        Guard(engine.store), Scope("bench.protected"), identify=tenant_and_actor
    )

    @routes.post(PLAIN, status_code=201)
    async def plain(order: Order) -> Response:
        return Response(ANSWER, 201, media_type="application/json")

    @routes.post(PROTECTED, status_code=201, dependencies=[Depends(protect)])
    async def protected(order: Order) -> Response:
        return Response(ANSWER, 201, media_type="application/json")

    lines = [Access("POST", path, JOBS_SUBMIT, "jobs") for path in (PLAIN, PROTECTED)]
    return Routes([routes], lines)


def run(url: str) -> None:
    """Be the server."""
    engine = ulak.connect(url)
    settle_in()
    service = Service("bench", attach=lambda *_: None, routes=routes_of)
    attach(service, engine, Settings())
    serve(engine, lambda identity: ulak.web.app(engine, identity=identity, services=[service]))


# --- the clients --------------------------------------------------------------------


class Orders:
    """A running server of ours, which is given orders."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._numbers = itertools.count()
        self._run = token_hex(4)

    def plain(self, requests: int = REQUESTS) -> float:
        """Requests a second to the route that is not protected."""
        request = self._place.post(PLAIN, BODY)
        return self._place.rate(requests, lambda: request, _is_accepted)

    def first(self, requests: int = REQUESTS) -> float:
        """Requests a second, each with a key that was never seen."""
        return self._place.rate(requests, self._new, _is_accepted)

    def replays(self, requests: int = REQUESTS) -> float:
        """Requests a second, each with a key that was answered before."""
        known = [self._new() for _ in range(CONNECTIONS * 8)]
        self._place.rate(len(known), itertools.cycle(known).__next__, _is_accepted)
        again = itertools.cycle(known)
        return self._place.rate(requests, again.__next__, _is_replayed)

    def _new(self) -> bytes:
        key = f"order-{self._run}-{next(self._numbers)}"
        return self._place.post(PROTECTED, BODY, f"Idempotency-Key: {key}\r\n")


def _is_accepted(head: bytes, body: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 201") and body == ANSWER


def _is_replayed(head: bytes, body: bytes) -> bool:
    return _is_accepted(head, body) and b"replayed: true" in head.lower()


@contextmanager
def serving(url: str) -> Iterator[Orders]:
    """Run a server for as long as the block lasts."""
    with served("bench.idempotency", [url]) as place:
        yield Orders(place)


# --- figures ------------------------------------------------------------------------


def idempotency_figures(requests: int = REQUESTS) -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        figures = _figures("SQLite FULL", f"sqlite:///{folder / 'idempotency.db'}", requests)
    with postgres.durable() as server:
        figures += _figures("PostgreSQL", server.fresh(), requests)
    return figures


def _figures(name: str, url: str, requests: int) -> list[Figure]:
    with serving(url) as ours:
        for warm_up in (ours.plain, ours.first, ours.replays):
            warm_up(CONNECTIONS * 10)
        plain, first, replays = alternate(
            lambda: ours.plain(requests),
            lambda: ours.first(requests),
            lambda: ours.replays(requests),
        )
    return [
        _figure(f"a no-op `POST` with a key that was never seen, {name}", first, plain, FIRST),
        _figure(f"a no-op `POST` with a key that was answered, {name}", replays, plain, REPLAYS),
    ]


def _figure(name: str, rate: float, plain: float, bound: float) -> Figure:
    ratio = rate / plain
    return Figure(
        f"{name}, of the same without, {CONNECTIONS} connections", f">= {bound}",
        f"{ratio:.2f} ({rate:,.0f} of {plain:,.0f} requests/s)", ratio >= bound, COMMAND,
    )  # fmt: skip


def main() -> None:
    """Be the server."""
    parser = argparse.ArgumentParser(prog="bench.idempotency", description=__doc__)
    parser.add_argument("url")
    run(parser.parse_args().url)


if __name__ == "__main__":
    main()
