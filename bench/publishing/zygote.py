"""Starts processes of publishing that have imported everything already: `python -m
bench.publishing.zygote`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import zygote

PRELOADED = ("argon2", "httpx", "ulak.services.publishing")


def prepare(order: Mapping[str, Any]) -> None:
    """Do in a child what its order says besides the command."""
    from ulak.services.publishing import commands, handling

    # A key that is refused is tried again after five seconds or more; a test need not wait.
    handling.SHORTEST_WAIT_S, handling.LONGEST_WAIT_S = order.get("patience", (5.0, 30.0))
    if order.get("serves_only"):
        # The backend relays as well; without that, a process that relays alone has all of it.
        run = commands.run
        commands.run = lambda *about, **options: run(*about, **options | {"work": []})


if __name__ == "__main__":
    zygote.serve(*PRELOADED, prepare=prepare)
