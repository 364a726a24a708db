"""`ulak users`: make, list and disable people, and set their passwords."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ulak.auth.credentials import Credential
from ulak.auth.people import People
from ulak.cli.keys import RolesOption, ScopesOption, TenantOption, allowed, seen
from ulak.kit.commands.output import JsonOption, note, print_facts, print_json, print_table, when
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, reading
from ulak.service import scopes_in

group = typer.Typer(no_args_is_help=True, help="Make, list and disable people.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who.")]


@group.command("create")
def create(
    name: NameArgument,
    roles: RolesOption,
    actor: ActorOption,
    scopes: ScopesOption = None,
    tenant: TenantOption = None,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a user; the password is asked for, or read from stdin."""
    with reading(app) as engine:
        made = People(engine.store, scopes=scopes_in(engine)).create_user(
            name, _password(), roles=roles, scopes=scopes or (), tenant=tenant, actor=actor,
            note=note,
        )  # fmt: skip
    _print(made, as_json, f"{allowed(made)}; sees {_tenants(made)}")


@group.command("list")
def list_users(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every user, disabled ones too."""
    with reading(app) as engine:
        found = People(engine.store).users()
    if as_json:
        print_json({"users": [_document(user) for user in found]})
    elif found:
        rows = [
            (
                user.name, _state(user), allowed(user), seen(user), when(user.created_at),
                "never" if user.used_at is None else when(user.used_at),
            )
            for user in found
        ]  # fmt: skip
        print_table(("name", "state", "may", "tenant", "since", "login"), rows, keep=("name",))
    else:
        note("no users; make one: ulak users create NAME --role operator")


@group.command("password")
def password(
    name: NameArgument,
    actor: ActorOption,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give a user another password, asked for or read from stdin; their logins end."""
    with reading(app) as engine:
        changed = People(engine.store).set_password(name, _password(), actor=actor, note=note)
    _print(changed, as_json, "has another password")


@group.command("disable")
def disable(
    name: NameArgument,
    actor: ActorOption,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a user in no more; their logins end within five seconds."""
    with reading(app) as engine:
        disabled = People(engine.store).disable_user(name, actor=actor, note=note)
    _print(disabled, as_json, "disabled")


def _password() -> str:
    """Ask for a password, twice; a program writes it on stdin. Never an argument: others see it."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def _print(user: Credential, as_json: bool, what: str) -> None:
    if as_json:
        print_json(_document(user))
    else:
        print_facts([(user.name, what)])


def _state(user: Credential) -> str:
    return "disabled" if user.state == "revoked" else user.state


def _tenants(user: Credential) -> str:
    return "every tenant" if user.tenant is None else f"tenant {user.tenant!r}"


def _document(user: Credential) -> dict[str, Any]:
    document = asdict(user)
    del document["id"]  # the name, which is there
    return document
