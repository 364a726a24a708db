"""`ulak bench`: how fast jobs go on a store, before you trust it with yours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import ulak
from ulak.cli import speed
from ulak.errors import BadInput
from ulak.kit.commands.output import JsonOption, note, print_json, print_table, some
from ulak.store.protocol import Store
from ulak.wiring import store_of

THREADS = 32
# Sizes for about half a minute on two cores; --quick shows that it works, not how fast.
USUAL = {"drain": 10_000, "stages": 2_000, "submit": 500, "threads": 3_200, "delays": 200}
QUICK = {"drain": 500, "stages": 100, "submit": 50, "threads": 160, "delays": 20}
LONG = 8
A_PAGE = 500


def bench(
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="The store to measure; else a new SQLite file here."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few jobs: to see it run, not to believe it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Measure beside the jobs of others; ours stay there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast jobs that do nothing go on a store, in about a minute.

    It runs flows of its own alone. A store that holds jobs is refused: they and their workers
    would be slowed down, and would slow this down. What it has stored is removed afterwards,
    except with --force.
    """
    with _place(store) as url:
        found = _measure(url, QUICK if quick else USUAL, force=force)
    if as_json:
        print_json(found)
        return
    print(f"ulak {found['ulak']} on {found['store']}, one worker process\n")
    print_table(("what", "value", "unit"), _rows(found))


@contextmanager
def _place(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    # Here, not in the system's folder for such files: that one is often kept in memory.
    with tempfile.TemporaryDirectory(prefix="ulak-bench-", dir=Path.cwd()) as folder:
        yield f"sqlite:///{Path(folder).resolve() / 'bench.db'}"


def _measure(url: str, sizes: dict[str, int], *, force: bool) -> dict[str, Any]:
    store = store_of(url)
    if not store.features.shared:
        raise BadInput(f"the {store.features.name} store is of one process; a worker is another")
    store.open()
    try:
        _refuse_others(store, force=force)
        try:
            return {
                "ulak": ulak.__version__,
                "store": store.features.name,
                "drain_jobs_per_s": speed.drain(url, sizes["drain"]),
                "drain_stages_per_s": speed.drain(url, sizes["stages"], stages=LONG),
                "submit_jobs_per_s": speed.submit(url, sizes["submit"]),
                "submit_32_threads_jobs_per_s": speed.submit_from_threads(
                    url, sizes["threads"], THREADS
                ),
                "pickup_ms": speed.pickup(url, sizes["delays"])._asdict(),
                "claim_ms": speed.claim(url, sizes["delays"])._asdict(),
            }
        finally:
            speed.finish(url)
            if force:
                note(f"the finished jobs of {speed.NAME}-* are left in the store")
            else:
                # Ours are all there are.
                while store.prune(before=store.clock.now() + 1, limit=A_PAGE):
                    pass
    finally:
        store.close()


def _refuse_others(store: Store, *, force: bool) -> None:
    jobs = sum(count.jobs for count in store.counts())
    workers = [worker for worker in store.workers() if worker.expires_at > store.clock.now()]
    if (jobs or workers) and not force:
        raise BadInput(
            f"this store has {some(jobs, 'job')} and {some(len(workers), 'worker')}; name an empty "
            "one, or say --force to measure beside them"
        )


def _rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rates = (
        ("drain, async no-op", "drain_jobs_per_s", "jobs/s"),
        (f"drain, jobs of {LONG} stages", "drain_stages_per_s", "stages/s"),
        ("submit, one thread", "submit_jobs_per_s", "jobs/s"),
        (f"submit, {THREADS} threads", "submit_32_threads_jobs_per_s", "jobs/s"),
    )
    delays = (("pickup", "pickup_ms"), ("claim of one job", "claim_ms"))
    return [(what, f"{found[key]:,.0f}", unit) for what, key, unit in rates] + [
        (what, f"{found[key]['p50']:.2f} (p99 {found[key]['p99']:.2f})", "ms")
        for what, key in delays
    ]
