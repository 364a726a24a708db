"""`ulak outbox`: messages that gave up, and another chance for them."""

from __future__ import annotations

from typing import Annotated

import typer

from ulak.cli.output import JsonOption, note, print_json, print_table, some, when
from ulak.cli.target import AppOption, reading
from ulak.clock import rfc3339, to_datetime
from ulak.core.job import Message
from ulak.errors import BadInput
from ulak.ids import to_text

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
        rows = engine.store.dead_messages(limit)
    if as_json:
        print_json(
            {
                "messages": [
                    {
                        "id": _name(row.message),
                        "topic": row.message.topic,
                        "key": row.message.key,
                        "tries": row.tries,
                        "at": rfc3339(to_datetime(row.message.at)),
                    }
                    for row in rows
                ]
            }
        )
    elif rows:
        print_table(
            ("message", "topic", "tries", "emitted"),
            [
                (_name(r.message), r.message.topic, str(r.tries), when(to_datetime(r.message.at)))
                for r in rows
            ],
            keep=("message", "emitted"),
        )  # fmt: skip
    else:
        note("no dead messages")


@group.command("revive")
def revive(
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="MESSAGE", help="As `dead` names them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead message.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let dead messages be tried again."""
    wanted = set(messages or ())
    if every == bool(wanted):
        raise typer.BadParameter("name the messages, or say --all", param_hint="MESSAGE")
    with reading(app) as engine:
        found = [row.message for row in engine.store.dead_messages(MOST_REVIVED)]
        unknown = wanted - {_name(message) for message in found}
        if unknown:
            raise BadInput(f"no dead message is {', '.join(sorted(unknown))}; nothing was revived")
        chosen = [message for message in found if every or _name(message) in wanted]
        revived = sum(engine.store.revive_message(message) for message in chosen)
    if as_json:
        print_json({"revived": revived})
    else:
        print(f"revived {some(revived, 'message')}")


def _name(message: Message) -> str:
    return f"{to_text(message.job_id)}/{message.seq}/{message.n}"
