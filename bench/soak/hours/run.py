"""One part of a long soak: its servers and processes, the kills, the samples and the last look."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psycopg

from bench.measure import ROOT
from bench.soak.hours import sampler
from bench.soak.hours.sampler import Line, Pickups
from bench.soak.hours.traffic import Plan, make_engine
from ulak.clock import SECOND, SystemClock, to_datetime
from ulak.testing.servers import Postgres

STEADY, MORTAL, CLIENT = "steady", "mortal", "client"
"""A worker that is never killed, one that is killed now and then, and the program that submits."""
ENDED_WITHIN_S = 120.0
MOST_FINDINGS = 20

# Smaller than a busy server's, so that the WAL has its lasting size after minutes, not hours.
SETTINGS = {"shared_buffers": "64MB", "max_wal_size": "256MB"}
# The server's clock decides there. What ulak asks it for is found in this schema first, ahead by a
# constant, so that every process passes the end of a month as it would in earnest.
SET_CLOCK = """
    CREATE SCHEMA IF NOT EXISTS soak;
    CREATE OR REPLACE FUNCTION soak.clock_timestamp()
    RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$ SELECT pg_catalog.clock_timestamp() + interval '{ahead_us} microseconds' $$;
    CREATE OR REPLACE FUNCTION soak.pg_postmaster_start_time()
    RETURNS timestamptz LANGUAGE sql STABLE
    AS $$ SELECT pg_catalog.pg_postmaster_start_time() + interval '{ahead_us} microseconds' $$;
    ALTER DATABASE postgres SET search_path = soak, pg_catalog, public;
"""


class KeptPostgres(Postgres):
    """A server that leaves its data in a folder when it ends, even by a kill."""

    def __init__(self, folder: Path) -> None:
        super().__init__(durable=True, settings=SETTINGS)
        self._kept = folder.resolve() / "postgres"

    def _prepare(self) -> None:
        if not (self._kept / "PG_VERSION").exists():
            self._kept.mkdir(exist_ok=True)
            if self._user is not None:
                shutil.chown(self._kept, self._user)
            super()._prepare()

    @property
    def _data(self) -> Path:
        return self._kept


class Soaked:
    """A store under load: its database and its processes, which end with this one."""

    def __init__(self, name: str, url: str, folder: Path, ahead_us: int) -> None:
        self.name = name
        self.url = url
        self._ahead_us = ahead_us
        self._folder = folder
        self._pickups = Pickups(folder / f"pickups-{name}")
        self._log = (folder / f"children-{name}.log").open("ab")
        with make_engine(url, ahead_us, lambda task: None):
            pass  # the tables are made before several processes come to make them
        self.children = {role: self._start(role) for role in (STEADY, MORTAL, CLIENT)}

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        part = "client" if role == CLIENT else "worker"
        command = [sys.executable, "-m", "bench.soak.hours.traffic", part, str(self._folder)]
        return subprocess.Popen(
            [*command, self.name, self.url, str(self._ahead_us)], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Kill the worker that is there to be killed, and start another."""
        self.children[MORTAL].kill()
        self._restart(MORTAL)

    def find_fault(self) -> str:
        """Return which process has ended by itself, after starting another; '' when none has."""
        for role, child in self.children.items():
            if child.poll() is not None:
                self._restart(role)
                return f"the {role} process ended by itself ({child.returncode})"
        return ""

    def _restart(self, role: str) -> None:
        self.children[role].communicate()
        self.children[role] = self._start(role)

    def sample(self, window_s: float) -> dict[str, float]:
        """Return every value of this moment."""
        now = SystemClock().now() + self._ahead_us
        values: dict[str, float] = {}
        for role, child in self.children.items():
            values |= sampler.watch_process(role, child.pid)
        values |= self._pickups.take()
        if self.name == "sqlite":
            return values | sampler.watch_sqlite(self._path, now, window_s)
        return values | sampler.watch_postgres(self.url, now, window_s)

    @property
    def _path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def stop(self) -> Iterator[str]:
        """End every process; return those that did not end well and what `verify` finds."""
        for child in self.children.values():
            child.terminate()
        for role, child in self.children.items():
            try:
                # One that was started just now has not come to listen, and has run nothing.
                if child.wait(ENDED_WITHIN_S) not in (0, -signal.SIGTERM):
                    yield f"the {role} process ended with {child.returncode}"
            except subprocess.TimeoutExpired:
                yield f"the {role} process did not end"
                child.kill()
            child.communicate()
        with make_engine(self.url, self._ahead_us, lambda task: None) as engine:
            for finding, _ in zip(engine.inspect.verify(), range(MOST_FINDINGS), strict=False):
                yield f"verify: {finding.kind}: {finding.sentence}"

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        for child in self.children.values():
            child.kill()
            child.communicate()
        self._pickups.close()
        self._log.close()


def run_part(folder: Path, plan: Plan, over: threading.Event) -> None:
    """Go on from the last sample in a folder until the hours are over, or until `over` is set.

    What happens is in the lines of the folder; the judgement is made from them alone.
    """
    lines = sampler.read(folder)
    before_s = max((line.t for line in lines), default=0.0)
    ahead_us = plan.zero_us + int(before_s * SECOND) - SystemClock().now()
    with contextlib.ExitStack() as stack:
        soaked = [_open(name, folder, ahead_us, stack) for name in plan.stores]
        began = time.monotonic()

        def now() -> float:
            return before_s + time.monotonic() - began

        def mark(store: Soaked, what: str) -> None:
            sampler.write(folder, Line(now(), store.name, {}, what))

        for store in soaked:
            mark(store, "part")
        # At odd moments: what goes up and down every 30 s too would be seen in one phase for hours.
        dice = Random(plan.seed)
        next_sample, next_kill, window_from = now() + plan.sample_s, now() + plan.kill_s, now()
        month = _read_month(plan, now())
        ends_at = plan.hours * 3600
        while now() < ends_at and not over.is_set():
            over.wait(max(0.0, min(next_sample, next_kill, ends_at) - now()))
            is_to_kill, this_month = now() >= next_kill, _read_month(plan, now())
            for store in soaked:
                if fault := store.find_fault():
                    mark(store, f"fault: {fault}")
                if is_to_kill:
                    store.kill()
                    mark(store, "kill")
                if this_month != month:
                    mark(store, "month")
            month = this_month
            if is_to_kill:
                next_kill = now() + plan.kill_s
            if now() >= next_sample and not over.is_set():
                window_s, window_from = now() - window_from, now()
                for store in soaked:
                    try:
                        values = store.sample(window_s)
                    except (psycopg.Error, sqlite3.Error) as error:
                        # A month is dropped just now, or the machine stood still: the next one.
                        mark(store, f"missed: {error}")
                    else:
                        sampler.write(folder, Line(now(), store.name, values))
                next_sample = now() + plan.sample_s * dice.uniform(0.5, 1.5)
        ended_s = now()  # what the last look takes is no soaking
        for store in soaked:
            for fault in [*(f"fault: {fault}" for fault in store.stop()), "verified"]:
                sampler.write(folder, Line(ended_s, store.name, {}, fault))


def _open(name: str, folder: Path, ahead_us: int, stack: contextlib.ExitStack) -> Soaked:
    url = f"sqlite:///{folder.resolve() / 'soak.db'}"
    if name == "postgres":
        server = stack.enter_context(KeptPostgres(folder))
        # In good order: the next part begins without a recovery.
        stack.callback(server.stop)
        url = server.url()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(SET_CLOCK.format(ahead_us=ahead_us))
    soaked = Soaked(name, url, folder, ahead_us)
    stack.callback(soaked.close)
    return soaked


def _read_month(plan: Plan, t: float) -> int:
    return to_datetime(plan.zero_us + int(t * SECOND)).month
