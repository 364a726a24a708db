"""`ulak up`: the API and workers, one command at one address."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ulak
from ulak import wiring
from ulak.auth.directory import LINK_LIFE_TEXT
from ulak.auth.identity import Identity
from ulak.cli import worker as worker_command
from ulak.cli.identity import make_login_link
from ulak.cli.supervisor import Child, Supervisor
from ulak.clock import Duration, seconds
from ulak.control.process_metrics import Children, is_published, make_process_id
from ulak.core.lifecycle import HELD
from ulak.dispatch import find_dispatch
from ulak.engine.engine import Engine
from ulak.engine.ports import Apart, WorkerSettings
from ulak.engine.worker import Worker, settle_in
from ulak.errors import NotSupported
from ulak.idempotency import cleanup
from ulak.kit.commands.output import complain, note, say
from ulak.kit.commands.target import (
    AppArgument,
    HostOption,
    ServiceOption,
    in_force,
    load,
    user_name,
)
from ulak.kit.processes import logs
from ulak.kit.processes.draining import Parts, leave_behind
from ulak.kit.processes.running import (
    bind,
    opened,
    publish_metrics,
    queues_of,
    serve,
    stored,
    unready,
    wait_until_registered,
)
from ulak.service import Address, further_addresses, further_engines, get_service, start
from ulak.settings import HIGHEST_PORT, Settings, http_address, read_env_file
from ulak.store.protocol import JobFilter

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI

    from ulak.web.metrics import Metrics
    from ulak.web.server import Server


def up(
    app: AppArgument = None,
    host: HostOption = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=HIGHEST_PORT, help="Listen on this port, 0 for any; else ULAK_PORT or 8000."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Work in so many children; 0 works in this process.")
    ] = 0,
    lease: worker_command.LeaseOption = worker_command.LEASE,
    drain: worker_command.DrainOption = worker_command.DRAIN,
    service: ServiceOption = None,
) -> None:
    """Start the API and workers; SIGTERM or Ctrl-C drains, a second one hurries.

    Queues that the program wants apart are served by children in any case.
    """
    if not read_env_file():
        note("the file .env is not read; pip install python-dotenv")
    found = in_force(app, service).listening(host, port)
    found = wiring.with_secret(found)  # so that no line of the log can show it
    with bind(found, "ulak up") as bound:
        # So that services know the port, also when the system has chosen it.
        found = replace(found, port=bound.getsockname()[1])
        _up(found, bound, workers=workers, lease=lease, drain=drain)
    say("drained")


def _up(found: Settings, bound: socket, *, workers: int, lease: str, drain: str) -> None:
    from ulak.web.server import Server

    engine = load(found)
    further = further_engines(engine)
    addresses = further_addresses(engine)
    for each in (engine, *further):
        cleanup.attach(each, wiring.idempotency_settings())
    wiring.attach_control(engine)
    dispatch = find_dispatch(engine, found)
    beside = queues_beside(engine)
    own = None if beside == queues_of(engine) else beside
    settings = worker_command.worker_settings(
        engine, worker_command.USUAL, queues=own, lease=lease, drain=drain
    )
    process = make_process_id()
    options = ("--drain", drain, "--supervisor", process)
    children = children_of(engine, found, workers=workers, lease=settings.lease, options=options)
    with ExitStack() as stack:
        taken = {
            name: stack.enter_context(bind(found, "ulak up", address=address))
            for name, address in addresses.items()
        }
        logs.start(found.env, logs.secrets_of(found, engine, *further))
        settle_in()
        stack.enter_context(opened([engine, *further]))
        if dispatch is not None:
            stack.enter_context(dispatch)
        said = dict(start(engine, http_address(*bound.getsockname()[:2])))
        working = Working(
            workers=[
                # Without children for the rest we work ourselves: somebody must keep the dates.
                *([] if workers and beside else [engine.worker(settings)]),
                *(other.worker(replace(settings, queues=None)) for other in further),
            ],
            supervisor=Supervisor(children, drain=settings.drain) if children else None,
            settings=settings,
        )
        identity = wiring.identity_of(engine, found)
        identity.adopt_first_key()
        made = _application(engine, identity, working, found)
        server = Server(made, bound, trusted_proxies=found.trusted_proxies)
        shown: Metrics = made.state.metrics
        if children and is_published(engine):
            shown.add_children(Children(engine, process))
        elif children:
            note("/metrics leaves out what children count: the store has no tables for it")
        stack.enter_context(publish_metrics(engine, shown.read, process=process))
        others = _servers(addresses, taken, working, found)
        said |= {name: other.address for name, other in others.items()}
        hello = partial(
            greeting, engine, identity, found, address=server.address, workers=workers, said=said,
            further=further,
        )  # fmt: skip
        servers = [server, *others.values()]
        try:
            asyncio.run(_serve(working, servers, hello))
        finally:
            for running in servers:
                running.stop()


@dataclass(frozen=True, slots=True)
class Working:
    """What works beside the API: a worker in this process, children, or both."""

    workers: Sequence[Worker]
    supervisor: Supervisor | None
    settings: WorkerSettings

    @property
    def parts(self) -> Parts:
        working: Parts = [("stage", worker) for worker in self.workers]
        return working if self.supervisor is None else [*working, ("worker", self.supervisor)]

    def unready(self) -> str | None:
        """Say what is lacking before everything is served; None when nothing is."""
        lacking = unready(self.workers)
        if lacking is None and self.supervisor is not None:
            lacking = self.supervisor.unready()
        return lacking


def _application(engine: Engine, identity: Identity, working: Working, found: Settings) -> FastAPI:
    from ulak.web import app as application

    return application(
        engine, identity=identity, unready=working.unready, platform=found,
        services=[get_service(name) for name in found.services],
        guard=wiring.guard_of(engine, found.env, wiring.idempotency_settings()),
    )  # fmt: skip


def _servers(
    addresses: Mapping[str, Address],
    taken: Mapping[str, socket],
    working: Working,
    found: Settings,
) -> dict[str, Server]:
    """Make the servers of the addresses that services have of their own, by service."""
    from ulak.web.server import Server

    proxies = found.trusted_proxies
    return {
        name: Server(address.app(working.unready), taken[name], trusted_proxies=proxies)
        for name, address in addresses.items()
    }


async def _serve(working: Working, servers: Sequence[Server], hello: Callable[[], str]) -> None:
    async def greet() -> None:
        # Once this process works. Children may still be starting: /health/ready tells.
        await wait_until_registered(working.workers)
        say(await asyncio.to_thread(hello))

    await serve(working.parts, servers=servers, drain=working.settings.drain, hello=greet)
    unclean = None if working.supervisor is None else working.supervisor.unclean()
    if unclean is not None:
        complain(unclean)
    leave_behind(working.parts)
    for server in servers:
        server.must_not_have_failed()
    if unclean is not None:
        raise typer.Exit(1)


def queues_beside(engine: Engine) -> list[str]:
    apart = queues_apart(engine)
    return [queue for queue in worker_command.queues_here(engine) if queue not in apart]


def queues_apart(engine: Engine) -> Mapping[str, Apart]:
    """Return the queues that children serve, and how."""
    elsewhere = engine.kernel.queues_elsewhere
    return {q: apart for q, apart in engine.kernel.queues_apart.items() if q not in elsewhere}


def children_of(
    engine: Engine, found: Settings, *, workers: int, lease: Duration, options: Sequence[str]
) -> list[Child]:
    """Return the children of a program: those of its queues apart, and `workers` for the rest. Each
    takes `options` of `ulak worker`, and the lease of its queue, else `lease`. Raises
    `NotSupported`: no child would see the jobs of the store."""
    served: dict[str, tuple[list[str], Duration]] = {}
    for queue, apart in sorted(queues_apart(engine).items()):
        own = lease if apart.lease is None else apart.lease
        served |= {f"{queue}-{n}": ([queue], own) for n in range(1, apart.workers + 1)}
    if beside := queues_beside(engine):
        served |= {f"worker-{n}": (beside, lease) for n in range(1, workers + 1)}
    features = engine.store.features
    if served and not features.shared:
        raise NotSupported(
            f"ulak up cannot serve queues by children on the {features.name} store, whose jobs no "
            "other process sees; connect to sqlite:///app.db, or run engine.working() in the "
            "program"
        )
    program = [found.app] if found.app else []
    if found.service:
        program += ["--service", found.service]
    command = (sys.executable, "-m", "ulak", "worker", *program, *options)
    children = []
    for name, (queues, own) in served.items():
        chosen = [word for queue in queues for word in ("--queue", queue)]
        lasts = ("--lease", f"{seconds(own):g}")
        typed = (*command, *lasts, *chosen, "--child", name)
        children.append(Child(name, typed, own, found.environment))
    return children


def greeting(
    engine: Engine, identity: Identity, found: Settings, *, address: str, workers: int,
    said: Mapping[str, str], further: Sequence[Engine] = (),
) -> str:  # fmt: skip
    """Say where everything is and what to type next; asks the store, so not on a loop."""
    lines = [
        f"ulak {ulak.__version__} serves {found.program} at {address}",
        *_invitation(identity, found, address),
        *(f"  {word:<9} {text}" for word, text in said.items()),
        f"  jobs      {address}/jobs",
        f"  docs      {address}/docs",
        f"  health    {address}/health/ready",
        f"  metrics   {address}/metrics",
        *(f"  {word:<9} {text}" for word, text in _queues(engine, workers)),
        *(f"  queues    {', '.join(queues_of(each))}" for each in further),
        *(f"  missing   {sentence}" for sentence in _missing(found)),
        *(f"  store     {stored(each)}" for each in (engine, *further)),
        "",
    ]
    if engine.store.features.shared:
        commands = _next_commands(engine, found, address)
        lines += ["Next, in another terminal:", *(f"  {command}" for command in commands), ""]
    lines.append("Ctrl-C drains and stops.")
    return "\n".join(lines)


def _invitation(identity: Identity, found: Settings, address: str) -> Sequence[str]:
    """Return the line with the link that logs in the person who starts the program, once. In
    production only a terminal gets it: every other output is kept in a log."""
    if found.env != "dev" and not sys.stdout.isatty():
        return ()
    link = make_login_link(identity, user_name(), address)
    return [f"  log in    {link}  (once, within {LINK_LIFE_TEXT})"]


def _queues(engine: Engine, workers: int) -> list[tuple[str, str]]:
    beside = ", ".join(queues_beside(engine))
    if not beside:
        beside = "no queue" if queues_of(engine) else "no queue, since no flow has a stage"
    elif workers:
        beside += f" (in {_children(workers)})"
    queues = sorted(queues_apart(engine).items())
    children = [f"{queue} (in {_children(apart.workers)})" for queue, apart in queues]
    lines = [("queues", beside)] + ([("apart", ", ".join(children))] if children else [])
    elsewhere = " ".join(sorted(engine.kernel.queues_elsewhere))
    return lines + ([("by RQ", f"rq worker {elsewhere}")] if elsewhere else [])


def _children(number: int) -> str:
    return "1 child" if number == 1 else f"{number} children"


def _missing(found: Settings) -> list[str]:
    services = map(get_service, found.services)
    conditions = [service.condition(found) for service in services if service.condition]
    return [sentence for condition in conditions for sentence in condition.missing]


def _next_commands(engine: Engine, found: Settings, address: str) -> list[str]:
    """Return what a newcomer would like to type: a list, the answer to an open question, and
    another link."""
    command = partial(found.command, name=_program())
    lines = [command("jobs list")]
    for job in engine.jobs(JobFilter(role=HELD), limit=100):
        flow = engine.kernel.flows_by_version().get((job.flow, job.version))
        place = None if flow is None else flow.table.places.get(job.state)
        if place is not None and place.gate is not None:
            choice = next(iter(place.gate.choices))
            lines.append(command(f"jobs show {job.id}"))
            lines.append(command(f"jobs decide {job.id} {choice}"))
            break
    return [*lines, found.link_command(address, name=_program())]


def _program() -> str:
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return "python -m ulak"
    onpath = shutil.which(typed.name)
    is_found = onpath is not None and Path(onpath).resolve() == typed.resolve()
    return typed.name if is_found else str(typed)
