"""`python -m bench.soak.hours`: a modest load for hours; nothing may have grown at the end.

SIGTERM or Ctrl-C ends it early, with a judgement of what there is. `--go-on FOLDER` begins in an
empty folder, or goes on in the database and with the samples of an earlier part.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from bench.measure import DATA, commit, keep
from bench.soak.hours import sampler
from bench.soak.hours.run import run_part
from bench.soak.hours.traffic import Plan
from bench.soak.hours.verdict import judge
from ulak.clock import SystemClock, micros, to_datetime, to_instant

STORES = {"sqlite": ("sqlite",), "postgres": ("postgres",), "both": ("sqlite", "postgres")}
# The month ends after the warm-up, and afterwards there is time enough for the old one to go.
MONTH_ENDS_AT = 0.3


def find_zero(hours: float) -> int:
    """Return the instant at which the stores' clocks begin, so that they pass a month's end."""
    now = to_datetime(SystemClock().now())
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    next_month = (first + timedelta(days=32)).replace(day=1)
    return to_instant(next_month) - micros(timedelta(hours=hours * MONTH_ENDS_AT))


def main() -> int:
    """Soak, judge, print, and keep the judgement."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="bench.soak.hours", description=__doc__)
    parser.add_argument("--hours", type=float, help="of all parts together; at first 3")
    parser.add_argument("--store", choices=list(STORES), default="both")
    parser.add_argument("--rate", type=float, default=usual.rate, help="jobs a second, per store")
    parser.add_argument("--go-on", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    folder = (options.go_on or Path(tempfile.mkdtemp(prefix="soak-hours-", dir=DATA))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # The server of PostgreSQL runs as a user of its own, and its data are in there.
    folder.chmod(0o755)
    if (folder / "plan.json").exists():
        plan = Plan.read(folder)
        plan = replace(plan, hours=options.hours or plan.hours)
    else:
        hours = options.hours or usual.hours
        plan = Plan(hours, options.rate, STORES[options.store], zero_us=find_zero(hours))
    plan.write(folder)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    print(f"samples in {folder}", flush=True)
    run_part(folder, plan, over)
    verdict = judge(sampler.read(folder), plan)
    print(verdict.table())
    for store in plan.stores:
        kept = folder.with_name(f"{folder.name}-{store}.json")
        keep(kept, {"commit": commit(), **verdict.as_dict(store)})
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
