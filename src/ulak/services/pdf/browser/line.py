"""The line to a page: commands that are sent to it, and questions that it answers.

Either driver brings one of its own. Questions are asked in a world apart, where scripts of the page
have changed nothing, and where they are answered though the page's own scripts are off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ulak.services.pdf.browser.driver import PageFailed

Send = Callable[..., Awaitable[dict[str, Any]]]
"""Sends a command to the page (`send(method, **params)`); fails with `PageFailed`."""


async def value_of(send: Send, expression: str, world: int) -> Any:
    """Evaluate an expression out of reach of the page's scripts, and answer what it comes to.

    Raises:
        PageFailed: it fails, or the page went elsewhere.
    """
    answer = await send(
        "Runtime.evaluate",
        expression=expression,
        contextId=world,
        awaitPromise=True,
        returnByValue=True,
    )
    if "value" not in answer["result"] or "exceptionDetails" in answer:
        raise PageFailed
    return answer["result"]["value"]
