"""The figures of the soak: from the last full one, or from a shorter one run now."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from bench.measure import Figure, scratch
from bench.soak.__main__ import RESULTS, WITH_SERVER
from bench.soak.faults import __main__ as faults
from bench.soak.faults import frame, pace
from bench.soak.run import Plan, Verdict, soak

FULL = Plan()
SHORT = Plan(jobs=220, kills=20, seconds=180)


def soak_figures() -> list[Figure]:
    """On SQLite."""
    return _last_or_short(FULL, SHORT, "make soak", "python -m bench.figures soak")


def postgres_soak_figures() -> list[Figure]:
    """On PostgreSQL, which is killed three times itself."""
    return _server_soak_figures("postgres", "PostgreSQL")


def redis_soak_figures() -> list[Figure]:
    """On Redis with `appendfsync always`, which is killed three times itself."""
    return _server_soak_figures("redis", "Redis")


def _server_soak_figures(store: str, name: str) -> list[Figure]:
    full, short = (replace(plan, store=store, **WITH_SERVER) for plan in (FULL, SHORT))
    figures = _last_or_short(
        full, short, f"make soak STORE={store}", f"python -m bench.figures {store}-soak"
    )
    return [replace(figure, name=f"{figure.name}, {name}") for figure in figures]


def faults_figures() -> list[Figure]:
    """On both stores, from the last `make soak` of each, or from one run of the faults now."""
    return [figure for store in faults.RESULTS for figure in _faults_figures(store)]


def _faults_figures(store: str) -> list[Figure]:
    last = faults.RESULTS[store]
    if not last.exists():
        faults.run_faults(list(faults.find_faults(store)), store, frame.Plan())
    kept = json.loads(last.read_text())
    outcomes = [frame.Outcome(**raw) for raw in kept["faults"]]
    slowest = max(outcomes, key=lambda o: math.inf if o.back_after_s is None else o.back_after_s)
    back_s = math.inf if slowest.back_after_s is None else slowest.back_after_s
    wrong = sum(len(outcome.wrong) for outcome in outcomes)
    what = f"{len(outcomes)} faults under a steady load, {store}: "
    command = f"python -m bench.soak.faults --store {store}"
    return [
        Figure(
            what + f"the former rate ({pace.SHARE:g} of it) is back, slowest",
            f"<= {frame.BACK_WITHIN_S:g} s after the end of the fault",
            f"{back_s:.1f} s ({slowest.name})", back_s <= frame.BACK_WITHIN_S, command,
            kept["commit"],
        ),
        Figure(
            what + "violations of any kind", "0", str(wrong), wrong == 0, command, kept["commit"]
        ),
    ]  # fmt: skip


def _last_or_short(full: Plan, short: Plan, made: str, command: str) -> list[Figure]:
    """Return what the full soak counted, or run the shorter form when there was none."""
    last = RESULTS[full.store]
    if last.exists():
        kept = json.loads(last.read_text())
        if kept["kills"] >= full.kills and kept["jobs"] >= full.jobs:
            verdict = Verdict(counts=kept["counts"], wrong=kept["wrong"])
            figures = _figures(full, verdict, made)
            return [replace(figure, commit=kept["commit"]) for figure in figures]
    with scratch() as folder:
        return _figures(short, soak(short, folder), command)


def _figures(plan: Plan, verdict: Verdict, command: str) -> list[Figure]:
    counts = verdict.counts
    kills, in_a_run = counts["SIGKILLs"], counts["SIGKILLs while a run was uncommitted"]
    again = counts["effects run again, or recorded twice"]
    jobs, ended = counts["jobs"], counts["ended"]
    what = f"soak, {plan.jobs:,} orders: "
    killed = Figure(
        what + "SIGKILLs of the server itself", f">= {plan.restarts}",
        str(counts.get("server kills", 0)), counts.get("server kills", 0) >= plan.restarts, command,
    )  # fmt: skip
    return [
        *([killed] if plan.restarts else []),
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
