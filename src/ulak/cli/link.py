"""`ulak link`: print a link that logs a person in, once."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from ulak.auth.grants import must_be_a_name
from ulak.auth.links import LINK_LIFE_TEXT, Links
from ulak.auth.principal import ADMIN, ROLES, Principal
from ulak.errors import BadInput, NotSupported
from ulak.kit.commands.output import JsonOption, note, print_json
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, in_force, load, user_name
from ulak.settings import Settings, variable


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
    base = _address_in(found) if address is None else read_address(address)
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
        url = make_login_link(
            Links(engine.store), person, base, roles=chosen, actor=actor, note=why
        )  # fmt: skip
    if as_json:
        print_json({"link": url, "name": person, "roles": chosen})
        return
    print(url)
    note(f"it logs {person} in as {', '.join(chosen)}, once, within {LINK_LIFE_TEXT}")


def make_login_link(
    links: Links,
    person: str,
    address: str,
    *,
    roles: list[str] | None = None,
    actor: str = "",
    note: str = "",
) -> str:
    """Return a URL that logs a person in, once: as an admin, unless roles are named."""
    principal = Principal(person, tenant=None, roles=frozenset(roles or [ADMIN]))
    return f"{address}/auth/link?code={links.make_link(principal, actor=actor, note=note)}"


def read_address(text: str) -> str:
    """Return where an API is, without a slash at the end.

    Raises:
        BadParameter: it is no address that a browser could open.
    """
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


def _address_in(found: Settings) -> str:
    if found.port == 0:
        raise BadInput(
            f"{variable('port')} is 0, so the API listens on any port; write where it is: "
            "--address http://127.0.0.1:PORT"
        )
    return found.address
