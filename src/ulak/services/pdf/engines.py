"""Each document goes to the engine of its template; an engine that nobody needs is never opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

from ulak.services.pdf.document import Document, Rendered, Renderer, Times
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

Opening = Callable[[], AbstractAsyncContextManager[Renderer]]
"""Opens an engine; called when a document needs it first."""


class Engines:
    """Renders every document by the engine that it names.

    An asynchronous context manager: at its end every engine that was opened is closed.

    Args:
        known: For each name what opens the engine.
    """

    def __init__(self, known: Mapping[str, Opening]) -> None:
        self._known = known
        self._open: dict[str, Renderer] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document by its own engine.

        Raises:
            TransientPdfError: as the engine says.
            PermanentPdfError: as the engine says, or there is no such engine.
        """
        renderer = await self._renderer(document.engine)
        return await renderer.render(document, times)

    async def _renderer(self, name: str) -> Renderer:
        async with self._opening:
            if name not in self._open:
                if name not in self._known:
                    raise PermanentPdfError(
                        f'there is no engine "{name}"; there are {", ".join(self._known)}',
                        code=PdfErrorCode.UNSUPPORTED_PLATFORM,
                    )
                self._open[name] = await self._stack.enter_async_context(self._known[name]())
            return self._open[name]
