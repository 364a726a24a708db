"""Whether a worker can render: tried before its first job, in every doubt, and now and then.

While it cannot, it claims no job and does not count as a worker of the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from ulak.services.pdf.model import PdfError

log = logging.getLogger("ulak.pdf")

EVERY_S: Final = 30.0
"""How often a worker that can render is tried. A guess; a try is a page with a line on it."""
FIRST_PAUSE_S: Final = 1.0
"""Before the second try of one that cannot; each further pause is twice as long."""
LONGEST_PAUSE_S: Final = 5.0
"""A start that has failed waits besides, the longer, the more have failed before it."""
LONGEST_TEXT: Final = 300

Probe = Callable[[], Awaitable[Mapping[str, str]]]
"""Tries every engine that is needed; returns by name what calls itself how, '' for one that rests.
What it raises says why nothing can be rendered."""
Publish = Callable[[Mapping[str, str], str], Awaitable[None]]
"""Tells the other processes which engines there are, or why there are none."""


class Readiness:
    """Keeps trying whether a worker can render, and says so. Belongs to one event loop."""

    def __init__(self, probe: Probe, publish: Publish) -> None:
        self._probe = probe
        self._publish = publish
        self._complaint: str | None = "nothing was rendered yet"
        self._engines: dict[str, str] = {}
        self._failures = 0
        self._is_in_doubt = asyncio.Event()
        self.is_asked = False
        """A worker that claims by itself asks; others have nobody to leave a job to."""

    def complaint(self) -> str | None:
        """Say why nothing can be rendered now; None when something can."""
        self.is_asked = True
        return self._complaint

    def doubt(self, error: PdfError) -> None:
        """Take note that an engine did not start: nothing is claimed until a try succeeds."""
        self._complaint = _said(error)
        self._is_in_doubt.set()

    async def look(self) -> None:
        """Try it once, and publish what came of it."""
        self._is_in_doubt.clear()
        before = self._complaint
        try:
            found = await self._probe()
        except Exception as error:  # noqa: BLE001 - a worker loop: whatever a try raises, the next must come
            self._failures += 1
            self._complaint = _said(error)
            if self._complaint != before:
                log.error("nothing can be rendered here", extra={"why": self._complaint})
        else:
            self._failures = 0
            self._complaint = None
            self._engines |= {name: said for name, said in found.items() if said}
            if before is not None:
                log.info("documents can be rendered here", extra={"engines": self._engines})
        try:
            await self._publish(self._engines, self._complaint or "")
        except Exception as error:  # noqa: BLE001 - a worker loop: what is not published now is at the next look
            log.warning("readiness was not published", extra={"error": type(error).__name__})

    async def keep(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 16) / 2)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if self._failures else EVERY_S):
                    await self._is_in_doubt.wait()
            await self.look()


def _said(error: Exception) -> str:
    said = f"{error.code}: {error}" if isinstance(error, PdfError) else type(error).__name__
    return said[:LONGEST_TEXT]
