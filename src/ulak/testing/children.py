"""Child processes that begin where an import ends.

An interpreter that imports a store, its driver and a test module takes a second before its first
statement. A fork server imports them once and forks each child; it has no threads and opens
nothing, so a child is as clean as a new interpreter.
"""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

# What most children import. A missing package is passed over, and its children import the rest.
_PRELOADED = [
    "pytest",
    "ulak.testing.conformance",
    "ulak.testing.harness",
    "ulak.store.postgres",
    "ulak.store.redis",
    "ulak.store.sqlite",
    "ulak.wiring",
]


def forked() -> ForkServerContext:
    """Return the context whose processes are forked from a server that has imported ulak.

    The server is started by the first process of this context, serves this process alone and ends
    with it. It keeps the environment and the directory of that moment.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
