"""Named points before, inside and after every kind of write, where a test may kill the process.

The handler is the one piece of module state in ulak: a crash test must reach the middle of a
transaction in a real child process, below every object that the child builds, and production
code must not carry a test double through each constructor for it. Nobody sets it outside
`ulak.testing`; without a handler a point costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

KINDS: Final = (
    "commit", "add", "claim", "renew", "register", "unregister", "request", "dismiss", "report",
    "unpark", "fold", "prune", "take", "settle", "redrive", "declare", "limit", "rate", "pause",
    "resume", "weigh", "stop", "sweep", "handlers", "post",
    "schedules", "tick", "schedule-pause", "credential", "record", "transaction",
)  # fmt: skip


class Points(NamedTuple):
    """The names of the points of one kind of write."""

    before: str
    inside: str
    """Everything has been written and nothing has been committed."""
    after: str


POINTS: Final[Mapping[str, Points]] = {
    kind: Points(f"{kind}.before", f"{kind}.inside", f"{kind}.after") for kind in KINDS
}

handler: Callable[[str], None] | None = None
"""Called with the name of each point that is passed; None in production."""


def point(name: str) -> None:
    if handler is not None:
        handler(name)
