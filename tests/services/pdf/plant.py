"""The whole of PDF rendering in processes of its own, with a real browser, as `ulak` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ulak
from tests.services.pdf.browser.scene import roomy_directory
from ulak.engine.engine import Engine
from ulak.service import installed
from ulak.services.pdf import callbacks
from ulak.services.pdf.configuration import artifacts_of, templates_of
from ulak.services.pdf.flow import make_flow, payload_of
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.settings import load
from ulak.wiring import store_of

ROOT = Path(__file__).parents[3]
SOURCES = Path(ulak.__file__).parents[1]
PATIENCE_S = 120

# Whoever is sent the signal writes down which modules it has: the one way to look into a process.
TELLS = """
import os
import signal
import sys


def tell(number, frame):
    path = os.path.join(os.environ["TELLS_IN"], str(os.getpid()))
    with open(path + ".new", "w") as file:
        file.write("\\n".join(sys.modules))
    os.rename(path + ".new", path)


signal.signal(signal.SIGUSR1, tell)
"""

MANIFEST = """
version = "1.0"
title = "Made by a test"
paper = "A4"
javascript = {javascript}

[variables]
{variables}
"""


class Plant:
    """A store, artifacts, templates of a test's own, and the processes that are started on them."""

    def __init__(self, url: str, folder: Path, temporary: Path, **settings: str) -> None:
        self.url = url
        self.folder = folder
        self.temporary = temporary
        (folder / "templates").mkdir()
        (folder / "told").mkdir()
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(TELLS)
        _declare(folder / "site")
        self.settings = {
            "PDF_TEMPLATE_DIR": str(folder / "templates"),
            "PDF_ARTIFACT_DIR": str(folder / "artifacts"),
            "PDF_TEMPLATE_ALLOWLIST": "invoice,plain,slow,endless,probing",
            "PDF_CONCURRENCY": "1",
            "PDF_RETRY_BASE_SECONDS": "0",
            "PDF_RETRY_MAX_SECONDS": "0",
            **settings,
        }
        self.template("plain", "<p>page {{ n }}</p>", variables='n = "number"')
        # Long enough that whoever sees it running finds it so, short enough to wait for.
        self.template(
            "slow", _looping("performance.now() < 2000"), javascript=True,
            variables='n = "number?"',
        )  # fmt: skip
        self.template("endless", _looping("true"), javascript=True)
        self.template(
            "probing",
            '<img src="http://169.254.169.254/latest"><img src="file:///etc/passwd">'
            '<img src="http://[::ffff:127.0.0.1]/"><p>rendered</p>',
        )
        self.config = load(self.settings)
        self.engine = Engine(store_of(url))
        on_end = callbacks.attach(self.engine, self.config)
        self.engine.add(make_flow(self.config, on_end=on_end))
        self.artifacts = artifacts_of(self.config, self.engine.store.clock)
        self.templates = templates_of(self.config)
        self.jobs = PdfJobStore(self.engine, self.artifacts, self.config)
        self.processes: list[subprocess.Popen[str]] = []

    def template(
        self, name: str, html: str, *, javascript: bool = False, variables: str = ""
    ) -> None:
        """Write a template of the test's own."""
        folder = self.folder / "templates" / name
        folder.mkdir()
        manifest = MANIFEST.format(javascript=str(javascript).lower(), variables=variables)
        (folder / "manifest.toml").write_text(manifest)
        (folder / "template.html").write_text(f"<!doctype html><title>t</title>{html}")
        (folder / "sample.json").write_text('{"n": 1}' if variables else "{}")

    def create(self, template: str, *, timeout_s: int | None = None, **variables: Any) -> PdfJob:
        """Create a job as the API does."""
        return self.jobs.create_job(
            template,
            payload_of(variables, template_version=self.templates.version(template)),
            timeout_s=timeout_s,
        )

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start a command of ulak's with the service, with settings of its own."""
        return self._start("ulak", *arguments, "--service", "pdf", **settings)

    def rq_worker(self, kind: str) -> subprocess.Popen[str]:
        """Start a worker of RQ, of this class, as people type it."""
        return self._start("rq.cli", "worker", "-w", kind, "pdf", ULAK_SERVICE="pdf")

    def _start(self, module: str, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(SOURCES), str(self.folder / "site")])
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env={
                **os.environ, **self.settings, **settings, "PYTHONPATH": path,
                "ULAK_STORE": self.url,
                "ULAK_DATA": str(self.folder / "data"), "TMPDIR": str(self.temporary),
                "TELLS_IN": str(self.folder / "told"),
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, *, lease_s: int = 30, **settings: str) -> subprocess.Popen[str]:
        """Start a worker of the queue, with settings of its own."""
        return self.start("worker", "--queue", "pdf", "--lease", str(lease_s), **settings)

    def until(self, job: PdfJob, *wanted: PdfJobStatus) -> PdfJob:
        """Wait for a job to have come so far."""
        seen = job
        deadline = time.monotonic() + PATIENCE_S
        while (seen := self.jobs.read_job(job.job_id)).status not in wanted:
            for process in self.processes:
                assert process.poll() in (None, -signal.SIGKILL), process.communicate()[0]
            assert time.monotonic() < deadline, f"it is {seen.status}"
            time.sleep(0.02)
        return seen

    def modules(self, pid: int) -> set[str]:
        """The modules that a process has, by its own word."""
        told = self.folder / "told" / str(pid)
        os.kill(pid, signal.SIGUSR1)
        eventually(told.exists)
        return set(told.read_text().split())

    def stored(self) -> list[str]:
        """Every artifact that there is."""
        return sorted(self.artifacts.backend.list("pdfs"))

    def browsers(self) -> set[int]:
        """Every process of a browser that was started here, whoever its parent is by now."""
        mark = str(self.temporary).encode()
        return {pid for pid in processes() if mark in _command_line(pid)}

    def others(self) -> set[int]:
        """Every process that was started by one of ours, whoever its parent is by now: a driver
        keeps the environment of its worker."""
        mark = f"TELLS_IN={self.folder}".encode()
        ours = {process.pid for process in self.processes}
        return {pid for pid in processes() if mark in _environment(pid)} - ours

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.jobs.close()
        self.engine.close()


@contextmanager
def plant(url: str, folder: Path, **settings: str) -> Iterator[Plant]:
    """Have one for a while; nothing of it is left."""
    with roomy_directory() as temporary:
        made = Plant(url, folder, temporary, **settings)
        try:
            yield made
        finally:
            made.close()


def eventually(condition: Callable[[], object]) -> None:
    """Wait for another process to have done something."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def processes() -> Iterator[int]:
    """The processes of this machine that have not ended."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = entry.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            yield int(entry.parent.name)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _looping(condition: str) -> str:
    return f"<p>it loops</p><script>while ({condition});</script>"


def _declare(site: Path) -> None:
    """Declare the service, also where ulak was installed before it had it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n"
        + "".join(f"{n} = {value}\n" for n, value in points.items() if n not in installed(group))
        for group, points in declared.items()
    ]
    about = site / "ulak_as_declared-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ulak-as-declared\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("".join(lines))
