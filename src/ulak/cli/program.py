"""Every command in one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

import ulak
from ulak.cli import bench, control, doctor, flows, identity, jobs, steering, store, up, worker
from ulak.cli.extensions import Extensible, WithServices

program = typer.Typer(
    name="ulak", cls=WithServices, no_args_is_help=True, pretty_exceptions_enable=False
)


def _version(asked: bool) -> None:
    if asked:
        print(f"ulak {ulak.__version__}")
        raise typer.Exit


@program.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which ulak.")
    ] = False,
) -> None:
    """Durable jobs for Python, each one a state machine that you declare.

    APP is module:engine. It may be left out where ULAK_APP or \\[tool.ulak] app in
    ./pyproject.toml names it, or where installed services are named instead.
    """


COMMANDS: Final[Mapping[str, Callable[..., Any] | typer.Typer]] = {
    "up": up.up,
    "worker": worker.worker,
    "jobs": jobs.group,
    "why": jobs.why,
    "flows": flows.flow_group,
    "verify": store.verify,
    "doctor": doctor.doctor,
    "bench": bench.bench,
    "migrate": store.migrate,
    "prune": store.prune,
    "outbox": store.outbox,
    "idempotency": store.idempotency,
    "schedules": flows.schedule_group,
    "limits": steering.limits,
    "rates": steering.rates,
    "pause": steering.pause,
    "resume": steering.resume,
    "pauses": steering.pauses,
    "weights": steering.weights,
    "audit": steering.audit,
    "control": control.group,
    "link": identity.link,
    "keys": identity.keys,
    "users": identity.users,
}
for name, command in COMMANDS.items():
    if isinstance(command, typer.Typer):
        program.add_typer(command, name=name, cls=Extensible)
    else:
        program.command(name)(command)
