"""One document on one browser: its time, its limits, and how its page is put down.

A page is asked to go when its time is up, its process is killed at the hard limit, and a browser
that has not done so two seconds later is killed as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from ulak.services.pdf.browser.driver import (
    BrowserGone,
    Loaded,
    OutputTooLarge,
    Page,
    PageCrashed,
    PageFailed,
    Unfit,
)
from ulak.services.pdf.browser.glyphs import boxes_warning, find_boxes
from ulak.services.pdf.browser.language import language_of, with_language
from ulak.services.pdf.browser.sameness import NotChromiums, count_pages, same_bytes
from ulak.services.pdf.browser.warm import WarmBrowser
from ulak.services.pdf.document import (
    GLYPHS_UNCHECKED,
    Document,
    Fetched,
    Fetcher,
    Limits,
    Reason,
    Rendered,
    RenderWarning,
    Times,
    UrlBlocked,
)
from ulak.services.pdf.model import (
    PdfErrorCode,
    PermanentPdfError,
    TransientPdfError,
    not_as_asked,
    over_limit,
)
from ulak.services.pdf.steps import LOAD, PRINT, Steps

log = logging.getLogger(__name__)

SURVIVAL_S: Final = 2.0
"""How long what was killed may take to be gone (P-14)."""

OnBlocked = Callable[[Reason], None]


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a document must be done, by the loop's clock."""

    began_at: float
    ask_at: float
    """The page is asked to close."""
    hard_at: float
    """The page is killed."""

    @classmethod
    def of(cls, times: Times, now: float) -> Deadline:
        """Let the time begin now."""
        return cls(now, now + times.navigation.total_seconds(), now + times.hard.total_seconds())


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every document of a pool."""

    _: KW_ONLY
    fetcher: Fetcher
    limits: Limits
    on_blocked: OnBlocked | None = None


class Requests:
    """What one document asks for, fetched by the rules of all, and counted where it is refused."""

    def __init__(self, document: Document, rules: Rules) -> None:
        self._document = document
        self._rules = rules
        self.blocked: Counter[Reason] = Counter()
        self.refused_status = 0
        """The last answer that the document may not have."""

    async def __call__(self, url: str, method: str, headers: Mapping[str, str]) -> Fetched | None:
        """Fetch something; None when it is refused, or nobody answers."""
        try:
            fetched = await self._rules.fetcher.fetch(url, method=method, headers=headers)
        except UrlBlocked as blocked:
            self.blocked[blocked.reason] += 1
            if self._rules.on_blocked is not None:
                self._rules.on_blocked(blocked.reason)
            return None
        except OSError:
            return None
        if fetched.status in self._document.fail_on_status:
            self.refused_status = fetched.status
        return fetched


class Attempt:
    """A document being rendered.

    Args:
        steps: Takes its times; whoever waits for a browser has begun the first step.
        kill_browser: Ends the whole tree; called when a page survives its own end.
        later: Runs what need not be waited for.
    """

    def __init__(
        self,
        document: Document,
        *,
        rules: Rules,
        deadline: Deadline,
        steps: Steps,
        kill_browser: Callable[[WarmBrowser], None],
        later: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._document = document
        self._rules = rules
        self._deadline = deadline
        self._steps = steps
        self._kill_browser = kill_browser
        self._later = later
        self._requests = Requests(document, rules)
        self._page: Page | None = None

    async def on(self, warm: WarmBrowser) -> Rendered:
        """Render the document on a browser.

        Raises:
            BrowserGone: the browser ended, and not by this document's doing; try another.
            TransientPdfError: its time ran out.
            PermanentPdfError: it exceeds a limit, or its page broke.
        """
        self._requests = Requests(self._document, self._rules)
        self._page = None
        warm.enter()
        try:
            async with asyncio.timeout_at(self._deadline.ask_at):
                return await self._render(warm)
        except TimeoutError as error:
            page, self._page = self._page, None
            if page is None:
                # Not even an empty page was opened in all that time: the browser itself hangs.
                self._kill_browser(warm)
            else:
                await self._put_down(page, warm, self._deadline.hard_at)
            raise out_of_time() from error
        except (PageCrashed, PageFailed) as error:
            if warm.took_memory_kill():
                raise over_limit("memory_exceeded", "its page needs too much memory") from error
            word = "page_crashed" if isinstance(error, PageCrashed) else "page_failed"
            raise PermanentPdfError(
                "the page broke", code=PdfErrorCode.UNKNOWN, detail=word
            ) from error
        except Unfit as error:
            raise not_as_asked(error.detail, str(error)) from error
        except OutputTooLarge as error:
            raise over_limit("output_too_large", "its PDF has too many bytes") from error
        finally:
            warm.leave()
            if self._page is not None:
                hard_at = asyncio.get_running_loop().time() + SURVIVAL_S
                self._later(self._put_down(self._page, warm, hard_at))

    async def _render(self, warm: WarmBrowser) -> Rendered:
        loop, limits, steps = asyncio.get_running_loop(), self._rules.limits, self._steps
        self._page = page = await warm.open(
            javascript=self._document.javascript, answer=self._requests
        )
        steps.begin(LOAD)
        loaded = await page.load(self._document)
        if loaded.dom_nodes > limits.dom_nodes:
            raise over_limit("dom_too_large", f"it has {loaded.dom_nodes} nodes")
        self._must_be_well(loaded)
        steps.begin(PRINT)
        printed = await page.print(self._document)
        if len(printed) > limits.output_bytes:
            raise over_limit("output_too_large", f"its PDF has {len(printed)} bytes")
        try:
            pages = count_pages(printed)
            pdf = same_bytes(with_language(printed, language_of(self._document.html)))
        except NotChromiums as error:
            raise PermanentPdfError(
                f"what the browser printed cannot be read: {error}",
                code=PdfErrorCode.UNKNOWN,
                detail="unreadable_output",
            ) from error
        if pages > limits.pages:
            raise over_limit("too_many_pages", f"it has {pages} pages")
        if self._document.single_page and pages != 1:
            raise not_as_asked("single_page", f"it takes {pages} pages, however long the first is")
        warnings = await self._look_for_boxes(printed, page, warm)
        steps.end()
        return Rendered(
            pdf,
            pages=pages,
            engine=warm.engine,
            timings={**steps.took, "total": loop.time() - self._deadline.began_at},
            blocked=dict(self._requests.blocked),
            script_errors=loaded.script_errors,
            warnings=warnings,
        )

    async def _look_for_boxes(
        self, printed: bytes, page: Page, warm: WarmBrowser
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
        half = (asyncio.get_running_loop().time() + self._deadline.ask_at) / 2
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

    async def _put_down(self, page: Page, warm: WarmBrowser, hard_at: float) -> None:
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
            self._kill_browser(warm)
        except (BrowserGone, PageCrashed):
            return


def out_of_time() -> TransientPdfError:
    """Make the error of a document whose time is over."""
    return TransientPdfError(
        "the document was not done in its time", code=PdfErrorCode.NAVIGATION_TIMEOUT
    )


def refuse_large(document: Document, limits: Limits) -> None:
    """Refuse a document by its text alone, before any browser sees it.

    Raises:
        PermanentPdfError: it has too many bytes, or holds what is no character.
    """
    try:
        size = len(document.html.encode())
    except UnicodeEncodeError as error:
        raise over_limit("html_not_text", "it holds half a character") from error
    if size > limits.html_bytes:
        raise over_limit("html_too_large", f"it has {size} bytes")
