"""Contract transitions: subjects whose status moves by versioned tables, each change proved.

    ulak up --service contracts

`docs/contracts.md` tells the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak import Engine
from ulak.service import Service
from ulak.settings import Settings

if TYPE_CHECKING:
    import typer

    from ulak.web import Routes


def _attach(engine: Engine, settings: Settings) -> None:
    """Refuse to start with settings or a store that would fail the first request."""
    from ulak.services.contracts.outbox import modes
    from ulak.services.contracts.outbox.settings import load

    modes.attach(engine, load())


def _routes(engine: Engine) -> Routes:
    from ulak.services.contracts.outbox import modes
    from ulak.services.contracts.outbox.settings import load

    return modes.routes_of(engine, load())


def _commands() -> typer.Typer:
    from ulak.services.contracts.commands import contracts

    return contracts


service = Service("contracts", attach=_attach, routes=_routes, commands=_commands)
