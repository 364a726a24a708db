"""`ulak worker`: run stages, and nothing else, until told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from ulak import wiring
from ulak.cli import logs, metrics, spans
from ulak.cli.draining import leave_behind, open_when_reached, run_until_told, say
from ulak.cli.parent import Parent
from ulak.clock import seconds
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.worker import Worker, settle_in
from ulak.errors import BadInput, NotSupported
from ulak.idempotency import cleanup
from ulak.kit.commands.target import AppArgument, ServiceOption, in_force, load
from ulak.settings import HIGHEST_PORT

USUAL = WorkerSettings()
SHORTEST_LEASE = timedelta(seconds=1)

LeaseOption = Annotated[
    str, typer.Option(metavar="SECONDS", help="How long the jobs of a vanished worker stay taken.")
]
DrainOption = Annotated[
    str, typer.Option(metavar="SECONDS", help="How long running stages may take to end.")
]
LEASE = f"{seconds(USUAL.lease):g}"
ChildOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="For ulak up: its child of this name, which ends with it."),
]
DRAIN = f"{seconds(USUAL.drain):g}"


def worker(
    app: AppArgument = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="Serve this queue only; may be repeated.")
    ] = None,
    loop: Annotated[int, typer.Option(min=0, help="Async stages at once.")] = USUAL.loop,
    threads: Annotated[int, typer.Option(min=0, help="Plain stages at once.")] = USUAL.threads,
    processes: Annotated[
        int, typer.Option(min=0, help="Isolated stages at once.")
    ] = USUAL.processes,
    lease: LeaseOption = LEASE,
    drain: DrainOption = DRAIN,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=HIGHEST_PORT, metavar="PORT",
            help="Show metrics on this port of 127.0.0.1, 0 for any; else they are not shown.",
        ),
    ] = None,
    service: ServiceOption = None,
    child: ChildOption = None,
) -> None:  # fmt: skip
    """Run stages until SIGTERM or Ctrl-C; then drain. A second signal hurries."""
    parent = None if child is None else Parent()
    found = in_force(app, service)
    engine = load(found)
    cleanup.attach(engine, wiring.idempotency_settings())
    features = engine.store.features
    if not features.shared:
        raise NotSupported(
            f"ulak worker cannot serve the {features.name} store, whose jobs no other process "
            "sees; connect to sqlite:///app.db, or run engine.working() in the program"
        )
    settings = worker_settings(
        engine,
        WorkerSettings(loop=loop, threads=threads, processes=processes),
        queues=queue or None,
        lease=lease,
        drain=drain,
    )
    logs.start(found.env, logs.secrets_of(found, engine), child=child)
    wiring.trace(engine)
    settle_in()
    open_when_reached(engine)
    with engine, metrics.serving(engine, metrics_port) as address:
        made: Worker = engine.worker(settings)
        if parent is not None:
            asyncio.run(_work_as_child(made, parent))
            return
        say(f"worker of {found.program} serves {served(engine, settings)}")
        if address is not None:
            say(f"  metrics   {address}")
        say(f"  store     {stored(engine)}\nCtrl-C drains and stops.")
        asyncio.run(_work(made))
    say("drained")


async def _work(made: Worker) -> None:
    await run_until_told({"stage": made}, drain=made.settings.drain)
    leave_behind(made)


async def _work_as_child(made: Worker, parent: Parent) -> None:
    telling = asyncio.create_task(parent.tell_of(made))
    try:
        await run_until_told({"stage": made}, drain=made.settings.drain, is_child=True)
    finally:
        telling.cancel()
        parent.close()
    leave_behind(made)


def worker_settings(
    engine: Engine,
    usual: WorkerSettings,
    *,
    queues: Collection[str] | None,
    lease: str,
    drain: str,
) -> WorkerSettings:
    """Make a worker's settings of what was typed.

    Raises:
        BadParameter: a span that cannot work.
        BadInput: a queue that no stage of the program is in.
    """
    lease_span = spans.read_seconds(lease, "--lease")
    drain_span = spans.read_seconds(drain, "--drain")
    if lease_span < SHORTEST_LEASE:
        raise typer.BadParameter("a lease is at least 1 s", param_hint="--lease")
    known = queues_of(engine)
    for queue in queues or ():
        if queue not in known:
            raise BadInput(f"no stage is in queue {queue!r}; queues are {', '.join(known)}")
    return replace(
        usual,
        queues=None if queues is None else frozenset(queues),
        lease=lease_span,
        drain=drain_span,
    )


def queues_of(engine: Engine) -> list[str]:
    """Every queue that a stage or an undo of the program is in."""
    return sorted(
        {lane.split("/")[0] for flow in engine.inspect.flows for lane in flow.table.lanes}
    )


def served(engine: Engine, settings: WorkerSettings) -> str:
    """Name the queues that a worker of these settings serves."""
    chosen = queues_of(engine) if settings.queues is None else sorted(settings.queues)
    return ", ".join(chosen) or "no queue, since no flow has a stage"


def stored(engine: Engine) -> str:
    """Name the store, its version, where it is, and what a power cut may cost."""
    features = engine.store.features
    about: dict[str, object] = getattr(engine.store, "about", dict)()
    version = about.get(features.name, "")
    place = about.get("path") or about.get("database")
    said = [f"{features.name} {version}".strip(), place, features.durability]
    return ", ".join(str(part) for part in said if part)
