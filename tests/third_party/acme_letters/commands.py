"""`ulak letters`."""

import typer

from acme_letters import Office, load
from ulak.kit.clock import to_datetime
from ulak.kit.commands import AppOption, JsonOption, print_json, print_table, reading, when

group = typer.Typer(help="Letters.")
LIST = "SELECT letter, addressee, posted_at FROM {schema}.acme_letters ORDER BY letter"


@group.command("list")
def list_letters(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List letters, the oldest first."""
    with reading(app) as engine:
        found = Office(engine, load()).tables.read(LIST)
    rows = [(letter, to, when(None if at is None else to_datetime(at))) for letter, to, at in found]
    if as_json:
        print_json([{"letter": letter, "to": to, "posted": at} for letter, to, at in rows])
    else:
        print_table(("letter", "to", "posted"), rows, keep=("letter",))


@group.command("hire")
def hire(name: str, app: AppOption = None) -> None:
    """Make a clerk, and print the token."""
    with reading(app) as engine:
        typer.echo(Office(engine, load()).hire(name))
