"""`python -m bench.soak.browsers`: PDF jobs while what renders them is killed and frozen, and while
disks are full. Every job must succeed."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.measure import DATA, ROOT, commit, keep
from tests.services.pdf.browser.scene import roomy_directory
from ulak.engine.engine import Engine
from ulak.services.pdf.configuration import artifacts_of, templates_of
from ulak.services.pdf.flow import FLOW, make_flow, payload_of
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.settings import load
from ulak.wiring import store_of

RESULT = DATA / "soak-browsers.json"
COMMAND = "python -m bench.soak.browsers"
# Blows are dealt from a shuffled deck, so that a short soak has some of each.
DECK = (
    *["kill renderer"] * 5, *["freeze renderer"] * 2, *["kill browser"] * 2, "freeze browser",
    *["kill driver"] * 2, "freeze driver",
)  # fmt: skip
DISKS = {"temporary": 192, "artifacts": 24}
"""The disks that are filled, and how many MiB they have."""
FULL_S = 3.0
PATIENCE_S = 60.0
_ENDED = (PdfJobStatus.SUCCEEDED, PdfJobStatus.FAILED)
MOST_SHOWN = 10
LOOPING = (
    "<!doctype html><title>t</title><p>page {{ n }}</p>"
    "<script>while (performance.now() < %d);</script>"
)
MANIFEST = """
version = "1"
title = "Loops for a moment"
paper = "A4"
javascript = true

[variables]
n = "number"
"""


class NoDisks(RuntimeError):
    """This machine mounts no disk of a few megabytes; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard."""

    jobs: int = 200
    seed: int = 1
    pause_s: float = 0.3
    """Between two blows, on average."""
    loops_ms: int = 300
    """How long a page keeps its renderer busy."""
    seconds: float = 600.0
    """The time that it may take."""


@dataclass(slots=True)
class Verdict:
    """What was counted, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Yard:
    """A store, two small disks, and two workers: one for each driver."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self.disks = {name: folder / name for name in DISKS}
        template = folder / "templates" / "looping"
        template.mkdir(parents=True)
        (template / "manifest.toml").write_text(MANIFEST)
        (template / "template.html").write_text(LOOPING % plan.loops_ms)
        (template / "sample.json").write_text('{"n": 1}')
        self.settings = {
            "ULAK_STORE": f"sqlite:///{folder}/jobs.db", "ULAK_DATA": str(folder / "data"),
            "PDF_TEMPLATE_DIR": str(folder / "templates"), "PDF_TEMPLATE_ALLOWLIST": "looping",
            "PDF_ARTIFACT_DIR": str(self.disks["artifacts"]), "PDF_CONCURRENCY": "2",
            "PDF_RETRY_BASE_SECONDS": "0", "PDF_RETRY_MAX_SECONDS": "0",
        }  # fmt: skip
        config = load(self.settings)
        self.engine = Engine(store_of(self.settings["ULAK_STORE"]), flows=[make_flow(config)])
        self.artifacts = artifacts_of(config, self.engine.store.clock)
        self.jobs = PdfJobStore(self.engine, self.artifacts, config)
        self._version = templates_of(config).version("looping")
        self.workers: list[subprocess.Popen[bytes]] = []

    def create(self, number: int) -> PdfJob:
        """Create a job, as the API does."""
        made = payload_of({"n": number}, template_version=self._version)
        return self.jobs.create_job("looping", made)

    def start(self, driver: str, log: int) -> None:
        """Start a worker whose browser is driven so."""
        command = [sys.executable, "-m", "ulak", "worker", "--service", "pdf", "--queue", "pdf"]
        more = {"PDF_DRIVER": driver, "TMPDIR": str(self.disks["temporary"])}
        worker = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **self.settings, **more}, stdout=log, stderr=log
        )
        self.workers.append(worker)

    def stop(self) -> list[int]:
        """Drain the workers; return how each has ended."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        return [worker.returncode for worker in self.workers]

    def close(self) -> None:
        """Let go of the store."""
        self.jobs.close()
        self.engine.close()


class Storm:
    """Deals blows to what the workers have started."""

    def __init__(self, yard: Yard, plan: Plan) -> None:
        self._yard = yard
        self._dice = Random(plan.seed)
        self._deck: list[str] = []
        self.counts: Counter[str] = Counter()

    def strike(self) -> None:
        """Deal the next blow of the deck that has a victim."""
        if not self._deck:
            self._deck = self._dice.sample(DECK, len(DECK))
        for blow in self._deck:
            what, kind = blow.split()
            if victims := sorted(find_processes(self._yard, kind)):
                self._deck.remove(blow)
                with suppress(ProcessLookupError):
                    number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
                    os.kill(self._dice.choice(victims), number)
                    self.counts[f"{blow}s"] += 1
                return

    def fill(self, disk: str) -> None:
        """Leave no room on a disk for a while."""
        folder = self._yard.disks[disk]
        file = folder / "filling"
        try:
            with suppress(OSError), file.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(1 << 16))
            self.counts[f"fills of {disk}"] += 1
            time.sleep(FULL_S)
        finally:
            file.unlink(missing_ok=True)


def find_processes(yard: Yard, kind: str) -> Iterator[int]:
    """Find the `renderer`s, `browser`s or `driver`s of the workers."""
    parents, commands = _processes()
    workers = {worker.pid for worker in yard.workers}
    for pid, command in commands.items():
        line = [pid]
        while (parent := parents.get(line[-1], 0)) > 1 and parent not in workers:
            line.append(parent)
        if parents.get(line[-1]) not in workers or pid in workers:
            continue
        is_browsers = f"--user-data-dir={yard.disks['temporary']}".encode() in command
        is_found = {
            "renderer": b"--type=renderer" in command,
            "browser": is_browsers and b"--type=" not in command,
            "driver": b"run-driver" in command,
        }
        if is_found[kind]:
            yield pid


def _processes() -> tuple[dict[int, int], dict[int, bytes]]:
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if stat[0] not in "ZT":
                    parents[int(entry.name)] = int(stat[1])
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes()
    return parents, commands


@contextmanager
def mounted(folder: Path, mebibytes: int) -> Iterator[None]:
    """Have a disk of this size for a while. Raises NoDisks: none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=711", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoDisks(f"this machine mounts no disks: {done.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily, should something still have a file open there: what is left is counted before.
        subprocess.run(["umount", "--lazy", str(folder)], check=False)  # noqa: S607 - of util-linux


def soak(plan: Plan, folder: Path) -> Verdict:
    """Run one soak in an empty folder, which the browsers' user can enter. Raises NoDisks."""
    verdict = Verdict()
    began = time.monotonic()
    with ExitStack() as stack:
        for name, size in DISKS.items():
            stack.enter_context(mounted(folder / name, size))
        yard = Yard(folder, plan)
        stack.callback(yard.close)
        log = os.open(folder / "workers.log", os.O_WRONLY | os.O_CREAT)
        stack.callback(os.close, log)
        jobs = [yard.create(n) for n in range(plan.jobs)]
        try:
            for driver in ("playwright", "devtools"):
                yard.start(driver, log)
            storm = Storm(yard, plan)
            _rage(yard, storm, jobs, plan, began + plan.seconds)
        finally:
            ends = yard.stop()
        verdict.counts += storm.counts
        _judge(yard, jobs, ends, verdict)
    verdict.counts["seconds"] = round(time.monotonic() - began)
    return verdict


def _rage(yard: Yard, storm: Storm, jobs: list[PdfJob], plan: Plan, deadline: float) -> None:
    """Strike until all PDFs are rendered; each disk is filled once on the way."""
    dice = Random(f"{plan.seed}/pauses")
    disks = list(DISKS)
    while time.monotonic() < deadline:
        counts = yard.engine.inspect.counts()
        left = sum(row.jobs for row in counts if row.flow == FLOW and row.state not in _ENDED)
        if not left:
            return
        # One after a third of the jobs, the other after two thirds.
        if disks and left <= len(jobs) * len(disks) / (len(DISKS) + 1):
            storm.fill(disks.pop())
        storm.strike()
        time.sleep(2 * plan.pause_s * dice.random())


def _judge(yard: Yard, jobs: list[PdfJob], ends: list[int], verdict: Verdict) -> None:
    counts, wrong = verdict.counts, verdict.wrong
    ended = [yard.jobs.get_job(job.job_id) for job in jobs]
    counts["jobs"] = len(ended)
    counts["succeeded"] = sum(job.status is PdfJobStatus.SUCCEEDED for job in ended)
    counts["retries spent"] = sum(job.retry_count for job in ended)
    for job in ended:
        trail = yard.engine.inspect.trail(job.job_id)
        counts["given back"] += sum(event.from_state == event.to_state for event in trail)
        if job.status is not PdfJobStatus.SUCCEEDED:
            said = f"{job.error_code} {job.error_detail}"
            wrong.append(f"job {job.job_id} is {job.status} ({said}), not succeeded")
    stored = sorted(yard.artifacts.backend.list("pdfs"))
    if stored != sorted(job.artifact_key or "" for job in ended):
        wrong.append(f"{len(stored)} PDFs are stored for {counts['succeeded']} jobs")
    wrong += [f"{f.kind}: job {f.job_id}: {f.sentence}" for f in yard.engine.inspect.verify()]
    wrong += [f"a worker ended with {end}" for end in ends if end]
    wrong += [f"{disk} was not filled" for disk in DISKS if not counts[f"fills of {disk}"]]
    left = list(yard.disks["temporary"].iterdir())
    wrong += [f"{path.name} was left in the temporary folder" for path in left]


def main() -> int:
    """Run it, print it, and keep the counts for `make figures`."""
    parser = argparse.ArgumentParser(prog="bench.soak.browsers", description=__doc__)
    usual = Plan()
    parser.add_argument("--jobs", type=int, default=usual.jobs)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="the time it may take")
    parser.add_argument("--log", action="store_true", help="print what the workers have said")
    given = vars(parser.parse_args())
    with_log, measured = given.pop("log"), commit()
    plan = Plan(**given)
    with roomy_directory() as folder:
        verdict = soak(plan, folder)
        if with_log:
            print((folder / "workers.log").read_text())
    for name, count in sorted(verdict.counts.items()):
        print(f"{name:32} {count:>8}")
    for sentence in verdict.wrong[:MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    print("FAIL" if verdict.wrong else "PASS")
    keep(RESULT, {**given, "commit": measured, "counts": verdict.counts, "wrong": verdict.wrong})
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
