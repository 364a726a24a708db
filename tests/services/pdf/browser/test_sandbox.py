"""The sandbox is on, as the kernel tells it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.services.pdf.browser.yard import (
    a_pool,
    browser_of,
    namespace_of,
    renderers_of,
    status_of,
)
from ulak.services.pdf.browser.memory import Tree
from ulak.services.pdf.document import Document, Times


@pytest.mark.shows("P-2", "P-30", "P-32")
def test_pages_run_behind_filters_unprivileged_and_in_a_network_with_nothing_in_it() -> None:
    async def look() -> None:
        async with a_pool() as pool:
            await pool.render(Document("<p>x"), Times())
            root = browser_of(pool)
            pages = renderers_of(root)
            assert pages
            # The page that is opened ahead may be just born, and has run nothing yet.
            async with asyncio.timeout(10):
                while any(status_of(pid, "Seccomp") != "2" for pid in pages):
                    await asyncio.sleep(0.01)
            for pid in pages:
                assert namespace_of(pid, "user") != namespace_of("self", "user")
                assert namespace_of(pid, "pid") != namespace_of("self", "pid")
            for usage in Tree(root).sample():
                assert status_of(usage.pid, "Uid") != "0"
                assert status_of(usage.pid, "NoNewPrivs") == "1"
                assert namespace_of(usage.pid, "net") != namespace_of("self", "net")
            devices = Path(f"/proc/{root}/net/dev").read_text().splitlines()[2:]
            assert [device.split(":")[0].strip() for device in devices] == ["lo"]

    asyncio.run(look())
