"""How routes answer: JSON that is written once, and not looked at again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Response


def answer(
    document: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Return plain data as JSON."""
    return Response(
        msgspec.json.encode(document), status, headers=headers, media_type="application/json"
    )
