"""The processes that the soak kills: a worker, and a submitter.

`python -m bench.soak.children worker|submit FOLDER [--store URL] [--broken NAME]`
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread

import ulak
from bench.soak.clock import SteppedClock
from bench.soak.ledger import Ledger, read_all
from bench.soak.orders import Order, flows, key_of, order, time_of
from ulak import wiring
from ulak.clock import micros
from ulak.engine import relay
from ulak.store.protocol import Store

DATABASE = "soak.db"
LEDGER = "ledger"
DUPLICATE_EVERY = 10
AGAIN_S = 0.1
SETTINGS = ulak.WorkerSettings(loop=8, threads=6, drain=timedelta(seconds=3))


def store_of(folder: Path, url: str | None, broken: str | None) -> Store:
    """Make the store of a soak: by its URL, or a file in the folder, broken on purpose if asked."""
    if broken is not None:
        from ulak.testing.broken_sqlite import BROKEN

        store: Store = BROKEN[broken](folder / DATABASE)
        return store
    url = url or f"sqlite:///{folder.resolve() / DATABASE}"
    # On PostgreSQL the server's clock decides, whatever the machine of a worker says.
    clock = SteppedClock(folder) if url.startswith("sqlite:") else None
    return wiring.store_of(url, clock=clock)


def engine_of(
    folder: Path, url: str | None = None, broken: str | None = None
) -> tuple[ulak.Engine, Ledger]:
    """Make an engine on the soak's database, with the soak's flows."""
    ledger = Ledger(folder / LEDGER)
    engine = ulak.Engine(store_of(folder, url, broken), flows=flows(ledger, folder))

    @engine.outbox.publish
    def send(message: ulak.Message) -> None:
        ledger.append("sent", message.id)

    return engine, ledger


def opened(engine: ulak.Engine) -> ulak.Engine:
    """Open it as soon as its store answers: whoever starts in an outage would be started again."""
    while True:
        try:
            engine.open()
        except ulak.StoreError:
            time.sleep(AGAIN_S)
        else:
            return engine


def work(folder: Path, lease_s: float, url: str | None, broken: str | None) -> None:
    """Be a worker until SIGTERM."""
    serve(*engine_of(folder, url, broken), lease_s)


def serve(engine: ulak.Engine, ledger: Ledger, lease_s: float) -> None:
    """Work on the flows of an engine until SIGTERM."""
    # A relay that vanishes keeps its messages for a minute; here as long as a lease.
    lease = timedelta(seconds=lease_s)
    relay.HOLD_US = micros(lease)
    worker = opened(engine).worker(replace(SETTINGS, lease=lease))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    ledger.append("ready")
    asyncio.run(worker.run())
    engine.close()


def submit(folder: Path, seed: int, url: str | None, broken: str | None) -> None:
    """Submit orders up to the number that each line of standard input names.

    What the ledger shows as accepted is left out; an order whose submit was cut off by a kill is
    submitted again under its key. Every tenth is submitted through two engines at once.
    """
    accepted = {int(line.words[0]) for line in read_all(folder / LEDGER) if line.kind == "accepted"}
    engines = [engine_of(folder, url, broken) for _ in range(2)]
    for engine, _ in engines:
        opened(engine)
    n = 0

    def place(placed: Order, engine: ulak.Engine, ledger: Ledger) -> None:
        while True:
            try:
                job = engine.submit(
                    engine.inspect.flows[0], placed, actor="soak", dedup_key=key_of(placed),
                    expires=time_of(placed),
                )  # fmt: skip
            except (ulak.StoreError, ulak.UnknownOutcome):
                time.sleep(AGAIN_S)  # its key says whether it was stored
            else:
                ledger.append("accepted", placed.n, job.id, int(job.created))
                return

    for line in sys.stdin:
        while n < int(line):
            if n not in accepted:
                rivals = engines if n % DUPLICATE_EVERY == 0 else engines[:1]
                threads = [Thread(target=place, args=(order(seed, n), *rival)) for rival in rivals]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            n += 1
    for engine, _ in engines:
        engine.close()


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["worker", "submit"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--store")
    parser.add_argument("--broken")
    given = parser.parse_args()
    SteppedClock(given.folder).rule_process()
    if given.part == "worker":
        work(given.folder, given.lease, given.store, given.broken)
    else:
        submit(given.folder, given.seed, given.store, given.broken)


if __name__ == "__main__":
    main()
