"""A worker that is killed takes its browser along, and the next one clears up after it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.services.pdf.browser.yard import a_yard, until
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.process import Tree

WORKER = """
import asyncio, sys
from functools import partial
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.pool import BrowserPool
from ulak.services.pdf.document import Document, Times

async def work():
    prepare_here = partial(prepare, directory=sys.argv[1])
    async with BrowserPool(DevTools(), places=2, prepare=prepare_here) as pool:
        await pool.render(Document("<p>x"), Times())
        hostile = Document("<script>for (;;);</script>", javascript=True)
        rendering = [asyncio.ensure_future(pool.render(hostile, Times())) for _ in range(2)]
        await asyncio.sleep(0.3)
        print(pool._keeper.current.pid, flush=True)
        await asyncio.gather(*rendering)

asyncio.run(work())
"""


@pytest.mark.shows("P-2", "P-14")
def test_nothing_of_a_worker_that_was_killed_in_the_middle_of_a_render_is_left() -> None:
    with a_yard() as directory:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, directory], stdout=subprocess.PIPE, text=True
        )
        with worker:
            assert worker.stdout is not None
            browser = int(worker.stdout.readline())
            tree = [usage.pid for usage in Tree(browser).sample()]
            assert len(tree) > 3
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        asyncio.run(until(lambda: not any(is_alive(pid) for pid in tree)))
        # The profile cannot go with a worker that runs no more; whoever starts next removes it.
        (left,) = directory.iterdir()
        launch = prepare(directory=directory)
        assert not Path(left).exists()
        launch.remove()
