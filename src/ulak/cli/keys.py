"""`ulak keys`: make, list, rotate and revoke API keys."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from ulak.auth.credentials import Credential
from ulak.auth.keys import IssuedKey, Keys
from ulak.auth.principal import ROLES, SCOPES
from ulak.auth.secrets import prefix_of
from ulak.cli.spans import read_span
from ulak.kit.commands.output import JsonOption, note, print_facts, print_json, print_table, when
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, reading
from ulak.service import scopes_in

group = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id, as `ulak keys list` has it.")
]
RolesOption = Annotated[
    list[str], typer.Option("--role", help=f"What it may do: {', '.join(ROLES)}; repeatable.")
]
ScopesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help=f"Only this of it: {', '.join(SCOPES)}, or a scope of a service; repeatable.",
    ),
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="The only tenant that is seen; else all of them.")
]


@group.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its acts are those of key:NAME.")],
    roles: RolesOption,
    actor: ActorOption,
    scopes: ScopesOption = None,
    tenant: TenantOption = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SPAN", help="How long it is good: 90d.")
    ] = None,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it, this once."""
    life = None if expires is None else read_span(expires, "--expires")
    with reading(app) as engine:
        made = Keys(engine.store, scopes=scopes_in(engine)).create_key(
            name, roles=roles, scopes=scopes or (), tenant=tenant, life=life, actor=actor, note=note
        )
    _print_issued(made, as_json, "")


@group.command("list")
def list_keys(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every key by its id; a key itself is never shown again."""
    with reading(app) as engine:
        found = Keys(engine.store).keys()
    if as_json:
        print_json({"keys": [_document(key) for key in found]})
    elif found:
        print_table(
            ("id", "name", "state", "may", "tenant", "expires", "used"),
            [
                (key.id, key.name, key.state, allowed(key), seen(key), *_times(key))
                for key in found
            ],
            keep=("id",),
        )  # fmt: skip
    else:
        note("no keys; make one: ulak keys create NAME --role service")


@group.command("rotate")
def rotate(
    id: IdArgument,
    actor: ActorOption,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="SPAN", help="How long the old one goes on.")
    ] = "1d",
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a successor of a key and print it; both are good until the overlap is over."""
    span = read_span(overlap, "--overlap")
    with reading(app) as engine:
        made = Keys(engine.store).rotate_key(id, overlap=span, actor=actor, note=note)
    _print_issued(made, as_json, _ends(span))


@group.command("revoke")
def revoke(
    id: IdArgument,
    actor: ActorOption,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """End a key, in every process within five seconds."""
    with reading(app) as engine:
        revoked = Keys(engine.store).revoke_key(id, actor=actor, note=note)
    if as_json:
        print_json(_document(revoked))
    else:
        print_facts([(revoked.id, f"{revoked.name}, revoked")])


def allowed(found: Credential) -> str:
    """Say in a few words what somebody may do."""
    narrowed = f" ({', '.join(found.scopes)})" if found.scopes else ""
    return ", ".join(found.roles) + narrowed


def seen(found: Credential) -> str:
    """Say which tenants somebody sees."""
    return "all" if found.tenant is None else repr(found.tenant)


def _print_issued(made: IssuedKey, as_json: bool, more: str) -> None:
    """Print a key alone on stdout, so that it can be piped to where it is kept."""
    if as_json:
        print_json({**_document(made.key), "key": made.text})
        return
    print(made.text)
    key = made.key
    until = "for ever" if key.expires_at is None else f"until {when(key.expires_at)}"
    note(f"key {key.id} of {key.name} is good {until}{more}; it is not shown again")


def _ends(overlap: timedelta) -> str:
    return f", the old one for {overlap} more" if overlap else ", the old one is over"


def _times(key: Credential) -> tuple[str, str]:
    return (
        "never" if key.expires_at is None else when(key.expires_at),
        "never" if key.used_at is None else when(key.used_at),
    )


def _document(key: Credential) -> dict[str, Any]:
    return {**asdict(key), "prefix": prefix_of(key.id)}
