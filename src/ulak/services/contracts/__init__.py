"""Contract transitions: subjects whose status moves by versioned tables, each change proved.

    ulak up --service contracts

`docs/contracts.md` tells the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ulak import Engine
from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope
from ulak.service import Service
from ulak.settings import Settings

if TYPE_CHECKING:
    import typer

    from ulak.services.contracts.outbox.modes import Decider
    from ulak.services.contracts.outbox.settings import RemoteSettings
    from ulak.web import Routes

CONTRACT_READ: Final = AccessScope(
    "contract:read", "read contract versions, subjects and proofs",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
CONTRACT_TRANSITION: Final = AccessScope(
    "contract:transition", "move contract subjects and record proofs", roles={SERVICE, OPERATOR}
)
KEY_HEADERS: Final = ("X-HOS-API-KEY",)


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
