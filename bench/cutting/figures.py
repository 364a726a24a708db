"""How long one order takes on an idle system, and whether others are prepared while the optimiser
is taken."""

from __future__ import annotations

import pstats
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from bench import postgres
from bench.cutting.workshop import PHONE, Workshop, make_part
from bench.measure import Figure, scratch
from bench.ports import reserve_port
from bench.publishing.blog import processor_s, wait_until
from ulak.auth import ADMIN, Directory
from ulak.services.cutting.rules import DEFAULT_RULES

WITHIN_MS: Final = 1000.0
LONE: Final = 12
QUEUED: Final = 1000
OF_RATE: Final = 0.8
STABLE_S: Final = 2.0
SHOWN: Final = 25
COMMAND: Final = "python -m bench.figures cutting"

USUAL: Final = {
    "stableSeconds": STABLE_S, "pollSeconds": 1, "timeouts": DEFAULT_RULES["timeouts"],
    "optSeconds": 0,
}  # fmt: skip
"""What a new installation has, but that plans are greedy: a search takes the time it is given."""


class Clerk:
    """A client of a workshop that serves orders over HTTP."""

    def __init__(self, shop: Workshop, *, name: str = "bench", **options: Any) -> None:
        port = reserve_port()
        command = ["cutting", "serve", "--port", str(port)]
        (self.server,) = shop.start(1, command=command, **options)
        key = Directory(shop.engine.store).create_key(name, roles=[ADMIN], actor="bench").text
        headers = {"Authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers)
        self._shop = shop

    def order(self, name: str, mode: str) -> str:
        """Send an order; return the id of its job."""
        body = {
            "order_id": name, "customer_phone": PHONE, "opti_mode": mode,
            "parts": [make_part("P1"), make_part("P2", color="Ceviz")],
        }  # fmt: skip
        answer = self._client.post("/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job"]["id"])

    def delay_ms(self, name: str, mode: str) -> tuple[str, float]:
        """Send an order and wait until it is done; return its job and how long that took."""
        began = time.perf_counter()
        job = self.order(name, mode)
        self._shop.engine.wait(job, until="DONE", timeout=60)
        return job, (time.perf_counter() - began) * 1000

    def close(self) -> None:
        self._client.close()


@contextmanager
def counting(folder: Path, url: str, **options: Any) -> Iterator[tuple[Workshop, Clerk]]:
    """Run a workshop with the usual rules that serves orders, and a client of it."""
    with Workshop(folder, url, rules=USUAL) as shop, shop.sawing():
        clerk = Clerk(shop, **options)
        try:
            yield shop, clerk
        finally:
            clerk.close()


def cutting_figures() -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    figures = []
    with postgres.durable() as server:
        for name in ("SQLite FULL", "PostgreSQL"):
            with scratch() as folder:
                is_sqlite = name.startswith("SQLite")
                url = f"sqlite:///{folder / 'lone.db'}" if is_sqlite else server.fresh()
                figures += _lone_figures(name, folder, url)
            with scratch() as folder:
                url = f"sqlite:///{folder / 'queue.db'}" if is_sqlite else server.fresh()
                figures.append(_queue_figure(name, folder, url))
    return figures


def _lone_figures(name: str, folder: Path, url: str) -> list[Figure]:
    figures = []
    with counting(folder, url) as (_, clerk):
        for mode in ("E", "A"):
            clerk.delay_ms(f"warm {mode}", mode)
            taken = [clerk.delay_ms(f"{mode}{n}", mode)[1] for n in range(LONE)]
            beyond = [each - STABLE_S * 1000 for each in taken]
            worst = max(beyond)
            figures.append(
                Figure(
                    f"from POST to DONE beyond {STABLE_S:g} s of stability, idle, mode {mode}, "
                    f"{name}, the slowest of {LONE}",
                    f"<= {WITHIN_MS:g} ms",
                    f"{worst:.0f} ms (p50 {statistics.median(beyond):.0f} ms)",
                    worst <= WITHIN_MS, COMMAND,
                )
            )  # fmt: skip
    return figures


def _queue_figure(name: str, folder: Path, url: str) -> Figure:
    """Prepare many orders while nothing stands in OPTI_RUNNING, up to the operator's trigger, and
    as many while one does, up to where they wait for its slot."""
    with Workshop(folder, url, rules=USUAL) as shop:
        alone = _preparation_rate(shop, "C", "HOLD")
        first = shop.order("first", mode="C")
        shop.start()
        shop.wait(first, states=("HOLD",))
        shop.cutting.jobs.approve(first, actor="bench")
        shop.wait(first, states=("OPTI_RUNNING",))
        shop.kill_all()
        beside = _preparation_rate(shop, "A", "OPTI_IMPORTED")
        assert shop.job(first).state == "OPTI_RUNNING"
    return Figure(
        f"orders/s that are prepared while another is OPTI_RUNNING, {QUEUED:,} queued, of those "
        f"while none is, {name}", f">= {OF_RATE}",
        f"{beside / alone:.2f} ({beside:.0f} of {alone:.0f} orders/s)", beside / alone >= OF_RATE,
        COMMAND,
    )  # fmt: skip


def _preparation_rate(shop: Workshop, mode: str, state: str) -> float:
    """Queue many orders, start a runner, and return how many a second come into a state."""

    def count() -> int:
        return shop.cutting.jobs.counts().get(state, 0)

    before = count()
    for n in range(QUEUED):
        shop.order(f"{mode} {n}", make_part("P1"), mode=mode)
    began = time.perf_counter()
    shop.start()
    wait_until(
        lambda: count() >= before + QUEUED, "not all are prepared", lambda: str(count()), 600
    )
    spent = time.perf_counter() - began
    shop.kill_all()
    return QUEUED / spent


# --- where the time goes ---------------------------------------------------------------


def print_profile(folder: Path, url: str) -> None:
    """Print how long an order stands in each state, the processor time of it, and then, of another
    run, the functions in which the server spent it."""
    with counting(folder / "timed", url) as (shop, clerk):
        clerk.delay_ms("warm", "E")
        before = processor_s(clerk.server.pid)
        jobs = [clerk.delay_ms(f"order {n}", "E") for n in range(LONE)]
        spent = processor_s(clerk.server.pid) - before
        print(f"one order: {statistics.median(ms for _, ms in jobs):.0f} ms, of which the server's")
        print(f"processor time is {spent / LONE * 1000:.1f} ms; in each state:")
        trails = [_read_moves(shop, job) for job, _ in jobs]
        for n, (state, _) in enumerate(trails[0][:-1]):
            lasted = statistics.median(t[n + 1][1] - t[n][1] for t in trails)
            print(f"  {state:14} {lasted * 1000:7.1f} ms")
        shop.stop(clerk.server)
        path = folder / "server.profile"
        profiled = Clerk(shop, name="profiled", profile=str(path))
        for n in range(LONE):
            profiled.delay_ms(f"again {n}", "E")
        shop.stop(profiled.server)
        profiled.close()
    print("\nthe server, by its own time")
    pstats.Stats(str(path)).sort_stats("tottime").print_stats(SHOWN)


def _read_moves(shop: Workshop, job: str) -> Sequence[tuple[str, float]]:
    """Return the states that a job came into, and when."""
    moves: dict[str, float] = {}
    for line in shop.engine.inspect.trail(job):
        moves.setdefault(line.to_state, line.at.timestamp())
    return list(moves.items())
