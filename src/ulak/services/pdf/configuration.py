"""What the settings make: where artifacts are kept, which templates there are, what renders.

Each function imports what it makes when it is called; only an engine imports a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ulak.kit.clock import Clock
from ulak.service import Condition
from ulak.services.pdf.document import Document, Fetcher, NoNetwork, Rendered, Times
from ulak.services.pdf.model import PdfError, PdfErrorCode, PermanentPdfError
from ulak.services.pdf.settings import SECRETS, PdfRenderConfig, load, values_of
from ulak.settings import Settings, describe_variables

if TYPE_CHECKING:
    from ulak import Engine
    from ulak.artifacts import StorageBackend
    from ulak.engine.tracing import Tracing
    from ulak.services.pdf.artifacts import PdfArtifactStore
    from ulak.services.pdf.browser.driver import Driver
    from ulak.services.pdf.browser.pool import BrowserPool
    from ulak.services.pdf.fetching import AllowedFetcher
    from ulak.services.pdf.jobs import PdfJobStore
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
    from ulak.artifacts import EncryptedStorage, LocalStorage, S3Storage
    from ulak.services.pdf.artifacts import PdfArtifactStore

    storage: StorageBackend
    if config.storage_backend == "s3":
        storage = S3Storage.from_settings(config.s3)
    else:
        storage = LocalStorage(config.artifact_dir)
    if config.encryption_keys:
        storage = EncryptedStorage(storage, config.encryption_keys)
    return PdfArtifactStore(storage, clock, tries=config.artifact_tries)


def open_jobs(engine: Engine, config: PdfRenderConfig) -> PdfJobStore:
    """Make the job store; raises as `artifacts_of`."""
    from ulak.services.pdf.jobs import PdfJobStore

    return PdfJobStore(engine, artifacts_of(config, engine.store.clock), config)


def templates_of(config: PdfRenderConfig) -> Templates:
    """Make the templates: those of the operator, then those that are shipped."""
    from ulak.services.pdf.templates import SHIPPED, Templates

    own = () if config.template_dir is None else (config.template_dir,)
    return Templates((*own, SHIPPED), limits=config.limits)


def fetcher_of(config: PdfRenderConfig) -> Fetcher:
    """Make what fetches for pages. Raises BadInput: an expression of the allow-list cannot be
    used."""
    security = config.security
    if not security.url_allowlist:
        return NoNetwork()
    from ulak.services.pdf.fetching import AllowedFetcher

    return AllowedFetcher(
        security.url_allowlist, internal_hosts=security.internal_hosts,
        extra_headers=security.extra_headers,
    )  # fmt: skip


def callback_fetcher_of(config: PdfRenderConfig) -> AllowedFetcher:
    """Make what sends callbacks. Raises BadInput: an expression of the allow-list cannot be
    used."""
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
) -> AsyncIterator[Engines]:
    """Open what renders; no process of it is left when the block has ended.

    Each document is sent to the engine of its template, which is started when the first one needs
    it. What dead workers left is taken away at once.

    Raises:
        BadInput: an expression of the URL allow-list cannot be used.
    """
    from ulak.services.pdf.browser.launch import sweep

    fetcher = fetcher_of(config)
    await asyncio.to_thread(sweep)
    async with AsyncExitStack() as stack:
        yield Engines(config, fetcher, tracing, stack)


def _driver_of(config: PdfRenderConfig) -> Driver:
    if config.driver == "playwright":
        try:
            from ulak.services.pdf.browser.playwright import PlaywrightDriver
        except ModuleNotFoundError as error:
            cure = "pip install 'ulak[pdf]', or set PDF_DRIVER=devtools"
            why = f"PDF_DRIVER=playwright needs {error.name}; {cure}"
            raise PermanentPdfError(why, code=PdfErrorCode.UNSUPPORTED_PLATFORM) from error
        return PlaywrightDriver(output_bytes=config.limits.output_bytes)
    from ulak.services.pdf.browser.devtools import DevTools

    return DevTools(output_bytes=config.limits.output_bytes)


@dataclass(frozen=True, slots=True)
class Engines:
    """Renders every document by the engine that it names, opened when the first one needs it."""

    config: PdfRenderConfig
    fetcher: Fetcher
    tracing: Tracing | None
    stack: AsyncExitStack
    _open: dict[str, BrowserPool | WeasyPool] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document by its own engine; raise what that does, or that there is none."""
        return await (await self._engine(document.engine)).render(document, times)

    async def probe(self) -> dict[str, str]:
        """Have each engine that templates need here started, or tried if it runs; return by name
        what calls itself how, '' for one that rests. Raises PdfError: one cannot be used."""
        needed = await asyncio.to_thread(engines_needed, self.config)
        return {name: await (await self._engine(name)).probe() for name in sorted(needed)}

    async def _engine(self, name: str) -> BrowserPool | WeasyPool:
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self.stack.enter_async_context(self._make(name))
        return self._open[name]

    def _make(self, name: str) -> BrowserPool | WeasyPool:
        config = self.config
        if name == "weasyprint":
            from ulak.services.pdf.weasy.pool import WeasyPool

            return WeasyPool(
                fetcher=self.fetcher, limits=config.limits, places=config.concurrency,
                idle_after=config.idle_after,
            )  # fmt: skip
        if name != "chromium":
            why = f'there is no engine "{name}"; there are chromium, weasyprint'
            raise PermanentPdfError(why, code=PdfErrorCode.UNSUPPORTED_PLATFORM)
        from ulak.services.pdf.browser.launch import prepare
        from ulak.services.pdf.browser.pool import BrowserPool

        return BrowserPool(
            _driver_of(config), fetcher=self.fetcher, limits=config.limits,
            places=config.concurrency, recycle_after=config.recycle_after,
            idle_after=config.idle_after, prepare=partial(prepare, config.chromium),
            tracing=self.tracing,
        )  # fmt: skip


def engines_needed(config: PdfRenderConfig) -> set[str]:
    """Return the engines of the templates that may be rendered."""
    allowed = config.security.template_allowlist
    # Where nobody has said what may be rendered, `ulak pdf render` takes all that there is.
    known = (t for t in templates_of(config).list() if t.name in allowed or not allowed)
    return {template.manifest.engine for template in known} or {"chromium"}


def condition(platform: Settings, environ: Mapping[str, str] | None = None) -> Condition:
    """Return the settings, where each is from, and every weakness of the engines that templates
    need here. Starts nothing. Raises BadInput: a setting cannot be used."""
    # Here and not above: whoever serves the API has no browser and needs none of this.
    from ulak.services.pdf import ground
    from ulak.services.pdf.weasy import ground as weasy_ground

    config = load(environ, platform)
    settings = describe_variables(values_of(config), secrets=SECRETS, environ=environ)
    needed = engines_needed(config)
    found = ground.weaknesses(config.chromium) if "chromium" in needed else []
    found += weasy_ground.weaknesses() if "weasyprint" in needed else []
    # What two engines lack is told once.
    notes = dict.fromkeys(f"{weak.message}; {weak.cure}" for weak in found)
    costs = "a worker on this machine takes no PDF job"
    missing = dict.fromkeys(f"{w.message}: {costs}; {w.cure}" for w in found if w.is_fatal)
    return Condition(settings, list(notes), list(missing), partial(_try_out, config))


def _try_out(config: PdfRenderConfig) -> list[str]:
    """Start every engine that templates need here, and tell which one cannot print."""

    async def probe() -> None:
        async with open_renderer(replace(config, concurrency=1)) as engines:
            await engines.probe()

    try:
        asyncio.run(probe())
    except (PdfError, OSError) as error:
        return [f"nothing can be rendered: {error}: a worker on this machine takes no PDF job"]
    return []
