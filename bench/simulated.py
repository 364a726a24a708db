"""The simulator of E-62 at its full length, and over each broken build."""

from __future__ import annotations

from bench.measure import Figure
from ulak.testing.broken import BROKEN
from ulak.testing.simulator import simulate

CALLS = 1_000_000
SEED = 1
A_MINUTE = 100_000

# Every broken build is found long before this.
CALLS_TO_FIND = 50_000


def simulator_figure(calls: int = CALLS) -> Figure:
    """A million store calls with faults at every one of them."""
    report = simulate(SEED, calls)
    rate = report.calls / report.seconds * 60
    return Figure(
        "simulator: violations in 10^6 store calls",
        f"0, at {A_MINUTE:,} calls a minute",
        f"{len(report.violations)} in {report.calls:,} calls, {rate:,.0f} a minute",
        not report.violations and report.calls >= calls and rate >= A_MINUTE,
        f"python -m ulak.testing.simulator --seed {SEED} --calls {calls}",
    )


def broken_figure() -> Figure:
    """Each of the broken builds is found by the simulator alone."""
    found = {build.__name__: simulate(SEED, CALLS_TO_FIND, build) for build in BROKEN}
    calls = ", ".join(f"{name} after {report.calls:,} calls" for name, report in found.items())
    count = sum(bool(report.violations) for report in found.values())
    return Figure(
        "simulator: broken builds found",
        f"{len(found)} of {len(found)}",
        f"{count} of {len(found)} ({calls})",
        count == len(found) >= 3,
        "python -m bench.figures broken",
    )
