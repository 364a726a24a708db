"""How a document ends that does not end by itself, and how its neighbours and its worker fare."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.services.pdf.browser.yard import a_yard, until
from tests.services.pdf.weasy.room import (
    AMPLE,
    ENDLESS,
    SOON,
    Asked,
    a_pool,
    children_of,
    document,
    fetch_by,
    zygote_of,
)
from ulak.services.pdf.model import PermanentPdfError, TransientPdfError
from ulak.services.pdf.weasy.pool import WeasyPool
from ulak.services.pdf.weasy.process import Zygote

ROOT = Path(__file__).parents[4]

WORKER = """
import asyncio, sys
from functools import partial
from tests.services.pdf.weasy.room import ENDLESS, Asked, children_of, document, fetch_by, zygote_of
from ulak.services.pdf.document import Times
from ulak.services.pdf.weasy.pool import WeasyPool
from ulak.services.pdf.weasy.process import Zygote

async def work():
    start = partial(Zygote.start, directory=sys.argv[1])
    async with WeasyPool(start=start) as pool:
        def tell(url):
            pid = zygote_of(pool).pid
            print(pid, *children_of(pid), flush=True)
        fetch_by(pool, Asked(tell))
        await pool.render(document(ENDLESS), Times())

asyncio.run(work())
"""


@pytest.mark.shows("P-14", "P-56")
def test_a_document_that_never_ends_is_killed_in_time_and_the_next_one_is_printed() -> None:
    running: set[int] = set()

    async def story() -> None:
        async with a_pool() as pool:
            await pool.render(document("<p>warm"), AMPLE)

            def look(url: str) -> None:
                running.update(children_of(zygote_of(pool).pid))

            fetch_by(pool, Asked(look))
            with pytest.raises(TransientPdfError) as failed:
                await pool.render(document(ENDLESS), SOON)
            assert failed.value.code == "NAVIGATION_TIMEOUT"
            assert len(running) == 1, "it was not even begun"
            # Gone by the time that the failure is told, with what it had written.
            assert not any(map(is_alive, running))
            assert [
                path for path in zygote_of(pool).workplace.profile.iterdir() if path.name.isdigit()
            ] == []
            assert (await pool.render(document("<p>next"), AMPLE)).pages == 1

    asyncio.run(story())


def test_who_is_cancelled_takes_the_process_along() -> None:
    async def story() -> None:
        async with a_pool() as pool:
            begun, running = asyncio.Event(), set[int]()

            async def hang(url: str) -> None:
                running.update(children_of(zygote_of(pool).pid))
                begun.set()
                await asyncio.Event().wait()

            fetch_by(pool, Asked(hang))
            page = document("<img src='http://hang.test/'>")
            rendering = asyncio.ensure_future(pool.render(page, AMPLE))
            await begun.wait()
            rendering.cancel()
            await asyncio.wait([rendering])
            assert rendering.cancelled()
            assert running
            await until(lambda: not any(map(is_alive, running)))

    asyncio.run(story())


@pytest.mark.shows("P-2", "P-14")
def test_nothing_of_a_worker_that_was_killed_in_the_middle_of_a_render_is_left() -> None:
    with a_yard() as directory:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, directory], stdout=subprocess.PIPE, text=True,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        with worker:
            assert worker.stdout is not None
            pids = [int(word) for word in worker.stdout.readline().split()]
            assert len(pids) == 2
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        asyncio.run(until(lambda: not any(map(is_alive, pids))))
        # Files cannot go with a worker that runs no more; whoever starts next removes them.
        (left,) = directory.iterdir()

        async def next_one() -> None:
            async with WeasyPool(start=partial(Zygote.start, directory=directory)) as pool:
                await pool.render(document("<p>x"), AMPLE)
                assert not left.exists()

        asyncio.run(next_one())


@pytest.mark.shows("P-56")
def test_a_process_that_breaks_fails_its_own_document_alone() -> None:
    async def story() -> None:
        async with a_pool(places=2) as pool:
            waits, killed = asyncio.Event(), asyncio.Event()
            neighbours: set[int] = set()
            killings: list[int] = []

            async def act(url: str) -> None:
                if "waits" in url:
                    neighbours.update(children_of(zygote_of(pool).pid))
                    waits.set()
                    await killed.wait()
                    return
                (own,) = children_of(zygote_of(pool).pid) - neighbours
                os.kill(own, signal.SIGKILL)
                await until(lambda: not is_alive(own))
                assert all(map(is_alive, neighbours))
                killings.append(own)
                if len(killings) == 2:
                    killed.set()

            fetch_by(pool, Asked(act))
            first = asyncio.ensure_future(
                pool.render(document("<img src='http://waits.test/'>"), AMPLE)
            )
            await waits.wait()
            with pytest.raises(PermanentPdfError) as failed:
                await pool.render(document("<img src='http://kills.test/'>"), AMPLE)
            assert (failed.value.code, failed.value.detail) == ("UNKNOWN", "page_crashed")
            assert len(killings) == 2, "the first time it is bad luck"
            assert (await first).pages == 1

    asyncio.run(story())


def test_a_document_whose_engine_is_lost_is_printed_by_the_next_one() -> None:
    async def story() -> None:
        async with a_pool() as pool:
            lost: list[int] = []

            async def act(url: str) -> None:
                if not lost:
                    lost.append(zygote_of(pool).pid)
                    os.killpg(lost[0], signal.SIGKILL)
                    await until(lambda: not is_alive(lost[0]))

            fetch_by(pool, Asked(act))
            rendered = await pool.render(document("<img src='http://a.test/'>"), AMPLE)
            assert rendered.pages == 1
            assert zygote_of(pool).pid != lost[0]

    asyncio.run(story())


def test_what_nobody_needs_is_let_go_and_started_again() -> None:
    async def story() -> None:
        async with a_pool(idle_after=timedelta(milliseconds=50)) as pool:
            await pool.render(document("<p>x"), AMPLE)
            await until(lambda: pool._keeper.current is None and not pool._keeper._tasks)
            assert (await pool.render(document("<p>x"), AMPLE)).pages == 1

    asyncio.run(story())
