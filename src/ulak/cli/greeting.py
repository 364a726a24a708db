"""What `ulak up` says once it works: where everything is, and what to type next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import ulak
from ulak.auth.identity import Identity
from ulak.auth.links import LINK_LIFE_TEXT
from ulak.cli.children import queues_beside
from ulak.cli.link import make_login_link
from ulak.cli.worker import stored
from ulak.core.lifecycle import HELD
from ulak.engine.engine import Engine
from ulak.kit.commands.target import user_name
from ulak.service import get_service
from ulak.settings import Settings
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
        *(f"  missing   {sentence}" for sentence in _missing(found)),
        f"  store     {stored(engine)}",
        "",
    ]
    if engine.store.features.shared:
        commands = _next_commands(engine, found, address)
        lines += ["Next, in another terminal:", *(f"  {command}" for command in commands), ""]
    lines.append("Ctrl-C drains and stops.")
    return "\n".join(lines)


def _invitation(identity: Identity, found: Settings, address: str) -> Sequence[str]:
    """Return the line with the link that logs in the person who starts the program, once.

    In production only a terminal gets it: every other output is kept in a log.
    """
    if found.env != "dev" and not sys.stdout.isatty():
        return ()
    link = make_login_link(identity, user_name(), address)
    return [f"  log in    {link}  (once, within {LINK_LIFE_TEXT})"]


def _queues(engine: Engine, workers: int) -> list[tuple[str, str]]:
    """Say which queues are served, and where."""
    beside = ", ".join(queues_beside(engine))
    if not beside:
        beside = "no queue" if engine.kernel.queues_apart else "no queue, since no flow has a stage"
    elif workers:
        beside += f" (in {_children(workers)})"
    children = [
        f"{queue} (in {_children(apart.workers)})"
        for queue, apart in sorted(engine.kernel.queues_apart.items())
    ]
    return [("queues", beside)] + ([("apart", ", ".join(children))] if children else [])


def _children(number: int) -> str:
    return "1 child" if number == 1 else f"{number} children"


def _missing(found: Settings) -> list[str]:
    """Say what keeps a service from working on this machine."""
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
    """Name this program so that typing it again finds it."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return "python -m ulak"
    onpath = shutil.which(typed.name)
    if onpath is not None and Path(onpath).resolve() == typed.resolve():
        return typed.name
    return str(typed)
