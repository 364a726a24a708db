"""A PDF service that is overrun, with adaptive control and without.

`python -m bench.control.live`: a real `ulak up --service pdf` with a worker in a process of its
own. After some idle minutes clients come three times as often as documents can be printed, then
half as often. The same once more without control, for the load alone.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx

import ulak
from bench.control.clients import ACCEPTED, REFUSED, Client, Plan, Try, read_clients
from bench.measure import DATA, ROOT, commit, keep, machine, scratch
from bench.pdf import tree
from bench.strangers import resident_mib
from ulak.control.picture import Panel, Point, draw
from ulak.control.signals import BACKPRESSURE, PDF
from ulak.control.state import ControlState
from ulak.engine.engine import Engine
from ulak.services.pdf.flow import FLOW, walk
from ulak.store.protocol import JobFilter

INTERVAL_S, TIMER_S, ENTER, EXIT = 2, 10, 50, 20
SLO_S = 30.0
OVERLOAD, CALM = 3.0, 0.5
GOODPUT = 0.9
WITHIN = 0.95
GROWTH = 1.1
SETTLED_S = 60.0
"""From then on memory must stay as it is."""
OF_ARITHMETIC = 0.8
"""Of the growth by arithmetic, what the queue without control must show at least."""

AT_ONCE = 10
"""Documents in a queue that is never empty, while the capacity is measured."""
WARM_S = 5.0
BUCKET_S = 10
PATIENCE_S = 600.0
A_PAGE = 1_000

SHARED = {
    "ULAK_SERVICE": "pdf",
    "PDF_CONCURRENCY": "1",
    "PDF_TENANT_CONCURRENCY": "0",
    "PDF_TENANT_QUEUE": "0",
    "PDF_TEMPLATE_ALLOWLIST": "weighed",
}
CONTROLLED = {
    "ADAPTIVE_CONTROL_LOOP_INTERVAL": str(INTERVAL_S),
    "ADAPTIVE_CONTROL_DWELL_TIME": str(TIMER_S),
    "ADAPTIVE_CONTROL_COOLDOWN_PERIOD": str(TIMER_S),
    "ADAPTIVE_CONTROL_OSCILLATION_MAX_TRANSITIONS": "50",
    "ADAPTIVE_CONTROL_QUEUE_DEPTH_ENTER": str(ENTER),
    "ADAPTIVE_CONTROL_QUEUE_DEPTH_EXIT": str(EXIT),
    "ADAPTIVE_CONTROL_TARGETS_JSON": json.dumps(
        [{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": PDF}]
    ),
}
TEMPLATE = """<!DOCTYPE html>
<html><head><title>Number {{ number|bare }}</title><style>
td { border: 1px solid #999; padding: 2px 6px; font: 9pt sans-serif }
</style></head><body><h1>Number {{ number|bare }}</h1><table>
{% for row in range(rows) %}
<tr><td>{{ row|bare }}</td><td>Line {{ row|bare }} of {{ number|bare }}</td>
<td>{{ row * 7 }}</td><td>A few words that are printed</td></tr>
{% endfor %}
</table></body></html>
"""
T = TypeVar("T")

MANIFEST = 'version = "1"\ntitle = "As heavy as it is asked to be"\n'


# --- the service ------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """What one tick of the loop has seen."""

    at: float
    depth: int
    is_refusing: bool


@dataclass(frozen=True)
class Document:
    """A job; times are seconds since 1970."""

    accepted_at: float
    ended_at: float
    """NaN until it has."""
    is_done: bool

    @property
    def took_s(self) -> float:
        return self.ended_at - self.accepted_at

    @property
    def is_in_time(self) -> bool:
        return self.is_done and self.took_s <= SLO_S


class Press:
    """`ulak up --service pdf` on a SQLite file of its own."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.key = secrets.token_hex(32)
        self._folder = folder
        self._store = f"sqlite:///{folder}/jobs.db"
        self._environ = {
            **SHARED, "ULAK_STORE": self._store, "ULAK_DATA": str(folder / "data"),
            "PDF_ARTIFACT_DIR": str(folder / "artifacts"),
            "PDF_TEMPLATE_DIR": str(folder / "templates"), "ULAK_ADMIN_KEY": self.key, **environ,
        }  # fmt: skip
        template = folder / "templates" / "weighed"
        template.mkdir(parents=True)
        (template / "template.html").write_text(TEMPLATE)
        (template / "manifest.toml").write_text(MANIFEST)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start it and wait until it serves; stop it at the end."""
        log = self._folder / "up.log"
        known = {k: v for k, v in os.environ.items() if not k.startswith(("ADAPTIVE_", "PDF_"))}
        with open(log, "w") as out:
            up = subprocess.Popen(
                (sys.executable, "-m", "ulak", "up", "--port", "0"),
                env=known | self._environ, cwd=self._folder, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            self.pid = up.pid
            self.address = self._wait_for_address(up, log)
            with ulak.connect(self._store) as engine:
                self._engine: Engine = engine
                self._state = ControlState(engine)
                yield
        finally:
            up.terminate()
            try:
                up.wait(60)
            except subprocess.TimeoutExpired:
                up.kill()
                up.wait()

    def _wait_for_address(self, up: subprocess.Popen[bytes], log: Path) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until and up.poll() is None:
            for line in log.read_text().splitlines():
                if " serves " in line:
                    address = next(w for w in line.split() if w.startswith("http://"))
                    if self._is_ready(address):
                        return address
            time.sleep(0.1)
        raise AssertionError(f"ulak up does not serve: {log.read_text()[-2000:]}")

    def _is_ready(self, address: str) -> bool:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.get(f"{address}/pdf/ready", headers=headers).status_code == 200

    def count_open(self) -> int:
        """Return how many jobs have not ended yet."""
        open_states = ("queued", "running")
        counts = self._engine.inspect.counts()
        return sum(c.jobs for c in counts if c.flow == FLOW and c.state in open_states)

    def read_documents(self, since: float) -> list[Document]:
        """Return the jobs that were accepted since then."""
        where = JobFilter(flow=FLOW, submitted_since=datetime.fromtimestamp(since, UTC))
        return [
            Document(
                job.created_at.timestamp(),
                job.changed_at.timestamp() if job.is_final else float("nan"),
                job.state == "succeeded",
            )
            for job in walk(self._engine, where)
        ]

    def read_ticks(self, since: float) -> list[Tick]:
        """Return the ticks since then, in order."""
        found: list[Tick] = []
        before: int | None = None
        while page := self._state.find_audit(before=before, kind="tick", limit=A_PAGE):
            for number, tick in page:
                before = number
                if tick["at_ms"] < since * 1000:
                    return found[::-1]
                depth = tick["readings"].get(PDF, {}).get("queue_depth") or 0
                mode = tick["subsystems"][PDF]["mode"]
                found.append(Tick(tick["at_ms"] / 1000, int(depth), mode == BACKPRESSURE))
        return found[::-1]

    def find_processes(self) -> dict[str, int]:
        """Return the API, and the worker that it has started."""
        found = {"API": self.pid}
        for pid in tree(self.pid)[1:]:
            with suppress(FileNotFoundError):  # one of the browser's that has ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"worker" in words and b"pdf" in words:
                    found["worker"] = pid
        return found

    def wait_until_idle(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every job has ended."""
        until = time.monotonic() + patience_s
        while self.count_open() and time.monotonic() < until:
            time.sleep(0.2)


def measure_capacity(press: Press, rows: int, seconds: float) -> float:
    """Return how many documents a second come out of a queue that is never empty."""
    headers = {"Authorization": f"Bearer {press.key}"}
    with httpx.Client(base_url=press.address, headers=headers, timeout=60) as client:
        began = time.time()
        number = -1
        while time.time() < began + WARM_S + seconds:
            for _ in range(AT_ONCE - press.count_open()):
                # Below those of the clients, so that every document is another one.
                document = make_document(rows, number)
                assert client.post("/pdf/jobs", json=document).status_code == ACCEPTED
                number -= 1
            time.sleep(0.1)
    first, last = began + WARM_S, began + WARM_S + seconds
    press.wait_until_idle()
    ended = [one for one in press.read_documents(began) if first <= one.ended_at < last]
    return len(ended) / seconds


def make_document(rows: int, number: int = 0) -> dict[str, Any]:
    return {"template_name": "weighed", "variables": {"rows": rows, "number": number}}


# --- a run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What was seen of one service. Times are seconds since 1970."""

    capacity: float
    began: float
    load_s: float
    calm_s: float
    clients: list[Client]
    documents: list[Document]
    ticks: list[Tick]
    memory: list[tuple[float, dict[str, float]]]

    @property
    def dropped(self) -> float:
        """When the load has dropped."""
        return self.began + self.load_s


def run(given: argparse.Namespace, press: Press, capacity: float, calm_s: float) -> Run:
    """Have clients come, and write down what happens."""
    phases = [(OVERLOAD * capacity, given.load), (CALM * capacity, calm_s)]
    plan = Plan(
        press.address, press.key, [p for p in phases if p[1]], make_document(given.rows),
        jitter_s=(given.jitter / 2, given.jitter), do_crowds_return=given.crowd == "returns",
        seed=given.seed,
    )  # fmt: skip
    memory: list[tuple[float, dict[str, float]]] = []
    processes = press.find_processes()
    began = time.time()
    words = (sys.executable, "-m", "bench.control.clients", json.dumps(asdict(plan)))
    with (
        open(DATA / "control-clients.json", "w+") as out,
        subprocess.Popen(words, cwd=ROOT, stdout=out, text=True) as coming,
    ):
        try:
            while coming.poll() is None:
                memory.append((time.time(), {n: resident_mib(p) for n, p in processes.items()}))
                time.sleep(1.0)
        finally:
            coming.terminate()
        assert coming.returncode == 0, "the clients have failed"
        out.seek(0)
        clients = read_clients(out.read())
    if calm_s:
        press.wait_until_idle()
    # Python needs a moment before its first client comes.
    first = min((c.tries[0].at for c in clients), default=began)
    return Run(
        capacity, first, given.load, calm_s, clients, press.read_documents(began),
        press.read_ticks(began), memory,
    )  # fmt: skip


def run_controlled(given: argparse.Namespace) -> Run:
    """Measure the capacity, be idle, and be overrun, with control."""
    smoke = {"ADAPTIVE_CONTROL_MIN_SAMPLE_RATIO": "0.01", "ADAPTIVE_CONTROL_MIN_BUCKET_COVERAGE":
             "0.01"}  # fmt: skip
    environ = CONTROLLED | (smoke if given.smoke else {})
    with scratch() as folder:
        press = Press(folder, environ)
        with press.running():
            capacity = measure_capacity(press, given.rows, given.measured)
            say(f"capacity {capacity:.2f} documents/s; idle for {given.idle:.0f} s")
            longest_s = TIMER_S + INTERVAL_S
            share = (SLO_S - EXIT / capacity) / ((OVERLOAD - 1) * longest_s)
            say(f"by arithmetic {min(1.0, share):.0%} of the accepted jobs can be in time")
            time.sleep(given.idle)
            return run(given, press, capacity, given.calm)


def run_uncontrolled(given: argparse.Namespace, capacity: float) -> Run:
    """Be overrun without control."""
    with scratch() as folder:
        press = Press(folder, CONTROLLED | {"ADAPTIVE_CONTROL_ENABLED": "false"})
        with press.running():
            return run(given, press, capacity, 0)


# --- what is judged -------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One value and its bound."""

    name: str
    value: str
    bound: str
    ok: bool


def judge_controlled(on: Run) -> Iterator[Line]:
    """Compare a run with control with what is promised."""
    good = sum(d.is_in_time and d.ended_at < on.dropped for d in on.documents) / on.load_s
    yield Line(
        "goodput under load, of capacity",
        f"{good / on.capacity:.2f} ({good:.2f} of {on.capacity:.2f}/s)", f">= {GOODPUT}",
        good >= GOODPUT * on.capacity,
    )  # fmt: skip
    for name, end in (("", float("inf")), (" under load", on.dropped)):
        accepted = [d for d in on.documents if d.accepted_at < end]
        within = sum(d.is_in_time for d in accepted) / max(1, len(accepted))
        yield Line(
            f"accepted jobs{name} within {SLO_S:.0f} s", f"{within:.1%} of {len(accepted)}",
            f">= {WITHIN:.0%}", within >= WITHIN,
        )  # fmt: skip
    done = sum(d.is_done for d in on.documents)
    said = {c.job for c in on.clients if c.job}
    yield Line(
        "accepted jobs that finish", f"{done} of {len(on.documents)}, {len(said)} by answer",
        "all", done == len(on.documents) == len(said) > 0,
    )  # fmt: skip
    yield from judge_memory(on)
    tries = [one for client in on.clients for one in client.tries]
    others = [one for one in tries if not is_accepted(one) and not is_proper_refusal(one)]
    refused = sum(one.status == REFUSED for one in tries)
    yield Line(
        "rejections that are no 429 with Retry-After", f"{len(others)} of {refused}", "0",
        not others and refused > 0,
    )  # fmt: skip
    gaps = [b.at - a.at for a, b in zip(on.ticks, on.ticks[1:], strict=False)]
    late = max(gaps, default=float("inf")) - INTERVAL_S
    yield Line(
        f"the latest of {len(on.ticks)} ticks", f"{late:.2f} s late", f"<= {INTERVAL_S} s",
        late <= INTERVAL_S,
    )  # fmt: skip
    after = [c for c in on.clients if c.tries[-1].at >= on.dropped]
    lost = [c for c in after if not c.job]
    second = sum(len(c.tries) == 2 for c in after)
    yield Line(
        "clients after the drop that are in by their second try",
        f"{len(after) - len(lost)} of {len(after)}, {second} of them came twice", "all",
        not lost and len(after) > 0,
    )  # fmt: skip


def judge_memory(on: Run) -> Iterator[Line]:
    """Compare the memory at the end of the load with that a minute into it."""
    settled = min(SETTLED_S, on.load_s / 2)
    for name in ("API", "worker"):
        early, late = (
            statistics.median(
                m.get(name, 0.0) for at, m in on.memory if begin <= at - on.began <= begin + 5
            )
            for begin in (settled, on.load_s - 5)
        )
        yield Line(
            f"memory of the {name} at the end of the load, of {settled:.0f} s into it",
            f"{late / max(early, 1):.2f} ({late:.0f} of {early:.0f} MiB)", f"<= {GROWTH}",
            early > 0 and late <= GROWTH * early,
        )  # fmt: skip


def judge_uncontrolled(off: Run) -> Iterator[Line]:
    """Compare the queue without control with arithmetic."""
    inside = [tick for tick in off.ticks if tick.at <= off.dropped]
    depths = [
        next(t.depth for t in reversed(inside) if t.at <= off.began + off.load_s * share)
        for share in (1 / 3, 2 / 3, 1)
    ]
    expected = (OVERLOAD - 1) * off.capacity * off.load_s
    is_growing = depths[0] < depths[1] < depths[2]
    yield Line(
        "without control: due jobs at each third of the load",
        f"{depths} ({expected:.0f} by arithmetic)",
        f"growing, and >= {OF_ARITHMETIC} of that",
        is_growing and depths[-1] >= OF_ARITHMETIC * expected,
    )
    refused = sum(not is_accepted(one) for client in off.clients for one in client.tries)
    yield Line("without control: refused", f"{refused}", "0", refused == 0)


def is_accepted(one: Try) -> bool:
    return one.status == ACCEPTED


def is_proper_refusal(one: Try) -> bool:
    return one.status == REFUSED and (one.retry_after_s or 0) >= 1


# --- the picture ------------------------------------------------------------------------------


def make_picture(on: Run, off: Run) -> str:
    """Draw both runs as SVG, from the beginning of the load on."""
    spans = refusing_spans(on)
    tries = [one for client in on.clients for one in client.tries]
    offered = rate_of(on, [one.at for one in tries])
    accepted = rate_of(on, [d.accepted_at for d in on.documents])
    finished = rate_of(on, [d.ended_at for d in on.documents if d.is_done])
    depths = {
        name: [(t.at - each.began, float(t.depth)) for t in each.ticks if t.at >= each.began]
        for name, each in (("with control", on), ("without", off))
    }
    modes = [p for t in on.ticks if t.at >= on.began for p in [(t.at - on.began, t.is_refusing)]]
    panels = [
        Panel(
            "Requests for new jobs a second, with control",
            {"offered": offered, "accepted": accepted, "finished": finished}, [on.capacity], spans,
        ),
        Panel("Due jobs, with control", {"due": depths["with control"]}, [ENTER, EXIT], spans),
        Panel("Due jobs, with and without", depths),
        Panel(
            "p95 of accept to finish, seconds, by the time of the finish",
            {"with control": wait_of(on), "without": wait_of(off)}, [SLO_S],
        ),
        Panel("Mode: 1 refuses new jobs", {"with control": upright(modes)}, spans=spans, most=1.0),
    ]  # fmt: skip
    heading = (
        f"{OVERLOAD:g} times what a PDF service can print ({on.capacity:.1f}/s) "
        f"for {on.load_s:.0f} s, then {CALM:g} times"
    )
    return draw(panels, heading)


def rate_of(of: Run, times: Sequence[float]) -> list[Point]:
    """Return how many fell into a second, over a few seconds each."""
    return [(at, len(inside) / BUCKET_S) for at, inside in buckets(of, times, lambda t: t)]


def wait_of(of: Run) -> list[Point]:
    """Return the p95 from accept to finish of the jobs that ended around each time."""
    done = [d for d in of.documents if d.is_done]
    found = buckets(of, done, lambda d: d.ended_at)
    return [
        (at, sorted(d.took_s for d in inside)[int(0.95 * len(inside))])
        for at, inside in found
        if inside
    ]


def buckets(of: Run, what: Sequence[T], when: Callable[[T], float]) -> list[tuple[float, list[T]]]:
    """Return what fell around each time since the load began."""
    seen = [t.at for t in of.ticks]
    last = max([*seen, of.began]) - of.began
    found: list[tuple[float, list[T]]] = [
        (n * BUCKET_S + BUCKET_S / 2, []) for n in range(int(last // BUCKET_S))
    ]
    for one in what:
        place = int((when(one) - of.began) // BUCKET_S)
        if 0 <= place < len(found):
            found[place][1].append(one)
    return found


def refusing_spans(of: Run) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    for before, after in zip(of.ticks, of.ticks[1:], strict=False):
        if before.is_refusing and after.at > of.began:
            spans.append((max(0.0, before.at - of.began), after.at - of.began))
    return spans


def upright(points: Sequence[tuple[float, bool]]) -> list[Point]:
    """Return steps with upright edges."""
    found: list[Point] = []
    for at, value in points:
        if found and found[-1][1] != value:
            found.append((at, found[-1][1]))
        found.append((at, float(value)))
    return found


# --- the command ----------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run both, print each value with its bound, and draw the picture."""
    parser = argparse.ArgumentParser(prog="bench.control.live", description=__doc__)
    parser.add_argument("--svg", type=Path, help="draw the picture there")
    parser.add_argument("--idle", type=float, default=310, help="seconds before the load")
    parser.add_argument("--load", type=float, default=180, help="seconds of the load")
    parser.add_argument("--calm", type=float, default=120, help="seconds after it has dropped")
    parser.add_argument("--measured", type=float, default=20, help="seconds for the capacity")
    parser.add_argument("--rows", type=int, default=20, help="how heavy a document is")
    parser.add_argument(
        "--jitter", type=float, default=8, help="clients wait up to so many seconds more than told"
    )
    parser.add_argument(
        "--crowd", choices=["leaves", "returns"], default="returns",
        help="whether clients that the load refused come again after it has dropped",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--smoke", action="store_true", help="decide without five minutes of telemetry"
    )
    given = parser.parse_args()
    say(f"commit {commit()}, {machine()}")
    on = run_controlled(given)
    say_lines(lines := [*judge_controlled(on)])
    off = run_uncontrolled(given, on.capacity)
    say_lines(more := [*judge_uncontrolled(off)])
    keep(DATA / "control-live.json", {"on": asdict(on), "off": asdict(off)})
    if given.svg is not None:
        given.svg.write_text(make_picture(on, off))
    missed = [line for line in [*lines, *more] if not line.ok]
    say(f"{len(lines) + len(more) - len(missed)} of {len(lines) + len(more)} are as promised")
    return 1 if missed else 0


def say_lines(lines: Sequence[Line]) -> None:
    for line in lines:
        say(f"{'ok    ' if line.ok else 'MISSED'} {line.name}: {line.value}; bound {line.bound}")


if __name__ == "__main__":
    sys.exit(main())
