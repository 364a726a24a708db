"""`ulak up`: the API and workers, one command at one address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ulak import wiring
from ulak.auth.identity import Identity
from ulak.cli import logs
from ulak.cli.children import children_of, queues_beside
from ulak.cli.draining import Part, leave_behind, open_when_reached, run_until_told, say
from ulak.cli.greeting import greeting
from ulak.cli.parent import GLANCE_S
from ulak.cli.supervisor import Supervisor
from ulak.cli.worker import DRAIN, LEASE, USUAL, DrainOption, LeaseOption, worker_settings
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.worker import Worker, settle_in
from ulak.errors import NotSupported, UlakError
from ulak.idempotency import cleanup
from ulak.kit.commands.output import complain, note
from ulak.kit.commands.target import AppArgument, ServiceOption, in_force, load
from ulak.service import get_service
from ulak.settings import COMMAND_LINE, HIGHEST_PORT, Settings

if TYPE_CHECKING:
    from ulak.web.server import Server


def up(
    app: AppArgument = None,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address; else ULAK_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=HIGHEST_PORT, help="Listen on this port, 0 for any; else ULAK_PORT or 8000."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Work in so many children; 0 works in this process.")
    ] = 0,
    lease: LeaseOption = LEASE,
    drain: DrainOption = DRAIN,
    service: ServiceOption = None,
) -> None:
    """Start the API and workers; SIGTERM or Ctrl-C drains, a second one hurries.

    Queues that the program wants apart are served by children in any case.
    """
    found = in_force(app, service).override(COMMAND_LINE, host=host, port=port)
    found = wiring.with_secret(found)  # so that no line of the log can show it
    engine = load(found)
    cleanup.attach(engine, wiring.idempotency_settings())
    beside = queues_beside(engine)
    settings = worker_settings(
        engine,
        USUAL,
        queues=beside if engine.kernel.queues_apart else None,
        lease=lease,
        drain=drain,
    )
    children = children_of(
        engine, found, workers=workers, lease=settings.lease, options=("--drain", drain)
    )
    logs.start(found.env, logs.secrets_of(found, engine))
    wiring.trace(engine)
    settle_in()
    open_when_reached(engine)
    with engine:
        working = Working(
            # Without children for the rest we work ourselves: somebody must keep the dates.
            worker=None if workers and beside else engine.worker(settings),
            supervisor=Supervisor(children, drain=settings.drain) if children else None,
            settings=settings,
        )
        identity = wiring.identity_of(engine, found)
        identity.adopt_first_key()
        server = _server(engine, identity, working, found)
        hello = partial(greeting, engine, identity, found, address=server.address, workers=workers)
        try:
            asyncio.run(_serve(working, server, hello))
        finally:
            server.stop()
    say("drained")


@dataclass(frozen=True, slots=True)
class Working:
    """What works beside the API: a worker in this process, children, or both."""

    worker: Worker | None
    supervisor: Supervisor | None
    settings: WorkerSettings

    def parts(self) -> dict[str, Part]:
        """Return what is run, by what each counts."""
        parts: dict[str, Part] = {}
        if self.worker is not None:
            parts["stage"] = self.worker
        if self.supervisor is not None:
            parts["worker"] = self.supervisor
        return parts

    def unready(self) -> str | None:
        """Say what is lacking before everything is served; None when nothing is."""
        if self.worker is not None and not self.worker.is_registered:
            return "the worker is not registered"
        return None if self.supervisor is None else self.supervisor.unready()

    def is_begun(self) -> bool:
        """Tell whether this process does its own share."""
        return self.worker is None or self.worker.is_registered


def _server(engine: Engine, identity: Identity, working: Working, found: Settings) -> Server:
    try:
        from ulak.web import app as application
        from ulak.web.server import Server
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"ulak up needs the web extra ({error.name} is missing); pip install 'ulak[web]', "
            "or run ulak worker"
        ) from error
    services = [get_service(name) for name in found.services]
    guard = wiring.guard_of(engine, found.env, wiring.idempotency_settings())
    made = application(
        engine, identity=identity, unready=working.unready, services=services, guard=guard,
        platform=found,
    )  # fmt: skip
    return Server(made, host=found.host, port=found.port)


async def _serve(working: Working, server: Server, hello: Callable[[], str]) -> None:
    parts = working.parts()
    running = asyncio.create_task(run_until_told(parts, drain=working.settings.drain))
    # Without its API the process is only half of what was asked for; when one part ends, all do.
    server.start(on_failure=next(iter(parts.values())).stop)
    greeted = asyncio.create_task(_greet(working, server, hello))
    try:
        await running
    finally:
        greeted.cancel()
        with suppress(asyncio.CancelledError):
            await greeted
    server.stop()
    unclean = None if working.supervisor is None else working.supervisor.unclean()
    if unclean is not None:
        complain(unclean)
    if working.worker is not None:
        leave_behind(working.worker)
    if server.has_failed:
        raise UlakError("the API has ended by itself; the log says why")
    if unclean is not None:
        raise typer.Exit(1)


async def _greet(working: Working, server: Server, hello: Callable[[], str]) -> None:
    """Once this process works, say so. Children may still be starting: /health/ready tells."""
    while not working.is_begun():
        await asyncio.sleep(GLANCE_S)
    if not server.is_local:
        note(
            "other machines can reach this address, and what they send is not encrypted; put a "
            "server that speaks TLS before it"
        )
    say(await asyncio.to_thread(hello))
