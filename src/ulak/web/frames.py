"""Server-sent events as bytes."""

from __future__ import annotations

import json
from typing import Any, Final

MEDIA_TYPE: Final = "text/event-stream"

ALIVE: Final = b": alive\n\n"
"""A comment: nobody is told, but whoever stands between knows that the line is in use."""


def frame(kind: str, data: Any, *, id: int | None = None) -> bytes:
    """Write one event; with an id, a client that comes back says that this was its last."""
    # JSON as it is written here has no line breaks, so one data line holds it.
    text = json.dumps(data, separators=(",", ":"))
    mark = "" if id is None else f"id: {id}\n"
    return f"{mark}event: {kind}\ndata: {text}\n\n".encode()


def opening(*, retry_ms: int, id: int | None = None) -> bytes:
    """Write what a stream begins with: when to come back, and what to say then."""
    mark = "" if id is None else f"id: {id}\n"
    return f"{mark}retry: {retry_ms}\n\n".encode()
