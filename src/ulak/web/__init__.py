"""The HTTP surface. Needs the extra `ulak[web]`."""

try:
    from ulak.web.access import KNOWN, PUBLIC, Access, Authenticator, RateLimit, Routes
    from ulak.web.callers import Caller, actor_of, guarded_router, read_client_address
    from ulak.web.factory import app
    from ulak.web.idempotency import IdempotentRoute, KeyedRoute, idempotent_route
    from ulak.web.problems import problem_document
    from ulak.web.route_table import RouteTable
    from ulak.web.routes.health import StoreProbe
    from ulak.web.schemas import answer
    from ulak.web.slash_route import SlashRoute
    from ulak.web.waits import while_serving
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ulak.web needs {error.name}, which is not installed; pip install 'ulak[web]'",
        name=error.name,
    ) from error

__all__ = [
    "KNOWN",
    "PUBLIC",
    "Access",
    "Authenticator",
    "Caller",
    "IdempotentRoute",
    "KeyedRoute",
    "RateLimit",
    "RouteTable",
    "Routes",
    "SlashRoute",
    "StoreProbe",
    "actor_of",
    "answer",
    "app",
    "guarded_router",
    "idempotent_route",
    "problem_document",
    "read_client_address",
    "while_serving",
]
