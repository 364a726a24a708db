"""The way from a thread onto the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call something on a loop, from any thread; when the loop has ended, nobody cares."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return
