"""What the settings make: where artifacts are kept, which templates there are, what renders.

Each function imports what it makes when it is called; only `open_renderer` imports a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from ulak.kit.clock import Clock
from ulak.services.pdf.document import Document, Fetcher, NoNetwork, Rendered, Renderer, Times
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.settings import PdfRenderConfig

if TYPE_CHECKING:
    from ulak.artifacts import StorageBackend
    from ulak.engine.tracing import Tracing
    from ulak.services.pdf.artifacts import PdfArtifactStore
    from ulak.services.pdf.browser.driver import Driver
    from ulak.services.pdf.browser.pool import BrowserPool
    from ulak.services.pdf.fetching import AllowedFetcher
    from ulak.services.pdf.templates import Templates
    from ulak.services.pdf.weasy.pool import WeasyPool

# Each is a small body and a short wait; the time of those that wait for their turn runs already,
# so there are as many turns as a worker has tasks.
CALLBACKS_AT_ONCE = 100


def artifacts_of(config: PdfRenderConfig, clock: Clock) -> PdfArtifactStore:
    """Make the artifact store; nothing is opened or created.

    Raises:
        BadInput: the settings of the bucket cannot be used.
        NotSupported: a bucket or encryption is meant, and its extra is not installed.
    """
    from ulak.services.pdf.artifacts import PdfArtifactStore

    storage = _storage_of(config)
    if config.encryption_keys:
        from ulak.artifacts import EncryptedStorage

        storage = EncryptedStorage(storage, config.encryption_keys)
    return PdfArtifactStore(storage, clock, tries=config.artifact_tries)


def templates_of(config: PdfRenderConfig) -> Templates:
    """Make the templates: those of the operator, then those that are shipped."""
    from ulak.services.pdf.templates import SHIPPED, Templates

    own = () if config.template_dir is None else (config.template_dir,)
    return Templates((*own, SHIPPED), limits=config.limits)


def fetcher_of(config: PdfRenderConfig) -> Fetcher:
    """Make what fetches for pages.

    Raises:
        BadInput: an expression of the allow-list cannot be used.
    """
    security = config.security
    if not security.url_allowlist:
        return NoNetwork()
    from ulak.services.pdf.fetching import AllowedFetcher

    return AllowedFetcher(
        security.url_allowlist, internal_hosts=security.internal_hosts,
        extra_headers=security.extra_headers,
    )  # fmt: skip


def callback_fetcher_of(config: PdfRenderConfig) -> AllowedFetcher:
    """Make what sends callbacks.

    Raises:
        BadInput: an expression of the allow-list cannot be used.
    """
    from ulak.services.pdf.callbacks import PATIENCE_S
    from ulak.services.pdf.fetching import AllowedFetcher, FetchLimits

    security = config.security
    return AllowedFetcher(
        security.callback_allowlist, internal_hosts=security.internal_hosts,
        limits=FetchLimits(total_s=PATIENCE_S, at_once=CALLBACKS_AT_ONCE),
    )  # fmt: skip


@asynccontextmanager
async def open_renderer(
    config: PdfRenderConfig, tracing: Tracing | None = None
) -> AsyncIterator[Renderer]:
    """Open what renders; no process of it is left when the block has ended.

    Each document is sent to the engine of its template, which is started when the first one needs
    it: a host without a browser serves the templates that need none. What dead workers left is
    taken away at once: who waits for a document may wait for long.

    Args:
        config: The settings.
        tracing: Where the spans of its steps go; nowhere by default.

    Raises:
        BadInput: an expression of the URL allow-list cannot be used.
    """
    from ulak.services.pdf.browser.launch import sweep

    fetcher = fetcher_of(config)
    await asyncio.to_thread(sweep)
    known: dict[str, Opening] = {
        "chromium": partial(_make_chromium, config, fetcher, tracing),
        "weasyprint": partial(_make_weasyprint, config, fetcher),
    }
    async with AsyncExitStack() as stack:
        yield Engines(known, stack)


def _make_chromium(
    config: PdfRenderConfig, fetcher: Fetcher, tracing: Tracing | None
) -> BrowserPool:
    from ulak.services.pdf.browser.launch import prepare
    from ulak.services.pdf.browser.pool import BrowserPool

    return BrowserPool(
        _driver_of(config), fetcher=fetcher, limits=config.limits,
        places=config.concurrency, recycle_after=config.recycle_after,
        prepare=partial(prepare, config.chromium), tracing=tracing,
    )  # fmt: skip


def _make_weasyprint(config: PdfRenderConfig, fetcher: Fetcher) -> WeasyPool:
    from ulak.services.pdf.weasy.pool import WeasyPool

    return WeasyPool(fetcher=fetcher, limits=config.limits, places=config.concurrency)


def _storage_of(config: PdfRenderConfig) -> StorageBackend:
    if config.storage_backend == "s3":
        from ulak.artifacts import S3Storage

        return S3Storage.from_settings(config.s3)
    from ulak.artifacts import LocalStorage

    return LocalStorage(config.artifact_dir)


def _driver_of(config: PdfRenderConfig) -> Driver:
    if config.driver == "playwright":
        try:
            from ulak.services.pdf.browser.playwright import PlaywrightDriver
        except ModuleNotFoundError as error:
            raise PermanentPdfError(
                f"PDF_DRIVER=playwright needs {error.name}; pip install 'ulak[pdf]', or set "
                "PDF_DRIVER=devtools",
                code=PdfErrorCode.UNSUPPORTED_PLATFORM,
            ) from error
        return PlaywrightDriver(output_bytes=config.limits.output_bytes)
    from ulak.services.pdf.browser.devtools import DevTools

    return DevTools(output_bytes=config.limits.output_bytes)


Opening = Callable[[], "BrowserPool | WeasyPool"]
"""Makes an engine; called when a document needs it first."""


class Engines:
    """Renders every document by the engine that it names.

    Args:
        known: For each name what makes the engine.
        stack: Closes every engine that was opened.
    """

    def __init__(self, known: Mapping[str, Opening], stack: AsyncExitStack) -> None:
        self._known = known
        self._stack = stack
        self._open: dict[str, Renderer] = {}
        self._opening = asyncio.Lock()

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
