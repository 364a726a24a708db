"""`ulak worker`: run stages, and nothing else, until told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import stat
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from ulak import wiring
from ulak.cli import spans
from ulak.clock import seconds
from ulak.control.process_metrics import make_process_id
from ulak.dispatch import find_dispatch
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.worker import Worker, find_complaint, settle_in
from ulak.errors import BadInput
from ulak.idempotency import cleanup
from ulak.kit.commands.output import say
from ulak.kit.commands.target import AppArgument, ServiceOption, in_force, load
from ulak.kit.processes import logs
from ulak.kit.processes.draining import Parts, leave_behind, run_until_told
from ulak.kit.processes.probes import import_metrics, serving_probes
from ulak.kit.processes.running import (
    GLANCE_S,
    count_and_publish,
    must_be_queues,
    must_be_shared,
    opened,
    publish_metrics,
    queues_of,
    stored,
    unready,
)
from ulak.service import further_engines, start
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
SupervisorOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="For ulak up: the process that adds up what its child counts."),
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
            help="Show metrics and readiness on this port of 127.0.0.1, 0 for any; else neither.",
        ),
    ] = None,
    service: ServiceOption = None,
    child: ChildOption = None,
    supervisor: SupervisorOption = None,
) -> None:  # fmt: skip
    """Run stages until SIGTERM or Ctrl-C; then drain. A second signal hurries."""
    parent = None if child is None else Parent()
    found = in_force(app, service)
    engine = load(found)
    cleanup.attach(engine, wiring.idempotency_settings())
    wiring.attach_control(engine)
    must_be_shared(engine, "ulak worker")
    dispatch = find_dispatch(engine, found)
    usual = WorkerSettings(loop=loop, threads=threads, processes=processes)
    own = queue or (queues_here(engine) if dispatch else None)
    settings = worker_settings(engine, usual, queues=own, lease=lease, drain=drain)
    # Whoever names queues means those of the program; its children are told theirs.
    further = [] if queue else further_engines(engine)
    logs.start(found.env, logs.secrets_of(found, engine, *further), child=child)
    settle_in()
    made: list[Worker] = []
    process = make_process_id() if supervisor is None else f"{supervisor}/{child}"
    with ExitStack() as stack:
        stack.enter_context(opened([engine, *further]))
        if dispatch is not None:
            stack.enter_context(dispatch)
        address = None
        if metrics_port is None:
            stack.enter_context(count_and_publish(engine, process=process, supervisor=supervisor))
        else:
            metrics = import_metrics()(engine)
            stack.callback(metrics.close)
            probes = serving_probes(metrics, metrics_port, partial(_lacking, made))
            address = stack.enter_context(probes)
            stack.enter_context(publish_metrics(engine, metrics.read, process=process))
        start(engine, None)
        made.append(engine.worker(settings))
        made += [each.worker(replace(settings, queues=None)) for each in further]
        if parent is not None:
            asyncio.run(_work(made, parent))
            return
        queues = queues_of(engine) if settings.queues is None else sorted(settings.queues)
        served = ", ".join(queues) or "no queue, since no flow has a stage"
        say(f"worker of {found.program} serves {served}")
        if address is not None:
            say(f"  metrics   {address}/metrics\n  ready     {address}/health/ready")
        say(f"  store     {stored(engine)}\nCtrl-C drains and stops.")
        asyncio.run(_work(made))
    say("drained")


def queues_here(engine: Engine) -> list[str]:
    """Return the queues of a program that no queue of another make takes elsewhere."""
    return [queue for queue in queues_of(engine) if queue not in engine.kernel.queues_elsewhere]


def _lacking(workers: Sequence[Worker]) -> str | None:
    """Say what is lacking before everything is served; None when nothing is."""
    if not workers:
        return "the worker has not begun"
    return unready(workers) or find_complaint(workers)


async def _work(made: Sequence[Worker], parent: Parent | None = None) -> None:
    parts: Parts = [("stage", worker) for worker in made]
    telling = None if parent is None else asyncio.create_task(parent.tell_of(made[0]))
    try:
        is_child = parent is not None
        await run_until_told(parts, drain=made[0].settings.drain, is_child=is_child)
    finally:
        if telling is not None and parent is not None:
            telling.cancel()
            parent.close()
    leave_behind(parts)


def worker_settings(
    engine: Engine, usual: WorkerSettings, *, queues: Collection[str] | None, lease: str, drain: str
) -> WorkerSettings:
    """Make a worker's settings of what was typed. Raises `BadParameter`: a span that cannot work;
    `BadInput`: a queue that no stage of the program is in."""
    lease_span = spans.read_seconds(lease, "--lease")
    drain_span = spans.read_seconds(drain, "--drain")
    if lease_span < SHORTEST_LEASE:
        raise typer.BadParameter("a lease is at least 1 s", param_hint="--lease")
    must_be_queues(engine, queues or ())
    chosen = None if queues is None else frozenset(queues)
    return replace(usual, queues=chosen, lease=lease_span, drain=drain_span)


# From <linux/prctl.h>: the signal that a process gets when its parent has ended.
PR_SET_PDEATHSIG = 1
# How often a child looks whether its lease was renewed; a lease lasts a second at least.
REPORT_EVERY_S = 0.2


class Parent:
    """The process that has started this one and holds the other end of its standard input. From now
    on the kernel kills this process when the parent ends, however that happens and whatever this
    process does just then. Raises `BadInput`: standard input is no such line, so a person has typed
    this."""

    def __init__(self) -> None:
        if not stat.S_ISSOCK(os.fstat(0).st_mode):
            raise BadInput("--child is how `ulak up` starts its children; leave it out")
        # Under another number, which what stages start does not inherit.
        self._line = socket.socket(fileno=os.dup(0))
        self._line.setblocking(False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    async def tell_of(self, worker: Worker) -> None:
        """Report that the worker is registered, and then each renewal of its lease."""
        told = None
        while True:
            lease = worker.lease if worker.is_registered else None
            if lease is not None and lease.renewed_at != told:
                told = lease.renewed_at
                self._report()
            await asyncio.sleep(GLANCE_S if told is None else REPORT_EVERY_S)

    def _report(self) -> None:
        try:
            self._line.send(b"r")
        except BlockingIOError:
            pass  # a parent that stands still has enough to read
        except ConnectionError:
            # It had ended before the kernel was asked to watch it.
            os._exit(1)

    def close(self) -> None:
        self._line.close()
