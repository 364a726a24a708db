"""`python -m bench.soak`: three workers, one SQLite file, a hundred kills, and what came of it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bench.soak.checks import Evidence, occupancy, violations
from bench.soak.children import LEDGER, engine_of
from bench.soak.ledger import read_all
from bench.soak.people import Operator
from bench.soak.storm import ROOT, Children, Storm
from ulak.core.lifecycle import FINAL
from ulak.engine.verify import verify

RESULT = ROOT / ".data" / "soak.json"
MOST_SHOWN = 25

# So many orders may be ahead of the kills: enough that every worker is busy when it is hit.
AHEAD = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard."""

    jobs: int = 2000
    kills: int = 100
    workers: int = 3
    seed: int = 1
    seconds: float = 900.0
    broken: str | None = None

    @property
    def kills_in_a_run(self) -> int:
        """How many kills must hit a worker that holds an uncommitted run."""
        return -(-self.kills * 6 // 10)


@dataclass(slots=True)
class Verdict:
    """What was counted, and what was wrong."""

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.wrong


def soak(plan: Plan, folder: Path) -> Verdict:
    """Run one soak in an empty folder."""
    started = time.monotonic()
    deadline = started + plan.seconds
    engine, ledger = engine_of(folder)
    engine.open()
    children = Children(folder, workers=plan.workers, seed=plan.seed, broken=plan.broken)
    storm = Storm(folder, children, ledger, plan.seed)
    people = [Operator(name, engine, folder, plan.seed) for name in ("ada", "bora")]
    verdict = Verdict()
    try:
        for person in people:
            person.start()
        share = plan.jobs / max(1, plan.kills)
        storm.rage(
            plan.kills,
            before_each=lambda kills: children.allow(min(plan.jobs, AHEAD + int(kills * share))),
            deadline=deadline - plan.seconds / 4,
        )
        children.allow(plan.jobs)
        children.finish_submitting()
        _wait_for_the_end(plan, engine, children, deadline)
        for person in people:
            person.stop()
        children.stop()
        _judge(plan, folder, engine, storm, verdict)
    finally:
        children.kill_all()
        storm.close()
        engine.close()
    verdict.wrong += children.faults
    verdict.wrong += [f"operator {p.name}: {p.error!r}" for p in people if p.error is not None]
    for act, times in sum((p.acts for p in people), Counter()).items():
        verdict.counts[f"operators: {act}"] = times
    verdict.counts["seconds"] = round(time.monotonic() - started)
    return verdict


def _wait_for_the_end(plan: Plan, engine, children: Children, deadline: float) -> None:
    while time.monotonic() < deadline:
        counts = engine.counts()
        ended = sum(c.jobs for c in counts if c.flow == "order" and c.role in FINAL)
        if ended >= plan.jobs and all(c.role in FINAL or c.jobs == 0 for c in counts):
            # A failed order may yet be retried by an operator, and messages be on their way.
            time.sleep(1.0)
            again = engine.counts()
            if counts == again:
                return
        for worker in children.workers:
            if worker.poll() is not None:
                children.faults.append(f"worker {worker.pid} ended by itself")
                children.restart(worker)
        time.sleep(0.2)


def _judge(plan: Plan, folder: Path, engine, storm: Storm, verdict: Verdict) -> None:
    lines = read_all(folder / LEDGER)
    seen = Evidence(engine.store, lines, jobs=plan.jobs, seed=plan.seed)
    events = Counter(event.kind for trail in seen.trails.values() for event in trail)
    counts = verdict.counts
    counts["jobs"] = len(seen.rows)
    counts["ended"] = sum(row.role in FINAL for row in seen.rows.values())
    counts["SIGKILLs"] = storm.counts["kills"]
    counts["SIGKILLs while a run was uncommitted"] = storm.counts["kills with an uncommitted run"]
    for name in ("freezes beyond the lease", "drains", "submitter kills"):
        counts[name] = storm.counts[name]
    counts["runs begun"] = sum(line.kind == "begin" for line in lines)
    counts["effects that happened"] = sum(line.kind == "effect" for line in lines)
    counts["effects by key"] = len({line.words[0] for line in lines if line.kind == "effect"})
    counts["effects recorded"] = events["noted"]
    counts["events"] = sum(events.values())
    for kind in ("lapsed", "given-back", "retry", "held", "undone", "retried"):
        counts[f"events: {kind}"] = events[kind]
    for limit, (most, places) in occupancy(lines).items():
        counts[f"at once in {limit}, of {places}"] = most
    findings = list(verify(engine))
    counts["findings of verify"] = len(findings)
    wrong = [*map(str, findings), *violations(seen)]
    if storm.counts["kills"] < plan.kills:
        wrong.append(f"{storm.counts['kills']} kills in the time given, {plan.kills} were asked")
    elif storm.counts["kills with an uncommitted run"] < plan.kills_in_a_run:
        wrong.append(f"fewer than {plan.kills_in_a_run} kills hit an uncommitted run")
    counts["violations"] = len(wrong)
    verdict.wrong += wrong


def print_verdict(verdict: Verdict) -> None:
    """Print the table."""
    for name, count in verdict.counts.items():
        print(f"{name:42} {count:>8}")
    for sentence in verdict.wrong[:MOST_SHOWN]:
        print(f"  wrong: {sentence}")
    if len(verdict.wrong) > MOST_SHOWN:
        print(f"  and {len(verdict.wrong) - MOST_SHOWN} more")
    print("PASS" if verdict.passed else "FAIL")


def main() -> int:
    """Run it, print it, and keep the counts for `make figures`."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    usual = Plan()
    parser.add_argument("--jobs", type=int, default=usual.jobs)
    parser.add_argument("--kills", type=int, default=usual.kills)
    parser.add_argument("--workers", type=int, default=usual.workers)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="the time it may take")
    parser.add_argument("--broken", help="a build of ulak.testing.broken_sqlite: it must fail")
    parser.add_argument("--keep", action="store_true", help="keep the database and the ledger")
    given = vars(parser.parse_args())
    keep = given.pop("keep")
    plan = Plan(**given)
    RESULT.parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=RESULT.parent))
    try:
        verdict = soak(plan, folder)
    finally:
        if keep:
            print(f"kept in {folder.relative_to(ROOT)}")
        else:
            shutil.rmtree(folder)
    print_verdict(verdict)
    if plan.broken is None:
        kept = {"jobs": plan.jobs, "kills": plan.kills, "seed": plan.seed}
        kept |= {"passed": verdict.passed, "counts": verdict.counts}
        RESULT.write_text(json.dumps(kept, indent=1))
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
