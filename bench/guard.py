"""What the request guard adds to a request, in CPU time: the same application with and without.

With it, everything is on: limits, the decision layer in enforce, a risk map, and a kill switch of
another tenant. Requests are asked in the process itself, so that no network is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import ulak
import ulak.web
from bench.measure import Figure, alternate, scratch
from ulak import wiring
from ulak.auth.principal import OPERATOR, Principal
from ulak.engine.worker import settle_in

REQUESTS = 100
ROUNDS = 151
BOUND_US = 100.0
COMMAND = "python -m bench.figures control"
VARIABLES = {
    "OPS_GUARD_RATE_LIMIT_HEAVY_READ_PER_MINUTE": "1000000",
    "OPS_GUARD_DECISION_LAYER_ENABLED": "true",
    "OPS_GUARD_DECISION_LAYER_ENDPOINT_RISK_MAP_JSON": '{"/flows": "high", "/jobs": "medium"}',
    "OPS_GUARD_KILLSWITCH_TENANTS": "another",
}
ADA = Principal("ada", tenant=None, roles=frozenset({OPERATOR}))


class Known:
    """Knows one caller, without asking anybody."""

    def recall(self, credential: str) -> Principal | None:
        return ADA

    def authenticate(self, credential: str) -> Principal | None:
        return ADA


def make_apps(engine: ulak.Engine) -> tuple[Any, Any]:
    """Make an application with the guard, and the same without."""
    usual = wiring.find_guard_state
    guarded = ulak.web.app(engine, identity=Known())
    wiring.find_guard_state = lambda engine: None
    try:
        return guarded, ulak.web.app(engine, identity=Known())
    finally:
        wiring.find_guard_state = usual


async def ask(app: Any, requests: int) -> None:
    """Ask so many times, one after the other."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"host", b"ulak"), (b"authorization", b"Bearer ada"), (b"x-tenant-id", b"acme")]
    for _ in range(requests):
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": "/flows/greet", "raw_path": b"/flows/greet",
            "query_string": b"", "root_path": "", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("ulak", 80), "state": {},
        }  # fmt: skip
        await app(scope, receive, send)
    assert set(statuses) == {200}, set(statuses)


def measure(app: Any, requests: int) -> Callable[[], float]:
    """Return what takes the CPU time of one request, in microseconds."""

    def take() -> float:
        began = time.process_time()
        asyncio.run(ask(app, requests))
        return (time.process_time() - began) / requests * 1e6

    return take


def guard_figure(requests: int = REQUESTS, rounds: int = ROUNDS) -> Figure:
    """Measure with and without the guard in turns."""
    os.environ |= VARIABLES
    try:
        with scratch() as folder, ulak.connect(f"sqlite:///{folder / 'jobs.db'}") as engine:
            engine.job(_greet, name="greet")
            guarded, plain = make_apps(engine)
            for app in (guarded, plain):
                asyncio.run(ask(app, 100))
            settle_in()
            with_guard, without = alternate(
                measure(guarded, requests), measure(plain, requests), rounds=rounds
            )
    finally:
        for name in VARIABLES:
            del os.environ[name]
    added = with_guard - without
    return Figure(
        "CPU time that the request guard adds to a request", f"<= {BOUND_US:.0f} us",
        f"{added:.0f} us, of {with_guard:.0f}", added <= BOUND_US, COMMAND,
    )  # fmt: skip


def _greet(name: str) -> None: ...
