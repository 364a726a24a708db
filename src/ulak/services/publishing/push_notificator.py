"""A stand-in for a push service, for trying the system and for its tests: it keeps what it is sent
in memory and shows it. It is no part of a production."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Annotated, Any, Final
from uuid import uuid4

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse

from ulak.kit import read_json
from ulak.kit.clock import rfc3339

PER_MINUTE: Final = 10
MINUTE_S: Final = 60.0


def make_push_notificator(
    per_minute: int = PER_MINUTE, *, time: Callable[[], float] = monotonic
) -> FastAPI:
    """Make the application. Of one token it takes so many notifications a minute, 0 for any number;
    `time` tells seconds. A repeated `Idempotency-Key` of a token gets its first answer, and counts
    for nothing."""
    app = FastAPI(title="push-notificator", docs_url=None, redoc_url=None, openapi_url=None)
    kept: dict[tuple[str, str], dict[str, str]] = {}
    sent_at: defaultdict[str, deque[float]] = defaultdict(deque)

    @app.post("/api/v1/notify")
    async def notify(
        request: Request,
        authorization: Annotated[str, Header()] = "",
        idempotency_key: Annotated[str, Header()] = "",
    ) -> JSONResponse:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return _refused(401, "send Authorization: Bearer TOKEN")
        try:
            message = read_json(await request.body())["message"]
        except (ValueError, LookupError, TypeError):
            message = None
        if not isinstance(message, str) or not message:
            return _refused(400, 'send {"message": "..."}')
        key = (token.strip(), idempotency_key or uuid4().hex)
        if key not in kept:
            lately, now = sent_at[key[0]], time()
            while lately and lately[0] <= now - MINUTE_S:
                lately.popleft()
            if per_minute and len(lately) >= per_minute:
                wait_s = math.ceil(lately[0] + MINUTE_S - now)
                why = f"{per_minute} a minute are taken of one token"
                return _refused(429, why, {"Retry-After": str(wait_s)})
            lately.append(now)
            moment = rfc3339(datetime.now(UTC))
            kept[key] = {"id": str(uuid4()), "message": message, "timestamp": moment}
        return JSONResponse(kept[key], 201)

    @app.get("/api/v1/notifications")
    async def show(token: str = "") -> list[dict[str, Any]]:
        return [each for (owner, _), each in kept.items() if owner == token]

    return app


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": why}, status, headers)
