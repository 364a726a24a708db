"""Where the processor's time goes in a drain: the loop, the committer and the claimer.

`python -m bench.profile [--jobs 10000] [--stages 1] [--kind async]`

Each thread is profiled in a drain of its own, by the time that this thread alone has used: one
that waits for the interpreter or for the disk costs nothing. Profiling makes small functions look
larger than they are; compare shares, not sums.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import pstats
import threading
import time
from typing import Any

import ulak
from bench.drain import fill, flow_of, run_dry
from bench.measure import ROOT, scratch

LOOP = "the loop"
THREADS = (LOOP, "ulak-committer", "ulak-claimer")
SHOWN = 18


def main() -> None:
    """Profile one drain for each thread and print its largest parts."""
    parser = argparse.ArgumentParser(prog="bench.profile")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--kind", choices=["async", "plain"], default="async")
    given = parser.parse_args()
    runs = given.jobs * given.stages
    took, used, _ = _drain(None, given)
    print(f"{runs / took:,.0f} stages/s; {used / runs * 1e6:.0f} us of processor time a stage")
    for thread in THREADS:
        _, _, profile = _drain(thread, given)
        print(f"\n{thread}, by its own time")
        _print(profile)


def _drain(thread: str | None, given: Any) -> tuple[float, float, cProfile.Profile]:
    flow = flow_of(given.kind, given.stages)
    profile = cProfile.Profile(time.thread_time)
    unprofiled = threading.Thread.run

    def run(self: threading.Thread) -> None:
        if thread is not None and self.name.startswith(thread):
            profile.runcall(unprofiled, self)
        else:
            unprofiled(self)

    with (
        scratch() as folder,
        ulak.connect(f"sqlite:///{folder / 'profile.db'}", flows=[flow]) as engine,
    ):
        fill(engine, flow, given.jobs)
        threading.Thread.run = run  # type: ignore[method-assign]
        used = time.process_time()
        if thread == LOOP:
            profile.enable()
        try:
            took = asyncio.run(run_dry(engine))
        finally:
            profile.disable()
            threading.Thread.run = unprofiled  # type: ignore[method-assign]
        used = time.process_time() - used
    return took, used, profile


def _print(profile: cProfile.Profile) -> None:
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    stats.sort_stats("tottime").print_stats(SHOWN)
    lines = text.getvalue().replace(str(ROOT / "src") + "/", "").splitlines()
    print("\n".join(line for line in lines[2:] if line.strip()))


if __name__ == "__main__":
    main()
