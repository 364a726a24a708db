"""A stand-in for the saw: it takes plans from the inbox as the real one does, or misbehaves as it
is told, and keeps a ledger of what it has cut."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from ulak.kit.xml import BadXml, read_xml
from ulak.services.cutting.delivery import FAILED, FOLDERS, INBOX, PROCESSED
from ulak.services.cutting.plans import LARGEST_PLAN

CUT, REFUSED, BROKEN = "cut", "refused", "broken"
LEDGER: Final = "saw.jsonl"


@dataclass(frozen=True, slots=True)
class Manner:
    """How a saw answers. What it does with a file follows from the seed and the file's name."""

    late_s: float = 0.0
    """Up to so many seconds pass before it takes a file, and before its second answer."""
    wrong: float = 0.0
    """Which share of good files it refuses."""
    twice: float = 0.0
    """Which share of the files that it has cut it also puts into `failed/` afterwards."""
    copies: float = 0.0
    """Which share it copies into `processed/` and leaves in the inbox."""
    seed: int = 1


class Saw:
    """Takes files of a drop folder. `saw.jsonl` there gets a line for each that it took: `what`
    (`cut`, `refused`, or `broken` for no whole XML), `name` and `sha256`."""

    def __init__(
        self, folder: Path, manner: Manner,
        tell: Callable[[str, str], object] = lambda what, name: None,
    ) -> None:  # fmt: skip
        self.folder, self.manner, self._tell = folder, manner, tell
        self._due: dict[str, float] = {}
        self._again: dict[str, float] = {}
        self._copied: set[str] = set()

    def run(self, stop: Event, *, poll_s: float = 0.1) -> None:
        """Take files until told to stop; wait for a drop folder that is not there."""
        while True:
            try:
                self.look()
            except OSError as error:
                self._tell("waits", str(error))
            if stop.wait(poll_s):
                return

    def look(self) -> None:
        """Do what is due now."""
        for place in FOLDERS:
            (self.folder / place).mkdir(exist_ok=True)
        now = time.monotonic()
        for name in sorted(os.listdir(self.folder / INBOX)):
            if not name.lower().endswith(".xml") or name in self._copied:
                continue
            late_s = self._draw(name, "late") * self.manner.late_s
            if now >= self._due.setdefault(name, now + late_s):
                self._take(name)
        for name in [name for name, due in self._again.items() if now >= due]:
            del self._again[name]
            shutil.copyfile(self._path(PROCESSED, name), self._path(FAILED, name))
            self._tell("also refused", name)

    def _take(self, name: str) -> None:
        source = self._path(INBOX, name)
        try:
            try:
                what, (digest, _) = CUT, read_xml(source, lambda *_: None, largest=LARGEST_PLAN)
            except BadXml:
                what, digest = BROKEN, ""
            if what == CUT and self._draw(name, "wrong") < self.manner.wrong:
                what = REFUSED
            if what == CUT and self._draw(name, "copy") < self.manner.copies:
                shutil.copyfile(source, self._path(PROCESSED, name))
                self._copied.add(name)
            else:
                # Who renames it has it: it may be taken back at the same time.
                source.rename(self._path(PROCESSED if what == CUT else FAILED, name))
        except FileNotFoundError:
            return
        finally:
            del self._due[name]
        if what == CUT and self._draw(name, "twice") < self.manner.twice:
            self._again[name] = time.monotonic() + self._draw(name, "again") * self.manner.late_s
        line = json.dumps({"what": what, "name": name, "sha256": digest})
        with (self.folder / LEDGER).open("a", encoding="utf-8") as ledger:
            ledger.write(f"{line}\n")
        self._tell(what, name)

    def _path(self, place: str, name: str) -> Path:
        return self.folder / place / name

    def _draw(self, name: str, what: str) -> float:
        return random.Random(f"{self.manner.seed} {what} {name}").random()  # noqa: S311 - no secret
