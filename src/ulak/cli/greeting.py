"""What `ulak up` says once it works: where everything is, and what to type next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import ulak
from ulak.auth.identity import Identity
from ulak.auth.principal import ADMIN, Principal
from ulak.cli.children import queues_beside
from ulak.cli.person import user_name
from ulak.cli.worker import stored
from ulak.core.lifecycle import HELD
from ulak.engine.engine import Engine
from ulak.settings import Settings, variable
from ulak.store.protocol import JobFilter


def greeting(
    engine: Engine, identity: Identity, found: Settings, *, address: str, workers: int
) -> str:
    """Say where everything is and what to type next; asks the store, so not on a loop."""
    lines = [
        f"ulak {ulak.__version__} serves {found.program} at {address}",
        *_invitation(identity, found, address),
        f"  jobs      {address}/jobs",
        f"  docs      {address}/docs",
        f"  health    {address}/health/ready",
        f"  metrics   {address}/metrics",
        *(f"  {name:<9} {said}" for name, said in _queues(engine, workers)),
        f"  store     {stored(engine)}",
        "",
    ]
    if engine.store.features.shared:
        commands = _next_commands(engine, found)
        lines += ["Next, in another terminal:", *(f"  {command}" for command in commands), ""]
    lines.append("Ctrl-C drains and stops.")
    return "\n".join(lines)


def _invitation(identity: Identity, found: Settings, address: str) -> Sequence[str]:
    """Answer lines by which whoever starts the program gets in, once.

    In production only a terminal is told: what goes anywhere else is kept in a log.
    """
    if found.env != "dev" and not sys.stdout.isatty():
        return ()
    you = Principal(user_name(), tenant=None, roles=frozenset({ADMIN}))
    return [f"  log in    {address}/auth/link?code={identity.make_link(you)}  (once)"]


def _queues(engine: Engine, workers: int) -> list[tuple[str, str]]:
    """Say which queues are served, and where."""
    beside = ", ".join(queues_beside(engine))
    if not beside:
        beside = "no queue" if engine.queues_apart else "no queue, since no flow has a stage"
    elif workers:
        beside += f" (in {_children(workers)})"
    children = [
        f"{queue} (in {_children(apart.workers)})"
        for queue, apart in sorted(engine.queues_apart.items())
    ]
    return [("queues", beside)] + ([("apart", ", ".join(children))] if children else [])


def _children(number: int) -> str:
    return "1 child" if number == 1 else f"{number} children"


def _next_commands(engine: Engine, found: Settings) -> list[str]:
    """What a newcomer would like to type: a list, and the answer to a question that is asked."""
    command, app = _program(), ""
    if found.source("app") == "command line":
        app = f" -a {found.app}"
    if found.source("service") == "command line":
        command = f"{variable('service')}={found.service} {command}"
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
