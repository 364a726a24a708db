"""What `HOS_MODE` makes of an engine: who decides about changes, who is told, what is served."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ulak import Engine
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.outbox.deciding import Decider, RemoteContracts
from ulak.services.contracts.outbox.desk import emit
from ulak.services.contracts.outbox.figures import Limits
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings

if TYPE_CHECKING:
    from ulak.web import Routes


def attach(engine: Engine, settings: RemoteSettings) -> Decider:
    """Return who decides about changes; in mode `hybrid`, have workers tell the remote of each.

    Nothing is opened. To be called once for an engine.

    Raises:
        BadInput: a setting cannot be used.
        NotSupported: the store has no transactions to share, or an extra is not installed.
    """
    if settings.mode == "remote":
        return RemoteContracts(Remote(settings))
    if settings.mode == "embedded":
        return contracts_of(engine)
    remote = Remote(settings)
    contracts = contracts_of(
        engine, on_change=partial(emit, engine, key_prefix=settings.key_prefix)
    )
    declare(engine, remote)
    return contracts


def routes_of(engine: Engine, settings: RemoteSettings, decider: Decider) -> Routes:
    """Make the routes of contracts and, in mode `hybrid`, those of the outbox."""
    from ulak.services.contracts import routes
    from ulak.services.contracts.outbox import routes as outbox
    from ulak.web import Routes

    own = routes.routes_of(engine, decider)
    if settings.mode != "hybrid":
        return own
    more = outbox.routes_of(engine, Limits())
    return Routes([*own.routers, *more.routers], [*own.access, *more.access], more.metrics)
