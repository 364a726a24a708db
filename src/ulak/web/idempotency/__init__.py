"""Idempotent requests: as a middleware of any ASGI application, and as a dependency of a route.

    app = IdempotencyMiddleware(
        app, guard, identify=who, routes=[Protection("/orders", Scope("orders.create"))]
    )

`docs/idempotency.md` tells the rest.
"""

from ulak.web.idempotency.routes import IdempotentRoute, KeyedRoute, check, idempotent_route
from ulak.web.idempotency.visit import (
    EXECUTION,
    IdempotencyMiddleware,
    Policy,
    Protection,
    Requested,
)

__all__ = [
    "EXECUTION",
    "IdempotencyMiddleware",
    "IdempotentRoute",
    "KeyedRoute",
    "Policy",
    "Protection",
    "Requested",
    "check",
    "idempotent_route",
]
