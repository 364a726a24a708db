"""`make figures`: measure every promised figure and write docs/figures.md.

`python -m bench.figures drain submit` measures those alone; the others keep their last values.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping

from bench import (
    bare,
    claims,
    control,
    control_costs,
    crowd,
    cutting,
    deliveries,
    drain,
    followers,
    growth,
    http,
    idempotency,
    pdf,
    pickup,
    postgres_claims,
    postgres_submit,
    publishers,
    publishing,
    reasons,
    redis_speed,
    simulated,
    standing,
    storm_of_limits,
    storms,
    strangers,
    submit,
    upkeep,
    waits,
)
from bench.measure import DATA, ROOT, Figure, commit, keep, machine, wait_for_quiet
from bench.soak import restarts

KEPT = DATA / "figures.json"
PAGE = ROOT / "docs" / "figures.md"

FIGURES: Mapping[str, Callable[[], Figure | list[Figure]]] = {
    "simulator": simulated.simulator_figure,
    "broken": simulated.broken_figure,
    "soak": storms.soak_figures,
    "drain": drain.drain_figure,
    "stages": drain.stages_figure,
    "submit": submit.submit_figure,
    "pickup": pickup.pickup_figure,
    "crowd": crowd.crowd_figure,
    "claims": claims.claims_figure,
    "postgres-drain": drain.postgres_drain_figures,
    "postgres-stages": drain.postgres_stages_figure,
    "postgres-submit": postgres_submit.submit_figures,
    "postgres-pickup": pickup.postgres_pickup_figures,
    "postgres-claims": postgres_claims.claims_figure,
    "snapshot": postgres_claims.snapshot_figure,
    "growth": growth.growth_figures,
    "upkeep": upkeep.upkeep_figures,
    "limits": storm_of_limits.limits_figures,
    "costs": control_costs.costs_figures,
    "control": control.control_figures,
    "restarts": restarts.restarts_figure,
    "redis-restarts": restarts.redis_restarts_figure,
    "publishers": publishers.publishers_figures,
    "deliveries": deliveries.deliveries_figures,
    "followers": followers.followers_figures,
    "standing": standing.standing_figures,
    "postgres-soak": storms.postgres_soak_figures,
    "redis-soak": storms.redis_soak_figures,
    "faults": storms.faults_figures,
    "reasons": reasons.reasons_figures,
    "http": http.http_figures,
    "waits": waits.waits_figures,
    "strangers": strangers.strangers_figures,
    "idempotency": idempotency.idempotency_figures,
    "pdf": pdf.pdf_figures,
    "publishing": publishing.publishing_figures,
    "postgres-publishing": publishing.postgres_publishing_figures,
    "relay": publishing.relay_figures,
    "cutting": cutting.cutting_figures,
    "plans": cutting.plans_figures,
    "redis": redis_speed.redis_figures,
    "modules": bare.modules_figure,
    "names": bare.names_figure,
}

# A guess: with more, somebody else measures or builds, and rates and ratios are not ours alone.
MOST_BUSY = 0.1
PATIENCE_S = 60.0

HEAD = """# Figures

Measured by `make figures`; each line by the command beside it. A ratio is the median of five
against the median of five, taken in turns in one run, on one disk. PostgreSQL runs with fsync and
synchronous_commit on. "Busy" is the share of the
machine that others used right before; a figure of a busy machine is to be measured again.

"""


def measure(names: list[str]) -> list[Figure]:
    """Measure and print, one figure after the other."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    taken: list[Figure] = []
    for name in names:
        others, measured = wait_for_quiet(MOST_BUSY, PATIENCE_S), commit()
        found = FIGURES[name]()
        figures = found if isinstance(found, list) else [found]
        for figure in figures:
            print_figure(figure, others)
        taken += figures
        kept[name] = {
            "commit": measured, "busy": round(others, 2), "figures": [f.as_dict() for f in figures]
        }  # fmt: skip
        keep(KEPT, kept)
    write_page(kept)
    return taken


def print_figure(figure: Figure, others: float) -> None:
    """Print one line for people; others on the machine make a figure worth less."""
    said = "ok    " if figure.ok else "MISSED"
    note = f" (machine {others:.0%} busy before)" if others > MOST_BUSY else ""
    print(f"{said} {figure.name}: {figure.value}; bound {figure.bound}; {figure.command}{note}")
    sys.stdout.flush()


def write_page(kept: dict[str, dict[str, object]]) -> None:
    """Write docs/figures.md from everything that was measured."""
    lines = [HEAD, f"Machine: {machine()}.\n\n"]
    lines += [
        "| figure | bound | value | command | commit | busy |\n",
        "| --- | --- | --- | --- | --- | --- |\n",
    ]
    for name in FIGURES:
        group = kept.get(name)
        if group is None:
            continue
        for figure in (Figure(**raw) for raw in group["figures"]):
            value = figure.value if figure.ok else f"**{figure.value}** (missed)"
            cells = [figure.name, figure.bound, value, f"`{figure.command}`"]
            # A figure with a commit of its own was taken earlier: today's load is not its load.
            others = None if figure.commit else group.get("busy")
            cells += [figure.commit or group["commit"], _share(others)]
            lines.append("| " + " | ".join(cells) + " |\n")
    PAGE.write_text("".join(lines))


def _share(busy: float | None) -> str:
    return "not recorded" if busy is None else f"{busy:.0%}"


def main() -> int:
    """Measure what is named, or everything."""
    parser = argparse.ArgumentParser(prog="bench.figures", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], metavar="figure")
    names = parser.parse_args().names or list(FIGURES)
    print(f"commit {commit()}, {machine()}")
    taken = measure(names)
    missed = [figure for figure in taken if not figure.ok]
    print(f"{len(taken) - len(missed)} of {len(taken)} figures are within their bounds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
