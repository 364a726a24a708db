"""`ulak keys`, `ulak users` and `ulak link`: who may do what."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ulak.auth.credentials import Credential, must_be_a_name
from ulak.auth.directory import LINK_LIFE_TEXT, Directory, IssuedKey
from ulak.auth.principal import ADMIN, ROLES, SCOPES, Principal
from ulak.auth.secrets import PREFIX
from ulak.cli.spans import read_span
from ulak.errors import BadInput, NotSupported
from ulak.kit.commands.output import JsonOption, note, print_fact, print_json, print_list, when
from ulak.kit.commands.target import (
    ActorOption,
    AppOption,
    NoteOption,
    in_force,
    load,
    reading,
    user_name,
)
from ulak.service import scopes_in
from ulak.settings import variable

keys = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")

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


@keys.command("create")
def create_key(
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
        made = Directory(engine.store, scopes=scopes_in(engine)).create_key(
            name, roles=roles, scopes=scopes or (), tenant=tenant, life=life, actor=actor, note=note
        )
    _print_issued(made, as_json, "")


@keys.command("list")
def list_keys(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every key by its id; a key itself is never shown again."""
    with reading(app) as engine:
        found = Directory(engine.store).keys()
    print_list(
        {"keys": [_key_document(key) for key in found]},
        as_json,
        ("id", "name", "state", "may", "tenant", "expires", "used"),
        [(k.id, k.name, k.state, _rights(k), _tenant(k), *_times(k)) for k in found],
        keep=("id",),
        empty="no keys; make one: ulak keys create NAME --role service",
    )


@keys.command("rotate")
def rotate_key(
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
        made = Directory(engine.store).rotate_key(id, overlap=span, actor=actor, note=note)
    _print_issued(made, as_json, f", the old one {f'for {span} more' if span else 'is over'}")


@keys.command("revoke")
def revoke_key(
    id: IdArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """End a key, in every process within five seconds."""
    with reading(app) as engine:
        revoked = Directory(engine.store).revoke_key(id, actor=actor, note=note)
    print_fact(_key_document(revoked), as_json, revoked.id, f"{revoked.name}, revoked")


def _rights(found: Credential) -> str:
    narrowed = f" ({', '.join(found.scopes)})" if found.scopes else ""
    return ", ".join(found.roles) + narrowed


def _tenant(found: Credential) -> str:
    return "all" if found.tenant is None else repr(found.tenant)


def _print_issued(made: IssuedKey, as_json: bool, more: str) -> None:
    """Print a key alone on stdout, so that it can be piped to where it is kept."""
    if as_json:
        print_json({**_key_document(made.key), "key": made.text})
        return
    print(made.text)
    key = made.key
    until = "for ever" if key.expires_at is None else f"until {when(key.expires_at)}"
    note(f"key {key.id} of {key.name} is good {until}{more}; it is not shown again")


def _times(key: Credential) -> tuple[str, str]:
    expires, used = (t if t is None else when(t) for t in (key.expires_at, key.used_at))
    return expires or "never", used or "never"


def _key_document(key: Credential) -> dict[str, Any]:
    return {**asdict(key), "prefix": f"{PREFIX}{key.id}"}


users = typer.Typer(no_args_is_help=True, help="Make, list and disable people.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who.")]


@users.command("create")
def create_user(
    name: NameArgument, roles: RolesOption, actor: ActorOption, scopes: ScopesOption = None,
    tenant: TenantOption = None, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make a user; the password is asked for, or read from stdin."""
    with reading(app) as engine:
        made = Directory(engine.store, scopes=scopes_in(engine)).create_user(
            name, _password(), roles=roles, scopes=scopes or (), tenant=tenant, actor=actor,
            note=note,
        )  # fmt: skip
    seen = "every tenant" if made.tenant is None else f"tenant {made.tenant!r}"
    what = f"{_rights(made)}; sees {seen}"
    print_fact(_user_document(made), as_json, made.name, what)


@users.command("list")
def list_users(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every user, disabled ones too."""
    with reading(app) as engine:
        found = Directory(engine.store).users()
    rows = []
    for user in found:
        state = "disabled" if user.state == "revoked" else user.state
        since, login = when(user.created_at), _times(user)[1]
        rows.append((user.name, state, _rights(user), _tenant(user), since, login))
    print_list(
        {"users": [_user_document(user) for user in found]},
        as_json,
        ("name", "state", "may", "tenant", "since", "login"),
        rows,
        keep=("name",),
        empty="no users; make one: ulak users create NAME --role operator",
    )


@users.command("password")
def password(
    name: NameArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Give a user another password, asked for or read from stdin; their logins end."""
    with reading(app) as engine:
        changed = Directory(engine.store).set_password(name, _password(), actor=actor, note=note)
    print_fact(_user_document(changed), as_json, changed.name, "has another password")


@users.command("disable")
def disable(
    name: NameArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let a user in no more; their logins end within five seconds."""
    with reading(app) as engine:
        disabled = Directory(engine.store).disable_user(name, actor=actor, note=note)
    print_fact(_user_document(disabled), as_json, disabled.name, "disabled")


def _password() -> str:
    """Ask for a password, twice; a program writes it on stdin. Never an argument: others see it."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def _user_document(user: Credential) -> dict[str, Any]:
    document = asdict(user)
    del document["id"]  # the name, which is there
    return document


def link(
    actor: ActorOption,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the person it logs in; else yours.")
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help=f"What they may do: {', '.join(ROLES)}; repeatable; else all."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="URL", help="Where the API is; else ULAK_HOST and ULAK_PORT."
        ),
    ] = None,
    app: AppOption = None,
    why: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print a link that logs a person in with a browser: an admin, unless you name roles."""
    found = in_force(app)
    if address is None and found.port == 0:
        raise BadInput(
            f"{variable('port')} is 0, so the API listens on any port; write where it is: "
            "--address http://127.0.0.1:PORT"
        )
    base = found.address if address is None else read_address(address)
    if name is not None:
        must_be_a_name(name)
    person = name or user_name()
    chosen = roles or [ADMIN]
    engine = load(found)
    features = engine.store.features
    if not features.shared:
        raise NotSupported(
            f"ulak link cannot make a link in the {features.name} store, which no other process "
            "sees; `ulak up` prints one when it starts"
        )
    with engine:
        directory = Directory(engine.store)
        url = make_login_link(directory, person, base, roles=chosen, actor=actor, note=why)
    if as_json:
        print_json({"link": url, "name": person, "roles": chosen})
        return
    print(url)
    note(f"it logs {person} in as {', '.join(chosen)}, once, within {LINK_LIFE_TEXT}")


def make_login_link(
    directory: Directory, person: str, address: str, *, roles: list[str] | None = None,
    actor: str = "", note: str = "",
) -> str:  # fmt: skip
    """Return a URL that logs a person in, once: as an admin, unless roles are named."""
    principal = Principal(person, tenant=None, roles=frozenset(roles or [ADMIN]))
    return f"{address}/auth/link?code={directory.make_link(principal, actor=actor, note=note)}"


def read_address(text: str) -> str:
    """Return where an API is, without a slash at the end. Raises `BadParameter`: it is no address
    that a browser could open."""
    try:
        parts = urlsplit(text)
        is_good = (
            parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            and not (parts.query or parts.fragment or parts.username or parts.password)
        )  # fmt: skip
    except ValueError:
        is_good = False
    if not is_good or not text.isprintable() or " " in text:
        raise typer.BadParameter(
            "write it as http://127.0.0.1:8000 or https://jobs.example.org", param_hint="--address"
        )
    return text.rstrip("/")
