"""A terminal in which the `sh` blocks of a page are typed, and what the page says that they print.

An indented block below a block of `sh` is its output: `...` stands for anything, and a page breaks
lines where it likes. What only reads is typed again until it fits, as
a reader would; everything else is typed once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT
from tests.forked_commands import write_program

if TYPE_CHECKING:
    from bench.zygote import Zygote

PATIENCE_S = 180
GLANCE_S = 0.05
STARTED = "Ctrl-C drains and stops"
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n\n((?:^ {4}[^\n]*\n?)+))?", re.S | re.M)
# What changes something when it is typed: data, a method, a file, a variable, a process.
CHANGES = re.compile(r" -d | -X | > \S")
IN_THE_BACKGROUND = re.compile(r"&[ ]*(?:#.*)?$", re.M)
LOOKS = re.compile(r"^(?:curl|ulak (?:jobs|why|doctor|keys list|pauses|verify))\b")


@dataclass(frozen=True)
class Typed:
    """A block of a page, and what it prints; '' when the page does not say it."""

    commands: str
    printed: str

    @property
    def only_reads(self) -> bool:
        lines = self.commands.replace("\\\n", " ").splitlines()
        return all(map(LOOKS.match, lines)) and not CHANGES.search(self.commands)

    @property
    def pattern(self) -> str:
        """What the page says, as a pattern: `...` is anything, and lines and gaps are of no
        length."""
        lines = [line.strip() for line in self.printed.strip().splitlines()]
        parts = [[re.sub(r"(\\ )+", r"\\s+", re.escape(p)) for p in x.split("...")] for x in lines]
        return r"\s*".join(map(".*?".join, parts))


def section(page: Path, *headings: str) -> str:
    """The parts of a page below headings; with the heading '' what stands before the first."""
    text = "\n## \n" + page.read_text(encoding="utf-8")
    found = dict(re.findall(r"\n## ([^\n]*)\n(.*?)(?=\n## |\Z)", text, re.S))
    return "\n".join(found[heading] for heading in headings)


def blocks(text: str) -> list[Typed]:
    """The blocks of a text that are typed, in their order."""
    return [Typed(commands, printed or "") for commands, printed in BLOCK.findall(text)]


@dataclass
class Terminal:
    """One shell in a folder; what each block prints is a file of its own."""

    folder: Path
    shell: subprocess.Popen[str]
    replaced: dict[str, str] = field(default_factory=dict)
    """What stands on the page, and what is typed instead: addresses that are free here, ids."""
    typed: int = 0

    def type(self, commands: str) -> Path:
        """Type a block; return the file that gets what it prints, once it has ended."""
        self.typed += 1
        script, printed, done = (
            self.folder / f"block-{self.typed}.{kind}" for kind in ("sh", "out", "done")
        )
        for written, meant in self.replaced.items():
            commands = commands.replace(written, meant)
        script.write_text(commands, encoding="utf-8")
        assert self.shell.stdin is not None
        self.shell.stdin.write(f". ./{script.name} > {printed.name} 2>&1; echo $? > {done.name}\n")
        self.shell.stdin.flush()
        until(lambda: done.exists() and done.read_text(), f"{commands}: it does not end")
        return printed

    def read(self, command: str) -> str:
        """Type a command; return what it answers, without what it notes beside that."""
        return self.type(f"{command} 2> /dev/null").read_text(encoding="utf-8").strip()

    def start(self, command: str) -> Path:
        """Start a program that runs until it is stopped, and wait until it says so; return the file
        that gets what it prints."""
        printed = self.type(f"{command} &")
        self.wait_for(printed, STARTED)
        return printed

    def stop_last(self) -> None:
        """Stop what was started last, and wait until it has drained."""
        self.type("kill $!; wait $!")

    def follow(self, block: Typed) -> str:
        """Type a block until it prints what the page says; return what it has printed."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            printed = self.type(block.commands)
            if IN_THE_BACKGROUND.search(block.commands):
                self.wait_for(printed, STARTED)
            said = printed.read_text(encoding="utf-8")
            fits = re.search(block.pattern, said, re.S) is not None
            if fits or not block.only_reads or time.monotonic() > deadline:
                break
            time.sleep(GLANCE_S)
        assert fits, f"{block.commands}\nprinted:\n{said}\nthe page says:\n{block.printed}"
        assert block.printed or '"success":false' not in said, f"{block.commands}\n{said}"
        return said

    def wait_for(self, file: Path, text: str) -> None:
        """Wait until what runs in the background has printed a text."""
        until(lambda: text in file.read_text(encoding="utf-8"), f"nothing printed {text!r}")


@contextmanager
def terminal(
    folder: Path, zygote: Zygote, replaced: Mapping[str, str] | None = None, **environment: str
) -> Iterator[Terminal]:
    """Open a terminal in which `ulak` and the programs of this environment are found; what was
    started in its background is stopped at the end, and must stop by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULAK_")}
    (folder / "bin").mkdir()
    write_program(folder / "bin", zygote)
    places = (str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
    path = os.pathsep.join(places)
    # As in a clone: pages name scripts by their place in it.
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / ".curlrc").write_text('silent\nshow-error\nnoproxy = "*"\n')
    shell = subprocess.Popen(
        ["bash", "--norc"],  # noqa: S607 - the shell of whoever runs the tests
        cwd=folder,
        env={**kept, "PATH": path, "CURL_HOME": str(folder), "COLUMNS": "200", **environment},
        stdin=subprocess.PIPE,
        text=True,
    )
    opened = Terminal(folder, shell, dict(replaced or {}))
    try:
        yield opened
    finally:
        assert shell.stdin is not None
        shell.stdin.write("kill $(jobs -p) 2> /dev/null; wait\n")
        shell.stdin.close()
        try:
            shell.wait(PATIENCE_S)
        finally:
            shell.kill()


def until(holds: object, why: str) -> None:
    """Wait until something holds; fail with a sentence when it does not."""
    assert callable(holds)
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, why
        time.sleep(GLANCE_S)
