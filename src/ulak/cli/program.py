"""Every command in one program."""

from __future__ import annotations

from typing import Annotated

import typer

import ulak
from ulak.cli import (
    bench,
    doctor,
    flows,
    idempotency,
    jobs,
    keys,
    link,
    outbox,
    schedules,
    steering,
    store,
    up,
    users,
    verify,
    why,
    worker,
)
from ulak.cli.commands import Extensible
from ulak.cli.services import WithServices

program = typer.Typer(
    name="ulak",
    cls=WithServices,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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


program.command("up")(up.up)
program.command("worker")(worker.worker)
program.add_typer(jobs.group, name="jobs", cls=Extensible)
program.command("why")(why.why)
program.add_typer(flows.group, name="flows", cls=Extensible)
program.command("verify")(verify.verify)
program.command("doctor")(doctor.doctor)
program.command("bench")(bench.bench)
program.command("migrate")(store.migrate)
program.command("prune")(store.prune)
program.add_typer(outbox.group, name="outbox", cls=Extensible)
program.add_typer(idempotency.group, name="idempotency", cls=Extensible)
program.add_typer(schedules.group, name="schedules", cls=Extensible)
program.add_typer(steering.limits, name="limits", cls=Extensible)
program.add_typer(steering.rates, name="rates", cls=Extensible)
program.command("pause")(steering.pause)
program.command("resume")(steering.resume)
program.command("pauses")(steering.pauses)
program.add_typer(steering.weights, name="weights", cls=Extensible)
program.command("audit")(steering.audit)
program.command("link")(link.link)
program.add_typer(keys.group, name="keys", cls=Extensible)
program.add_typer(users.group, name="users", cls=Extensible)
