"""`POST /jobs` over HTTP: many connections at once, against the same application without a store.

Both sides are the whole application in a process of its own, with the same credentials to check,
the same request and the same answer; the one side's jobs are durable when they are answered, the
other's are forgotten.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import ulak
import ulak.web
from bench import postgres
from bench.measure import Figure, alternate, scratch
from bench.served import CONNECTIONS, Place, serve, served
from ulak.cli import speed
from ulak.core.job import NewJob
from ulak.engine.worker import settle_in
from ulak.store.protocol import Added

REQUESTS = 4_000
OF_NO_STORE = 0.6
AT_ONCE = 200

FLOW = speed.flow_of("http")
COMMAND = "python -m bench.figures http"


# --- the server, in a process of its own ------------------------------------------


class Forgetful:
    """An intake that answers at once and stores nothing."""

    def offer(self, jobs: Sequence[NewJob]) -> Future[list[Added]]:
        answer: Future[list[Added]] = Future()
        answer.set_result([Added(job.row, True) for job in jobs])
        return answer

    def open(self) -> None: ...
    def close(self) -> None: ...


def run(url: str, *, with_store: bool) -> None:
    """Be the server; asked for it, it tells how many transactions have accepted jobs so far."""
    engine = ulak.connect(url, flows=[FLOW])
    if not with_store:
        engine.kernel.intake = Forgetful()  # type: ignore[assignment] # no more of an intake is used here
    commits = 0
    add = engine.store.add

    def counted(jobs: Sequence[NewJob]) -> list[Added]:
        nonlocal commits
        commits += 1
        return add(jobs)

    engine.store.add = counted  # type: ignore[method-assign]
    settle_in()
    serve(engine, lambda identity: ulak.web.app(engine, identity=identity), lambda: commits)


# --- the clients --------------------------------------------------------------------


class Jobs:
    """A running server of ours, which is given jobs."""

    def __init__(self, place: Place) -> None:
        self._place = place
        body = json.dumps({"flow": FLOW.name, "payload": speed.PAYLOAD}).encode()
        self._request = place.post("/jobs", body)

    def commits(self) -> int:
        """How many transactions have accepted jobs so far."""
        return int(self._place.asked())

    def rate(self, requests: int = REQUESTS, connections: int = CONNECTIONS) -> float:
        """Requests a second that were answered with 201, each connection one at a time."""
        return self._place.rate(requests, lambda: self._request, _is_created, connections)


def _is_created(head: bytes, _: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 201")


@contextmanager
def serving(url: str, *, with_store: bool) -> Iterator[Jobs]:
    """Run a server for as long as the block lasts."""
    with served("bench.http", [url, *([] if with_store else ["--forget"])]) as place:
        yield Jobs(place)


# --- figures ----------------------------------------------------------------------


def http_figures(requests: int = REQUESTS) -> list[Figure]:
    """On SQLite and on PostgreSQL."""
    with scratch() as folder:
        figures = _figures("SQLite FULL", f"sqlite:///{folder / 'http.db'}", requests)
    with postgres.durable() as server:
        figures += _figures("PostgreSQL", server.fresh(), requests)
    return figures


def _figures(name: str, url: str, requests: int) -> list[Figure]:
    with serving(url, with_store=True) as ours, serving("memory://", with_store=False) as bare:
        for each in (ours, bare):
            each.rate(CONNECTIONS * 10)
        with_store, without = alternate(lambda: ours.rate(requests), lambda: bare.rate(requests))
        before = ours.commits()
        ours.rate(AT_ONCE, AT_ONCE)
        commits = ours.commits() - before
    ratio = with_store / without
    return [
        Figure(
            f"`POST /jobs` on {CONNECTIONS} connections, {name}, of the same application without "
            "a store",
            f">= {OF_NO_STORE}", f"{ratio:.2f} ({with_store:,.0f} of {without:,.0f} requests/s)",
            ratio >= OF_NO_STORE, COMMAND,
        ),
        Figure(
            f"commits for {AT_ONCE} `POST /jobs` at once, {name}", f"< {AT_ONCE}", str(commits),
            0 < commits < AT_ONCE, COMMAND,
        ),
    ]  # fmt: skip


def main() -> None:
    """Be the server."""
    parser = argparse.ArgumentParser(prog="bench.http", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--forget", action="store_true", help="store nothing")
    given = parser.parse_args()
    run(given.url, with_store=not given.forget)


if __name__ == "__main__":
    main()
