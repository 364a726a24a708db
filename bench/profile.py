"""Where the time of a drain goes, for the loop, the committer and the claimer alike.

`python -m bench.profile [--jobs 20000] [--stages 1] [--kind async]`

A thread looks at every other thread's stack once a millisecond. Unlike cProfile it costs next to
nothing and sees waiting too: a thread that stands in `execute` may be flushing, or may be waiting
to get the interpreter back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections import Counter
from types import FrameType

import ulak
from bench.drain import fill, flow_of, run_dry
from bench.measure import ROOT, scratch

PERIOD_S = 0.001
SHOWN = 14


class Sampler(threading.Thread):
    """Counts where each thread stands, by its innermost line and by every function above it."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.lines: dict[str, Counter[str]] = {}
        self.functions: dict[str, Counter[str]] = {}
        self.samples = 0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        while not self._stop_asked.wait(PERIOD_S):
            names = {t.ident: t.name for t in threading.enumerate()}
            self.samples += 1
            for ident, frame in sys._current_frames().items():
                name = names.get(ident, "?")
                if name != self.name:
                    self._count(name, frame)

    def stop(self) -> None:
        """Stop looking."""
        self._stop_asked.set()
        self.join()

    def _count(self, thread: str, frame: FrameType) -> None:
        line = f"{_where(frame)}:{frame.f_lineno}"
        self.lines.setdefault(thread, Counter())[line] += 1
        seen: set[str] = set()
        inner: FrameType | None = frame
        while inner is not None:
            seen.add(_where(inner))
            inner = inner.f_back
        self.functions.setdefault(thread, Counter()).update(seen)


def _where(frame: FrameType) -> str:
    code = frame.f_code
    file = code.co_filename.replace(str(ROOT / "src") + "/", "").rpartition("python3.")[2]
    return f"{file} {code.co_qualname}"


def main() -> None:
    """Profile one drain and print the largest parts of each thread."""
    parser = argparse.ArgumentParser(prog="bench.profile")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--kind", choices=["async", "plain"], default="async")
    given = parser.parse_args()
    flow = flow_of(given.kind, given.stages)
    sampler = Sampler()
    with (
        scratch() as folder,
        ulak.connect(f"sqlite:///{folder / 'profile.db'}", flows=[flow]) as engine,
    ):
        fill(engine, flow, given.jobs)
        processor = time.process_time()
        sampler.start()
        took = asyncio.run(run_dry(engine))
        sampler.stop()
        processor = time.process_time() - processor
    runs = given.jobs * given.stages
    print(f"{runs / took:,.0f} stages/s, {took:.2f} s, {processor:.2f} s of processor time")
    print(f"{processor / runs * 1e6:.0f} us of processor time a stage, {sampler.samples} samples")
    for thread in sorted(sampler.functions, key=lambda t: -sum(sampler.lines[t].values())):
        print(f"\n{thread}: share of its samples, in a function with what it calls")
        _print(sampler.functions[thread], sampler.samples)
        print(f"{thread}: the lines it stood in")
        _print(sampler.lines[thread], sampler.samples)


def _print(counts: Counter[str], samples: int) -> None:
    for where, times in counts.most_common(SHOWN):
        print(f"  {times / samples:6.1%}  {where}")


if __name__ == "__main__":
    main()
