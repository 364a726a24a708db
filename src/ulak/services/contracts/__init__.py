"""Contract transitions: subjects whose status moves by versioned tables, each change proved.

    ulak up --service contracts

`docs/contracts.md` tells the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak import Engine
from ulak.service import Service
from ulak.services.contracts.scopes import CONTRACT_READ, CONTRACT_TRANSITION
from ulak.settings import Settings

if TYPE_CHECKING:
    import typer

    from ulak.services.contracts.outbox.deciding import Decider
    from ulak.services.contracts.outbox.settings import RemoteSettings
    from ulak.web import Routes


def _attach(engine: Engine, settings: Settings) -> tuple[RemoteSettings, Decider]:
    """Refuse to start with settings or a store that would fail the first request."""
    from ulak.services.contracts.outbox import modes
    from ulak.services.contracts.outbox.settings import load

    remote = load()
    return remote, modes.attach(engine, remote)


def _routes(engine: Engine, attached: tuple[RemoteSettings, Decider]) -> Routes:
    from ulak.services.contracts.outbox import modes

    return modes.routes_of(engine, *attached)


def _commands() -> typer.Typer:
    from ulak.services.contracts.commands import contracts

    return contracts


service = Service(
    "contracts", attach=_attach, routes=_routes, scopes=(CONTRACT_READ, CONTRACT_TRANSITION),
    commands=_commands,
)  # fmt: skip
