"""Which request is being answered here, and whose it is: for the log.

A context variable: whatever is called on behalf of a request, on a thread too, is in its context,
and no other request is.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass


@dataclass(slots=True)
class Asking:
    """One request while it is answered."""

    correlation_id: str
    principal: str = ""
    """Who asks, as soon as that is known."""


_NOW: ContextVar[Asking | None] = ContextVar("ulak_asking", default=None)


def begin(correlation_id: str) -> Token[Asking | None]:
    """Say which request this context answers; answers what `end` takes."""
    return _NOW.set(Asking(correlation_id))


def end(token: Token[Asking | None]) -> None:
    """The request was answered."""
    _NOW.reset(token)


def known_as(principal: str) -> None:
    """Say who asks; outside a request it is nothing."""
    asking = _NOW.get()
    if asking is not None:
        asking.principal = principal


def now() -> Asking | None:
    """Return the request that this context answers, if it does."""
    return _NOW.get()
