"""`ulak up`: the API and one worker in one process, at one address."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ulak
from ulak.cli import logs
from ulak.cli.draining import leave_behind, run_until_told, say
from ulak.cli.output import note
from ulak.cli.target import AppArgument, in_force, load
from ulak.cli.worker import (
    DRAIN,
    LEASE,
    USUAL,
    DrainOption,
    LeaseOption,
    served,
    stored,
    worker_settings,
)
from ulak.core.lifecycle import HELD
from ulak.engine.engine import Engine
from ulak.engine.process import settle_in
from ulak.engine.worker import Worker
from ulak.errors import NotSupported, UlakError
from ulak.settings import HIGHEST_PORT, Settings
from ulak.store.protocol import JobFilter

if TYPE_CHECKING:
    from ulak.web.server import Server

# A guess: short beside the time a process takes to start, long beside a turn of the loop.
GLANCE_S = 0.02


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
    lease: LeaseOption = LEASE,
    drain: DrainOption = DRAIN,
) -> None:
    """Start the API and one worker; SIGTERM or Ctrl-C drains, a second one hurries."""
    found = in_force(app).override("command line", host=host, port=port)
    engine = load(found)
    settings = worker_settings(
        engine, USUAL, queues=None, lease=lease, drain=drain
    )  # fmt: skip
    logs.start(found.env, logs.secrets_of(found, engine))
    settle_in()
    with engine:
        worker: Worker = engine.worker(settings)
        server = _server(engine, worker, found)
        try:
            asyncio.run(_serve(engine, worker, server, found))
        finally:
            server.stop()
    say("drained")


def _server(engine: Engine, worker: Worker, found: Settings) -> Server:
    try:
        from ulak.web import app as application
        from ulak.web.server import Server
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"ulak up needs the web extra ({error.name} is missing); pip install 'ulak[web]', "
            "or run ulak worker"
        ) from error

    def unready() -> str | None:
        return None if worker.is_registered else "the worker is not registered"

    return Server(application(engine, unready=unready), host=found.host, port=found.port)


async def _serve(engine: Engine, worker: Worker, server: Server, found: Settings) -> None:
    working = asyncio.create_task(run_until_told(worker))
    # Without its API the process is only half of what was asked for.
    server.start(on_failure=worker.stop)
    greeting = asyncio.create_task(_greet(engine, worker, server, found))
    try:
        await working
    finally:
        greeting.cancel()
        with suppress(asyncio.CancelledError):
            await greeting
    server.stop()
    leave_behind(worker)
    if server.has_failed:
        raise UlakError("the API has ended by itself; the log says why")


async def _greet(engine: Engine, worker: Worker, server: Server, found: Settings) -> None:
    """Once the worker is registered, say where everything is and what to type next."""
    while not worker.is_registered:
        await asyncio.sleep(GLANCE_S)
    if not server.is_local:
        note("the API asks nobody who they are, and other machines can reach this address")
    lines = [
        f"ulak {ulak.__version__} serves {found.app} at {server.address}",
        f"  jobs      {server.address}/jobs",
        f"  health    {server.address}/health/ready",
        f"  queues    {served(engine, worker.settings)}",
        f"  store     {stored(engine)}",
        "",
    ]
    if engine.store.features.shared:
        commands = await asyncio.to_thread(_next_commands, engine, found)
        lines += ["Next, in another terminal:", *(f"  {command}" for command in commands), ""]
    lines.append("Ctrl-C drains and stops.")
    say("\n".join(lines))


def _next_commands(engine: Engine, found: Settings) -> list[str]:
    """What a newcomer would like to type: a list, and the answer to a question that is asked."""
    typed = found.source("app") == "command line"
    command, app = _program(), f" -a {found.app}" if typed else ""
    lines = [f"{command} jobs list{app}"]
    for job in engine.jobs(JobFilter(role=HELD), limit=100):
        flow = engine.flows_by_version().get((job.flow, job.version))
        place = None if flow is None else flow.table.places.get(job.state)
        if place is not None and place.gate is not None:
            choice = next(iter(place.gate.choices))
            lines.append(f"{command} jobs show {job.id}{app}")
            lines.append(f"{command} jobs decide {job.id} {choice}{app}")
            break
    return lines


def _program() -> str:
    """Name this program so that typing it again finds it."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return "python -m ulak"
    onpath = shutil.which(typed.name)
    if onpath is not None and Path(onpath).resolve() == typed.resolve():
        return typed.name
    return str(typed)
