"""The figures of the soak: from the last full one, or from a shorter one run now."""

from __future__ import annotations

import json
from dataclasses import replace

from bench.measure import DATA, Figure, scratch
from bench.soak.run import Plan, Verdict, soak

LAST = DATA / "soak.json"
FULL = Plan()
SHORT = Plan(jobs=220, kills=20, seconds=180)


def soak_figures() -> list[Figure]:
    """Answer what the full soak counted, or run the shorter form when there was none."""
    if LAST.exists():
        kept = json.loads(LAST.read_text())
        if kept["kills"] >= FULL.kills and kept["jobs"] >= FULL.jobs:
            verdict = Verdict(counts=kept["counts"], wrong=kept["wrong"])
            figures = _figures(FULL, verdict, "make soak")
            return [replace(figure, commit=kept["commit"]) for figure in figures]
    with scratch() as folder:
        return _figures(SHORT, soak(SHORT, folder), "python -m bench.figures soak")


def _figures(plan: Plan, verdict: Verdict, command: str) -> list[Figure]:
    counts = verdict.counts
    kills, in_a_run = counts["SIGKILLs"], counts["SIGKILLs while a run was uncommitted"]
    again = counts["effects run again, or recorded twice"]
    jobs, ended = counts["jobs"], counts["ended"]
    what = f"soak, {plan.jobs:,} orders: "
    return [
        Figure(
            what + "SIGKILLs, and those that hit an uncommitted run",
            f">= {plan.kills}, >= {plan.kills_in_a_run}", f"{kills}, {in_a_run}",
            kills >= plan.kills and in_a_run >= plan.kills_in_a_run, command,
        ),
        Figure(
            what + "jobs that have ended", "all", f"{ended:,} of {jobs:,}",
            ended == jobs and jobs >= plan.jobs, command,
        ),
        Figure(
            what + "`once` effects that ran again after they were recorded, or count twice by key",
            "0", f"{again} of {counts['effects recorded']:,}", again == 0, command,
        ),
        Figure(
            what + "findings of `ulak verify`", "0", str(counts["findings of verify"]),
            counts["findings of verify"] == 0, command,
        ),
        Figure(
            what + "violations of any kind", "0", str(len(verdict.wrong)), verdict.passed, command
        ),
    ]  # fmt: skip
