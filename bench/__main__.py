"""`make bench`: a quick table of speed, one round each; `make figures` measures properly."""

from __future__ import annotations

from bench.ceiling import ceiling
from bench.crowd import WAIT_S, crowd
from bench.drain import LONG_JOBS, LONG_STAGES, drain
from bench.measure import commit, machine
from bench.pickup import pickup
from bench.submit import submit_figure


def main() -> None:
    """Measure once and print."""
    print(f"commit {commit()}, {machine()}, SQLite FULL, one worker process")
    bare = ceiling()
    jobs = drain()
    print(f"{'bare loop':34} {bare:>12,.0f} transitions/s")
    print(f"{'drain, async no-op':34} {jobs:>12,.0f} jobs/s ({jobs / bare:.3f} of the bare loop)")
    print(f"{'drain, plain def no-op':34} {drain('plain'):>12,.0f} jobs/s")
    stages = drain("async", LONG_JOBS, LONG_STAGES)
    print(f"{'drain, jobs of 8 stages':34} {stages:>12,.0f} stages/s")
    print(f"{'single submit':34} {submit_figure().value}")
    p50, p99 = pickup()
    print(f"{'pickup':34} {p50:>12.2f} ms p50, {p99:.2f} ms p99")
    total, claims = crowd()
    print(f"{'2,000 stages that wait 2 s':34} {(total - claims) / WAIT_S:>12.2f} x 2 s")


if __name__ == "__main__":
    main()
