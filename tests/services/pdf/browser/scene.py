"""What tests of drivers need: a browser for a while, answers for its requests, words of a PDF."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pypdfium2

from tests.processes import is_alive
from ulak.services.pdf.browser.driver import Browser, Driver
from ulak.services.pdf.browser.launch import prepare
from ulak.services.pdf.document import Fetched

RED: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0"
    "000003010100c9fe92ef0000000049454e44ae426082"
)
"""A picture of one red point."""


class Answers:
    """Answers what it was given, refuses the rest, and keeps what it was asked for."""

    def __init__(self, **known: Fetched) -> None:
        self.known = known
        self.asked: list[str] = []

    async def __call__(self, url: str, method: str, headers: dict[str, str]) -> Fetched | None:
        self.asked.append(url)
        return self.known.get(url.rpartition("/")[2])


@contextlib.contextmanager
def roomy_directory() -> Iterator[Path]:
    """A directory that the browser's user can enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="ulak-test-"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(driver: Driver) -> AsyncIterator[Browser]:
    """Have a browser, prepared as the service prepares it."""
    browser = await driver.start(await asyncio.to_thread(prepare))
    try:
        yield browser
    finally:
        await browser.kill()


def text_of(pdf: bytes) -> str:
    """Read the words of all pages."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        return "\n".join(page.get_textpage().get_text_bounded() for page in document)
    finally:
        document.close()


def colours_of(pdf: bytes) -> set[tuple[int, int, int]]:
    """Paint the first page and list its colours."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        image = document[0].render(scale=1).to_pil().convert("RGB")
    finally:
        document.close()
    return {colour for _, colour in image.getcolors(1 << 24)}


def without_dates(pdf: bytes) -> bytes:
    """Leave out when it was printed, which the driver does not hide."""
    return re.sub(rb"D:\d{14}", b"D:", pdf)


def tree_of(pid: int) -> set[int]:
    """Find a process and all that it and its children have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
    tree = {pid}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree


async def until_ended(pids: set[int]) -> set[int]:
    """Wait for processes to end, and tell which have not within ten seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while any(map(is_alive, pids)):
                await asyncio.sleep(0.02)
    return {pid for pid in pids if is_alive(pid)}


def network_of(pid: int) -> str:
    """Name the network namespace of a process."""
    return os.readlink(f"/proc/{pid}/ns/net")
