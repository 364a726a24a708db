"""Whether a store stays as fast as it was: claims and commits beside many finished jobs.

`python -m bench.growth --finished 10000000` measures at another size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace

import psycopg
from psycopg.rows import dict_row

import ulak
from bench import postgres
from bench.measure import DATA, Figure, alternate, commit, keep
from bench.postgres_claims import copy
from ulak.cli import speed

FEW = 10_000
MANY = 1_000_000
VERY_MANY = 10_000_000
KEPT = DATA / "growth.json"
"""What `make soak STORE=postgres` has measured beside very many."""
EVENTS = 5
JOBS = 10_000
STAYS = 0.9


def growth_figure(many: int = MANY, few: int = FEW, jobs: int = JOBS) -> Figure:
    """Drain in turns beside few and beside many; autovacuum is on and alone decides when."""
    with postgres.durable() as server:
        large, small = server.fresh(), server.fresh()
        load(large, many)
        load(small, few)
        grown, young = alternate(lambda: speed.drain(large, jobs), lambda: speed.drain(small, jobs))
    return Figure(
        f"claim and commit rate, PostgreSQL, with {many:,} finished jobs of {EVENTS} events, "
        f"of that with {few:,}",
        f">= {STAYS}",
        f"{grown / young:.2f} ({grown:,.0f} jobs/s of {young:,.0f})",
        grown / young >= STAYS,
        "python -m bench.figures growth",
    )


def growth_figures() -> list[Figure]:
    """Measure beside many, and tell what the last soak has measured beside very many."""
    figures = [growth_figure()]
    if KEPT.exists():
        figures.append(Figure(**json.loads(KEPT.read_text())))
    return figures


def soak_growth(many: int = VERY_MANY) -> Figure:
    """Measure beside very many, and keep it for `make figures`."""
    measured = commit()
    figure = replace(growth_figure(many), command="make soak STORE=postgres", commit=measured)
    keep(KEPT, figure.as_dict())
    return figure


def load(url: str, jobs: int) -> None:
    """Make finished jobs by SQL, copies of one that has run, each with payload and events."""
    flow = speed.flow_of("finished")
    with ulak.connect(url, flows=[flow]) as engine:
        model = engine.submit(flow, speed.PAYLOAD).id
        asyncio.run(speed.run_dry(engine))
    # Ids as they are made: by time, all of them before those that follow.
    new_id = "(lpad(to_hex(1600000000000 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))"
    numbers = f"generate_series(1, {jobs}) AS n"
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as db:
        copy(db, f"id = '{model}'", 1, jobs, {"id": f"{new_id}::uuid", "dedup_key": "NULL"})
        for table, rows, others in (
            ("payloads", numbers, {"job_id": f"{new_id}::uuid"}),
            (
                "events",
                f"{numbers}, generate_series(1, {EVENTS}) AS s",
                {"job_id": f"{new_id}::uuid", "seq": "s"},
            ),
        ):
            one = f"(SELECT * FROM ulak.{table} WHERE job_id = '{model}' LIMIT 1)"  # noqa: S608
            row = db.execute(one).fetchone()
            assert row is not None
            chosen = ", ".join(others.get(column, f"m.{column}") for column in row)
            db.execute(f"INSERT INTO ulak.{table} SELECT {chosen} FROM {one} AS m, {rows}")  # noqa: S608 - our own names
        db.execute(
            "INSERT INTO ulak.count_deltas SELECT flow, flow_version, state, role, %s "
            "FROM ulak.jobs WHERE id = %s",
            (jobs, model),
        )
        db.execute("CHECKPOINT")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__)
    parser.add_argument("--finished", type=int, default=MANY)
    figure = growth_figure(parser.parse_args().finished)
    print(f"{'ok' if figure.ok else 'MISSED'} {figure.name}: {figure.value}; bound {figure.bound}")


if __name__ == "__main__":
    main()
