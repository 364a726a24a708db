"""When a document is complete: it has loaded, with all that it brings in, its fonts and its images.

The document itself does not say. A text that is handed over whole is called complete as soon as it
is read, whatever frames, style sheets or scripts it still waits for; so the browser's own word is
taken. Two kinds of documents never get it: those whose reading a script has broken off, and those
that tried to leave, for which the browser gives up what was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ulak.services.pdf.browser.agreement import Send, value_of

_HOLD: Final = """(async () => {
  if (document.readyState === "complete")
    return Array.from(document.scripts).some(
      script => script.type === "module" || (script.defer && script.src));
  await new Promise(done => document.addEventListener("readystatechange", () => {
    if (document.readyState === "complete") done();
  }));
  return false;
})()"""
"""Waits for scripts that hold up the reading of a document, and tells whether others still do that
come after it. Where none does it has loaded, or its reading was broken off."""

_LAY_OUT: Final = """document.addEventListener("load", ({target}) => {
  if (target.sheet) document.documentElement.getBoundingClientRect();
}, true)"""
"""Applies each style sheet as soon as it is there, so that the images it names belong to what the
document has to load. Otherwise it may have loaded before they are asked for."""

_READY: Final = """(async () => {
  for (const image of document.images) image.loading = "eager";
  document.documentElement?.getBoundingClientRect();
  await document.fonts.ready;
  await Promise.all(Array.from(document.images, async image => {
    if (!image.complete) await new Promise(done => {
      image.addEventListener("load", done, {once: true});
      image.addEventListener("error", done, {once: true});
    });
    if (image.naturalWidth) await image.decode().catch(() => 0);
  }));
  let nodes = 0;
  const roots = [document];
  for (const root of roots) {
    const walker = document.createTreeWalker(root);
    do {
      nodes++;
      if (walker.currentNode.shadowRoot) roots.push(walker.currentNode.shadowRoot);
    } while (walker.nextNode());
  }
  return nodes;
})()"""
"""Waits for the fonts and images of a document that has loaded, lazy and broken ones too; gives the
number of nodes."""


class Loading:
    """What the browser tells of the document that a page shows."""

    def __init__(self) -> None:
        self._was_read = False
        self._is_over = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def listeners(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """By event of the page's session, who is to hear of it."""
        return {
            "Page.documentOpened": self._opened,
            "Page.domContentEventFired": self._read,
            "Page.loadEventFired": self._loaded,
        }

    def leave(self) -> None:
        """Take note that the page tried to go elsewhere, which ends its loading."""
        self._is_over.set()

    def fail(self, error: Exception) -> None:
        """Have whoever waits told that the page is gone."""
        self._failure = error
        self._is_over.set()

    async def begin(self, send: Send, world: int) -> None:
        """Have all be loaded that the document will need; to be sent right behind its text.

        Args:
            send: The line to the page.
            world: Where questions are evaluated, out of reach of the page's scripts.
        """
        await send("Runtime.evaluate", expression=_LAY_OUT, contextId=world)

    async def wait(self, send: Send, world: int) -> None:
        """Wait until the document has loaded that was handed over just now.

        Args:
            send: The line to the page.
            world: Where questions are evaluated, out of reach of the page's scripts.

        Raises:
            PageFailed: a script sent the page elsewhere.
            Exception: what it was told to fail with.
        """
        if self._is_over.is_set() or self._was_read or await value_of(send, _HOLD, world):
            await self._is_over.wait()
            if self._failure is not None:
                raise self._failure

    def _opened(self, event: dict[str, Any]) -> None:
        # What was told so far is of what was shown before; frames in it are of no account.
        if "parentId" not in event["frame"] and self._failure is None:
            self._was_read = False
            self._is_over.clear()

    def _read(self, event: dict[str, Any]) -> None:
        self._was_read = True

    def _loaded(self, event: dict[str, Any]) -> None:
        self._is_over.set()


async def complete(send: Send, world: int) -> int:
    """Wait for the fonts and images of a document that has loaded, and answer its number of nodes.

    Raises:
        PageFailed: a script sent the page elsewhere.
    """
    return int(await value_of(send, _READY, world))
