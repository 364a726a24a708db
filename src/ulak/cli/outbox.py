"""`ulak outbox`: messages that gave up, and another chance for them."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from ulak.engine.view import delivery_document
from ulak.errors import BadInput, NotFound
from ulak.kit.commands.output import JsonOption, note, print_json, print_table, some, when
from ulak.kit.commands.person import ActorOption, NoteOption
from ulak.kit.commands.target import AppOption, reading

group = typer.Typer(no_args_is_help=True, help="Messages that could not be published.")

MOST_REVIVED = 10_000


@group.command("dead")
def dead(
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List messages that gave up, the oldest first."""
    with reading(app) as engine:
        found = engine.outbox.dead(limit=limit)
    if as_json:
        print_json({"messages": [delivery_document(message) for message in found]})
    elif found:
        print_table(
            ("message", "topic", "state", "tries", "emitted"),
            [(m.id, m.topic, m.state, str(m.tries), when(m.at)) for m in found],
            keep=("message", "emitted"),
        )
    else:
        note("no dead messages")


@group.command("revive")
def revive(
    actor: ActorOption,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="As `dead` names them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead message.")] = False,
    why: NoteOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let dead messages be tried again."""
    wanted = set(messages or ())
    if every == bool(wanted):
        raise typer.BadParameter("name the messages, or say --all", param_hint="MESSAGE")
    with reading(app) as engine:
        dead = {message.id for message in engine.outbox.dead(limit=MOST_REVIVED)}
        if unknown := wanted - dead:
            raise BadInput(f"no dead message is {', '.join(sorted(unknown))}; nothing was revived")
        revived = 0
        for message in sorted(dead if every else wanted):
            with suppress(NotFound):  # somebody else was faster
                engine.outbox.redrive(message, actor=actor, note=why)
                revived += 1
    if as_json:
        print_json({"revived": revived})
    else:
        print(f"revived {some(revived, 'message')}")
