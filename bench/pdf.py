"""PDFs from submit to stored artifact, against the baselines of `bench/peers/pdf`.

A worker of the service runs in a process of its own, as `ulak up` would start it; this process
submits jobs and waits until the last has succeeded. The documents are those of the baselines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import ulak
from bench.measure import ROOT, Figure, alternate, scratch
from ulak.engine.engine import Engine
from ulak.services import pdf
from ulak.services.pdf.configuration import artifacts_of
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.settings import load
from ulak.settings import Settings

PEERS = ROOT / "bench" / "peers" / "pdf"
DOCUMENTS = ("invoice", "report")

INVOICES = 60
REPORTS = 8
ROUNDS = 3
SECONDS = 4
"""How long a baseline measures; it is what its own script would take."""
OF_DRIVER = 6.0
OF_CONTEXT = 0.8
TWO_AT_ONCE = 1.45
GROWTH = 1.15
EARLY, LATE = 100, 300
PATIENCE_S = 120.0

COMMAND = "python -m bench.figures pdf"


def pdf_figures() -> list[Figure]:
    """Measure everything that is promised of rendering's speed and memory."""
    return [*_rate_figures(), _pair_figure(), _memory_figure()]


class Press:
    """A store, and a worker of the service that renders its jobs."""

    def __init__(
        self, folder: Path, *, places: int, recycle_after: int = 100, driver: str = "playwright"
    ) -> None:
        self._folder = folder
        self.environ = {
            "ULAK_STORE": f"sqlite:///{folder}/jobs.db",
            "ULAK_DATA": str(folder / "data"),
            "ULAK_SERVICE": "pdf",
            "PDF_ARTIFACT_DIR": str(folder / "artifacts"),
            "PDF_TEMPLATE_DIR": str(folder / "templates"),
            "PDF_TEMPLATE_ALLOWLIST": ",".join(DOCUMENTS),
            "PDF_CONCURRENCY": str(places),
            "PDF_RECYCLE_AFTER": str(recycle_after),
            "PDF_DRIVER": driver,
        }
        self._numbers = count()
        for name in DOCUMENTS:
            _write_template(folder / "templates" / name, (PEERS / "docs" / f"{name}.html"))

    @contextmanager
    def running(self) -> Iterator[Press]:
        """Start the worker, print one document of each kind, and stop it at the end."""
        platform = Settings(data=self._folder / "data")
        config = load(self.environ, platform)
        engine: Engine = ulak.connect(self.environ["ULAK_STORE"])
        with environ(self.environ):
            pdf.service.attach(engine, platform)
        with engine:
            self._engine = engine
            self._jobs = PdfJobStore(engine, artifacts_of(config, engine.store.clock), config)
            command = (sys.executable, "-m", "ulak", "worker", "--queue", "pdf")
            with (
                open(self._folder / "worker.log", "w") as log,
                subprocess.Popen(
                    command, env={**os.environ, **self.environ}, cwd=self._folder,
                    stdout=log, stderr=log,
                ) as worker,
            ):  # fmt: skip
                self.pid = worker.pid
                try:
                    for name in DOCUMENTS:
                        self.render(name, 2)
                    yield self
                finally:
                    worker.terminate()

    def render(self, name: str, how_many: int) -> float:
        """Have so many documents rendered and answer how many a second."""
        before = self._succeeded()
        began = time.perf_counter()
        for _ in range(how_many):
            variables = {"variables": {"number": next(self._numbers)}}
            self._jobs.create_job(name, variables, actor="bench")
        deadline = time.monotonic() + PATIENCE_S
        while (done := self._succeeded() - before) < how_many:
            assert time.monotonic() < deadline, f"{done} of {how_many} were rendered"
            time.sleep(0.005)
        return how_many / (time.perf_counter() - began)

    def memory_mib(self) -> float:
        """The proportional set size of the worker, the browser and everything below."""
        return sum(map(_pss_kib, tree(self.pid))) / 1024

    def _succeeded(self) -> int:
        return sum(c.jobs for c in self._engine.inspect.counts() if c.state == "succeeded")


def _rate_figures() -> list[Figure]:
    places = os.cpu_count() or 1
    with (
        scratch() as folder,
        scratch() as raw_folder,
        Press(folder, places=places).running() as press,
        Press(raw_folder, places=places, driver="devtools").running() as raw_press,
    ):
        ours, driver, context, raw, raw_context = alternate(
            lambda: press.render("invoice", INVOICES),
            lambda: _baseline("bench_playwright.py", "driver"),
            lambda: _baseline("bench_playwright.py", "context"),
            lambda: raw_press.render("invoice", INVOICES),
            lambda: _baseline("bench_cdp.py", "context"),
            rounds=ROUNDS,
        )
    return [
        Figure(
            "invoices/s from submit to artifact, of Playwright started for each",
            f">= {OF_DRIVER:g}x", f"{ours / driver:.1f}x ({ours:.1f} of {driver:.2f}/s)",
            ours / driver >= OF_DRIVER, COMMAND,
        ),
        Figure(
            "invoices/s from submit to artifact, of a warm Playwright with a new context each",
            f">= {OF_CONTEXT:g}", f"{ours / context:.2f} ({ours:.1f} of {context:.1f}/s)",
            ours / context >= OF_CONTEXT, COMMAND,
        ),
        Figure(
            "the same by the raw protocol, of a warm browser with a new context each",
            f">= {OF_CONTEXT:g}", f"{raw / raw_context:.2f} ({raw:.1f} of {raw_context:.1f}/s)",
            raw / raw_context >= OF_CONTEXT, COMMAND,
        ),
    ]  # fmt: skip


def _pair_figure() -> Figure:
    with (
        scratch() as one_folder,
        scratch() as two_folder,
        Press(one_folder, places=1).running() as one,
        Press(two_folder, places=2).running() as two,
    ):
        single, pair = alternate(
            lambda: one.render("report", REPORTS),
            lambda: two.render("report", REPORTS),
            rounds=ROUNDS,
        )
    return Figure(
        "reports/s two at once, of one at a time", f">= {TWO_AT_ONCE:g}x",
        f"{pair / single:.2f}x ({pair:.2f} of {single:.2f}/s)", pair / single >= TWO_AT_ONCE,
        COMMAND,
    )  # fmt: skip


def _memory_figure() -> Figure:
    with scratch() as folder, Press(folder, places=1, recycle_after=0).running() as press:
        press.render("invoice", EARLY)
        early = press.memory_mib()
        press.render("invoice", LATE - EARLY)
        late = press.memory_mib()
    return Figure(
        f"memory of the worker's tree after {LATE} renders, of that after {EARLY}, no recycling",
        f"<= {GROWTH:g}x", f"{late / early:.2f}x ({late:.0f} of {early:.0f} MiB PSS)",
        late / early <= GROWTH, COMMAND,
    )  # fmt: skip


def _baseline(script: str, mode: str) -> float:
    """Run one cell of a baseline, unchanged, and answer its renders a second."""
    words = ("--secs", str(SECONDS), "--docs", "invoice", "--modes", mode)
    done = subprocess.run(
        (sys.executable, script, *words), cwd=PEERS, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(json.loads(done.stdout.splitlines()[-1])["per_s"])


def _write_template(folder: Path, document: Path) -> None:
    folder.mkdir(parents=True)
    html = document.read_text(encoding="utf-8")
    (folder / "template.html").write_text(f"{{% raw %}}{html}{{% endraw %}}", encoding="utf-8")
    manifest = 'version = "1"\ntitle = "A baseline"\n'
    (folder / "manifest.toml").write_text(manifest, encoding="utf-8")


@contextmanager
def environ(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tree(root: int) -> list[int]:
    """The process and everything below it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                facts = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            below.setdefault(int(facts[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += below.get(found[-1], [])
    return found


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    for figure in pdf_figures():
        print(figure)
