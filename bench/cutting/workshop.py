"""A whole workshop: runners of cutting as processes, a real database, real folders, a program for
mode A and a saw."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import ulak
from bench.cutting import program
from bench.publishing.blog import is_alive, wait_until
from bench.zygote import Zygote
from ulak.service import attach, get_service, start
from ulak.services.cutting import FLOW
from ulak.services.cutting.delivery import Delivery
from ulak.services.cutting.jobs import Cutting
from ulak.services.cutting.order import parse_order
from ulak.services.cutting.rules import DEFAULT_RULES
from ulak.services.cutting.saw import CUT, LEDGER, Manner, Saw
from ulak.settings import Settings

PHONE: Final = "0555 123 45 67"
QUICK: Final = {
    # As in production otherwise, and over within seconds.
    "stableSeconds": 0.2, "pollSeconds": 0.05, "retry_backoff_minutes": [0.01],
    "timeouts": {"optiXmlMinutes": 0.25, "osiAckMinutes": 0.1},
}  # fmt: skip
LEASE_S: Final = 1
READY: Final = "Ctrl-C drains"
ACTIVE: Final = frozenset({"ready", "busy", "waiting", "undoing"})


@dataclass(frozen=True, slots=True)
class Cut:
    """A plan that the saw has cut."""

    name: str
    sha256: str
    parts: Counter[str]
    """The pieces by their descriptions."""


class Runner:
    """A process that works on orders."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid)

    @property
    def is_ready(self) -> bool:
        """Whether it works, or has ended."""
        said = self.log.read_text() if self.log.exists() else ""
        return READY in said or not self.is_alive


class Workshop:
    """The parts of cutting.

    Args:
        folder: Of everything that is a file.
        url: The store; the database exists.
        rules: By their literal keys, over `QUICK` and the defaults.
        program: How the program of mode A behaves; see `bench.cutting.program`.
        manner: How the saw behaves.
    """

    def __init__(
        self, folder: Path, url: str, *, rules: Mapping[str, Any] | None = None,
        program: Mapping[str, Any] | None = None, manner: Manner | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.url = folder, url
        self.home = folder / "cutting"
        self.imports, self.exports, self.drop = (
            self.home / name for name in ("import", "export", "osi")
        )
        self.programs = self.home / "optiplanning" / "programs.jsonl"
        self._rules = {**DEFAULT_RULES, "optiModeDefault": "A", **QUICK, **(rules or {})}
        self._program = dict(program or {})
        self.saw = Saw(self.drop, manner or Manner())
        self.runners: list[Runner] = []
        self._started = 0
        self._stack = ExitStack()

    # --- its life ------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._install()
        with ExitStack() as stack:
            with environ({"CUTTING_FOLDER": str(self.home)}):
                self.engine = ulak.connect(self.url)
                attach(get_service("cutting"), self.engine, Settings(data=self.folder / "data"))
            self.cutting: Cutting = self.engine.kernel.attached["cutting"][1]
            stack.enter_context(self.engine)
            start(self.engine, None)
            self.cutting.customers.add("Ada", PHONE)
            self.zygote = Zygote()
            stack.callback(self.zygote.close)
            stack.callback(self.kill_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.close()

    def _install(self) -> None:
        """Write the configuration, and install the program of mode A."""
        place = self.programs.parent
        place.mkdir(parents=True)
        (self.home / "rules.json").write_text(json.dumps(self._rules))
        exe = place / "OptiPlanning.exe"
        exe.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I {program.__file__} "$0" "$@"\n')
        exe.chmod(0o755)
        self.behave()

    def behave(self, **changes: Any) -> None:
        """Have the program of mode A behave otherwise from now on."""
        place = self.programs.parent
        about = {
            "exports": str(self.exports), "ledger": str(self.programs),
            "lock": str(place / "lock"), "seed": 1, "slow_s": 0.15, "ways": ["whole"],
        }  # fmt: skip
        (place / "program.json").write_text(json.dumps({**about, **self._program, **changes}))

    # --- its runners ---------------------------------------------------------------

    def start(
        self, how_many: int = 1, *, command: Sequence[str] = (), **options: Any
    ) -> list[Runner]:
        """Start runners, and wait until they work; options are those of an order of a zygote."""
        begun = [self.begin(command=command, **options) for _ in range(how_many)]
        for runner in begun:
            self.wait_until_ready(runner)
        return begun

    def begin(self, *, command: Sequence[str] = (), **options: Any) -> Runner:
        """Start a runner, and do not wait."""
        self._started += 1
        log = self.folder / f"runner-{self._started}.log"
        words = list(command) or ["worker", "--lease", str(LEASE_S), "--queue", "cutting"]
        order = {
            "command": words, "environ": self.environ(), "folder": str(self.folder),
            "log": str(log), **options,
        }  # fmt: skip
        runner = Runner(self.zygote.fork(order), log)
        self.runners.append(runner)
        return runner

    def wait_until_ready(self, runner: Runner) -> None:
        wait_until(lambda: runner.is_ready, "a runner did not start", runner.log.read_text)

    def environ(self) -> dict[str, str]:
        """Return the environment of a runner."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept, "ULAK_SERVICE": "cutting", "ULAK_STORE": self.url,
            "ULAK_DATA": str(self.folder / "data"), "CUTTING_FOLDER": str(self.home),
        }  # fmt: skip

    def stop(self, runner: Runner, how: int = signal.SIGTERM) -> int:
        """End a runner, and return its exit code."""
        self.runners.remove(runner)
        os.kill(runner.pid, how)
        wait_until(lambda: not runner.is_alive, "a runner does not end", runner.log.read_text)
        return self.zygote.reap(runner.pid)

    def forget(self, runner: Runner) -> int:
        """Return the exit code of a runner that ends by itself."""
        wait_until(lambda: not runner.is_alive, "a runner does not end", runner.log.read_text)
        self.runners.remove(runner)
        return self.zygote.reap(runner.pid)

    def kill_all(self) -> None:
        for runner in list(self.runners):
            self.stop(runner, signal.SIGKILL)

    @contextmanager
    def sawing(self, poll_s: float = 0.01) -> Iterator[None]:
        """Run the saw for the length of a block."""
        over = threading.Event()
        thread = threading.Thread(target=lambda: self.saw.run(over, poll_s=poll_s), name="saw")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # --- orders --------------------------------------------------------------------

    def order(self, name: str, *parts: Mapping[str, Any], mode: str = "A", **more: Any) -> str:
        """Order parts, by default a few; return the id of the job."""
        body = {
            "order_id": name, "customer_phone": PHONE, "opti_mode": mode,
            "parts": list(parts) or [make_part("P1"), make_part("P2", quantity=3)], **more,
        }  # fmt: skip
        payload = parse_order(body, rules=self.cutting.config.rules())
        job, _ = self.cutting.jobs.submit(payload, actor="bench")
        return str(job["id"])

    def job(self, job_id: str) -> ulak.Job:
        return self.engine.get(job_id)

    def jobs(self) -> list[ulak.Job]:
        """Return every order's job."""
        found, last = [], None
        while page := self.engine.jobs(ulak.JobFilter(flow=FLOW), after=last, limit=500):
            found += page
            last = page[-1].id
        return found

    def wait(self, *jobs: str, states: Sequence[str] = (), timeout_s: float = 120.0) -> None:
        """Wait until jobs stand in one of these states, by default until nothing is under way."""

        def is_over() -> bool:
            found = [self.engine.get(job) for job in jobs]
            if states:
                return all(job.state in states for job in found)
            return not any(job.role in ACTIVE for job in found)

        wait_until(is_over, "jobs are not there yet", lambda: str(self.say(*jobs)), timeout_s)

    def say(self, *jobs: str) -> Counter[str]:
        """Return how many jobs stand in each state, with their codes."""
        found = [self.engine.get(job) for job in jobs]
        return Counter(f"{job.state} {job.code or ''}".strip() for job in found)

    def deliveries(self, job_id: str) -> list[Delivery]:
        """Return the deliveries of a job."""
        return [row for row in self.cutting.deliveries.find(job_id) if row.temporary]

    # --- what the outside has seen ---------------------------------------------------

    def cuts(self) -> list[Cut]:
        """Return what the saw has cut, in its order."""
        lines = _read_lines(self.drop / LEDGER)
        return [self._read_cut(line) for line in lines if line["what"] == CUT]

    def _read_cut(self, line: Mapping[str, Any]) -> Cut:
        from xml.etree import ElementTree as Xml

        root = Xml.parse(self.drop / "processed" / line["name"]).getroot()  # noqa: S314 - our own
        parts = Counter(part.get("description", "") for part in root.iter("Part"))
        return Cut(line["name"], line["sha256"], parts)

    def runs(self, what: str = "start") -> list[Mapping[str, Any]]:
        """Return the lines of a kind that programs of mode A have written, '' for all."""
        return [line for line in _read_lines(self.programs) if what in ("", line["what"])]

    def expected_parts(self, job_id: str) -> dict[int, Counter[str]]:
        """Return the pieces of each batch of a job."""
        from ulak.services.cutting.records import Records

        batches = Records(self.cutting.tables).read_batches(job_id)
        return {
            each.n: Counter({str(row.cells[5]): int(row.cells[3]) for row in each.batch.rows})
            for each in batches
        }


# --- what others need too ------------------------------------------------------------


def make_part(id: str, **changes: Any) -> dict[str, Any]:
    """Return a part of an order."""
    return {
        "id": id, "part_type": "GOVDE", "material_code": "MDF18", "length_cm": 72, "width_cm": 45,
        "thickness_mm": 18, "quantity": 2, "grain": 0, "color": "Beyaz", **changes,
    }  # fmt: skip


@contextmanager
def environ(more: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the length of a block."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    # The last line may not be whole yet.
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
