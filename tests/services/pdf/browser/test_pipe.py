"""The line to the browser never holds up the worker's loop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.services.pdf.browser.yard import a_yard
from ulak.services.pdf.browser.driver import BrowserGone
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.browser.pipe import CommandFailed, start_debugged


def test_a_browser_that_does_not_read_holds_up_nobody_who_writes() -> None:
    async def talk() -> None:
        with a_yard() as directory:
            launch = prepare(directory=directory)
            process, pipe = start_debugged(launch)
            await pipe.send("Browser.getVersion")
            os.kill(process.pid, signal.SIGSTOP)
            # Far more than a pipe holds: a write that waits would wait for ever.
            refused = pipe.send("Nothing.known", filler="x" * (8 << 20))
            last = pipe.send("Browser.getVersion")
            assert not last.done()
            os.kill(process.pid, signal.SIGCONT)
            with pytest.raises(CommandFailed):
                await refused
            assert "product" in await last
            await process.kill()
            pipe.cut()
            launch.remove()

    asyncio.run(talk())


def test_whoever_waits_for_a_browser_that_ends_is_told() -> None:
    async def talk() -> None:
        with a_yard() as directory:
            launch = prepare(directory=directory)
            process, pipe = start_debugged(launch)
            await pipe.send("Browser.getVersion")
            os.kill(process.pid, signal.SIGSTOP)
            waiting = pipe.send("Browser.getVersion")
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(BrowserGone):
                await waiting
            with pytest.raises(BrowserGone):
                await pipe.send("Browser.getVersion")
            await process.kill()
            assert process.has_ended
            launch.remove()

    asyncio.run(talk())
