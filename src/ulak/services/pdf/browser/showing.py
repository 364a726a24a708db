"""The steps by which a document is shown and printed, over whichever line a driver has to its page.

A driver brings the line and reads the printed stream in the way that suits it; what is sent, and
in which order, is said here once, so that the same document gives the same bytes.
"""

from __future__ import annotations

import asyncio

from ulak.services.pdf.browser.agreement import print_options, refused_printing
from ulak.services.pdf.browser.asking import asks_something, make_one_page, wait
from ulak.services.pdf.browser.driver import PageFailed
from ulak.services.pdf.browser.line import Send
from ulak.services.pdf.browser.loading import Loading, complete
from ulak.services.pdf.document import Document


async def show(document: Document, send: Send, *, frame: str, world: int, loading: Loading) -> int:
    """Show a document, wait until it is complete, and answer its number of nodes.

    Args:
        document: What is shown.
        send: The line to the page; what it raises besides `PageFailed` is passed on.
        frame: The frame of the page that is filled.
        world: Where questions are evaluated, out of reach of the page's scripts.
        loading: Hears what the browser tells of the page.

    Raises:
        PageFailed: a script sent the page elsewhere.
        Unfit: what the document waits for will never be, or it is too long for its one page.
    """
    await asyncio.gather(
        send("Page.setDocumentContent", frameId=frame, html=document.html),
        loading.begin(send, world),
    )
    # Only now: while a dialog is open the browser would evaluate questions in the middle.
    await loading.wait(send, world)
    nodes = await complete(send, world)
    if asks_something(document):
        await wait(document, send, world)
        # What scripts have brought meanwhile is waited for as well.
        nodes = await complete(send, world)
        if document.single_page:
            await make_one_page(document, send, world)
    return nodes


async def print_shown(document: Document, send: Send) -> str:
    """Have what is shown printed, and answer the name of the stream to read it from.

    Args:
        document: What is shown, for how it wants to be printed.
        send: The line to the page; its `PageFailed` has what the browser said as its cause.

    Raises:
        PageFailed: the browser gave printing up.
        Unfit: the document has none of the pages that were asked for.
    """
    try:
        printed = await send("Page.printToPDF", **print_options(document))
    except PageFailed as error:
        raise refused_printing(str(error.__cause__)) from error
    return str(printed["stream"])
