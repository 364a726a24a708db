"""Faults of replication: PostgreSQL is killed, and its streaming replica takes over.

Clients name both servers in their URL and take the one that writes. The old server is started once
more when all is over, at an address that no client knows, to see what it had and nobody has now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict

from bench import postgres
from bench.soak.checks import Evidence
from bench.soak.children import LEDGER
from bench.soak.faults.frame import Fault, Ground
from bench.soak.ledger import read_all
from bench.soak.orders import order, time_of
from ulak.core import event as kinds
from ulak.testing.replication import Standby, ask
from ulak.testing.servers import Postgres

LEASE_S = 15.0
# Longer than a lease: as far as the standby knows, every lease has lapsed when it takes over.
BEHIND_S = 1.2 * LEASE_S
ROWS = "SELECT id::text, jobs::text FROM ulak.jobs"
SYNCHRONOUS = "ALTER SYSTEM SET synchronous_standby_names = '*'"
IS_SYNCHRONOUS = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


@contextmanager
def replicated_server() -> Iterator[tuple[str, Standby]]:
    """A server with a standby; the URL leads to the one that takes writes."""
    with postgres.durable() as bench:
        database = bench.fresh().rpartition("/")[2]
        with Standby(bench.server) as standby:
            yield standby.shared_url(database), standby


def promote_standby(ground: Ground) -> None:
    """An asynchronous standby takes over, 18 s behind: longer than a lease.

    The primary goes on for so long after the standby has received the last of it, and is killed. A
    new worker begins just then. What may be lost is what the standby had not received, and no more:
    orders accepted meanwhile, which are placed again; moves, which are made again; messages, which
    are sent again. Of two runs of a job that was claimed meanwhile the first to commit counts; the
    other counts towards no limit while it lasts. Everything else is as without a fault, no lease of
    a worker that lives is taken away, and `verify` is clean.
    """
    standby: Standby = ground.server
    received = len(read_all(ground.folder / LEDGER))
    standby.catch_up()
    standby.cut_off()
    survived = _read_jobs(ground, standby)
    ground.wait_for_runs(20)
    ground.last(BEHIND_S)
    _take_over(ground)
    ground.afterwards.append(lambda: _place_again(ground, received))
    ground.checks.append(lambda seen: _find_losses(ground, survived))


def promote_synchronous_standby(ground: Ground) -> None:
    """A synchronous standby takes over from a primary that is killed.

    Nothing that was acknowledged is lost, and no lease of a worker that lives is taken away.
    """
    primary: Postgres = ground.server.primary
    ask(primary, SYNCHRONOUS)
    ask(primary, "SELECT pg_reload_conf()")
    ground.wait_until(lambda: ask(primary, IS_SYNCHRONOUS), "the standby is synchronous")
    ground.wait_for_runs(20)
    _take_over(ground)


def _take_over(ground: Ground) -> None:
    """Kill the primary and promote the standby, while a new worker begins."""
    ground.server.primary.kill()
    ground.children.add_worker()
    ground.server.promote()
    ground.checks.append(_no_lease_was_taken)


def _read_jobs(ground: Ground, server: Postgres) -> dict[str, str]:
    return dict(ask(server, ROWS, database=str(conninfo_to_dict(ground.url)["dbname"])))


def _place_again(ground: Ground, received: int) -> None:
    """Place the orders again that were accepted since, as a client does that knows of the loss."""
    lines = read_all(ground.folder / LEDGER)[received:]
    for n in sorted({int(line.words[0]) for line in lines if line.kind == "accepted"}):
        placed = order(ground.plan.seed, n)
        job = ground.engine.submit(ground.engine.inspect.flows[0], placed, expires=time_of(placed))
        ground.ledger.append("accepted", n, job.id, int(job.created))


def _find_losses(ground: Ground, survived: dict[str, str]) -> Iterator[str]:
    """Name as costs the jobs that the old primary knew otherwise than the standby."""
    primary: Postgres = ground.server.primary
    primary.port = 0  # another one: no client may find it
    primary.start()
    had = _read_jobs(ground, primary)
    lost = {job for job, row in had.items() if survived.get(job) != row}
    if not lost:
        yield "the standby was not behind: the fault has tested nothing"
    ground.costs += [*lost, " at once, "]


def _no_lease_was_taken(seen: Evidence) -> Iterator[str]:
    for job, trail in seen.trails.items():
        for event in trail:
            if event.kind == kinds.LAPSED:
                yield f"the lease of {job} was taken from {event.worker}, which lives"


FAULTS = (
    Fault(
        "promoted-standby", ("postgres",), promote_standby, LEASE_S, site=replicated_server
    ),
    Fault(
        "promoted-synchronous", ("postgres",), promote_synchronous_standby, LEASE_S,
        site=replicated_server,
    ),
)  # fmt: skip
