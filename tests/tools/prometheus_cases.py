"""What a real Prometheus answers to our cases of `rate`, `increase` and `histogram_quantile`.

    python -m tests.tools.prometheus_cases

Backfills the cases into a Prometheus of its own on a loopback port, asks its HTTP API, writes
cases and answers to `tests/unit/control/prometheus.json`, and ends with status 1 when ulak answers
otherwise. The program of Debian 12 is 2.42; ulak follows Prometheus 3 in three rules, and no case
may rest on these: a point exactly on the left edge, counts that differ by rounding alone, and the
order in which extrapolation to the left is limited (`is_comparable`).
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.ports import reserve_port
from ulak.control.quantile import histogram_quantile
from ulak.control.rate import HistogramSnapshot, increase, quantile_over, rate

RECORDED = Path(__file__).parents[1] / "unit" / "control" / "prometheus.json"
AGREEMENT = 1e-12

# The beginning of a block of two hours, which is how Prometheus stores; half an hour into it.
BEGIN_MS = 1_699_999_200_000 + 1_800_000
WINDOW_MS = 300_000
AT_MS = BEGIN_MS + WINDOW_MS
PATIENCE_S = 60.0

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Case:
    """One question. Each series is labels and `(timestamp_ms, value)`."""

    name: str
    function: str
    """`rate`, `increase`, `histogram_quantile`, or `quantile_over`, that of rates added up."""
    series: list[tuple[dict[str, str], list[tuple[int, float]]]]
    q: float = 0.0

    @property
    def is_comparable(self) -> bool:
        """Whether 2.42 and 3 have the same rule for it."""
        if self.function == "histogram_quantile":
            counts = [count for *_, count in sorted(_buckets(self))]
            return not any(a != b and math.isclose(a, b, rel_tol=1e-9) for a, b in pairwise(counts))
        return all(_is_clear(points) for _, points in self.series)


def _is_clear(points: Sequence[tuple[int, float]]) -> bool:
    """Whether no point lies on the left edge, nor the zero of a counter that begins in the window
    between half a spacing and 1.1 spacings before its first point, where 2.42 goes to the zero."""
    if any(at == AT_MS - WINDOW_MS for at, _ in points):
        return False
    inside = [point for point in points if AT_MS - WINDOW_MS < point[0] <= AT_MS]
    if len(inside) < 2:
        return True
    (first_ms, first), (last_ms, last) = inside[0], inside[-1]
    gained = last - first + sum(a for (_, a), (_, b) in pairwise(inside) if b < a)
    spacing = (last_ms - first_ms) / (len(inside) - 1)
    if not gained > 0 or first < 0 or first_ms - (AT_MS - WINDOW_MS) < 1.1 * spacing:
        return True
    to_zero = (last_ms - first_ms) * first / gained
    return not 0.5 * spacing < to_zero < 1.1 * spacing


def _buckets(case: Case) -> list[tuple[float, float]]:
    return [(float(labels["le"]), points[-1][1]) for labels, points in case.series]


# --- the cases ------------------------------------------------------------------------


def make_cases() -> list[Case]:
    """Return every case, the same each time."""
    cases = [*_counters(), *_quantiles(), *_sums()]
    wrong = [case.name for case in cases if not case.is_comparable]
    if wrong:
        raise SystemExit(f"2.42 has another rule for {wrong}")
    return cases


def _at(*points: tuple[float, float]) -> list[tuple[int, float]]:
    """Return points whose seconds count from the left edge of the window."""
    return [(BEGIN_MS + round(seconds * 1000), float(value)) for seconds, value in points]


def _each(step: float, start: float, *values: float) -> list[tuple[int, float]]:
    return _at(*((start + i * step, value) for i, value in enumerate(values)))


def _counters() -> Iterator[Case]:
    named = {
        "regular": _each(30, 15, *range(1000, 1100, 10)),
        "to both edges": _each(30, 1, *range(500, 1000, 50)),
        "a third of the window": _each(10, 100, 70, 80, 90, 100, 100, 130),
        "only before the window": _each(10, -100, 1, 2, 3),
        "half before the window": _each(30, -75, *range(100, 220, 10)),
        "after the window": _each(30, 200, 500, 600, 700, 800, 900, 1000, 1100),
        "one point": _each(30, 100, 5),
        "two points": _each(30, 100, 500, 600),
        "two points far apart": _at((5, 200), (290, 300)),
        "flat": _each(30, 15, *[7] * 10),
        "flat at zero": _each(30, 15, *[0] * 10),
        "begins at zero": _each(30, 105, 0, 10, 20, 30, 40),
        "begins near zero": _each(30, 105, 2, 12, 22, 32),
        "zero just before the first, near the edge": _each(60, 40, 5, 55, 105, 155),
        "one reset": _each(30, 15, 50, 80, 110, 5, 25, 60, 90),
        "reset to zero": _each(30, 15, 500, 800, 0, 10, 40, 90),
        "two resets": _each(30, 15, 90, 95, 3, 50, 1, 9, 12),
        "reset at each point": _each(30, 15, 90, 80, 70, 60, 50),
        "reset before the window": _each(30, -75, 900, 950, 10, 60, 90, 130),
        "reset in the first step": _each(30, 15, 1000, 1, 100, 200),
        "falls to the end": _each(30, 15, 10, 20, 30, 1),
        "below zero": _each(30, 15, -50, -40, -10, 5),
        "uneven spacing": _at((3.5, 10), (9, 14), (40, 90), (111.125, 91), (250, 400), (299, 402)),
        "milliseconds": _at((0.001, 100), (0.5, 101), (299.999, 4000), (300, 4001)),
        "at the right edge": _each(50, 50, 300, 310, 320, 330, 340, 350),
        **{
            f"{gap} s before steps of {step} s": _each(step, gap, *range(5000, 5060, 10))
            for step, gap in ((10, 11), (15, 16.5), (20, 22), (30, 33), (60, 66), (0.7, 0.77))
        },
        "fractions": _each(30, 15, 0.1, 0.30000000000000004, 0.7, 1.1, 1e-3, 5e-3),
        "very large": _each(30, 15, 1e300, 2e300, 3e300, 3.5e300),
        "NaN in the middle": _each(30, 15, 100, 110, NAN, 130, 140),
        "NaN first": _each(30, 15, NAN, 110, 120, 130),
        "NaN last": _each(30, 15, 100, 110, 120, NAN),
        "all NaN": _each(30, 15, NAN, NAN, NAN),
        "+Inf last": _each(30, 15, 100, 110, 120, INF),
        "+Inf in the middle": _each(30, 15, 100, INF, 120, 130),
        "all +Inf": _each(30, 15, INF, INF, INF),
    }
    for name, points in named.items():
        for function in ("rate", "increase"):
            yield Case(f"{function}: {name}", function, [({}, points)])
    drawn = random.Random(42)  # noqa: S311 - cases, not secrets
    made = 0
    while made < 20:
        case = Case(f"rate: drawn {made}", "rate", [({}, _draw(drawn, 100))])
        if case.is_comparable:
            made += 1
            yield case


def _draw(drawn: random.Random, most: float) -> list[tuple[int, float]]:
    """Return a counter that is read at odd times and sometimes begins anew."""
    value, seconds, points = drawn.uniform(0, most), drawn.uniform(-60, 120), []
    while seconds < 310:
        points.append((round(seconds, 3), value))
        seconds += drawn.uniform(5, 60)
        value = value + drawn.uniform(0, most) if drawn.random() < 0.9 else drawn.uniform(0, 5)
    return _at(*points)


def _quantiles() -> Iterator[Case]:
    usual = {0.1: 24, 0.5: 33, 1.0: 87, 2.0: 95, INF: 100}
    asked: list[tuple[str, float, list[tuple[str, float]]]] = [
        (f"of {q}", q, _texts(usual))
        for q in (0.0, 0.01, 0.24, 0.25, 0.5, 0.87, 0.95, 0.951, 0.99, 1.0)
    ]
    asked += [(f"of {q}", q, _texts(usual)) for q in (NAN, -0.1, -INF, 1.0000001, INF)]
    asked += [
        ("falls in the middle", 0.8, _texts({1: 10, 2: 50, 3: 40, 4: 90, INF: 100})),
        ("falls at +Inf", 0.95, _texts({1: 10, 2: 50, INF: 40})),
        ("falls from the first", 0.3, _texts({1: 60, 2: 50, 4: 40, INF: 100})),
        ("nothing counted", 0.5, _texts({1: 0, 2: 0, INF: 0})),
        ("all above the highest edge", 0.5, _texts({1: 0, 2: 0, INF: 9})),
        ("all in the lowest", 0.5, _texts({1: 9, 2: 9, INF: 9})),
        ("q 0 with an empty lowest", 0.0, _texts({1: 0, 2: 9, INF: 9})),
        ("+Inf alone", 0.5, _texts({INF: 9})),
        ("without +Inf", 0.5, _texts({1: 1, 2: 9})),
        ("two buckets", 0.5, _texts({2: 6, INF: 9})),
        ("lowest edge zero", 0.1, _texts({0: 5, 1: 7, INF: 9})),
        ("lowest edge below zero", 0.1, _texts({-3: 5, 1: 7, INF: 9})),
        ("second edge below zero", 0.6, _texts({-3: 1, -1: 7, INF: 9})),
        ("edge -Inf", 0.1, _texts({-INF: 5, 1: 7, INF: 9})),
        ("above edge -Inf", 0.7, _texts({-INF: 5, 1: 7, INF: 9})),
        ("equal edges", 0.5, [("1", 4), ("1.0", 5), ("2", 18), ("+Inf", 10), ("Inf", 10)]),
        ("fractions", 0.95, _texts({0.005: 0.1, 0.01: 0.25, 0.3: 0.7, INF: 0.9})),
        ("below zero", 0.5, _texts({1: -5, 2: -4, INF: -3})),
        ("+Inf counted", 0.5, _texts({1: 5, 2: INF, INF: INF})),
        ("all NaN", 0.5, _texts({1: NAN, 2: NAN, INF: NAN})),
        ("NaN at +Inf", 0.5, _texts({1: 4, 2: 8, INF: NAN})),
        ("NaN in the middle", 0.9, _texts({1: 1, 2: NAN, INF: 10})),
        ("very many", 0.999, _texts({1: 1e15, 2: 2e15, INF: 2.0001e15})),
    ]  # fmt: skip
    for name, q, buckets in asked:
        series = [({"le": edge}, [(AT_MS, float(count))]) for edge, count in buckets]
        yield Case(f"histogram_quantile: {name}", "histogram_quantile", series, q)


def _texts(buckets: dict[float, float]) -> list[tuple[str, float]]:
    # Some other order than that of the edges, which Prometheus sorts too.
    return [(_text(edge), count) for edge, count in reversed(buckets.items())]


def _sums() -> Iterator[Case]:
    """Histograms of several processes and labels, which restart now and then."""
    drawn = random.Random(7)  # noqa: S311 - cases, not secrets
    bounds = (0.1, 0.5, 1.0, 2.0, 5.0, INF)
    made = 0
    while made < 8:
        series = []
        for instance in ("a", "b", "c")[: 1 + made % 3]:
            for path in ("/x", "/y"):
                counts, rows = [0.0] * len(bounds), []
                start, restart = drawn.choice((-45, 2, 100)), drawn.randrange(1, 40)
                for i in range(11):
                    if i == restart:
                        counts = [0.0] * len(bounds)
                    for _ in range(drawn.randrange(20)):
                        seen = drawn.expovariate(0.9)
                        counts = [c + (seen <= b) for c, b in zip(counts, bounds, strict=True)]
                    rows.append((start + 30 * i, tuple(counts)))
                for i, bound in enumerate(bounds):
                    labels = {"instance": instance, "path": path, "le": _text(bound)}
                    series.append((labels, _at(*((s, row[i]) for s, row in rows if s <= 300))))
        q = (0.95, 0.5, 0.99)[made % 3]
        case = Case(f"quantile_over: drawn {made}", "quantile_over", series, q)
        if case.is_comparable:
            made += 1
            yield case


# --- what Prometheus says ---------------------------------------------------------------


def _text(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))


def write_openmetrics(cases: Sequence[Case]) -> str:
    """Return all series, each case under a name of its own."""
    lines = []
    for number, case in enumerate(cases):
        for labels, points in case.series:
            named = ",".join(f'{name}="{text}"' for name, text in labels.items())
            lines += [
                f"case{number}{{{named}}} {_text(value)} {at_ms // 1000}.{at_ms % 1000:03}"
                for at_ms, value in points
            ]
    return "\n".join([*lines, "# EOF\n"])


def write_query(number: int, case: Case) -> str:
    """Return the question in PromQL."""
    name, window = f"case{number}", f"[{WINDOW_MS}ms]"
    if case.function == "histogram_quantile":
        return f"histogram_quantile({_text(case.q)}, {name})"
    if case.function == "quantile_over":
        return f"histogram_quantile({_text(case.q)}, sum by (le) (rate({name}{window})))"
    return f"{case.function}({name}{window})"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is missing; bash scripts/prometheus.sh installs it")
    return found


def ask(url: str, query: str) -> str | None:
    """Return the one value that Prometheus gives, to the last digit; None for none."""
    asked = urllib.parse.urlencode({"query": query, "time": f"{AT_MS / 1000:.3f}"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}") as response:  # noqa: S310 - ours
        found = json.load(response)["data"]["result"]
    if not found:
        return None
    (one,) = found
    return str(one["value"][1])


def record(cases: Sequence[Case], folder: Path) -> list[str | None]:
    """Return the answers of a Prometheus that runs in a folder until they are there."""
    backfill, data, config = folder / "cases.txt", folder / "data", folder / "prometheus.yml"
    backfill.write_text(write_openmetrics(cases), encoding="utf-8")
    config.write_text("global: {}\n", encoding="utf-8")
    subprocess.run(
        [
            _program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(backfill),
            str(data),
        ],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    log = (folder / "log").open("w")
    with log, subprocess.Popen(
        [
            _program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log, stderr=log,
    ) as server:  # fmt: skip
        try:
            _wait_until_ready(url, server)
            return [ask(url, write_query(number, case)) for number, case in enumerate(cases)]
        finally:
            server.terminate()


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready"):  # noqa: S310 - ours
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("Prometheus did not start")


# --- what ulak says ---------------------------------------------------------------------


def answer(case: Case) -> float:
    """Return what ulak answers; NaN where Prometheus gives no value."""
    if case.function == "histogram_quantile":
        return histogram_quantile(case.q, _buckets(case)).value
    if case.function == "quantile_over":
        return quantile_over(case.q, _histories(case), AT_MS, WINDOW_MS).value
    ((_, points),) = case.series
    return {"rate": rate, "increase": increase}[case.function](points, AT_MS, WINDOW_MS)


def _histories(case: Case) -> list[list[HistogramSnapshot]]:
    """Return the snapshots from which the series of a case are: one history for each instance."""
    counts: dict[str, dict[int, dict[str, dict[float, float]]]] = {}
    for labels, points in case.series:
        for at_ms, value in points:
            rows = counts.setdefault(labels["instance"], {}).setdefault(at_ms, {})
            rows.setdefault(labels["path"], {})[float(labels["le"])] = value
    return [
        [
            HistogramSnapshot(
                at_ms,
                tuple(next(iter(rows.values()))),
                {(path,): tuple(row.values()) for path, row in rows.items()},
            )
            for at_ms, rows in sorted(of_instance.items())
        ]
        for of_instance in counts.values()
    ]


def agrees(ours: float, theirs: str | None) -> bool:
    """Whether both say the same to twelve digits."""
    if theirs is None:
        return math.isnan(ours)
    expected = float(theirs)
    return (math.isnan(ours) and math.isnan(expected)) or (
        math.isclose(ours, expected, rel_tol=AGREEMENT, abs_tol=0.0)
    )


def read_recorded() -> list[tuple[Case, str | None]]:
    """Return the recorded cases and answers."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [
        (
            Case(
                row["name"],
                row["function"],
                [
                    (labels, [(at_ms, float(value)) for at_ms, value in points])
                    for labels, points in row["series"]
                ],
                float(row["q"]),
            ),
            row["answer"],
        )
        for row in found["cases"]
    ]


def write_recorded(cases: Sequence[Case], answers: Sequence[str | None], version: str) -> None:
    """Write cases and answers, one to a line; numbers as text, since JSON has no NaN."""
    lines = []
    for case, theirs in zip(cases, answers, strict=True):
        row = asdict(case)
        row["q"] = _text(case.q)
        row["series"] = [
            [labels, [[at_ms, _text(value)] for at_ms, value in points]]
            for labels, points in case.series
        ]
        lines.append(json.dumps({**row, "answer": theirs}))
    text = ",\n".join(lines)
    RECORDED.write_text(
        f'{{"version": {json.dumps(version)}, "cases": [\n{text}\n]}}\n', encoding="utf-8"
    )


def main() -> int:
    cases = make_cases()
    said = subprocess.run(
        [_program("prometheus"), "--version"], capture_output=True, text=True, check=True
    )
    version = (said.stdout + said.stderr).splitlines()[0]
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        answers = record(cases, Path(folder))
    write_recorded(cases, answers, version)
    wrong = 0
    for case, theirs in zip(cases, answers, strict=True):
        if not agrees(ours := answer(case), theirs):
            wrong += 1
            print(f"{case.name}: ulak {ours!r}, Prometheus {theirs}")  # noqa: T201 - a program
    print(f"{version}: {len(cases)} cases, {wrong} answered otherwise")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
