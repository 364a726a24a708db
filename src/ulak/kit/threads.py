"""Threads for what would stop a loop, such as the files of a share that may hang; and waits that
end when their run should stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ulak.engine.threads import Aside
from ulak.errors import StoreError

__all__ = ["Aside", "poll", "until_stopped"]

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.02
HANGS_S: Final = 5.0
"""A guess: so long one look may take before it counts as no answer."""
CHECK_EVERY_S: Final = 0.2


async def poll(
    threads: Aside | None,
    look: Callable[[], T | None],
    *,
    longest_pause_s: float,
    is_over: Callable[[], bool],
    checkpoint: Callable[[], object] = lambda: None,
) -> T:
    """Return what `look` returns, once that is not None.

    It is called on a thread, at first often, so that a quick answer is seen at once. `OSError` and
    `StoreError` mean that it is to be called again. It is called once more before time is over,
    however late that is.

    Args:
        threads: Whose thread it is called on; None for one of its own, which no other look that
            hangs can take.
        look: One call begins when the one before has ended; the last may go on after the end.
        longest_pause_s: The pauses between the calls grow up to this.
        is_over: Tells whether nothing more is to be waited for.
        checkpoint: Raises when the wait is to end, as `Run.checkpoint` does.

    Raises:
        TimeoutError: it is over; the message says what the last trouble was, '' for none.
    """
    used = Aside("poll", at_once=False) if threads is None else threads
    looking: asyncio.Future[T | None] | None = None
    pause = min(FIRST_PAUSE_S, longest_pause_s)
    try:
        while True:
            checkpoint()
            looking = looking or used.run(look)
            await asyncio.wait({looking}, timeout=HANGS_S)
            trouble = "there is no answer"
            if looking.done():
                done, looking, trouble = looking, None, ""
                try:
                    if (found := done.result()) is not None:
                        return found
                except (OSError, StoreError) as error:
                    trouble = str(error)
            if is_over():
                raise TimeoutError(trouble)
            if looking is None:
                await asyncio.sleep(pause)
                pause = min(longest_pause_s, pause * 1.5)
    finally:
        if looking is not None:  # nobody is left to hear how it ends
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        if threads is None:
            used.close()


async def until_stopped(work: Coroutine[Any, Any, T], checkpoint: Callable[[], object]) -> T:
    """Return what the work returns. When `checkpoint` raises, as `Run.checkpoint` does, raise that
    once the work is cancelled and has ended; it is called five times a second."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=CHECK_EVERY_S))[0]:
            checkpoint()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
