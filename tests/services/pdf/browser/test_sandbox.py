"""The sandbox is on, as the kernel tells it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.services.pdf.browser.yard import (
    a_pool,
    browser_of,
    namespace_of,
    renderers_of,
    status_of,
    until,
)
from ulak.services.pdf import ground
from ulak.services.pdf.browser.process import Tree
from ulak.services.pdf.document import Document, Times
from ulak.services.pdf.model import PermanentPdfError


def has_helper() -> bool:
    try:
        return ground.survey().helper is not None
    except PermanentPdfError:
        return False


@pytest.mark.needs_user_namespaces
@pytest.mark.shows("P-2", "P-30", "P-32")
def test_pages_run_behind_filters_unprivileged_and_in_a_network_with_nothing_in_it() -> None:
    async def look() -> None:
        async with a_pool() as pool:
            await pool.render(Document("<p>x"), Times())
            root = browser_of(pool)
            pages = await filtered_pages(root)
            for pid in pages:
                assert namespace_of(pid, "user") != namespace_of("self", "user")
                assert namespace_of(pid, "pid") != namespace_of("self", "pid")
            looked_at = set()
            for usage in Tree(root).sample():
                # What has worked for the document may end meanwhile.
                with suppress(FileNotFoundError):
                    assert status_of(usage.pid, "Uid") != "0"
                    assert status_of(usage.pid, "NoNewPrivs") == "1"
                    assert namespace_of(usage.pid, "net") != namespace_of("self", "net")
                    looked_at.add(usage.pid)
            assert looked_at > {root, *pages}
            devices = Path(f"/proc/{root}/net/dev").read_text().splitlines()[2:]
            assert [device.split(":")[0].strip() for device in devices] == ["lo"]

    asyncio.run(look())


@pytest.mark.shows("P-32")
@pytest.mark.skipif(not has_helper(), reason="the browser came without a setuid helper")
def test_without_user_namespaces_the_setuid_helper_keeps_pages_apart_and_unprivileged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ground, "has_user_namespaces", lambda uid: False)

    async def look() -> None:
        async with a_pool() as pool:
            await pool.render(Document("<p>x"), Times())
            root = browser_of(pool)
            assert status_of(root, "NoNewPrivs") == "0", "it was not started for the helper"
            for pid in await filtered_pages(root):
                assert status_of(pid, "Uid") != "0"
                assert status_of(pid, "NoNewPrivs") == "1"
                assert namespace_of(pid, "pid") != namespace_of("self", "pid")
                assert namespace_of(pid, "net") != namespace_of("self", "net")

    asyncio.run(look())


async def filtered_pages(browser: int) -> set[int]:
    """Return the processes of pages, each behind its filter of system calls."""
    # That of the document is about to end; the one that is opened ahead stays.
    await until(lambda: len(renderers_of(browser)) == 1)
    pages = renderers_of(browser)
    # The page that is opened ahead may be just born, and has run nothing yet.
    async with asyncio.timeout(10):
        while any(status_of(pid, "Seccomp") != "2" for pid in pages):
            await asyncio.sleep(0.01)
    return pages
