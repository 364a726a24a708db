"""Faults of the server: it stands still, its host vanishes, others hold its locks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.measure import DATA
from bench.soak.children import DATABASE
from bench.soak.faults.frame import Fault, Ground
from bench.soak.orders import key_of, order
from bench.soak.storm import ROOT
from ulak.testing.networks import Network, RemotePostgres

# Longer than the 5 s that the store waits for a lock, and than the 10 s of SQLite.
LOCKED_S = 12.0
# Longer than the 11 s after which the kernels give a connection up.
VANISHED_S = 15.0
STOPPED_S = 20.0

NOBODY = "0" * 32
HOLD_KEY = "INSERT INTO ulak.dedup (tenant, flow, key, job_id) VALUES ('', 'order', %s, %s)"
HOLD_JOBS = """
    SELECT FROM ulak.jobs WHERE role NOT IN ('done', 'failed', 'cancelled', 'expired')
    ORDER BY id LIMIT 10 FOR UPDATE
"""
HOLD_WORKER = "SELECT FROM ulak.workers ORDER BY id LIMIT 1 FOR UPDATE"

# Run in a process of its own, since locks of files are a matter between processes.
HOLD_FILE = """
import fcntl, sqlite3, sys
way, path = sys.argv[1:]
if way == "write-lock":
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("BEGIN IMMEDIATE")
else:
    held = open(path + ".lock", "rb")
    fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def stop_server(ground: Ground) -> None:
    """Every process of PostgreSQL is stopped for 20 s; its kernel goes on acknowledging.

    A run that waits for the store meanwhile may spend an attempt on the timeout of its stage.
    Nothing is lost, nothing counts twice.
    """
    with ground.server.frozen():
        ground.last(STOPPED_S)


@contextmanager
def remote_server() -> Iterator[tuple[str, RemotePostgres]]:
    """A PostgreSQL on a machine of its own, as far as the network can tell."""
    DATA.mkdir(exist_ok=True)
    with Network() as network:
        server = RemotePostgres(network, durable=True)
        server.place = DATA
        with server:
            yield server.url(), server


def vanish(ground: Ground) -> None:
    """The host of PostgreSQL is off the network for 15 s: no packet comes back, no FIN, no RST.

    It costs what a stopped server costs.
    """
    ground.server.network.vanish()
    ground.last(VANISHED_S)
    ground.server.network.come_back()


def forsake_worker(ground: Ground) -> None:
    """The address by which one worker has reached PostgreSQL is gone for good, without a word.

    Its URL names another address after the first. What it runs meanwhile may spend an attempt on
    the timeout of its stage. It finds the other way and works on; the others notice nothing.
    """
    network: Network = ground.server.network
    first, second = network.there
    url = ground.server.url(hosts=(second, first))
    command = [*ground.children.command("worker"), "--store", url]
    victim = ground.children.add_worker(command=command)
    ground.wait_until_ready(victim)
    ground.wait_for_runs(5, victim)
    network.drop(second)
    before = _renewed_at(ground, victim.pid)
    ground.wait_until(lambda: _renewed_at(ground, victim.pid) > before, "it finds another way")
    ground.wait_for_runs(5, victim)


def _renewed_at(ground: Ground, pid: int) -> int:
    found = ground.engine.store.workers()
    return max(worker.renewed_at for worker in found if f"-{pid}-" in worker.id)


def hold_rows(ground: Ground) -> None:
    """A foreign transaction holds rows of ten jobs and of a worker for 12 s.

    A job that is held waits; its run may spend an attempt on the timeout of its stage.
    """
    with psycopg.connect(ground.url) as foreign:
        foreign.execute(HOLD_JOBS)
        foreign.execute(HOLD_WORKER)
        ground.last(LOCKED_S)
        foreign.rollback()


def hold_key(ground: Ground) -> None:
    """A foreign transaction holds for 12 s the dedup key of an order that is placed meanwhile.

    Who places it waits, and with it the orders after it.
    """
    n = ground.pace.orders + int(2 * ground.plan.orders_per_s)
    with psycopg.connect(ground.url) as foreign:
        foreign.execute(HOLD_KEY, (key_of(order(ground.plan.seed, n)), NOBODY))
        ground.wait_until(lambda: ground.pace.orders > n, "the order is placed")
        ground.last(LOCKED_S)
        foreign.rollback()


def lock_table(ground: Ground) -> None:
    """A foreign transaction holds the table of jobs for itself alone, for 12 s."""
    with psycopg.connect(ground.url) as foreign:
        foreign.execute("LOCK TABLE ulak.jobs IN ACCESS EXCLUSIVE MODE")
        ground.last(LOCKED_S)
        foreign.rollback()


def hold_write_lock(ground: Ground) -> None:
    """A foreign process holds SQLite's write lock for 12 s. Everybody waits."""
    _hold_file(ground, "write-lock")


def hold_lock_file(ground: Ground) -> None:
    """A foreign process holds the lock file of the database for 12 s. Everybody waits."""
    _hold_file(ground, "lock-file")


def _hold_file(ground: Ground, way: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_FILE, way, str(ground.folder / DATABASE)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as foreign:  # fmt: skip
        assert foreign.stdout is not None
        assert foreign.stdout.readline() == "held\n"
        ground.last(LOCKED_S)
        foreign.communicate()


FAULTS = (
    Fault("stopped", ("postgres",), stop_server),
    Fault("vanished-host", ("postgres",), vanish, site=remote_server),
    Fault("lost-address", ("postgres",), forsake_worker, site=remote_server),
    Fault("held-rows", ("postgres",), hold_rows, harms_all=False),
    Fault("held-key", ("postgres",), hold_key),
    Fault("locked-table", ("postgres",), lock_table),
    Fault("write-lock", ("sqlite",), hold_write_lock),
    Fault("lock-file", ("sqlite",), hold_lock_file),
)
