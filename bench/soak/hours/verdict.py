"""Whether a long soak was flat: the trend of each series after its warm-up, projected over a day.

`python -m bench.soak.hours.verdict FOLDER` judges the samples so far, beside a run too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean, median

from bench.soak.hours import sampler
from bench.soak.hours.sampler import MB, Line
from bench.soak.hours.traffic import Plan

DAY_S = 86_400.0
WARM_UP = 0.2
SHORTEST_S = 1800.0
"""A day is not projected from less than half an hour."""

# Medians of so many equal spans are compared: of three hours each span is six minutes, longer than
# whatever goes up and down by itself (kills 2 min, checkpoints 5 min).
SPANS = 24
# Growth counts from this z of Mann-Kendall on: of two thousand flat series one seems to grow. What
# grows all the time has 6.8.
SURE = 3.3

# Kept for ever by design, or a matter of how busy the machine is.
NOT_JUDGED = (
    *(f"{what} {kept}" for what in ("rows", "table", "indexes") for kept in ("audit", "proofs")),
    *("mortal ", "pickup ", "free pages", "oldest month"),
    # A share of pages that others have too: it grows when one of them ends.
    *("steady pss", "client pss"),
)

# `max_wal_size` of the server, and the checkpoint that brings it back.
MOST_WAL_MB = 1.1 * 256 * 1.048576

# Of a hundred tables most are empty.
SHOWN_FROM = {" MB": 0.1}

# The server vacuums no table by itself that has fewer (`autovacuum_vacuum_threshold`): up to there
# dead rows may well grow.
VACUUMED = 50

POINTER = 8
"""Bytes: what the least thing costs that a process keeps of every job."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How one series went."""

    name: str
    middle: float
    per_day: float
    bound: float | None
    is_sure: bool

    @property
    def is_flat(self) -> bool:
        """Whether it grows by no more than its bound in a day; what is no trend does not count."""
        grown = -self.per_day if self.name == "ended per s" else self.per_day
        return self.bound is None or not self.is_sure or grown <= self.bound


@dataclass(slots=True)
class Verdict:
    """What was seen of each store, and what was wrong."""

    trends: dict[str, list[Trend]] = field(default_factory=dict)
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    is_short: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.wrong.values())

    def as_dict(self, store: str) -> dict[str, object]:
        """For JSON."""
        trends = [asdict(trend) for trend in self.trends[store]]
        return {"facts": self.facts[store], "wrong": self.wrong[store], "trends": trends}

    def table(self) -> str:
        """Write it for people."""
        lines = []
        for store, trends in self.trends.items():
            facts = ", ".join(f"{name} {value:g}" for name, value in self.facts[store].items())
            lines += [f"\n{store}: {facts}", f"{'':32}{'median':>12}{'a day':>12}{'bound':>12}"]
            for each in trends:
                if each.is_flat and each.middle < SHOWN_FROM.get(each.name[-3:], 1.0):
                    continue
                bound = "-" if each.bound is None else f"{each.bound:,.2f}"
                sure = "" if each.is_sure else " (not sure)"
                flat = "" if each.is_flat else " GROWS"
                row = f"{each.name:32}{each.middle:>12,.2f}{each.per_day:>+12,.2f}{bound:>12}"
                lines.append(f"{row}{sure}{flat}")
            lines += [f"  wrong: {sentence}" for sentence in self.wrong[store]]
        short = " (too short for trends)" if self.is_short else ""
        return "\n".join([*lines, ("PASS" if self.passed else "FAIL") + short])


def judge(lines: Sequence[Line], plan: Plan) -> Verdict:
    """Judge all parts of a soak by its lines."""
    verdict = Verdict()
    for store in plan.stores:
        own = [line for line in lines if line.store == store]
        parts = _split(own)
        judged = [_without_warm_up(part) for part in parts]
        seconds = sum(part[-1].t - part[0].t for part in judged if part)
        verdict.is_short |= seconds < SHORTEST_S
        trends = _find_trends(store, judged, seconds, plan)
        marks = [line for line in own if line.mark]
        wrong = [line.mark for line in marks if line.mark.startswith("fault")]
        if not verdict.is_short:
            wrong += [f"{each.name} grows" for each in trends if not each.is_flat]
            wrong += _find_too_much(store, judged, plan) + _find_months_kept(own, plan)
        verdict.trends[store], verdict.wrong[store] = trends, wrong
        verdict.facts[store] = {
            "hours": round(sum(part[-1].t - part[0].t for part in parts if part) / 3600, 2),
            "parts": len(parts),
            "kills": sum(line.mark == "kill" for line in marks),
            "months' ends": sum(line.mark == "month" for line in marks),
            "samples": sum(bool(line.values) for line in own),
            "jobs": round(_count_jobs(parts)),
        }
    return verdict


def _split(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the samples of each part: processes are new in each."""
    parts: list[list[Line]] = []
    for line in lines:
        if line.mark == "part" or not parts:
            parts.append([])
        if line.values:
            parts[-1].append(line)
    return [part for part in parts if part]


def _without_warm_up(part: list[Line]) -> list[Line]:
    begins = part[0].t + WARM_UP * (part[-1].t - part[0].t)
    return [line for line in part if line.t >= begins]


def _count_jobs(parts: Sequence[list[Line]]) -> float:
    return sum(
        fmean(line.values["ended per s"] for line in part) * (part[-1].t - part[0].t)
        for part in parts
    )


def _find_trends(
    store: str, parts: Sequence[list[Line]], seconds: float, plan: Plan
) -> list[Trend]:
    names = {name: None for part in parts for line in part for name in line.values}
    trends = []
    for name in names:
        series = [[(li.t, li.values[name]) for li in p if name in li.values] for p in parts]
        spans = [_medians(part, seconds / SPANS) for part in series]
        per_s, z = find_slope(spans)
        middle = median([value for part in series for _, value in part])
        bound = find_bound(store, name, middle, plan.rate * DAY_S)
        if name.startswith("dead rows") and max(v for part in series for _, v in part) < VACUUMED:
            bound = None
        trends.append(Trend(name, middle, per_s * DAY_S, bound, abs(z) > SURE))
    return trends


def _medians(part: Sequence[tuple[float, float]], span_s: float) -> list[tuple[float, float]]:
    spans: dict[int, list[tuple[float, float]]] = {}
    for t, value in part:
        spans.setdefault(int((t - part[0][0]) / max(span_s, 1e-9)), []).append((t, value))
    return [(fmean(t for t, _ in s), median(v for _, v in s)) for s in spans.values()]


def find_slope(parts: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Return the median slope a second (Theil-Sen) and how sure it is (Mann-Kendall's z).

    Only moments of the same part are compared with each other.
    """
    pairs = [pair for part in parts for pair in combinations(part, 2)]
    if not pairs:
        return 0.0, 0.0
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
    rises = sum((b[1] > a[1]) - (b[1] < a[1]) for a, b in pairs)
    variance = sum(n * (n - 1) * (2 * n + 5) / 18 for n in map(len, parts))
    return slope, rises / sqrt(variance)


def find_bound(store: str, name: str, middle: float, jobs_a_day: float) -> float | None:
    """Return by how much a series may grow in a day, None when it is not judged.

    Memory: less than a pointer for every job. Descriptors, threads and connections: so few that
    the usual limit of 1,024 is months away. Rows, sizes and the rate: a tenth of what there is.
    PostgreSQL keeps as many segments of its WAL as it likes, up to a limit: that is judged instead.
    """
    if name.startswith(NOT_JUDGED) or (store, name) == ("postgres", "wal MB"):
        return None
    if name.endswith((" rss MB", " anonymous MB")):
        return POINTER * jobs_a_day / MB
    if name.endswith(("descriptors", "threads")) or name == "connections":
        return 12.0
    if name.endswith(" MB"):
        return 0.1 * middle + 1.0
    return 0.1 * middle + (0.0 if name == "ended per s" else 20.0)


def _find_too_much(store: str, parts: Sequence[list[Line]], plan: Plan) -> list[str]:
    """Return what has exceeded a limit that holds at every moment."""
    # Twice what comes while finished jobs are kept; schedules and spawned jobs are beside the rate.
    limits = {"rows jobs": 2 * (plan.rate + 3) * (plan.keep_s + plan.prune_s)}
    if store == "postgres":
        limits["wal MB"] = MOST_WAL_MB
    wrong = []
    for name, limit in limits.items():
        most = max((li.values[name] for p in parts for li in p if name in li.values), default=0.0)
        if most > limit:
            wrong.append(f"{name} reached {most:g}, {limit:g} may be")
    return wrong


def _find_months_kept(lines: Sequence[Line], plan: Plan) -> list[str]:
    """A month that is over goes with its last job, and no row is without a month."""
    samples = [line for line in lines if "oldest month" in line.values]
    wrong = []
    if any(line.values["rows of no month"] for line in samples):
        wrong.append("rows were written to no month")
    ends = [line.t for line in lines if line.mark == "month"]
    if ends and samples and samples[-1].t > ends[-1] + 2 * (plan.keep_s + plan.prune_s):
        first, last = samples[0].values["oldest month"], samples[-1].values["oldest month"]
        if first == last:
            wrong.append(f"month {first:g} is over and its partitions are still there")
    return wrong


def main() -> int:
    """Judge the samples in a folder."""
    folder = Path(sys.argv[1])
    verdict = judge(sampler.read(folder), Plan.read(folder))
    print(verdict.table())
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
