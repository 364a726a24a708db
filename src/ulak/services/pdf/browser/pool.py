"""The browser pool: documents take their turns on a warm browser, each in a context of its own.

A page is asked to go when its time is up, its process is killed at the hard limit, and a browser
that has not done so two seconds later is killed as a whole. A browser that is lost takes nobody's
document with it but that of whoever killed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ulak.engine.tracing import Tracing
from ulak.services.pdf.browser.chromium_pdf import (
    NotChromiums,
    boxes_warning,
    count_pages,
    find_boxes,
    language_of,
    same_bytes,
    with_language,
)
from ulak.services.pdf.browser.driver import (
    BrowserGone,
    Driver,
    Loaded,
    OutputTooLarge,
    PageCrashed,
    PageFailed,
    ShownPage,
    Unfit,
)
from ulak.services.pdf.browser.launch import Launch, prepare
from ulak.services.pdf.browser.renderers import Keeper, Pool, Requests, out_of_time, refuse_large
from ulak.services.pdf.browser.warm import NOT_WELL, WarmBrowser, launch_browser
from ulak.services.pdf.document import (
    GLYPHS_UNCHECKED,
    LAUNCH,
    LOAD,
    PRINT,
    Document,
    Fetcher,
    Limits,
    Reason,
    Rendered,
    RenderWarning,
    Steps,
    Times,
)
from ulak.services.pdf.model import (
    MachineFault,
    PdfError,
    PdfErrorCode,
    PermanentPdfError,
    not_as_asked,
    over_limit,
)

log = logging.getLogger(__name__)

SURVIVAL_S: Final = 2.0
"""How long what was killed may take to be gone (P-14)."""
_MOST_FAULTS: Final = 2
"""How often an attempt may lose its page in the same way: once is bad luck."""
_LOST: Final = "browser_lost"
_KILLED: Final = "page_killed"
_NO_ROOM: Final = "disk_full"
_CRASHED: Final = "page_crashed"
_FAILED: Final = "page_failed"
_UNREADABLE: Final = "unreadable_output"
_FAULTS_OF_MACHINE: Final = {
    _LOST: "the browser was lost twice",
    _KILLED: "the process of its page was killed twice",
    _NO_ROOM: "the disk that the browser writes to is full",
}
_FAULTS_OF_DOCUMENT: Final = {
    _CRASHED: "the page broke",
    _FAILED: "the page broke",
    _UNREADABLE: "what the browser printed cannot be read",
}


class BrowserPool(Pool[WarmBrowser]):
    """Renders documents, several at a time, in a browser that is kept warm; see `Pool`.

    Args:
        recycle_after: A browser is replaced after so many documents; 0 never.
        memory_growth: And when its lasting processes have grown by so many bytes; 0 never.
        idle_after: A browser that nobody needs is let go after so long.
        prepare: Makes ready to start a browser, as `launch.prepare` with arguments bound; called
            in a thread before each start.
        tracing: Where the spans of launch, load and print go, of documents that are traced.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        fetcher: Fetcher | None = None,
        limits: Limits | None = None,
        places: int = 1,
        recycle_after: int = 100,
        memory_growth: int = 512 * 1024 * 1024,
        idle_after: timedelta = timedelta(minutes=5),
        prepare: Callable[[], Launch] = prepare,
        tracing: Tracing | None = None,
    ) -> None:
        limits = limits or Limits()

        async def start() -> WarmBrowser:
            browser = await launch_browser(driver, prepare)
            return WarmBrowser(browser, places, limits.memory_bytes, recycle_after, memory_growth)

        keeper = Keeper(start, idle_after=idle_after)
        super().__init__(keeper, fetcher=fetcher, limits=limits, places=places)
        self._tracing = tracing
        self._prepare = prepare

    async def render(self, document: Document, times: Times) -> Rendered:
        """Render one document in a context of its own, when its turn comes.

        Its time begins now. Cancelled, it takes its page with it.

        A page or a browser that is lost is replaced, within the time of the document.

        Raises:
            MachineFault: page or browser were lost twice by no fault of the document.
            TransientPdfError: the browser does not start, or the time ran out.
            PermanentPdfError: the document exceeds a limit, its page broke twice, or no browser can
                run here.
        """
        refuse_large(document, self._limits)
        with Steps(self._tracing) as steps:
            steps.begin(LAUNCH)
            attempt = _Attempt(document, times, self._fetcher, self._limits, self._keeper, steps)
            try:
                async with asyncio.timeout_at(attempt.ask_at):
                    await self._turns.acquire()
            except TimeoutError as error:
                raise out_of_time() from error
            try:
                return await attempt.render()
            except PdfError as error:
                error.blocked = attempt.blocked
                raise
            finally:
                self._turns.release()

    async def probe(self) -> str:
        """Have the browser show something, starting it if none runs; return its name and version.

        One that was let go because nobody needs it is not started: it is looked whether it could
        be, and '' is returned. One that cannot show anything is replaced.

        Raises:
            PdfError: no browser can be started.
        """
        if self._keeper.is_resting:
            await asyncio.to_thread(lambda: self._prepare().remove())
            return ""
        running = self._keeper.current
        warm = await self._keeper.get()
        if warm is running and not warm.busy:
            try:
                await warm.show_something()
            except NOT_WELL:
                self._keeper.discard(warm)
                warm = await self._keeper.get()
        warm.open_ahead(javascript=False)
        return warm.engine


class _Broken(Exception):
    """A page was lost, in the way that this names; another may be tried."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class _Attempt:
    """A document being rendered, by the loop's clock."""

    def __init__(
        self,
        document: Document,
        times: Times,
        fetcher: Fetcher,
        limits: Limits,
        keeper: Keeper[WarmBrowser],
        steps: Steps,
    ) -> None:
        self._document = document
        self._fetcher = fetcher
        self._limits = limits
        self._keeper = keeper
        self._steps = steps
        self._began_at = asyncio.get_running_loop().time()
        self.ask_at = self._began_at + times.navigation.total_seconds()
        self._hard_at = self._began_at + times.hard.total_seconds()
        self._requests = Requests(document, fetcher)
        self._page: ShownPage | None = None
        self._faults: Counter[str] = Counter()

    @property
    def blocked(self) -> dict[Reason, int]:
        """Return what was refused to its page, by why."""
        return dict(self._requests.blocked)

    async def render(self) -> Rendered:
        """Render the document, and again on a fresh page if the first was lost."""
        get = self._keeper.get
        while True:
            self._steps.begin(LAUNCH)
            try:
                async with asyncio.timeout_at(self.ask_at):
                    warm = await get()
            except TimeoutError as error:
                raise out_of_time() from error
            try:
                return await self._render_on(warm)
            except BrowserGone as error:
                self._keeper.discard(warm)
                word = _LOST
                if self._is_suspect_on(warm):
                    if warm.suspects == 1:
                        what = "the browser needs too much memory for it"
                        raise over_limit("memory_exceeded", what) from error
                    # One of several did it: who does it again when alone.
                    get = self._keeper.get_apart
            except _Broken as broken:
                word = broken.word
            finally:
                self._keeper.used(warm)
            log.warning("a document has lost its page", extra={"detail": word, "pid": warm.pid})
            self._faults[word] += 1
            if self._faults[word] == _MOST_FAULTS:
                raise _fault(word)

    def _is_suspect_on(self, warm: WarmBrowser) -> bool:
        """Tell whether its browser may have been ended for what it did there."""
        return warm.suspects > 0 and (self._document.javascript or not warm.was_scripted)

    async def _render_on(self, warm: WarmBrowser) -> Rendered:
        """Render the document; raise `BrowserGone` where another browser may be tried."""
        self._requests = Requests(self._document, self._fetcher)
        self._page = None
        warm.enter(javascript=self._document.javascript)
        try:
            async with asyncio.timeout_at(self.ask_at):
                return await self._load_and_print(warm)
        except TimeoutError as error:
            page, self._page = self._page, None
            if page is None:
                # Not even an empty page was opened in all that time: the browser itself hangs.
                self._keeper.discard(warm)
            else:
                await self._put_down(page, warm, self._hard_at)
            raise out_of_time() from error
        except (PageCrashed, PageFailed, NotChromiums) as error:
            if warm.took_memory_kill():
                raise over_limit("memory_exceeded", "its page needs too much memory") from error
            raise _Broken(await self._why_broken(error, warm)) from error
        except Unfit as error:
            raise not_as_asked(error.detail, str(error)) from error
        except OutputTooLarge as error:
            raise over_limit("output_too_large", "its PDF has too many bytes") from error
        finally:
            warm.leave(javascript=self._document.javascript)
            if self._page is not None:
                hard_at = asyncio.get_running_loop().time() + SURVIVAL_S
                self._keeper.run(self._put_down(self._page, warm, hard_at))

    async def _load_and_print(self, warm: WarmBrowser) -> Rendered:
        document, limits, steps = self._document, self._limits, self._steps
        self._page = page = await warm.open(
            javascript=document.javascript, answer=self._requests, ahead=not self._faults
        )
        steps.begin(LOAD)
        loaded = await page.load(document)
        if loaded.dom_nodes > limits.dom_nodes:
            raise over_limit("dom_too_large", f"it has {loaded.dom_nodes} nodes")
        self._must_be_well(loaded)
        steps.begin(PRINT)
        printed = await page.print(document)
        if len(printed) > limits.output_bytes:
            raise over_limit("output_too_large", f"its PDF has {len(printed)} bytes")
        pages = count_pages(printed)
        pdf = same_bytes(with_language(printed, language_of(document.html)))
        if pages > limits.pages:
            raise over_limit("too_many_pages", f"it has {pages} pages")
        if document.single_page and pages != 1:
            raise not_as_asked("single_page", f"it takes {pages} pages, however long the first is")
        warnings = await self._look_for_boxes(printed, page, warm)
        steps.end()
        total = asyncio.get_running_loop().time() - self._began_at
        return Rendered(
            pdf,
            pages=pages,
            engine=warm.engine,
            timings={**steps.took, "total": total},
            blocked=self.blocked,
            script_errors=loaded.script_errors,
            warnings=warnings,
        )

    async def _why_broken(self, error: Exception, warm: WarmBrowser) -> str:
        """Name what a page was lost by: the machine, or its document."""
        if not await asyncio.to_thread(warm.has_room):
            return _NO_ROOM
        if isinstance(error, PageCrashed):
            is_killed = self._page is not None and await self._page.was_killed()
            return _KILLED if is_killed else _CRASHED
        return _UNREADABLE if isinstance(error, NotChromiums) else _FAILED

    async def _look_for_boxes(
        self, printed: bytes, page: ShownPage, warm: WarmBrowser
    ) -> tuple[RenderWarning, ...]:
        """Warn of characters that no font has; the page is good for nothing else afterwards."""
        # In a thread: other pages go on meanwhile.
        boxes = await asyncio.to_thread(find_boxes, printed)
        if boxes is None:
            return (RenderWarning(GLYPHS_UNCHECKED),)
        if not boxes.count:
            return ()
        # Few documents come here. Half of the time that is left must do to name the characters:
        # that they are there is known, and no document fails for want of their names.
        half = (asyncio.get_running_loop().time() + self.ask_at) / 2
        characters = boxes.characters
        try:
            async with asyncio.timeout_at(half):
                marked = await page.print_marked(self._document)
                named = await asyncio.to_thread(find_boxes, marked)
            # More names than boxes: then one of them is none.
            if named is not None and len(named.characters) <= boxes.count:
                characters = (*named.characters, *characters)
        except PageCrashed:
            warm.took_memory_kill()  # Told here: it is no other page's.
        except (TimeoutError, BrowserGone, PageFailed, OutputTooLarge, Unfit):
            log.info("the characters of boxes are not known")
        return (boxes_warning(characters, boxes.count),)

    def _must_be_well(self, loaded: Loaded) -> None:
        """Refuse a document that was to fail by what happened while it was loaded."""
        if status := self._requests.refused_status:
            raise not_as_asked("resource_status", f"a resource was answered {status}")
        if self._document.fail_on_script_error and loaded.script_errors:
            raise not_as_asked("script_error", f"a script failed: {loaded.script_errors[0]}")

    async def _put_down(self, page: ShownPage, warm: WarmBrowser, hard_at: float) -> None:
        """Ask a page to close, kill it at `hard_at`, kill its browser soon after.

        Done when the page is gone, or the browser on its way.
        """
        facts = {"browser_pid": warm.pid}
        try:
            try:
                async with asyncio.timeout_at(hard_at):
                    await page.close()
            except TimeoutError:
                log.warning("a page did not close and is killed", extra=facts)
                async with asyncio.timeout(SURVIVAL_S):
                    await page.kill()
        except TimeoutError:
            log.warning("a page survives and its browser is killed", extra=facts)
            self._keeper.discard(warm)
        except (BrowserGone, PageCrashed):
            return


def _fault(word: str) -> PdfError:
    """Make the error of a document that has lost its pages in this way."""
    if word in _FAULTS_OF_MACHINE:
        code = PdfErrorCode.BROWSER_LAUNCH_FAILED
        return MachineFault(_FAULTS_OF_MACHINE[word], code=code, detail=word)
    return PermanentPdfError(_FAULTS_OF_DOCUMENT[word], code=PdfErrorCode.UNKNOWN, detail=word)
